//! The one token by which every loop hears that the process ends.

use tokio_util::sync::CancellationToken;

/// The token by which loops hear that they are to end. Cheap to clone; all clones are one token.
#[derive(Clone, Debug, Default)]
pub struct Shutdown(CancellationToken);

impl Shutdown {
    pub fn new() -> Self {
        Self::default()
    }

    /// Asks all loops that hold this token to end. Asking twice is harmless.
    pub fn trigger(&self) {
        self.0.cancel();
    }

    pub fn is_triggered(&self) -> bool {
        self.0.is_cancelled()
    }

    /// Waits until shutdown was asked for. Cancel-safe.
    pub async fn triggered(&self) {
        self.0.cancelled().await;
    }

    /// Returns a new token that is triggered with this one; triggering the new one does not trigger
    /// this one.
    #[must_use]
    pub fn child(&self) -> Self {
        Self(self.0.child_token())
    }
}
