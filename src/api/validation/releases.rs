//! The releases of a database that are run, in one table: what is accepted, whose data each reads,
//! where upgrades lead through, what the tests start, and what people do around an upgrade.
//! Validation, preflight, their texts and docs/releases.md come from it.

use std::fmt;

/// Major and minor version.
pub type Minor = (u64, u64);

/// Releases that are alike: of one major version, or of one minor version, as the vendor counts.
#[derive(Debug)]
pub struct ReleaseLine {
    /// `8` or `5.0`
    pub name: &'static str,
    pub first: Minor,
    /// An upgrade to the next line begins here, where that one asks for it. Later ones are run, too.
    pub last: Minor,
    /// The oldest release whose data it reads.
    pub reads: Minor,
    pub tested: &'static [&'static str],
    /// Versions of Java on which it starts.
    pub java: &'static str,
    /// Versions from which the tests upgraded to it.
    pub upgraded_from: &'static [&'static str],
    /// What people do around an upgrade to it.
    pub around_upgrade: &'static str,
}

/// All lines of one database, the oldest first.
#[derive(Debug)]
pub struct ReleaseTable {
    pub database: &'static str,
    pub lines: &'static [ReleaseLine],
}

impl ReleaseLine {
    fn has(&self, version: Minor) -> bool {
        let of_major = self.name == self.first.0.to_string();
        version >= self.first
            && if of_major { version.0 == self.first.0 } else { version == self.first }
    }
}

impl ReleaseTable {
    /// The line of a version that is run.
    pub fn line(&self, version: Minor) -> Option<&ReleaseLine> {
        self.lines.iter().find(|line| line.has(version))
    }

    /// Can it start on data that `written` wrote last? Data never go back.
    pub fn reads(&self, version: Minor, written: Minor) -> bool {
        written <= version && self.line(version).is_some_and(|line| line.reads <= written)
    }

    /// The version that an upgrade has to go through first, if any.
    pub fn through(&self, from: Minor, to: Minor) -> Option<String> {
        let at = self.lines.iter().position(|line| line.has(from))?;
        // What is not run yet is no nearer than the newest that is.
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
