//! What needs numbers more than it needs a real database: bootstraps by the hundred.

use crate::{report::Told, support::bootstraps};

const ROUNDS: u64 = 500;

/// Around scripted databases; the seed is said, so that a failure can be looked for again.
pub(crate) async fn five_hundred_bootstraps(told: &Told) {
    let seed = rand::random::<u32>().into();
    told.note(&format!("seeds from {seed}"));
    let figures = bootstraps::rounds(ROUNDS, seed).await;
    told.claim(format!("exactly one cluster, one founder, three members each time: {figures}"));
}
