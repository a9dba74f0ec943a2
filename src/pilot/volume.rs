//! The data volume, which may hang: what touches it is done on a thread of its own, one thing
//! at a time, and waited for only so long. The loop that answers signals and probes never is.
//!
//! Owns the lock on the data directory: not every database has one of its own, and two
//! processes on one directory destroy it. Work that is no longer wanted goes on to its end in
//! its thread, so a lock that it took is kept.

use std::{fs::File, sync::Arc, time::Duration};

use nix::fcntl::Flock;
use tokio::{
    runtime::Handle,
    sync::{Mutex, OwnedMutexGuard},
    task::spawn_blocking,
    time::timeout,
};

/// Holds the data directory for this process and, as a shared description, for nobody else.
pub type Lock = Flock<File>;

/// Longer than the slowest disk takes to copy a configuration folder and to flush it.
const PATIENCE: Duration = Duration::from_secs(60);

/// Cheap to clone; all clones are one.
#[derive(Clone, Debug, Default)]
pub struct Volume(Arc<Mutex<Option<Lock>>>);

/// The volume did not answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the data volume has not answered for {PATIENCE:?}")]
pub struct Hangs;

impl Volume {
    /// With the lock that an earlier program of this process took.
    pub fn of(lock: Option<Lock>) -> Self {
        Self(Arc::new(Mutex::new(lock)))
    }

    /// The lock, and no work is begun while it is held here; `None` while work goes on.
    pub fn idle(&self) -> Option<OwnedMutexGuard<Option<Lock>>> {
        self.0.clone().try_lock_owned().ok()
    }

    /// Does work that may take the lock. While earlier work hangs, none is begun: threads that
    /// wait in the kernel cannot be ended.
    ///
    /// # Errors
    /// When the work, or what was begun before it, takes too long.
    pub async fn visit<T, W>(&self, work: W) -> Result<T, Hangs>
    where
        W: FnOnce(&mut Option<Lock>) -> T + Send + 'static,
        T: Send + 'static,
    {
        let visit = async {
            let mut lock = self.0.clone().lock_owned().await;
            spawn_blocking(move || work(&mut lock)).await
        };
        match timeout(PATIENCE, visit).await {
            Err(_) => Err(Hangs),
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(ended)) => match ended.try_into_panic() {
                Ok(panic) => std::panic::resume_unwind(panic),
                // The runtime is being shut down: nobody waits for the answer.
                Err(_) => std::future::pending().await,
            },
        }
    }

    /// Does work that waits for other things, too.
    ///
    /// # Errors
    /// As [`Volume::visit`].
    pub async fn during<T, F>(&self, work: F) -> Result<T, Hangs>
    where
        F: Future<Output = T> + Send + 'static,
        T: Send + 'static,
    {
        let runtime = Handle::current();
        self.visit(move |_| runtime.block_on(work)).await
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[tokio::test]
    async fn work_that_is_no_longer_wanted_keeps_the_lock_that_it_takes() {
        let folder = tempfile::tempdir().unwrap();
        let volume = Volume::default();
        let (go, wait) = mpsc::channel::<()>();
        let (begun, begins) = tokio::sync::oneshot::channel();
        let path = folder.path().to_owned();
        let work = volume.visit(move |lock| {
            begun.send(()).unwrap();
            wait.recv().unwrap();
            let file = File::open(path).unwrap();
            *lock = Flock::lock(file, nix::fcntl::FlockArg::LockExclusiveNonblock).ok();
        });
        tokio::select! {
            _ = work => unreachable!("it waits"),
            _ = begins => {}
        }
        go.send(()).unwrap();
        assert!(volume.visit(|lock| lock.is_some()).await.unwrap());
    }

    #[tokio::test(start_paused = true)]
    async fn a_volume_that_hangs_is_told_and_gets_one_thread_only() {
        let volume = Volume::default();
        let (go, wait) = mpsc::channel::<()>();
        let (begun, begins) = tokio::sync::oneshot::channel();
        let hangs = volume.visit(move |_| {
            begun.send(()).unwrap();
            wait.recv().unwrap();
        });
        let later = async {
            begins.await.unwrap();
            tokio::time::advance(PATIENCE * 2).await;
        };
        assert_eq!(tokio::join!(hangs, later).0, Err(Hangs));
        let second = volume.visit(|_| unreachable!("the first has not ended"));
        let later = tokio::time::advance(PATIENCE * 2);
        assert_eq!(tokio::join!(second, later).0, Err::<(), _>(Hangs));
        go.send(()).unwrap();
        assert_eq!(volume.visit(|_| 7).await, Ok(7));
    }
}
