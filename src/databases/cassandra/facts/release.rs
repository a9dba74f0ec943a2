//! The Cassandra releases that this build runs, and how they differ.

use std::{fmt, str::FromStr};

use crate::databases::cassandra::releases::RELEASES;

/// A line of releases that this build runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Release {
    V4_0,
    V4_1,
    V5_0,
}

/// A version that is accepted and stored, but not run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("Cassandra {0:?} is not run by this build, which runs {RELEASES}")]
pub struct UnsupportedVersion(pub String);

impl Release {
    /// The releases of this build, in the order of [`RELEASES`].
    #[cfg(test)]
    const ALL: [Self; 3] = [Self::V4_0, Self::V4_1, Self::V5_0];

    /// Can this release start on data that `written` wrote last? A release never reads data of a
    /// newer one.
    pub fn reads(self, written: Self) -> bool {
        self >= written
    }

    /// Returns the Java versions that this release runs on.
    pub fn java(self) -> &'static [u32] {
        match self {
            // The vendor's 4.x launcher refuses 17, the jars themselves run on it.
            Self::V4_0 | Self::V4_1 => &[8, 11, 17],
            Self::V5_0 => &[11, 17],
        }
    }
}

impl FromStr for Release {
    type Err = UnsupportedVersion;

    /// Parses a version such as `4.1`, `4.1.10` or `5.0-beta1`; fails for a line that is not run.
    fn from_str(version: &str) -> Result<Self, UnsupportedVersion> {
        let unsupported = || UnsupportedVersion(version.to_owned());
        let mut parts = version.split(['.', '-']);
        let line = (parts.next(), parts.next());
        match line {
            (Some("4"), Some("0")) => Ok(Self::V4_0),
            (Some("4"), Some("1")) => Ok(Self::V4_1),
            (Some("5"), Some("0")) => Ok(Self::V5_0),
            _ => Err(unsupported()),
        }
    }
}

impl fmt::Display for Release {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::V4_0 => "4.0",
            Self::V4_1 => "4.1",
            Self::V5_0 => "5.0",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn validation_knows_the_releases_that_are_run() {
        let run = Release::ALL.map(|release| release.to_string());
        let known: Vec<_> = RELEASES.lines.iter().map(|line| line.name).collect();
        assert_eq!(known, run);
    }

    #[test]
    fn data_never_go_back() {
        assert!(Release::V5_0.reads(Release::V4_0) && Release::V4_1.reads(Release::V4_1));
        assert!(!Release::V4_1.reads(Release::V5_0) && !Release::V4_0.reads(Release::V4_1));
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
