//! Bootstraps in small; `make test-databases-full` does five hundred.

use crate::support::{bootstraps, seed::seed};

#[tokio::test]
async fn twenty_bootstraps_with_kills_in_between_found_one_cluster_each() {
    let figures = bootstraps::rounds(20, seed() % (1 << 32)).await;
    #[allow(clippy::print_stdout, reason = "shown with --nocapture")]
    {
        println!("{figures}");
    }
}
