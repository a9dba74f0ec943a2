//! The Elasticsearch releases that this build runs, and how they differ.

use std::str::FromStr;

use crate::{api::validation::DatabaseVersion, databases::elasticsearch::releases::RELEASES};

/// Major and minor version of a release that this build runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Release {
    pub major: u64,
    pub minor: u64,
}

/// A version that is accepted and stored, but not run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("Elasticsearch {0:?} is not run by this build, which runs {RELEASES}")]
pub struct UnsupportedVersion(pub String);

impl Release {
    const fn new(major: u64, minor: u64) -> Self {
        Self { major, minor }
    }

    /// Can this release start on data that `written` wrote last?
    pub fn can_read(self, data_release: Self) -> bool {
        RELEASES.can_read((self.major, self.minor), (data_release.major, data_release.minor))
    }

    /// Are masters elected by a voting configuration, rather than by a minimum that Navigator sets?
    pub fn has_voting(self) -> bool {
        self.major >= 7
    }

    /// Are roles a list, `node.roles`? In earlier releases each role has a setting of its own.
    pub fn lists_roles(self) -> bool {
        self >= Self::new(7, 9)
    }

    /// Is the path `POST /_cluster/voting_config_exclusions?node_names=`? 7.0 to 7.7 have the name
    /// in the path.
    pub fn excludes_voters_by_query(self) -> bool {
        self >= Self::new(7, 8)
    }

    /// Does an index that expands its replicas by itself (`index.auto_expand_replicas`) leave out
    /// the nodes that are excluded from allocation? Earlier releases count every data node, and
    /// lower the replicas only when one is gone
    /// (`FilterAllocationDecider.shouldAutoExpandToNode`, elasticsearch#48974; once all nodes are of
    /// such a release, #50361).
    pub fn lowers_replicas_by_filters(self) -> bool {
        self >= Self::new(7, 6)
    }

    /// Does a node always answer for its own state? Such releases warn when `local` asks for that.
    pub fn answers_for_itself(self) -> bool {
        self.major >= 9
    }

    /// Does this build secure such a node? Earlier releases name realms and privileges otherwise.
    pub fn is_secured(self) -> bool {
        self >= Self::new(7, 17)
    }

    /// Does a running node read its seed hosts again from a file?
    pub fn reads_seed_file(self) -> bool {
        self.major >= 7
    }
}

impl FromStr for Release {
    type Err = UnsupportedVersion;

    fn from_str(version: &str) -> Result<Self, UnsupportedVersion> {
        let numbers = DatabaseVersion::parse(version).map(|version| (version.major, version.minor));
        match numbers.filter(|release| RELEASES.find_line(*release).is_some()) {
            Some((major, minor)) => Ok(Self { major, minor }),
            None => Err(UnsupportedVersion(version.to_owned())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_go_forward_and_over_the_last_minor_version() {
        for (wanted, written, reads) in [
            ("7.17.29", "7.17.1", true),
            ("7.17.29", "7.10.2", true),
            ("7.10.2", "7.17.29", false),
            ("8.19.4", "7.17.29", true),
            ("8.19.4", "7.16.3", false),
            ("8.19.4", "6.8.23", false),
            ("6.8.23", "5.6.16", true),
            ("9.5.0", "8.19.4", true),
            ("9.5.0", "8.18.1", false),
            ("9.5.0", "7.17.29", false),
            ("7.17.29", "8.19.4", false),
        ] {
            let release = |version: &str| version.parse::<Release>().unwrap();
            assert_eq!(release(wanted).can_read(release(written)), reads, "{wanted} on {written}");
        }
    }

    #[test]
    fn five_six_to_nine_are_run() {
        for (version, runs) in [
            ("5.6.16", true),
            ("6.8.23", true),
            ("7.17.29", true),
            ("8.19.4", true),
            ("5.5.3", false),
            ("2.4.6", false),
            ("9.5.0", true),
            // 9.0 does not read the data of 8.19.
            ("9.0.0", false),
            ("10.0.0", false),
            ("7", false),
            ("", false),
        ] {
            assert_eq!(version.parse::<Release>().is_ok(), runs, "{version:?}");
        }
        assert!("7.17.29".parse::<Release>().unwrap().is_secured());
        assert!(!"7.16.3".parse::<Release>().unwrap().is_secured());
        assert!("7.6.0".parse::<Release>().unwrap().lowers_replicas_by_filters());
        assert!(!"7.5.2".parse::<Release>().unwrap().lowers_replicas_by_filters());
        assert!("7.10.0".parse::<Release>().unwrap().lists_roles());
        assert!(!"7.8.1".parse::<Release>().unwrap().lists_roles());
    }
}
