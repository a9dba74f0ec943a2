//! Is the kubelet well, and is it the one that is installed?

use std::{fs, os::unix::fs::MetadataExt, path::Path, time::Duration};

use tokio::time::{Instant, sleep, timeout};

use super::fetch::get_url;
use crate::engine::machines::HostPolicy;

/// Pause between two checks, and the time that one may take.
const PAUSE: Duration = Duration::from_millis(500);
const LOOK: Duration = Duration::from_secs(5);

/// Waits until the kubelet is well, and was for as long as the policy says.
///
/// # Errors
/// What it lacked at last, in a sentence.
pub(super) async fn wait_until_healthy(policy: &HostPolicy) -> Result<(), String> {
    let limit = Duration::from_secs(policy.health_seconds);
    let stable = Duration::from_secs(policy.stable_seconds);
    let start = Instant::now();
    // The process, and since when it is well.
    let mut healthy_process: Option<(u32, Instant)> = None;
    loop {
        let check_result = check_kubelet(policy).await;
        match (&check_result, healthy_process) {
            (Ok(process), Some((known_process, healthy_since))) if *process == known_process => {
                if healthy_since.elapsed() >= stable {
                    return Ok(());
                }
            }
            (Ok(process), _) => healthy_process = Some((*process, Instant::now())),
            (Err(_), _) => healthy_process = None,
        }
        if start.elapsed() >= limit {
            let problem =
                check_result.err().unwrap_or_else(|| "it starts again and again".to_owned());
            return Err(format!(
                "the kubelet was not well within {} s: {problem}",
                limit.as_secs()
            ));
        }
        sleep(PAUSE).await;
    }
}

/// Returns the process of the kubelet.
async fn check_kubelet(policy: &HostPolicy) -> Result<u32, String> {
    let process = process_of(&policy.kubelet);
    let process = process.ok_or_else(|| format!("no process runs {}", policy.kubelet.display()))?;
    match timeout(LOOK, get_url(&policy.health_url, None)).await {
        Ok(Ok(answer)) if answer.status().is_success() => Ok(process),
        Ok(Ok(answer)) => Err(format!("it answers {}", answer.status())),
        Ok(Err(reason)) => Err(reason),
        Err(_) => Err("it does not answer".to_owned()),
    }
}

/// Returns the process that runs this very file, and not one that had its name before.
fn process_of(program: &Path) -> Option<u32> {
    let file_id = |path: &Path| fs::metadata(path).ok().map(|file| (file.dev(), file.ino()));
    let program_id = file_id(program)?;
    let mut processes = fs::read_dir("/proc").ok()?.filter_map(|entry| {
        let entry = entry.ok()?;
        let process = entry.file_name().to_str()?.parse().ok()?;
        Some((process, entry.path().join("exe")))
    });
    processes.find_map(|(process, exe)| (file_id(&exe) == Some(program_id)).then_some(process))
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
