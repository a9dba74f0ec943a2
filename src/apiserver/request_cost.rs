//! What large requests cost: which of their parts take memory from the budget of requests, and how
//! long work stays off the threads that serve all requests.

use axum::body::Body;
use bytes::{Bytes, BytesMut};
use http::Response;
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use hyper::body::Body as _;
use tokio::{
    runtime::{Handle, RuntimeFlavor},
    time::{Duration, Instant, timeout_at},
};

use super::{
    account::{self, MemoryShare, MemoryUse},
    response_body::attach_guard,
    status::{ApiError, Result},
};
use crate::machinery::decode::{MAX_BODY, weight};

/// Most bytes of a small body or object. For work on a larger one the thread hands its other tasks
/// on.
pub const SMALL: usize = 64 * 1024;

/// Trees of JSON values that are in memory at one time while one request is handled.
const TREES: usize = 3;

/// Most time for a body to arrive, without its wait for memory: a large body keeps other large ones
/// out.
const ARRIVAL: Duration = Duration::from_secs(20);

/// A body that arrived, and its share of the memory budget.
pub struct RequestBody {
    pub bytes: Bytes,
    _share: MemoryShare,
}

/// Reads a request's body. Fails when it is too long or too slow, or when too many large bodies
/// arrive.
pub async fn read_body(body: Body) -> Result<RequestBody> {
    let announced_length = body.size_hint().exact();
    if announced_length.is_some_and(|length| length > MAX_BODY as u64) {
        return Err(too_long());
    }
    let max_length =
        announced_length.and_then(|length| usize::try_from(length).ok()).unwrap_or(MAX_BODY);
    let mut body = Limited::new(body, MAX_BODY);
    let mut bytes = BytesMut::new();
    let mut share = MemoryShare::NONE;
    let mut deadline = Instant::now() + ARRIVAL;
    loop {
        let frame = timeout_at(deadline, body.frame()).await.map_err(|_| too_slow())?;
        let Some(frame) = frame else { break };
        let frame = frame.map_err(|error| read_error(error.as_ref()))?;
        let Ok(data) = frame.into_data() else { continue };
        if share.is_none() && bytes.len() + data.len() > SMALL {
            // All of it at once: bodies that each hold a part of their share would wait for each
            // other.
            let wait_start = Instant::now();
            share = account::acquire_memory(MemoryUse::Arriving, max_length).await?;
            deadline += wait_start.elapsed();
            bytes.reserve(max_length - bytes.len());
        }
        bytes.extend_from_slice(&data);
    }
    share.shrink(bytes.len());
    Ok(RequestBody { bytes: bytes.freeze(), _share: share })
}

fn read_error(error: &(dyn std::error::Error + 'static)) -> ApiError {
    if error.is::<LengthLimitError>() {
        return too_long();
    }
    ApiError::bad_request(format!("failed to read the body: {error}"))
}

fn too_slow() -> ApiError {
    ApiError::bad_request(format!("the body did not arrive within {} s", ARRIVAL.as_secs()))
}

fn too_long() -> ApiError {
    ApiError::too_large(format!("Request entity too large: limit is {MAX_BODY}"))
}

/// Takes a share of the memory budget for what is made of a request's body.
pub async fn reserve_body(yaml: bool, bytes: &Bytes) -> Result<MemoryShare> {
    let weight = if yaml { weight::estimate_yaml(bytes) } else { weight::estimate_json(bytes) };
    if bytes.len() > SMALL {
        return account::acquire_memory(MemoryUse::Trees, TREES * weight).await;
    }
    account::acquire_body_memory(TREES * weight).await
}

/// Takes a share of the memory budget to read a body of YAML once more, for the audit trail.
pub async fn reserve_record(yaml: &[u8]) -> Result<MemoryShare> {
    account::acquire_memory(MemoryUse::Records, weight::estimate_yaml(yaml)).await
}

/// Takes a share of the memory budget for what is made of the bytes `stored`, which are dropped
/// before the wait.
pub async fn reserve_object(stored: Bytes) -> Result<MemoryShare> {
    let weight = weight::estimate_json(&stored);
    drop(stored);
    account::acquire_memory(MemoryUse::Objects, TREES * weight).await
}

/// Takes a share of the memory budget for a response that takes `bytes` to make; none for a small
/// one.
pub async fn reserve_response(bytes: usize) -> Result<MemoryShare> {
    if bytes <= SMALL {
        Ok(MemoryShare::NONE)
    } else {
        account::acquire_memory(MemoryUse::Responses, bytes).await
    }
}

/// Returns the response `http_response`, whose body holds its part of `share` until it was sent.
pub async fn guard_response(
    http_response: Response<Body>,
    mut share: MemoryShare,
) -> Result<Response<Body>> {
    let bytes = body_size(&http_response);
    if bytes > SMALL && share.is_none() {
        share = reserve_response(bytes).await?;
    }
    Ok(attach_share(http_response, share, bytes))
}

/// Returns the response to a write. The write has happened, so the client receives the response
/// even if the memory budget is used up.
pub async fn guard_write_response(
    http_response: Response<Body>,
    mut share: MemoryShare,
) -> Response<Body> {
    let bytes = body_size(&http_response);
    if bytes > SMALL && share.is_none() {
        share = reserve_response(bytes).await.unwrap_or_default();
    }
    attach_share(http_response, share, bytes)
}

fn body_size(response: &Response<Body>) -> usize {
    let bytes = response.body().size_hint().exact().unwrap_or(0);
    usize::try_from(bytes).unwrap_or(usize::MAX)
}

fn attach_share(response: Response<Body>, mut share: MemoryShare, bytes: usize) -> Response<Body> {
    if bytes <= SMALL {
        return response;
    }
    share.shrink(bytes);
    attach_guard(response, share)
}

/// Runs `work`, whose time grows with `bytes`. When `bytes` are many, this thread first hands its
/// other tasks to another thread.
pub fn run_blocking<T>(bytes: usize, work: impl FnOnce() -> T) -> T {
    let is_multi_thread = Handle::try_current()
        .is_ok_and(|handle| handle.runtime_flavor() == RuntimeFlavor::MultiThread);
    if is_multi_thread && bytes > SMALL { tokio::task::block_in_place(work) } else { work() }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use futures::{StreamExt as _, stream};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_large_body_that_trickles_is_cut_and_its_room_is_free_again() {
        let chunk = || Ok::<_, Infallible>(Bytes::from(vec![b' '; SMALL]));
        let slow = stream::iter(0..).then(move |_| async move {
            tokio::time::sleep(Duration::from_secs(1)).await;
            chunk()
        });
        let error = read_body(Body::from_stream(slow)).await.err().unwrap();
        assert_eq!(error.status_code(), 400);
        assert!(error.to_string().contains("within 20 s"), "{error}");

        let endless = stream::repeat_with(chunk);
        let error = read_body(Body::from_stream(endless)).await.err().unwrap();
        assert_eq!(error.status_code(), 413);
        assert!(account::is_free(MemoryUse::Arriving));
    }
}
