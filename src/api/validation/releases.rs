//! The supported releases of a database, in one table: which versions are accepted, whose data each
//! reads, which versions upgrades go through, which versions the tests start, and what people do
//! around an upgrade. Validation, preflight, their texts and docs/releases.md come from it.

use std::fmt;

/// Major and minor number of a version.
pub type MinorVersion = (u64, u64);

/// A line of releases that share one row: those of one major version, or of one minor version, as
/// the vendor counts.
#[derive(Debug)]
pub struct ReleaseLine {
    /// Name of the line: `8` or `5.0`.
    pub name: &'static str,
    pub first: MinorVersion,
    /// The line's last release: an upgrade that cannot go to a later line directly goes through it.
    /// In the newest line, the newest release that this build knows; later ones are run as well.
    pub last: MinorVersion,
    /// The oldest release whose data this line reads.
    pub reads: MinorVersion,
    pub tested: &'static [&'static str],
    /// Versions of Java on which this line starts, as text.
    pub java: &'static str,
    /// Versions from which the tests upgraded to this line.
    pub upgraded_from: &'static [&'static str],
    /// Text for people: what to do around an upgrade to this line.
    pub around_upgrade: &'static str,
}

/// The lines of one database, the oldest first.
#[derive(Debug)]
pub struct ReleaseTable {
    pub database: &'static str,
    pub lines: &'static [ReleaseLine],
}

/// A version that is accepted and stored, but not run.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{} {version:?} is not run by this build, which runs {table}", table.database)]
pub struct UnsupportedVersion {
    version: String,
    table: &'static ReleaseTable,
}

impl ReleaseLine {
    fn contains(&self, version: MinorVersion) -> bool {
        let is_major_line = self.name == self.first.0.to_string();
        version >= self.first
            && if is_major_line { version.0 == self.first.0 } else { version == self.first }
    }
}

impl ReleaseTable {
    /// Returns the line of a supported version.
    pub fn find_line(&self, version: MinorVersion) -> Option<&ReleaseLine> {
        self.lines.iter().find(|line| line.contains(version))
    }

    /// Returns major and minor number of a version that is run, whatever follows them.
    pub fn parse_supported(
        &'static self,
        version: &str,
    ) -> Result<MinorVersion, UnsupportedVersion> {
        let mut numbers = version.split(['.', '-', '+']).map(|part| part.parse().ok());
        let release = numbers.next().flatten().zip(numbers.next().flatten());
        let unsupported_error = || UnsupportedVersion { version: version.to_owned(), table: self };
        release.filter(|release| self.find_line(*release).is_some()).ok_or_else(unsupported_error)
    }

    /// Can `version` start on data that the version `data_version` wrote last? No release reads
    /// data of a newer one.
    pub fn can_read(&self, version: MinorVersion, data_version: MinorVersion) -> bool {
        data_version <= version
            && self.find_line(version).is_some_and(|line| line.reads <= data_version)
    }

    /// Returns the version that an upgrade has to go through first, if any.
    pub fn intermediate_version(&self, from: MinorVersion, to: MinorVersion) -> Option<String> {
        let line_index = self.lines.iter().position(|line| line.contains(from))?;
        // A release that is newer than the table counts as one of the newest line.
        let oldest_readable =
            self.find_line(to).or(self.lines.last().filter(|line| to > line.last))?.reads;
        if oldest_readable <= from || self.lines[line_index].contains(to) {
            return None;
        }
        let last_version = self.lines[line_index].last;
        let step =
            if from < last_version { last_version } else { self.lines.get(line_index + 1)?.last };
        (step < to).then(|| format!("{}.{}", step.0, step.1))
    }
}

/// Writes the first and last line: `5.6 to 9`.
impl fmt::Display for ReleaseTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Some(first), Some(last)) = (self.lines.first(), self.lines.last()) else {
            return Ok(());
        };
        write!(f, "{}.{} to {}", first.first.0, first.first.1, last.name)
    }
}
