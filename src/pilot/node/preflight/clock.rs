//! Does the clock agree with the data? A database that orders writes by time loses those that
//! it takes while its clock is behind, without a word.

use std::{
    fs, io,
    path::Path,
    time::{Duration, SystemTime},
};

use jiff::Timestamp;

use super::failed;
use crate::pilot::driver::FailedCheck;

/// How far machines that keep time are apart at most.
const BEHIND: Duration = Duration::from_secs(60);
/// 2026-01-01: this program did not exist before.
const EPOCH: Duration = Duration::from_secs(1_767_225_600);
/// Files of one folder that are looked at.
const MOST: usize = 4096;

/// Not before this program was made, nor before anything on the volume was written.
pub(super) fn check(data: &Path, now: SystemTime) -> Result<(), FailedCheck> {
    let problem = |message| failed("PreflightFailed", message);
    let shown = |time: SystemTime| Timestamp::try_from(time).unwrap_or_default().to_string();
    if now < SystemTime::UNIX_EPOCH + EPOCH {
        return Err(problem(format!("the machine's clock says {}; set it", shown(now))));
    }
    let newest = newest(data).map_err(|error| problem(format!("{}: {error}", data.display())))?;
    match newest {
        Some(newest) if newest > now + BEHIND => Err(problem(format!(
            "the machine's clock says {}, and data were written at {}; set the clock, or touch \
             the files when it is their times that are wrong",
            shown(now),
            shown(newest)
        ))),
        _ => Ok(()),
    }
}

/// When something on the volume changed last, down to the files of its folders.
fn newest(data: &Path) -> io::Result<Option<SystemTime>> {
    let mut newest = None;
    for entry in fs::read_dir(data)?.take(MOST) {
        let entry = entry?;
        let about = entry.metadata()?;
        newest = newest.max(about.modified().ok());
        if about.is_dir() {
            // A folder that vanishes or is nobody's business says nothing about the clock.
            let inner = fs::read_dir(entry.path()).into_iter().flatten().take(MOST).flatten();
            let times = inner.filter_map(|file| file.metadata().ok()?.modified().ok());
            newest = newest.max(times.max());
        }
    }
    Ok(newest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_behind_the_data_is_told() {
        let data = tempfile::tempdir().unwrap();
        let now = SystemTime::now();
        assert_eq!(check(data.path(), now), Ok(()));
        fs::create_dir(data.path().join("commitlog")).unwrap();
        let file = fs::File::create(data.path().join("commitlog/1.log")).unwrap();
        file.set_modified(now + Duration::from_secs(30)).unwrap();
        assert_eq!(check(data.path(), now), Ok(()));
        file.set_modified(now + Duration::from_secs(3600)).unwrap();
        let told = check(data.path(), now).unwrap_err();
        assert!(told.message.contains("set the clock"), "{}", told.message);
        assert!(check(data.path(), SystemTime::UNIX_EPOCH).is_err());
    }
}
