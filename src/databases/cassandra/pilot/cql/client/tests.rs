//! The client against a server that answers as it is told.

use std::sync::Arc;

use jiff::Timestamp;
use rustls::{
    RootCertStore, ServerConfig,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
    server::WebPkiClientVerifier,
};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::TcpListener,
};
use tokio_rustls::TlsAcceptor;

use super::*;
use crate::{
    databases::cassandra::pilot::cql::{Consistency, CqlRow, CqlTlsError, CqlValue},
    engine::pki::{CertificateAuthority, CertificateUse, KeyRequest, LeafOrder, PrivateKey},
};

const LIMIT: Duration = Duration::from_secs(5);
const PASSWORD: &str = "org.apache.cassandra.auth.PasswordAuthenticator";

fn answer(opcode: u8, body: &[u8]) -> Vec<u8> {
    flagged(0, opcode, body)
}

fn flagged(flags: u8, opcode: u8, body: &[u8]) -> Vec<u8> {
    let length = u32::try_from(body.len()).unwrap().to_be_bytes();
    [&[0x84, flags, 0, 0, opcode][..], &length, body].concat()
}

fn text(text: &str) -> Vec<u8> {
    [&u16::try_from(text.len()).unwrap().to_be_bytes()[..], text.as_bytes()].concat()
}

fn bytes(bytes: &[u8]) -> Vec<u8> {
    [&u32::try_from(bytes.len()).unwrap().to_be_bytes()[..], bytes].concat()
}

fn error(code: u32, message: &str) -> Vec<u8> {
    answer(opcode::ERROR, &[&code.to_be_bytes()[..], &text(message)].concat())
}

fn ready() -> Vec<u8> {
    answer(opcode::READY, &[])
}

fn void() -> Vec<u8> {
    answer(opcode::RESULT, &[0, 0, 0, 1])
}

/// Answers requests in order, and returns them: (opcode, body).
async fn serve(
    stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
    answers: &[Vec<u8>],
) -> Vec<(u8, Vec<u8>)> {
    let mut requests = Vec::new();
    for answer in answers {
        let mut header = [0; 9];
        if stream.read_exact(&mut header).await.is_err() {
            break;
        }
        assert_eq!(header[..4], [4, 0, 0, 0]);
        let length = u32::from_be_bytes(header[5..].try_into().unwrap());
        let mut body = vec![0; length.try_into().unwrap()];
        stream.read_exact(&mut body).await.unwrap();
        requests.push((header[4], body));
        if stream.write_all(answer).await.is_err() {
            break;
        }
    }
    requests
}

fn target(address: SocketAddr, login: Option<(&str, &str)>) -> CqlTarget {
    let login = login
        .map(|(name, password)| CqlLogin { name: name.to_owned(), password: password.to_owned() });
    CqlTarget { address, tls: None, login, timeout: LIMIT }
}

/// What a client sees that connects, then asks `statements` times, and what it asked.
async fn asked(
    login: Option<(&str, &str)>,
    answers: &[Vec<u8>],
    statements: usize,
) -> (Result<Vec<Result<CqlRows, CqlError>>, CqlError>, Vec<(u8, Vec<u8>)>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let target = target(listener.local_addr().unwrap(), login);
    let server = async {
        let (mut stream, _) = listener.accept().await.unwrap();
        serve(&mut stream, answers).await
    };
    let client = async {
        let mut client = CqlClient::connect(&target).await?;
        let mut results = Vec::new();
        for _ in 0..statements {
            let statement = CqlStatement::new("SELECT", Consistency::One);
            results.push(client.run_statement(&statement).await);
        }
        Ok(results)
    };
    tokio::join!(client, server)
}

