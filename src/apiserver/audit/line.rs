//! Events as they are written, and the memory that they share on their way to one place.

use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// An event, and its part of the room until it is there or given up.
pub(super) struct Line {
    pub(super) text: Bytes,
    _room: OwnedSemaphorePermit,
}

/// Room for bytes, however many events they are. Writing and sending take as much again.
pub(super) struct Room(Arc<Semaphore>);

impl Room {
    /// KiB, and so the most lines: 10000 events of 3 KiB, or 5 with two of the largest objects.
    pub(super) const MOST: usize = 32 * 1024;

    pub(super) fn new() -> Self {
        Self(Arc::new(Semaphore::new(Self::MOST)))
    }

    /// Gives the text back when there is no room.
    pub(super) fn try_take(&self, text: Bytes) -> Result<Line, Bytes> {
        match Arc::clone(&self.0).try_acquire_many_owned(permits(&text)) {
            Ok(room) => Ok(Line { text, _room: room }),
            Err(_) => Err(text),
        }
    }

    /// Waits for its turn.
    pub(super) async fn take(&self, text: Bytes) -> Line {
        let room = Arc::clone(&self.0).acquire_many_owned(permits(&text)).await;
        Line { text, _room: room.expect("the room is never closed") }
    }
}

/// Never more than there are, or the event would wait for ever.
fn permits(text: &Bytes) -> u32 {
    let kibibytes = text.len().div_ceil(1024).min(Room::MOST);
    u32::try_from(kibibytes).expect("the room has fewer than 4 TiB")
}
