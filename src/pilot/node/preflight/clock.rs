//! Is the clock right? A database that orders writes by time loses those that it takes while its
//! clock is behind, without a word.
//!
//! Owns how the clock is judged: by the API server's clock, where that can be asked. Where it
//! cannot, by the times of the files in the data directory: the clock that set these may have run
//! ahead and been corrected, so they do not hold up a start against the API server's word.

use std::{
    fs, io,
    path::Path,
    time::{Duration, SystemTime},
};

use jiff::Timestamp;
use tracing::warn;

use super::failed_check;
use crate::pilot::driver::FailedCheck;

/// How far the clock may be behind: machines that keep time are closer together.
const BEHIND: Duration = Duration::from_secs(60);
/// 2026-01-01, as the time since 1970: before, this program did not exist.
const EPOCH: Duration = Duration::from_secs(1_767_225_600);
/// Most entries of one folder that are looked at.
const MOST: usize = 4096;

/// What the clock is compared with, beside the date of this program.
#[derive(Clone, Copy, Debug)]
pub(super) struct ClockReference<'a> {
    /// The data directory of a database that orders writes by time.
    pub(super) data: Option<&'a Path>,
    /// What the API server's clock said a moment ago.
    pub(super) api: Option<SystemTime>,
}

/// Checks that the clock is not before this program was made, nor behind the API server's, nor,
/// where that is not known, behind the times of the data.
pub(super) fn check_clock(now: SystemTime, witness: ClockReference<'_>) -> Result<(), FailedCheck> {
    let problem = |message| failed_check("PreflightFailed", message);
    if now < SystemTime::UNIX_EPOCH + EPOCH {
        return Err(problem(format!("the machine's clock says {}; set it", format_time(now))));
    }
    let Some(data) = witness.data else { return Ok(()) };
    if let Some(api) = witness.api.filter(|api| *api > now + BEHIND) {
        return Err(problem(format!(
            "the machine's clock says {}, and the API server's {}; set the clock",
            format_time(now),
            format_time(api)
        )));
    }
    let newest_time = newest_modification(data)
        .map_err(|error| problem(format!("{}: {error}", data.display())))?;
    let Some(newest_time) = newest_time.filter(|time| *time > now + BEHIND) else { return Ok(()) };
    if witness.api.is_some() {
        let (now, until) = (format_time(now), format_time(newest_time));
        warn!(
            now,
            until, "Data were written by a clock that ran ahead: until then newer writes may lose"
        );
        return Ok(());
    }
    Err(problem(format!(
        "the machine's clock says {}, and data were written at {}; set the clock, or touch the files \
         when it is their times that are wrong; it starts by itself when the clock has passed that",
        format_time(now),
        format_time(newest_time)
    )))
}

fn format_time(time: SystemTime) -> String {
    Timestamp::try_from(time).unwrap_or_default().to_string()
}

/// Returns the newest modification time on the volume, down to the files of its folders.
fn newest_modification(data: &Path) -> io::Result<Option<SystemTime>> {
    let mut newest_time = None;
    for entry in fs::read_dir(data)?.take(MOST) {
        let entry = entry?;
        let metadata = entry.metadata()?;
        newest_time = newest_time.max(metadata.modified().ok());
        if metadata.is_dir() {
            // A folder that vanishes or may not be read says nothing about the clock.
            let inner_files = fs::read_dir(entry.path()).into_iter().flatten().take(MOST).flatten();
            let times = inner_files.filter_map(|file| file.metadata().ok()?.modified().ok());
            newest_time = newest_time.max(times.max());
        }
    }
    Ok(newest_time)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);

    #[test]
    fn a_clock_behind_the_data_is_told() {
        let data = tempfile::tempdir().unwrap();
        let now = SystemTime::now();
        let check = |now| check_clock(now, ClockReference { data: Some(data.path()), api: None });
        assert_eq!(check(now), Ok(()));
        fs::create_dir(data.path().join("commitlog")).unwrap();
        let file = fs::File::create(data.path().join("commitlog/1.log")).unwrap();
        file.set_modified(now + Duration::from_secs(30)).unwrap();
        assert_eq!(check(now), Ok(()));
        file.set_modified(now + HOUR).unwrap();
        let told = check(now).unwrap_err();
        assert!(told.message.contains("set the clock"), "{}", told.message);
        assert_eq!(check(now + HOUR), Ok(()), "it passes");
        assert!(check(SystemTime::UNIX_EPOCH).is_err());
    }

    #[test]
    fn a_clock_that_was_mended_stops_nothing_that_the_api_server_can_vouch_for() {
        let data = tempfile::tempdir().unwrap();
        let now = SystemTime::now();
        let file = fs::File::create(data.path().join("1.log")).unwrap();
        file.set_modified(now + HOUR).unwrap();
        let check = |now, api| check_clock(now, ClockReference { data: Some(data.path()), api });
        assert_eq!(check(now, Some(now)), Ok(()));
        assert_eq!(check(now + HOUR, Some(now)), Ok(()), "its own clock is behind");
        let told = check(now, Some(now + HOUR)).unwrap_err();
        assert!(told.message.contains("the API server's"), "{}", told.message);
        assert!(check(now, None).is_err());
    }

    #[test]
    fn a_database_that_does_not_order_writes_by_time_needs_a_clock_that_was_set() {
        let now = SystemTime::now();
        let none = ClockReference { data: None, api: Some(now + HOUR) };
        assert_eq!(check_clock(now, none), Ok(()));
        assert!(check_clock(SystemTime::UNIX_EPOCH, none).is_err());
    }
}
