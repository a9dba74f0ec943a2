//! Versions of databases, parsed as far as rules compare them.

use std::fmt;

/// A version of a database: two or three numbers, and the text after a dash or plus.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct DatabaseVersion {
    pub major: u64,
    pub minor: u64,
    patch: Option<u64>,
    /// True for a release, which sorts after its pre-releases.
    release: bool,
    suffix: String,
}

impl DatabaseVersion {
    /// Parses a version such as `4.1`, `3.11.1`, `4.1-beta1` or `7.17.29`.
    pub fn parse(text: &str) -> Option<Self> {
        let (numbers, suffix) = match text.split_once(['-', '+']) {
            Some((_, "")) => return None,
            Some((numbers, suffix)) => (numbers, suffix),
            None => (text, ""),
        };
        let parts = numbers.split('.').map(parse_number).collect::<Option<Vec<_>>>()?;
        let (major, minor, patch) = match parts[..] {
            [major, minor] => (major, minor, None),
            [major, minor, patch] => (major, minor, Some(patch)),
            _ => return None,
        };
        let release = suffix.is_empty() || text.as_bytes().get(numbers.len()) == Some(&b'+');
        Some(Self { major, minor, patch, release, suffix: suffix.to_owned() })
    }

    /// Does the version have all three numbers?
    pub fn is_semver(&self) -> bool {
        self.patch.is_some()
    }
}

impl fmt::Display for DatabaseVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

fn parse_number(text: &str) -> Option<u64> {
    let is_numeric = text.bytes().all(|byte| byte.is_ascii_digit());
    let has_leading_zero = text.len() > 1 && text.starts_with('0');
    if is_numeric && !has_leading_zero { text.parse().ok() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_sort_as_they_were_released() {
        let sorted = ["3.11", "3.11.1", "4.0", "4.1-beta1", "4.1", "4.1.0", "4.1.10", "5.0-rc1"];
        let parsed: Vec<_> = sorted.iter().map(|v| DatabaseVersion::parse(v).unwrap()).collect();
        assert!(parsed.is_sorted(), "{parsed:?}");
    }

    #[test]
    fn what_is_no_version_is_refused() {
        for text in ["", "5", "5.x", "1.2.3.4", "01.2", "1.2-", "v1.2", "1..2"] {
            assert_eq!(DatabaseVersion::parse(text), None, "{text:?}");
        }
    }
}
