//! Seats as users meet them: through the whole chain, over real handlers.

use navigator::apiserver::{filters::InflightLimits, request_info::RequestInfo};

use super::whole::{BETA, Whole};

fn everything(_: &str, _: &RequestInfo) -> bool {
    true
}

/// Pods of one cluster share a ServiceAccount, and each of them watches all the time.
#[tokio::test]
async fn open_watches_keep_no_seats() {
    let limits = InflightLimits { reading: 8, mutating: 8 };
    let whole = Whole::start(everything, limits).await;
    let path = format!("{BETA}/namespaces/db/pilots");
    let watch = format!("{path}?watch=1&resourceVersion=0");
    let mut open = Vec::new();
    for number in 0..50 {
        let response = whole.send("pods", "GET", &watch, String::new()).await;
        assert_eq!(response.status(), 200, "watch {number}");
        open.push(response);
    }
    let list = whole.send("pods", "GET", &path, String::new()).await;
    assert_eq!(list.status(), 200, "beside {} watches", open.len());
}