/// The body of rows of one table, each column with its type.
fn rows(columns: &[(&str, &[u8])], rows: &[&[Option<&[u8]>]]) -> Vec<u8> {
    let count = |number: usize| u32::try_from(number).unwrap().to_be_bytes();
    let mut body = vec![0, 0, 0, 2, 0, 0, 0, 1];
    body.extend(count(columns.len()));
    body.extend(text("system_auth"));
    body.extend(text("roles"));
    for (name, column) in columns {
        body.extend(text(name));
        body.extend(*column);
    }
    body.extend(count(rows.len()));
    for cell in rows.iter().copied().flatten() {
        body.extend(cell.map_or(vec![0xff; 4], bytes));
    }
    body
}

#[tokio::test]
async fn a_node_that_asks_for_no_login_is_told_none() {
    let (results, requests) = asked(Some(("ada", "secret")), &[ready(), void()], 1).await;
    assert!(results.unwrap()[0].as_ref().unwrap().is_empty());
    assert_eq!(requests[0], (opcode::STARTUP, b"\0\x01\0\x0bCQL_VERSION\0\x053.0.0".to_vec()));
    assert_eq!(requests[1], (opcode::QUERY, b"\0\0\0\x06SELECT\0\x01\0".to_vec()));
}

#[tokio::test]
async fn a_login_is_sent_when_it_is_asked_for() {
    let ask = answer(opcode::AUTHENTICATE, &text(PASSWORD));
    let success = answer(opcode::AUTH_SUCCESS, &[0xff; 4]);
    let (results, requests) =
        asked(Some(("ada", "sec'ret")), &[ask.clone(), success, void()], 1).await;
    assert!(results.unwrap()[0].is_ok());
    assert_eq!(requests[1], (opcode::AUTH_RESPONSE, b"\0\0\0\x0c\0ada\0sec'ret".to_vec()));

    let (refused, _) =
        asked(Some(("ada", "x")), &[ask.clone(), error(0x100, "wrong password")], 0).await;
    let refused = refused.unwrap_err();
    assert_eq!(refused.code(), Some(0x100));
    assert_eq!(refused.to_string(), "the database answers: wrong password (0x0100)");

    let (refused, requests) = asked(None, std::slice::from_ref(&ask), 0).await;
    assert!(matches!(refused, Err(CqlError::LoginNeeded(by)) if by == PASSWORD));
    assert_eq!(requests.len(), 1);

    let (refused, requests) = asked(Some(("a\0b", "x")), std::slice::from_ref(&ask), 0).await;
    assert!(matches!(refused, Err(CqlError::Malformed(_))));
    assert_eq!(requests.len(), 1, "nothing was sent");

    let more = answer(opcode::AUTH_CHALLENGE, &[0xff; 4]);
    let (refused, _) = asked(Some(("ada", "x")), &[ask, more], 0).await;
    assert!(matches!(refused, Err(CqlError::Malformed(_))));
}

