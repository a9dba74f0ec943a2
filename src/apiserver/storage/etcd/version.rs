//! Which versions of etcd may be used.
//!
//! Before 3.4.31 and 3.5.13 the progress that a watch reports when it is asked could overtake
//! events (kubernetes/kubernetes#123192), so a cache would take itself for current and a list
//! would miss what was acknowledged. These are Kubernetes' own limits.

use super::{
    super::{Error, Result},
    ANSWER_WITHIN, EtcdStore, with_timeout,
};

impl EtcdStore {
    pub(super) async fn require_version(&self) -> Result<()> {
        let mut client = self.client.maintenance_client();
        let status = with_timeout(ANSWER_WITHIN, client.status()).await?;
        if reports_progress_in_order(status.version()) {
            return Ok(());
        }
        let source = format!(
            "etcd {} reports progress of watches before their events; update it to 3.4.31, 3.5.13 \
             or later",
            status.version()
        );
        Err(Error::Unavailable { source: source.into() })
    }
}

/// Tells whether watches report progress in order. A text that is no version comes from a private
/// build, not from an old release.
fn reports_progress_in_order(version: &str) -> bool {
    let mut parts = version.split(['.', '-', '+']).map(|part| part.parse::<u32>().ok());
    let (Some(Some(major)), Some(Some(minor)), Some(Some(patch))) =
        (parts.next(), parts.next(), parts.next())
    else {
        return true;
    };
    match (major, minor) {
        (..=2, _) | (3, ..=3) => false,
        (3, 4) => patch >= 31,
        (3, 5) => patch >= 13,
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::reports_progress_in_order;

    #[test]
    fn versions_whose_watches_report_progress_too_early_are_refused() {
        for refused in ["2.3.8", "3.3.27", "3.4.30", "3.5.0", "3.5.12", "3.5.12-rc.0"] {
            assert!(!reports_progress_in_order(refused), "{refused}");
        }
        for accepted in ["3.4.31", "3.5.13", "3.5.21", "3.6.0-alpha.0", "3.6.16", "4.0.0", "dev"] {
            assert!(reports_progress_in_order(accepted), "{accepted}");
        }
    }
}
