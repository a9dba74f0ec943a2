//! Versions of Kubernetes.

use std::fmt;

/// A version of Kubernetes, as components tell theirs.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct KubeVersion {
    pub major: u32,
    pub minor: u32,
    pub patch: u32,
    /// What follows, such as `-rc.1`, without what a build adds behind a plus sign.
    suffix: String,
}

impl KubeVersion {
    /// Reads a version such as `v1.34.4` or `v1.33.13+k3s1`; `None` where it is none.
    pub fn parse(text: &str) -> Option<Self> {
        let text = text.strip_prefix('v')?.split('+').next()?;
        let end = text.find(|c: char| c != '.' && !c.is_ascii_digit()).unwrap_or(text.len());
        let mut parts = text[..end].split('.').map(|part| part.parse().ok());
        let (major, minor, patch) = (parts.next()??, parts.next()??, parts.next()??);
        let suffix = text[end..].to_owned();
        parts.next().is_none().then_some(Self { major, minor, patch, suffix })
    }

    /// Returns by how many minor versions this one is later than another; `None` for another major
    /// version.
    pub(super) fn minors_after(&self, other: &Self) -> Option<i64> {
        (self.major == other.major).then(|| i64::from(self.minor) - i64::from(other.minor))
    }
}

impl fmt::Display for KubeVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { major, minor, patch, suffix } = self;
        write!(f, "v{major}.{minor}.{patch}{suffix}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_is_read_as_components_tell_it() {
        let shown = |text: &str| KubeVersion::parse(text).map(|version| version.to_string());
        for (text, read) in [
            ("v1.34.4", Some("v1.34.4")),
            ("v1.33.13+k3s1", Some("v1.33.13")),
            ("v1.35.0-rc.1", Some("v1.35.0-rc.1")),
            ("1.34.4", None),
            ("v1.34", None),
            ("v1.34.4.1", None),
            ("v1.34.99999999999", None),
            ("", None),
        ] {
            assert_eq!(shown(text).as_deref(), read, "{text}");
        }
    }
}
