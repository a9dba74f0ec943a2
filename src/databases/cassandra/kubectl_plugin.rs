//! Cassandra's entry for `kubectl navigator`.

use super::{
    names::{NAMES, nodes_service, port},
    v1beta1::CassandraNode,
};
use crate::plugin::{
    ClientEndpoint, NodeLoad, ShownDatabase,
    console::{ConsoleAccess, ConsoleLogin, DatabaseConsole, SecuredConsole},
};

pub const DATABASE: ShownDatabase = ShownDatabase {
    names: &NAMES,
    // cqlsh comes with the database, and connects to the node in its own container.
    console: DatabaseConsole {
        open: &["sh", "-c", r#"exec "${CASSANDRA_HOME:-/opt/cassandra}/bin/cqlsh" "$@""#, "cqlsh"],
        secured: Some(SecuredConsole {
            command: |access| {
                let trust = if access.tls { trust_file(access) } else { "" };
                let client_key = if access.certificate { OWN } else { "" };
                let login = access.login.as_deref().unwrap_or_default();
                ["sh", "-c", CONSOLE, "cqlsh", trust, client_key, login].map(str::to_owned).into()
            },
            login_file,
            by_hand: |access| {
                let trust = if access.tls {
                    format!("env SSL_CERTFILE={} ", trust_file(access))
                } else {
                    String::new()
                };
                let ssl = if access.tls { "--ssl " } else { "" };
                let cqlshrc_option = if access.certificate { "--cqlshrc FILE " } else { "" };
                format!("{trust}cqlsh {ssl}{cqlshrc_option}-u NAME")
            },
        }),
    },
    client: ClientEndpoint {
        service: nodes_service,
        port: port::CQL,
        schemes: None,
        admin: "admin",
    },
    load: |status| Some(NodeLoad::Bytes(status.part::<CassandraNode>()?.load_bytes?)),
    cleans_up: true,
    lost_with_quorum: None,
    remark: |status| status.part::<CassandraNode>()?.operation_mode.filter(|mode| mode != "NORMAL"),
};

/// Returns the CAs by which a client knows the node, in its container. Where it asks for certificates of
/// clients, `ca.pem` holds the CAs of those.
fn trust_file(access: &ConsoleAccess) -> &'static str {
    if access.certificate {
        "/etc/navigator/tls/client/server-ca.pem"
    } else {
        "/etc/navigator/tls/client/ca.pem"
    }
}

/// The node's certificate between nodes, with its key.
const OWN: &str = "/etc/navigator/tls/internode/node.pem";

/// Shell script that opens cqlsh in a secured node. cqlsh is told to check the node by the CAs, and
/// its driver of 5.0 (3.29.0) does not, by a fault: it sets `cert_reqs` where `verify_mode` is meant.
/// No option of cqlsh mends that. The connection does not leave the pod. `$1` is a file with CAs, or empty where clients
/// use no TLS; `$2` is a file with a certificate and its key, or empty where none is asked for; `$3` is
/// the file with the login, or empty.
const CONSOLE: &str = r#"
trust=$1 own=$2 login=$3
shift 3
# cqlsh takes a certificate from its settings alone, and reads them more than once.
if [ -n "$own" ]; then
  settings=${own%/tls/*}/cqlshrc-$$
  (umask 077; set -C; printf '[ssl]\nuserkey = %s\nusercert = %s\n' "$own" "$own" >"$settings") || exit
  exec 4<"$settings"
  rm -f "$settings"
  set -- --cqlshrc /proc/self/fd/4 "$@"
fi
# The file is held open, and nobody else finds it any more.
if [ -n "$login" ]; then
  exec 3<"$login"
  rm -f "$login"
  set -- --credentials /proc/self/fd/3 "$@"
fi
if [ -n "$trust" ]; then
  SSL_CERTFILE=$trust
  export SSL_CERTFILE
  set -- --ssl "$@"
fi
exec "${CASSANDRA_HOME:-/opt/cassandra}/bin/cqlsh" "$@""#;

/// Returns a login as cqlsh reads it (`--credentials`). In this section, which 4.1 and later know, it
/// takes a `%` for what it is.
fn login_file(_: &ConsoleAccess, login: &ConsoleLogin<'_>) -> Result<String, &'static str> {
    let ConsoleLogin { username, password } = *login;
    for value in [username, password] {
        if value.trim() != value || value.chars().any(char::is_control) {
            return Err(
                "what begins or ends with a space, or holds a line's end, cannot be read by cqlsh",
            );
        }
    }
    Ok(format!("[PlainTextAuthProvider]\nusername = {username}\npassword = {password}\n"))
}
