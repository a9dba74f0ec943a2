//! What large requests may cost at one time.
//!
//! Owns the memory that bodies, their trees and large responses share, and keeps long work off
//! the threads that serve everybody. One process has one memory, so the rooms are the process's.
//! A request takes from a room once, and from [`BODIES`] before [`OBJECTS`]: nobody waits in a
//! circle. Requests below [`SMALL`] have a room of their own and never wait for large ones.

use axum::body::Body;
use bytes::{Bytes, BytesMut};
use http::Response;
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use hyper::body::Body as _;
use tokio::{
    runtime::{Handle, RuntimeFlavor},
    sync::{Semaphore, SemaphorePermit},
    time::{Duration, timeout},
};

use super::{
    body::guarded,
    status::{ApiError, Result},
};
use crate::api::decode::{
    MAX_BODY,
    weight::{self, MAX_TREE},
};

/// Bodies and objects of so many bytes are handled where they are.
pub const SMALL: usize = 64 * 1024;

/// Trees that stand beside each other while one request is handled.
const TREES: usize = 3;

/// A large body has to arrive within this time: it keeps others of its kind out.
const ARRIVAL: Duration = Duration::from_secs(20);

/// Room for large bodies on their way in: five of the largest.
static ARRIVING: Room = Room::new(16);
/// Room for the trees of small bodies.
static LITTLE: Room = Room::new(24);
/// Room for the trees of large bodies: one of the heaviest.
static BODIES: Room = Room::new((TREES * MAX_TREE) >> 20);
/// Room for large objects that are read, and for responses until they are sent.
static OBJECTS: Room = Room::new((TREES * MAX_TREE) >> 20);
/// Room for the trees of YAML bodies that are recorded as JSON: one of the heaviest.
static RECORDS: Room = Room::new(MAX_TREE >> 20);

/// Memory that requests share; its permits are KiB.
struct Room {
    free: Semaphore,
    size: usize,
}

/// Memory that a request holds.
#[derive(Debug, Default)]
#[must_use = "the memory is taken as long as this lives"]
pub struct Share(Option<SemaphorePermit<'static>>);

impl Room {
    const fn new(mebibytes: usize) -> Self {
        let size = mebibytes * 1024;
        Self { free: Semaphore::const_new(size), size }
    }

    /// Permits for so many bytes; never more than there are, or nobody could ever have them.
    fn permits(&self, bytes: usize) -> u32 {
        let permits = bytes.div_ceil(1024).min(self.size);
        u32::try_from(permits).expect("a room has fewer than 4 TiB")
    }

    /// Waits for its turn; whoever waits longest is next. The request's deadline ends it.
    async fn take(&'static self, bytes: usize) -> Share {
        let taken = self.free.acquire_many(self.permits(bytes)).await;
        Share(Some(taken.expect("rooms are never closed")))
    }

    fn try_take(&'static self, bytes: usize) -> Option<Share> {
        let taken = self.free.try_acquire_many(self.permits(bytes)).ok()?;
        Some(Share(Some(taken)))
    }
}

impl Share {
    /// Nothing: what it is about is small.
    pub const NONE: Self = Self(None);

    /// Gives back all but so many bytes.
    pub fn shrink(&mut self, bytes: usize) {
        let Some(held) = &mut self.0 else { return };
        let excess = held.num_permits().saturating_sub(bytes.div_ceil(1024));
        drop(held.split(excess));
    }

    fn grow(&mut self, more: Self) {
        match (&mut self.0, more.0) {
            (Some(held), Some(more)) => held.merge(more),
            (held, more) => *held = more.or(held.take()),
        }
    }
}

/// A body that arrived, and the room that it takes.
pub struct Arrived {
    pub bytes: Bytes,
    _share: Share,
}

/// Reads the whole body, unless it is too long or too slow, or too many large ones arrive.
pub async fn read_body(body: Body) -> Result<Arrived> {
    let mut body = Limited::new(body, MAX_BODY);
    let mut bytes = BytesMut::new();
    let mut share = Share::NONE;
    let mut counted = SMALL;
    let arrived = async {
        if body.size_hint().lower() > MAX_BODY as u64 {
            return Err(too_long());
        }
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|error| unread(error.as_ref()))?;
            let Ok(data) = frame.into_data() else { continue };
            bytes.extend_from_slice(&data);
            if bytes.len() > counted {
                // A buffer that grows is twice as large as what it held.
                let Some(more) = ARRIVING.try_take(2 * SMALL) else {
                    let text = "Too many large requests, please try again later.";
                    return Err(ApiError::too_many_requests(text, 1));
                };
                share.grow(more);
                counted += SMALL;
            }
        }
        Ok(())
    };
    timeout(ARRIVAL, arrived).await.unwrap_or_else(|_| {
        let text = format!("the body did not arrive within {} s", ARRIVAL.as_secs());
        Err(ApiError::bad_request(text))
    })?;
    Ok(Arrived { bytes: bytes.freeze(), _share: share })
}

