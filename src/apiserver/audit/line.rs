//! Events as they are written, and the memory that they share on their way to one backend.

use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// An event's line, and its share of the room until the backend has the line or it is lost.
pub(super) struct AuditLine {
    pub(super) text: Bytes,
    _room: OwnedSemaphorePermit,
}

/// Room for bytes, however many events they are. Writing and sending take as much again.
pub(super) struct BufferSpace(Arc<Semaphore>);

impl BufferSpace {
    /// In KiB, and so the most lines: 10000 events of 3 KiB, or 5 with two of the largest objects.
    pub(super) const MOST: usize = 32 * 1024;

    pub(super) fn new() -> Self {
        Self(Arc::new(Semaphore::new(Self::MOST)))
    }

    /// Gives the text back when there is no room.
    pub(super) fn try_take(&self, text: Bytes) -> Result<AuditLine, Bytes> {
        match Arc::clone(&self.0).try_acquire_many_owned(permits(&text)) {
            Ok(room) => Ok(AuditLine { text, _room: room }),
            Err(_) => Err(text),
        }
    }

    /// Waits until there is room.
    pub(super) async fn take(&self, text: Bytes) -> AuditLine {
        let room = Arc::clone(&self.0).acquire_many_owned(permits(&text)).await;
        AuditLine { text, _room: room.expect("the room is never closed") }
    }
}

/// Never more than the whole room, or a large event would wait for ever.
fn permits(text: &Bytes) -> u32 {
    let kibibytes = text.len().div_ceil(1024).min(BufferSpace::MOST);
    u32::try_from(kibibytes).expect("the room has fewer than 4 TiB")
}
