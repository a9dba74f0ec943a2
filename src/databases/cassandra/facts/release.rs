//! The Cassandra releases that this build runs, and how they differ.

use std::{fmt, str::FromStr};

use crate::{
    api::validation::releases::{MinorVersion, UnsupportedVersion},
    databases::cassandra::releases::RELEASES,
};

/// A line of releases that this build runs, by its major and minor number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Release(MinorVersion);

impl Release {
    pub const V4_0: Self = Self((4, 0));
    pub const V4_1: Self = Self((4, 1));
    pub const V5_0: Self = Self((5, 0));

    /// Does this build encrypt and keep logins of this release? 4.0 reads no certificates as PEM.
    pub fn is_secured(self) -> bool {
        self >= Self::V4_1
    }

    /// Can this release start on data that `data_release` wrote last?
    pub fn can_read(self, data_release: Self) -> bool {
        RELEASES.can_read(self.0, data_release.0)
    }
}

impl FromStr for Release {
    type Err = UnsupportedVersion;

    /// Parses a version such as `4.1`, `4.1.10` or `5.0-beta1`; fails for a line that is not run.
    fn from_str(version: &str) -> Result<Self, UnsupportedVersion> {
        RELEASES.parse_supported(version).map(Self)
    }
}

impl fmt::Display for Release {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.0.0, self.0.1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn validation_knows_the_releases_that_are_run() {
        let run = [Release::V4_0, Release::V4_1, Release::V5_0].map(|release| release.to_string());
        let known: Vec<_> = RELEASES.lines.iter().map(|line| line.name).collect();
        assert_eq!(known, run);
    }

    #[test]
    fn data_never_go_back() {
        assert!(Release::V5_0.can_read(Release::V4_0) && Release::V4_1.can_read(Release::V4_1));
        assert!(!Release::V4_1.can_read(Release::V5_0) && !Release::V4_0.can_read(Release::V4_1));
    }

    #[test]
    fn only_four_and_five_are_run() {
        for (version, expected) in [
            ("4.0.19", Some(Release::V4_0)),
            ("4.1", Some(Release::V4_1)),
            ("4.1-beta1", Some(Release::V4_1)),
            ("5.0.6", Some(Release::V5_0)),
            ("3.11.4", None),
            ("4.2", None),
            ("5.1", None),
            ("50.1", None),
            ("", None),
        ] {
            assert_eq!(version.parse::<Release>().ok(), expected, "{version:?}");
        }
    }
}
