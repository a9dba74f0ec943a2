//! The data volume, which may hang: work on the volume is done on a thread of its own, one piece at
//! a time, and callers wait for it only so long. The loop that answers signals and probes never
//! waits.
//!
//! Owns the lock on the data directory: not every database has a lock of its own, and two processes
//! on one directory destroy it. Work that is no longer wanted goes on to its end in its thread, so
//! a lock that the work took is kept.

use std::{
    fs::File,
    sync::{Arc, Mutex as Cell, PoisonError},
    time::Duration,
};

use nix::fcntl::Flock;
use tokio::{
    runtime::Handle,
    sync::{Mutex, OwnedMutexGuard},
    task::spawn_blocking,
    time::{Instant, timeout},
};

/// Holds the data directory for this process alone. Every duplicate of the descriptor shares the
/// lock.
pub type VolumeLock = Flock<File>;

/// How long work may take before the volume counts as hanging: longer than the slowest disk takes
/// to copy a configuration folder and to flush it.
const PATIENCE: Duration = Duration::from_secs(60);

/// How long a caller with more urgent work waits for the volume.
const MOMENT: Duration = Duration::from_secs(2);

/// The data volume, on which one piece of work is done at a time. Cheap to clone; all clones are
/// one volume.
#[derive(Clone, Debug, Default)]
pub struct Volume(Arc<VolumeState>);

#[derive(Debug, Default)]
struct VolumeState {
    lock: Arc<Mutex<Option<VolumeLock>>>,
    /// When the work began that is under way.
    busy: Cell<Option<Instant>>,
}

/// Marks the volume as busy while it lives.
struct BusyGuard(Arc<VolumeState>);

impl BusyGuard {
    fn begin(state: Arc<VolumeState>) -> Self {
        state.set_busy(Some(Instant::now()));
        Self(state)
    }
}

impl Drop for BusyGuard {
    fn drop(&mut self) {
        self.0.set_busy(None);
    }
}

impl VolumeState {
    fn set_busy(&self, since: Option<Instant>) {
        *self.busy.lock().unwrap_or_else(PoisonError::into_inner) = since;
    }

    fn is_hanging(&self) -> bool {
        let since = *self.busy.lock().unwrap_or_else(PoisonError::into_inner);
        since.is_some_and(|since| since.elapsed() >= PATIENCE)
    }
}

/// The volume did not answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the data volume has not answered for {PATIENCE:?}")]
pub struct VolumeTimeout;

impl Volume {
    /// Takes the lock that an earlier program of this process took. Call before any visit.
    pub fn set_lock(&self, lock: Option<VolumeLock>) {
        let slot = self.0.lock.try_lock();
        *slot.expect("nobody visits the volume before the lock is handed over") = lock;
    }

    /// Returns the lock while no work goes on, else `None`. No work is begun while the caller holds
    /// it.
    pub fn lock_if_idle(&self) -> Option<OwnedMutexGuard<Option<VolumeLock>>> {
        self.0.lock.clone().try_lock_owned().ok()
    }

    /// Does work that may take the lock. While earlier work hangs, no new work is begun: threads
    /// that wait in the kernel cannot be ended.
    ///
    /// # Errors
    /// When the work, or the work ahead of it, takes too long.
    pub async fn visit<T, W>(&self, work: W) -> Result<T, VolumeTimeout>
    where
        W: FnOnce(&mut Option<VolumeLock>) -> T + Send + 'static,
        T: Send + 'static,
    {
        let visit = async {
            let mut lock = self.0.lock.clone().lock_owned().await;
            let busy_guard = BusyGuard::begin(self.0.clone());
            spawn_blocking(move || {
                // The volume ceases to be busy before the lock is given back.
                let _begun = busy_guard;
                work(&mut lock)
            })
            .await
        };
        match timeout(PATIENCE, visit).await {
            Err(_) => Err(VolumeTimeout),
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(join_error)) => match join_error.try_into_panic() {
                Ok(panic) => std::panic::resume_unwind(panic),
                // The runtime is being shut down, and the caller with it.
                Err(_) => std::future::pending().await,
            },
        }
    }

    /// Does work for a caller that cannot wait: `None` when the volume is busy for a moment. The
    /// work may still be done.
    ///
    /// # Errors
    /// When work on the volume takes too long.
    pub async fn try_visit<T, W>(&self, work: W) -> Result<Option<T>, VolumeTimeout>
    where
        W: FnOnce(&mut Option<VolumeLock>) -> T + Send + 'static,
        T: Send + 'static,
    {
        match timeout(MOMENT, self.visit(work)).await {
            Ok(answer) => answer.map(Some),
            Err(_) if self.0.is_hanging() => Err(VolumeTimeout),
            Err(_) => Ok(None),
        }
    }

    /// Does work that may wait for other things, such as an answer of the database.
    ///
    /// # Errors
    /// As [`Volume::visit`].
    pub async fn visit_async<T, F>(&self, work: F) -> Result<T, VolumeTimeout>
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
        assert_eq!(tokio::join!(hangs, later).0, Err(VolumeTimeout));
        let second = volume.visit(|_| unreachable!("the first has not ended"));
        let later = tokio::time::advance(PATIENCE * 2);
        assert_eq!(tokio::join!(second, later).0, Err::<(), _>(VolumeTimeout));
        let third = volume.try_visit(|_| unreachable!("nor has it now"));
        let later = tokio::time::advance(MOMENT * 2);
        assert_eq!(tokio::join!(third, later).0, Err::<Option<()>, _>(VolumeTimeout));
        go.send(()).unwrap();
        assert_eq!(volume.visit(|_| 7).await, Ok(7));
    }

    #[tokio::test(start_paused = true)]
    async fn a_volume_that_is_busy_for_a_moment_is_not_waited_for() {
        let volume = Volume::default();
        let (go, wait) = mpsc::channel::<()>();
        let (begun, begins) = tokio::sync::oneshot::channel();
        let busy = volume.visit(move |_| {
            begun.send(()).unwrap();
            wait.recv().unwrap();
        });
        let glance = async {
            begins.await.unwrap();
            let glance = volume.try_visit(|_| unreachable!("it is not wanted any more"));
            let seen = tokio::join!(glance, tokio::time::advance(MOMENT * 2)).0;
            go.send(()).unwrap();
            seen
        };
        assert_eq!(tokio::join!(busy, glance), (Ok(()), Ok(None::<()>)));
        assert_eq!(volume.try_visit(|_| 7).await, Ok(Some(7)));
    }
}
