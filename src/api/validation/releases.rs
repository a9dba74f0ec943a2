//! The releases of a database that are run, in one table: what is accepted, whose data each reads,
//! where upgrades lead through, what the tests start, and what people do around an upgrade.
//! Validation, preflight, their texts and docs/releases.md come from it.

use std::fmt;

/// Major and minor version.
pub type MinorVersion = (u64, u64);

/// Releases that are alike: of one major version, or of one minor version, as the vendor counts.
#[derive(Debug)]
pub struct ReleaseLine {
    /// `8` or `5.0`
    pub name: &'static str,
    pub first: MinorVersion,
    /// The release that an upgrade from this line to a later one goes through, where it cannot go
    /// directly; in the newest line, the newest known release. Later releases are run, too.
    pub last: MinorVersion,
    /// The oldest release whose data this line reads.
    pub reads: MinorVersion,
    pub tested: &'static [&'static str],
    /// Versions of Java on which this line starts.
    pub java: &'static str,
    /// Versions from which the tests upgraded to this line.
    pub upgraded_from: &'static [&'static str],
    /// What people do around an upgrade to this line.
    pub around_upgrade: &'static str,
}

/// All lines of one database, the oldest first.
#[derive(Debug)]
pub struct ReleaseTable {
    pub database: &'static str,
    pub lines: &'static [ReleaseLine],
}

impl ReleaseLine {
    fn has(&self, version: MinorVersion) -> bool {
        let of_major = self.name == self.first.0.to_string();
        version >= self.first
            && if of_major { version.0 == self.first.0 } else { version == self.first }
    }
}

impl ReleaseTable {
    /// The line of a version that is run.
    pub fn line(&self, version: MinorVersion) -> Option<&ReleaseLine> {
        self.lines.iter().find(|line| line.has(version))
    }

    /// Can `version` start on data that `written` wrote last? No release reads data of a newer one.
    pub fn reads(&self, version: MinorVersion, written: MinorVersion) -> bool {
        written <= version && self.line(version).is_some_and(|line| line.reads <= written)
    }

    /// The version that an upgrade has to go through first, if any.
    pub fn through(&self, from: MinorVersion, to: MinorVersion) -> Option<String> {
        let at = self.lines.iter().position(|line| line.has(from))?;
        // A release that is newer than the table counts like the newest line.
        let reads = self.line(to).or(self.lines.last().filter(|last| to > last.last))?.reads;
        if reads <= from || self.lines[at].has(to) {
            return None;
        }
        let last = self.lines[at].last;
        let step = if from < last { last } else { self.lines.get(at + 1)?.last };
        (step < to).then(|| format!("{}.{}", step.0, step.1))
    }
}

/// `5.6 to 9`
impl fmt::Display for ReleaseTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Some(first), Some(last)) = (self.lines.first(), self.lines.last()) else {
            return Ok(());
        };
        write!(f, "{}.{} to {}", first.first.0, first.first.1, last.name)
    }
}
