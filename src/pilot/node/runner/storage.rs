//! Looks at the data volume while the pilot lives: its size, whether it is full, and what fills it.
//!
//! A database that is stopped on a full volume does not come up again, so a full volume speaks
//! against a stop; a database that serves is left alone. The machine restarts a database that a
//! full volume silenced, once there is room.

use std::{
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use tokio::time::sleep;

use super::{RunnerMessage, context::RunnerContext};
use crate::{
    api::v1beta1::{PilotStorage, VolumeShare},
    pilot::{
        node::preflight::{VolumeSpace, read_space},
        volume::{
            contents::{ContentFolder, ContentWalk},
            data_volume::Volume,
            fill_rate::FillRate,
        },
    },
};

/// Pause between two looks at the volume; `EVERY_FULL` while it is full: then a user waits for the
/// result.
const EVERY: Duration = Duration::from_secs(30);
const EVERY_FULL: Duration = Duration::from_secs(5);
/// Bytes in use, of a hundred, from which on the pilot says what fills the volume.
const FILLING: i64 = 85;
/// Pause between two walks through a volume that fills, and between two pieces of one.
const WALK_EVERY: Duration = Duration::from_secs(600);
const BETWEEN_PIECES: Duration = Duration::from_millis(20);

pub(super) fn watch_storage(ctx: &RunnerContext) {
    let (messages, shutdown) = (ctx.messages.clone(), ctx.rt.shutdown());
    let mut watch = StorageWatch {
        data: ctx.settings.data.clone(),
        folders: ctx.settings.database.contents,
        volume: ctx.volume.clone(),
        begun: Instant::now(),
        rate: FillRate::default(),
        contents: None,
    };
    ctx.rt.tasks().spawn("storage", async move {
        loop {
            let look = async {
                let volume_space = watch.check_volume().await;
                let full = volume_space.as_ref().is_some_and(|space| space.full.is_some());
                let filling = volume_space.as_ref().is_some_and(|space| is_filling(&space.storage));
                drop(messages.send(RunnerMessage::Space(volume_space)).await);
                // The next look tells what this finds: it may take a while.
                let has_sized = filling && watch.size_up().await;
                sleep(if full || has_sized { EVERY_FULL } else { EVERY }).await;
            };
            tokio::select! {
                () = shutdown.triggered() => return,
                () = look => {}
            }
        }
    });
}

/// What is known of the volume from earlier looks.
struct StorageWatch {
    data: PathBuf,
    folders: &'static [ContentFolder],
    volume: Volume,
    begun: Instant,
    rate: FillRate,
    /// What fills the volume, and when that was looked for.
    contents: Option<(Instant, Vec<VolumeShare>)>,
}

impl StorageWatch {
    /// Looks at the volume; `None` when it does not answer.
    async fn check_volume(&mut self) -> Option<VolumeSpace> {
        let data = self.data.clone();
        let mut volume_space =
            self.volume.visit(move |_| read_space(&data).ok()).await.ok().flatten()?;
        let storage = &mut volume_space.storage;
        self.rate.record_usage(self.begun.elapsed(), storage.used_bytes);
        if is_filling(storage) {
            storage.contents =
                self.contents.iter().flat_map(|(_, shares)| shares.clone()).collect();
            storage.full_time = full_time(&self.rate, storage, Timestamp::now());
        } else {
            self.contents = None;
        }
        Some(volume_space)
    }

    /// Finds out what fills the volume, where that is not known or was found long ago. Returns
    /// whether that was done.
    async fn size_up(&mut self) -> bool {
        let is_fresh = |(when, _): &(Instant, _)| when.elapsed() < WALK_EVERY;
        if self.contents.as_ref().is_some_and(is_fresh) {
            return false;
        }
        let shares = walk_volume(&self.volume, &self.data, self.folders).await;
        let has_sized = shares.is_some();
        self.contents = shares.map(|shares| (Instant::now(), shares)).or(self.contents.take());
        has_sized
    }
}

fn is_filling(storage: &PilotStorage) -> bool {
    storage.used_bytes / FILLING >= storage.capacity_bytes / 100 && storage.capacity_bytes > 0
}

/// Returns when the volume will be full, to ten minutes: it is an estimate, and each other value is
/// a write of the Pilot.
fn full_time(rate: &FillRate, storage: &PilotStorage, now: Timestamp) -> Option<Time> {
    const STEP: i64 = 600;
    let time_left = rate.full_in(storage.capacity_bytes - storage.used_bytes)?;
    let second = (now + time_left).as_second() / STEP * STEP;
    Timestamp::from_second(second).ok().map(Time)
}

/// Walks through the volume, piece by piece; `None` when it does not answer.
async fn walk_volume(
    volume: &Volume,
    data: &Path,
    folders: &'static [ContentFolder],
) -> Option<Vec<VolumeShare>> {
    let data = data.to_owned();
    let mut walk = volume.visit(move |_| ContentWalk::start(&data, folders)).await.ok()?;
    loop {
        let (advanced, has_more) = volume
            .visit(move |_| {
                let has_more = walk.advance();
                (walk, has_more)
            })
            .await
            .ok()?;
        walk = advanced;
        if !has_more {
            return Some(walk.finish());
        }
        sleep(BETWEEN_PIECES).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn storage(used_bytes: i64, capacity_bytes: i64) -> PilotStorage {
        PilotStorage { capacity_bytes, used_bytes, ..PilotStorage::default() }
    }

    #[test]
    fn a_volume_fills_from_85_percent_on() {
        for (used, capacity, expected) in
            [(0, 0, false), (84_900, 100_000, false), (85_000, 100_000, true), (1, 1, true)]
        {
            assert_eq!(is_filling(&storage(used, capacity)), expected, "{used} of {capacity}");
        }
    }

    #[test]
    fn the_time_at_which_it_is_full_is_told_in_steps() {
        let mut rate = FillRate::default();
        for minute in 0..=10_u32 {
            rate.record_usage(Duration::from_secs(u64::from(minute) * 60), i64::from(minute));
        }
        let now = Timestamp::from_second(6000).unwrap();
        let told = full_time(&rate, &storage(40, 100), now).unwrap();
        assert_eq!(told.0.as_second(), 9600, "an hour from now");
        assert_eq!(full_time(&FillRate::default(), &storage(40, 100), now), None);
    }
}