fn unread(error: &(dyn std::error::Error + 'static)) -> ApiError {
    if error.is::<LengthLimitError>() {
        return too_long();
    }
    ApiError::bad_request(format!("failed to read the body: {error}"))
}

fn too_long() -> ApiError {
    ApiError::too_large(format!("Request entity too large: limit is {MAX_BODY}"))
}

/// Room for everything that is made of a body.
pub async fn body(yaml: bool, bytes: &Bytes) -> Share {
    let weight = if yaml { weight::foresee_yaml(bytes) } else { weight::foresee(bytes) };
    let room = if bytes.len() > SMALL { &BODIES } else { &LITTLE };
    room.take(TREES * weight).await
}

/// Room to read a body of YAML once more, for the audit trail. Whoever has it waits for nobody.
pub async fn record(yaml: &[u8]) -> Share {
    RECORDS.take(weight::foresee_yaml(yaml)).await
}

/// Room for what is made of these stored bytes, which are let go while it is waited for.
pub async fn object(stored: Bytes) -> Share {
    let weight = weight::foresee(&stored);
    drop(stored);
    OBJECTS.take(TREES * weight).await
}

/// Room for a response that takes so many bytes to make.
pub async fn response(bytes: usize) -> Share {
    if bytes <= SMALL { Share::NONE } else { OBJECTS.take(bytes).await }
}

/// The response, whose body takes its part of `share` until it was sent.
pub async fn sent(sent: Response<Body>, mut share: Share) -> Response<Body> {
    let bytes = sent.body().size_hint().exact().unwrap_or(0);
    let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
    if bytes <= SMALL {
        return sent;
    }
    if share.0.is_none() {
        share = response(bytes).await;
    }
    share.shrink(bytes);
    guarded(sent, share)
}

/// Does work that grows with `bytes`. When they are many, this thread first hands what else it
/// serves to another one.
pub fn work<T>(bytes: usize, work: impl FnOnce() -> T) -> T {
    let several = Handle::try_current()
        .is_ok_and(|handle| handle.runtime_flavor() == RuntimeFlavor::MultiThread);
    if several && bytes > SMALL { tokio::task::block_in_place(work) } else { work() }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use futures::{StreamExt as _, stream};

    use super::*;

    static TESTED: Room = Room::new(1);

    #[tokio::test]
    async fn whoever_needs_more_than_there_is_waits_for_all_of_it() {
        let mut held = TESTED.take(64 << 20).await;
        assert!(TESTED.try_take(1).is_none());
        held.shrink(1000 * 1024);
        assert!(TESTED.try_take(24 * 1024).is_some());
        assert!(TESTED.try_take(25 * 1024).is_none());
        drop(held);
        assert!(TESTED.try_take(1 << 20).is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn a_large_body_that_trickles_is_cut_and_its_room_is_free_again() {
        let chunk = || Ok::<_, Infallible>(Bytes::from(vec![b' '; SMALL]));
        let slow = stream::iter(0..).then(move |_| async move {
            tokio::time::sleep(Duration::from_secs(1)).await;
            chunk()
        });
        let error = read_body(Body::from_stream(slow)).await.err().unwrap();
        assert_eq!(error.code(), 400);
        assert!(error.to_string().contains("within 20 s"), "{error}");

        let endless = stream::repeat_with(chunk);
        let error = read_body(Body::from_stream(endless)).await.err().unwrap();
        assert_eq!(error.code(), 413);
        assert_eq!(ARRIVING.free.available_permits(), ARRIVING.size);
    }

    #[test]
    fn no_single_request_needs_more_than_the_room_has() {
        assert!(BODIES.size * 1024 >= TREES * MAX_TREE);
        assert!(OBJECTS.size * 1024 >= TREES * MAX_TREE);
    }
}
