//! Is the kubelet well, and is it the one that is installed?

use std::{fs, os::unix::fs::MetadataExt, path::Path, time::Duration};

use tokio::time::{Instant, sleep, timeout};

use super::fetch::get;
use crate::engine::machines::HostPolicy;

/// Pause between two looks, and the time that one may take.
const PAUSE: Duration = Duration::from_millis(500);
const LOOK: Duration = Duration::from_secs(5);

/// Waits until the kubelet is well, and was for as long as the policy says.
///
/// # Errors
/// What it lacked at last, in a sentence.
pub(super) async fn until_well(policy: &HostPolicy) -> Result<(), String> {
    let limit = Duration::from_secs(policy.health_seconds);
    let stable = Duration::from_secs(policy.stable_seconds);
    let begun = Instant::now();
    // The process, and since when it is well.
    let mut well: Option<(u32, Instant)> = None;
    loop {
        let found = look(policy).await;
        match (&found, well) {
            (Ok(process), Some((same, since))) if *process == same => {
                if since.elapsed() >= stable {
                    return Ok(());
                }
            }
            (Ok(process), _) => well = Some((*process, Instant::now())),
            (Err(_), _) => well = None,
        }
        if begun.elapsed() >= limit {
            let lacks = found.err().unwrap_or_else(|| "it starts again and again".to_owned());
            return Err(format!("the kubelet was not well within {} s: {lacks}", limit.as_secs()));
        }
        sleep(PAUSE).await;
    }
}

/// Returns the process of the kubelet.
async fn look(policy: &HostPolicy) -> Result<u32, String> {
    let process = process_of(&policy.kubelet);
    let process = process.ok_or_else(|| format!("no process runs {}", policy.kubelet.display()))?;
    match timeout(LOOK, get(&policy.health_url, None)).await {
        Ok(Ok(answer)) if answer.status().is_success() => Ok(process),
        Ok(Ok(answer)) => Err(format!("it answers {}", answer.status())),
        Ok(Err(why)) => Err(why),
        Err(_) => Err("it does not answer".to_owned()),
    }
}

/// Returns the process that runs this very file, and not one that had its name before.
fn process_of(program: &Path) -> Option<u32> {
    let place = |path: &Path| fs::metadata(path).ok().map(|file| (file.dev(), file.ino()));
    let wanted = place(program)?;
    let mut processes = fs::read_dir("/proc").ok()?.filter_map(|entry| {
        let entry = entry.ok()?;
        let process = entry.file_name().to_str()?.parse().ok()?;
        Some((process, entry.path().join("exe")))
    });
    processes.find_map(|(process, exe)| (place(&exe) == Some(wanted)).then_some(process))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_known_by_the_file_that_it_runs() {
        let own = std::env::current_exe().unwrap();
        assert!(process_of(&own).is_some());
        let place = tempfile::tempdir().unwrap();
        let copy = place.path().join("kubelet");
        fs::copy("/proc/self/exe", &copy).unwrap();
        assert_eq!(process_of(&copy), None);
    }
}
