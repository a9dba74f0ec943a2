//! Names under which the one binary can be called, as busybox does it.

use std::{ffi::OsString, path::Path};

/// File names of links to the binary, and the subcommand that each stands for.
pub(crate) const LINKS: &[(&str, &[&str])] = &[
    ("navigator-apiserver", &["apiserver"]),
    ("navigator-controller", &["controller"]),
    ("navigator-pilot-cassandra", &["pilot", "cassandra"]),
    ("navigator-pilot-elasticsearch", &["pilot", "elasticsearch"]),
    ("pilot-cassandra", &["pilot", "cassandra"]),
    ("pilot-elasticsearch", &["pilot", "elasticsearch"]),
];

/// Rewrites `argv` so that the applet is a subcommand. Only exact names count: a copy under
/// another name is plain `navigator`.
pub(crate) fn resolve(argv: Vec<OsString>) -> Vec<OsString> {
    let called = argv.first().and_then(|arg| Path::new(arg).file_name()).and_then(|n| n.to_str());
    let Some((_, applet)) = LINKS.iter().find(|(link, _)| called == Some(*link)) else {
        return argv;
    };
    let mut resolved: Vec<OsString> = vec!["navigator".into()];
    resolved.extend(applet.iter().map(Into::into));
    resolved.extend(argv.into_iter().skip(1));
    resolved
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<OsString> {
        line.split(' ').map(Into::into).collect()
    }

    #[test]
    fn exact_link_names_become_subcommands() {
        let cases = [
            ("/usr/bin/navigator-apiserver --secure-port 1", "navigator apiserver --secure-port 1"),
            ("pilot-cassandra --help", "navigator pilot cassandra --help"),
            ("pilot-elasticsearch", "navigator pilot elasticsearch"),
            ("navigator pilot cassandra", "navigator pilot cassandra"),
            ("/x/navigator-apiserver.old run", "/x/navigator-apiserver.old run"),
            ("apiserver run", "apiserver run"),
        ];
        for (given, expected) in cases {
            assert_eq!(resolve(words(given)), words(expected), "{given}");
        }
        assert!(resolve(vec![]).is_empty());
    }
}