#[tokio::test]
async fn rows_are_read_by_the_names_and_types_of_their_columns() {
    let id = [7; 16];
    let set = [&[0, 0, 0, 2][..], &bytes(b"admin"), &bytes(b"reader")].concat();
    let map = [&[0, 0, 0, 1][..], &bytes(b"class"), &bytes(b"Simple")].concat();
    let columns: &[(&str, &[u8])] = &[
        ("role", &[0, 0x0d]),
        ("is_superuser", &[0, 0x04]),
        ("member_of", &[0, 0x22, 0, 0x0d]),
        ("replication", &[0, 0x21, 0, 0x0d, 0, 0x0d]),
        ("id", &[0, 0x0c]),
        ("count", &[0, 0x02]),
        ("address", &[0, 0x10]),
        ("bytes", &[0, 0x03]),
    ];
    let full: &[Option<&[u8]>] = &[
        Some(b"cassandra"),
        Some(&[1]),
        Some(&set),
        Some(&map),
        Some(&id),
        Some(&[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xfe]),
        Some(&[127, 0, 0, 1]),
        Some(&[1, 2]),
    ];
    let body = rows(columns, &[full, &[None; 8]]);
    let warned = flagged(0x08, opcode::RESULT, &[&[0, 1][..], &text("slow"), &body].concat());
    let payload = [&[0, 1][..], &text("key"), &bytes(b"value"), &body].concat();
    let carried = flagged(0x04, opcode::RESULT, &payload);
    let (results, _) = asked(None, &[ready(), warned, carried], 2).await;
    for result in results.unwrap() {
        let result = result.unwrap();
        let found: Vec<CqlRow<'_>> = result.iter().collect();
        assert_eq!(found.len(), 2);
        let row = found[0];
        assert_eq!(row.text("role"), Some("cassandra"));
        assert_eq!(row.boolean("is_superuser"), Some(true));
        assert_eq!(row.text_list("member_of"), ["admin", "reader"]);
        assert_eq!(row.text_map("replication"), [("class", "Simple")]);
        assert_eq!(row.uuid("id").unwrap().as_bytes(), &id);
        assert_eq!(row.get("count"), Some(&CqlValue::Integer(-2)));
        assert_eq!(row.get("address"), Some(&CqlValue::Address([127, 0, 0, 1].into())));
        assert_eq!(row.get("bytes"), Some(&CqlValue::Bytes(vec![1, 2])));
        assert_eq!((row.text("id"), row.boolean("role"), row.get("other")), (None, None, None));
        assert_eq!(found[1].get("role"), None);
        assert_eq!(found[1].text_list("member_of"), [""; 0]);
    }
}

#[tokio::test]
async fn after_a_refusal_the_connection_goes_on() {
    let answers = [ready(), error(0x2100, "no right"), void()];
    let (results, _) = asked(None, &answers, 2).await;
    let results = results.unwrap();
    assert_eq!(results[0].as_ref().unwrap_err().code(), Some(0x2100));
    assert!(results[1].is_ok());
}

#[tokio::test]
async fn what_is_no_answer_leaves_the_connection_unusable() {
    let whole = answer(opcode::RESULT, &rows(&[("role", &[0, 0x0d])], &[&[Some(b"ada")]]));
    let long = [&[0x84, 0, 0, 0, opcode::RESULT][..], &0x0100_0001_u32.to_be_bytes()].concat();
    let negative = [&[0x84, 0, 0, 0, opcode::RESULT][..], &[0xff; 4]].concat();
    for bad in [
        b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec(),
        [&[0x85][..], &void()[1..]].concat(),
        flagged(1, opcode::RESULT, &[0, 0, 0, 1]),
        [&[0x84, 0, 0, 1][..], &void()[4..]].concat(),
        flagged(0x08, opcode::RESULT, &[0, 9]),
        long,
        negative,
        whole[..whole.len() - 1].to_vec(),
        Vec::new(),
    ] {
        // The server hangs up after it.
        let (results, _) = asked(None, &[ready(), bad.clone()], 2).await;
        let results = results.unwrap();
        assert!(results[0].is_err(), "{bad:?}");
        assert!(matches!(results[1], Err(CqlError::Unusable)), "{bad:?}: {:?}", results[1]);
    }
}

#[tokio::test]
async fn a_result_that_is_damaged_anywhere_is_refused_and_ends() {
    let set = [&[0, 0, 0, 1][..], &bytes(b"admin")].concat();
    let columns: &[(&str, &[u8])] = &[("role", &[0, 0x0d]), ("member_of", &[0, 0x22, 0, 0x0d])];
    let whole = rows(columns, &[&[Some(b"ada"), Some(&set)]]);
    for end in 0..whole.len() {
        assert!(CqlRows::parse(&whole[..end]).is_err(), "{end}");
    }
    // Whatever one byte is, reading ends.
    for place in 0..whole.len() {
        for byte in [0, 1, 0x7f, 0x80, 0xff] {
            let mut damaged = whole.clone();
            damaged[place] = byte;
            drop(CqlRows::parse(&damaged));
        }
    }
    let two_billion_rows = [0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0x7f, 0xff, 0xff, 0xff];
    assert!(CqlRows::parse(&two_billion_rows).is_err());
    let deep: Vec<u8> = [0, 0x20].into_iter().cycle().take(2000).collect();
    assert!(CqlRows::parse(&rows(&[("deep", &deep)], &[])).is_err());
    let paged = [0, 0, 0, 2, 0, 0, 0, 2, 0, 0, 0, 0];
    assert!(CqlRows::parse(&paged).is_err());
}

