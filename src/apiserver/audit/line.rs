//! Lines of events, and the memory that they take until one backend has them.

use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// An event's line. It takes room in the buffer until the backend has the line, or it is lost.
pub(super) struct AuditLine {
    pub(super) text: Bytes,
    _room: OwnedSemaphorePermit,
}

/// Room for a backend's waiting lines, counted in KiB. Writing and sending take as much memory
/// again.
pub(super) struct BufferSpace(Arc<Semaphore>);

impl BufferSpace {
    /// Room in KiB, and so the most lines: 10000 events of 3 KiB, or 5 with two of the largest
    /// objects.
    pub(super) const MOST: usize = 32 * 1024;

    pub(super) fn new() -> Self {
        Self(Arc::new(Semaphore::new(Self::MOST)))
    }

    /// Takes room for a line if there is any; gives the text back otherwise.
    pub(super) fn try_acquire(&self, text: Bytes) -> Result<AuditLine, Bytes> {
        match Arc::clone(&self.0).try_acquire_many_owned(required_permits(&text)) {
            Ok(room) => Ok(AuditLine { text, _room: room }),
            Err(_) => Err(text),
        }
    }

    /// Waits until there is room for a line.
    pub(super) async fn acquire(&self, text: Bytes) -> AuditLine {
        let room = Arc::clone(&self.0).acquire_many_owned(required_permits(&text)).await;
        AuditLine { text, _room: room.expect("the room is never closed") }
    }
}

/// Returns the KiB of a line, at most the whole room: a larger event would wait for ever.
fn required_permits(text: &Bytes) -> u32 {
    let kibibytes = text.len().div_ceil(1024).min(BufferSpace::MOST);
    u32::try_from(kibibytes).expect("the room has fewer than 4 TiB")
}
