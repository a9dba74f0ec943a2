//! Elasticsearch's entry for `kubectl navigator`.

use super::{
    names::{NAMES, port},
    v1beta1::ElasticsearchNode,
};
use crate::plugin::{
    ClientEndpoint, NodeLoad, ShownDatabase,
    console::{ConsoleAccess, ConsoleLogin, DatabaseConsole, SecuredConsole},
};

pub const DATABASE: ShownDatabase = ShownDatabase {
    names: &NAMES,
    console: DatabaseConsole {
        open: &["sh", "-c", CONSOLE, "console", "http://127.0.0.1:9200", ""],
        secured: Some(SecuredConsole {
            command: |access| {
                let login = access.login.as_deref().unwrap_or_default();
                ["sh", "-c", CONSOLE, "console", local_url(access), login].map(str::to_owned).into()
            },
            login_file,
            by_hand: |access| {
                let trust =
                    if access.tls { format!("--cacert {} ", trust_file(access)) } else { String::new() };
                let certificate_options = if access.certificate {
                    format!("--cert {OWN}.crt --key {OWN}.key ")
                } else {
                    String::new()
                };
                format!("curl {trust}{certificate_options}--user NAME {}", local_url(access))
            },
        }),
    },
    client: ClientEndpoint {
        service: |cluster| NAMES.service_account(cluster),
        port: port::HTTP,
        schemes: Some(["https", "http"]),
        admin: "elastic",
    },
    load: |status| Some(NodeLoad::Documents(status.part::<ElasticsearchNode>()?.documents?)),
    cleans_up: false,
    lost_with_quorum: Some(
        "\
- Indices, mappings, settings and users that the lost masters had agreed on and that this node had \
         not heard of yet.
- Every shard without a copy on a node that is left, and writes that only lost copies had.
- The membership of all other nodes: each is detached from the former cluster, and joins with the \
         shards that it has. A lost master that comes back with its volume is detached as well.
Take the node whose copy of the state is newest: the highest term, then the highest version, of
  kubectl navigator shell CLUSTER NODE -- \
         '_cluster/state/version,metadata?local&filter_path=version,metadata.cluster_coordination.term'",
    ),
    remark: |status| {
        status.part::<ElasticsearchNode>()?.elected_master?.then(|| "elected master".to_owned())
    },
};

/// Returns the CAs by which a client knows the node, in its container. Where it asks for certificates of
/// clients, `ca.crt` holds the CAs of those.
fn trust_file(access: &ConsoleAccess) -> &'static str {
    if access.certificate {
        "/etc/navigator/tls/client/server-ca.crt"
    } else {
        "/etc/navigator/tls/client/ca.crt"
    }
}

/// The node's certificate between nodes (`.crt`) and its key (`.key`).
const OWN: &str = "/etc/navigator/tls/internode/node";

fn local_url(access: &ConsoleAccess) -> &'static str {
    if access.tls { "https://127.0.0.1:9200" } else { "http://127.0.0.1:9200" }
}

/// Returns a login as curl reads it (`--config`).
fn login_file(access: &ConsoleAccess, login: &ConsoleLogin<'_>) -> Result<String, &'static str> {
    let ConsoleLogin { username, password } = *login;
    // curl takes what is before the first colon for the name.
    if username.contains(':') {
        return Err("a name with a colon cannot be used with curl");
    }
    let user = format!("{username}:{password}").chars().fold(String::new(), |quoted, c| match c {
        '\\' | '"' => quoted + "\\" + &c.to_string(),
        '\n' => quoted + "\\n",
        '\r' => quoted + "\\r",
        '\t' => quoted + "\\t",
        '\u{b}' => quoted + "\\v",
        c => quoted + &c.to_string(),
    });
    let trust =
        if access.tls { format!("cacert = \"{}\"\n", trust_file(access)) } else { String::new() };
    let certificate_options = if access.certificate {
        format!("cert = \"{OWN}.crt\"\nkey = \"{OWN}.key\"\n")
    } else {
        String::new()
    };
    Ok(format!("user = \"{user}\"\n{trust}{certificate_options}"))
}

/// Shell script of the console. Elasticsearch has no client of its own for a terminal, but its
/// images have curl: the console sends one request where words are given, else one for each line.
/// `$1` is where the node answers, and `$2` the file with curl's own settings for the login, or empty.
const CONSOLE: &str = r#"
url=$1 login=$2
shift 2
# The file is held open, and nobody else finds it any more.
if [ -n "$login" ]; then exec 3<"$login"; rm -f "$login"; fi
send() {
  if [ -n "$login" ]; then curl -sS -K /proc/self/fd/3 "$@"; else curl -sS "$@"; fi
}
ask() {
  method=GET
  case "$1" in GET|PUT|POST|DELETE) method=$1; shift ;; esac
  path=${1#/}
  [ $# -eq 0 ] || shift
  if [ $# -eq 0 ]; then
    send -X "$method" "$url/$path"
  else
    send -X "$method" -H 'Content-Type: application/json' -d "$*" "$url/$path"
  fi
}
if [ $# -gt 0 ]; then ask "$@"; exit; fi
echo '[GET|PUT|POST|DELETE] PATH [BODY], for example: _cat/nodes?v' >&2
set -f
while printf '> ' >&2 && read -r line; do
  set -- $line
  [ $# -eq 0 ] || { ask "$@"; echo; }
done"#;
