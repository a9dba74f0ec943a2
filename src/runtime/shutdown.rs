//! The one token by which every loop hears that the process ends.

use tokio_util::sync::CancellationToken;

/// Cheap to clone; all clones are one.
#[derive(Clone, Debug, Default)]
pub struct Shutdown(CancellationToken);

impl Shutdown {
    pub fn new() -> Self {
        Self::default()
    }

    /// Asks everything to end. Asking twice is harmless.
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

    /// A token of its own that ends with this one; ending it does not end this one.
    #[must_use]
    pub fn child(&self) -> Self {
        Self(self.0.child_token())
    }
}