#[tokio::test(start_paused = true)]
async fn a_node_that_says_nothing_is_waited_for_no_longer_than_the_limit() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let mut silent = target(address, None);
    silent.timeout = Duration::from_millis(700);
    let refused = CqlClient::connect(&silent).await.err().unwrap();
    assert!(matches!(refused, CqlError::TimedOut(limit) if limit == silent.timeout));
}

#[test]
fn a_password_is_not_shown() {
    let login = CqlLogin { name: "ada".to_owned(), password: "secret".to_owned() };
    let shown = format!("{login:?}");
    assert!(shown.contains("ada") && !shown.contains("secret"), "{shown}");
}

fn signed(ca: &CertificateAuthority, usage: CertificateUse) -> (String, String) {
    let key = PrivateKey::generate().unwrap();
    let request = KeyRequest::from_pem(&KeyRequest::create(&key).unwrap()).unwrap();
    let order = LeafOrder {
        common_name: "node",
        dns_names: &[],
        addresses: &["127.0.0.1".parse().unwrap()],
        usage,
        life: Duration::from_secs(3600),
    };
    (ca.issue_certificate(&request, &order, Timestamp::now()).unwrap(), key.to_pem())
}

#[tokio::test]
async fn over_tls_the_server_is_known_by_its_ca_and_the_client_by_its_certificate() {
    let now = Timestamp::now();
    let [ca, other] =
        ["ours", "other"].map(|name| CertificateAuthority::create(name, now).unwrap());
    let (chain, key) = signed(&ca, CertificateUse::Internode);
    let certificates = |pem: &str| -> Vec<CertificateDer<'static>> {
        CertificateDer::pem_slice_iter(pem.as_bytes()).map(Result::unwrap).collect()
    };
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut roots = RootCertStore::empty();
    roots.add(certificates(&ca.chain_pem()).remove(0)).unwrap();
    let clients =
        WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone()).build();
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_client_cert_verifier(clients.unwrap())
        .with_single_cert(
            certificates(&chain),
            PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap(),
        )
        .unwrap();
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let shown = signed(&ca, CertificateUse::Internode);
    let foreign = signed(&other, CertificateUse::Internode);
    for (trust, name, shows, is_good) in [
        (&ca, "127.0.0.1", Some(&shown), true),
        (&other, "127.0.0.1", Some(&shown), false),
        (&ca, "127.0.0.2", Some(&shown), false),
        (&ca, "127.0.0.1", Some(&foreign), false),
        (&ca, "127.0.0.1", None, false),
    ] {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let shows = shows.map(|(chain, key)| (chain.as_str(), key.as_str()));
        let mut target = target(listener.local_addr().unwrap(), None);
        target.tls = Some(CqlTls::new(&trust.chain_pem(), name, shows).unwrap());
        let server = async {
            let (stream, _) = listener.accept().await.unwrap();
            if let Ok(mut stream) = acceptor.accept(stream).await {
                serve(&mut stream, &[ready(), void()]).await;
            }
        };
        let client = async {
            let mut client = CqlClient::connect(&target).await?;
            client.run_statement(&CqlStatement::new("SELECT", Consistency::One)).await
        };
        let (result, ()) = tokio::join!(client, server);
        assert_eq!(result.is_ok(), is_good, "{name}: {result:?}");
    }
    assert!(matches!(CqlTls::new("", "not a name", None), Err(CqlTlsError::Name(..))));
    assert!(matches!(
        CqlTls::new(&ca.chain_pem(), "a", Some((&chain, "no key"))),
        Err(CqlTlsError::Client(_))
    ));
}
