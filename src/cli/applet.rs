//! Names under which the one binary can be called, as with busybox.

use std::{ffi::OsString, path::Path};

use super::{PILOT, PLUGIN};

/// Name of the plugin's subcommand that kubectl calls for completions.
pub(crate) const COMPLETE: &str = "__complete";

/// Roles that a link to the binary may be named after, with the prefix `navigator-`.
const ROLES: [&str; 4] = ["agent", "apiserver", "controller", "coordinator"];

/// Returns the subcommands that a link of this file name stands for: `navigator-apiserver`,
/// `navigator-pilot-NAME` and `pilot-NAME` of one of these databases, and the names by which
/// kubectl calls a plugin and its completion.
fn stands_for(link: &str, databases: &[&'static str]) -> Option<Vec<&'static str>> {
    match link {
        "kubectl-navigator" => return Some(vec![PLUGIN]),
        "kubectl_complete-navigator" => return Some(vec![PLUGIN, COMPLETE]),
        _ => {}
    }
    let role = link.strip_prefix("navigator-");
    if let Some(role) = ROLES.into_iter().find(|component| role == Some(*component)) {
        return Some(vec![role]);
    }
    let name = role.unwrap_or(link).strip_prefix("pilot-")?;
    let database = databases.iter().find(|database| **database == name)?;
    Some(vec![PILOT, database])
}

/// Rewrites `argv` so that the applet is a subcommand. Only exact names count: a copy under
/// another name is plain `navigator`.
pub(crate) fn resolve_applet(argv: Vec<OsString>, databases: &[&'static str]) -> Vec<OsString> {
    let link_name =
        argv.first().and_then(|arg| Path::new(arg).file_name()).and_then(|n| n.to_str());
    let Some(applet) = link_name.and_then(|link| stands_for(link, databases)) else {
        return argv;
    };
    let mut resolved_argv: Vec<OsString> = vec!["navigator".into()];
    resolved_argv.extend(applet.into_iter().map(Into::into));
    resolved_argv.extend(argv.into_iter().skip(1));
    resolved_argv
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: &[&str] = &["example"];

    fn words(line: &str) -> Vec<OsString> {
        line.split(' ').map(Into::into).collect()
    }

    #[test]
    fn exact_link_names_become_subcommands() {
        let cases = [
            ("/usr/bin/navigator-apiserver --secure-port 1", "navigator apiserver --secure-port 1"),
            ("navigator-coordinator --help", "navigator coordinator --help"),
            ("pilot-example --help", "navigator pilot example --help"),
            ("navigator-pilot-example", "navigator pilot example"),
            ("pilot-example", "navigator pilot example"),
            ("pilot-nobody --help", "pilot-nobody --help"),
            ("pilot", "pilot"),
            ("/x/kubectl-navigator status demo", "navigator plugin status demo"),
            ("kubectl_complete-navigator status d", "navigator plugin __complete status d"),
            ("kubectl-navigator-old status", "kubectl-navigator-old status"),
            ("navigator pilot example", "navigator pilot example"),
            ("/x/navigator-apiserver.old run", "/x/navigator-apiserver.old run"),
            ("apiserver run", "apiserver run"),
        ];
        for (given, expected) in cases {
            assert_eq!(resolve_applet(words(given), ALL), words(expected), "{given}");
        }
        assert!(resolve_applet(vec![], ALL).is_empty());
    }
}
