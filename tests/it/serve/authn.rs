//! Thirty ways to authenticate, and the user that each of them gives.

use std::{
    collections::BTreeMap,
    sync::{Arc, LazyLock},
};

use futures::future::BoxFuture;
use http::{HeaderMap, HeaderName, HeaderValue};
use navigator::apiserver::{
    authn::{Authenticator, ClusterTrust, CredentialError, TokenReviewError, TokenReviewer, User},
    delegate::ReviewCallError,
    metrics::Metrics,
    peer::{CaPoolId, ChainVerdict, PeerCertificates},
};
use sha2::{Digest, Sha256};
use tokio::sync::watch;

use crate::support::pki::{self, Ca, Identity, Odd};

struct World {
    proxies: Ca,
    clients: Ca,
    strangers: Ca,
}

static WORLD: LazyLock<World> = LazyLock::new(|| World {
    proxies: Ca::new("proxy-ca"),
    clients: Ca::new("client-ca"),
    strangers: Ca::new("strange-ca"),
});

/// `good` is a pod's token, `bad` is an invalid token, `down` finds kube-apiserver down.
struct Tokens;

impl TokenReviewer for Tokens {
    fn review<'a>(
        &'a self,
        token: &'a str,
    ) -> BoxFuture<'a, Result<Option<User>, Arc<TokenReviewError>>> {
        Box::pin(std::future::ready(match token {
            "good" => Ok(Some(User { name: "pod".into(), ..User::default() })),
            "down" => Err(Arc::new(ReviewCallError::Timeout.into())),
            _ => Ok(None),
        }))
    }
}

fn config(world: &World) -> BTreeMap<String, String> {
    let pairs = [
        ("client-ca-file", world.clients.pem.as_str()),
        ("requestheader-client-ca-file", world.proxies.pem.as_str()),
        ("requestheader-allowed-names", r#"["front-proxy"]"#),
        ("requestheader-username-headers", r#"["X-Remote-User"]"#),
        ("requestheader-uid-headers", r#"["X-Remote-Uid"]"#),
        ("requestheader-group-headers", r#"["X-Remote-Group"]"#),
        ("requestheader-extra-headers-prefix", r#"["X-Remote-Extra-"]"#),
    ];
    pairs.into_iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect()
}

fn authenticator(config: &BTreeMap<String, String>) -> Authenticator {
    let trust = watch::channel(Arc::new(ClusterTrust::parse(config).unwrap())).1;
    Authenticator::new(trust, Arc::new(Tokens), Arc::new(Metrics::new()))
}

/// `name [groups]`, or `-` for 401.
async fn who(authenticator: &Authenticator, identity: Option<&Identity>, headers: &str) -> String {
    let mut map = header_map(headers);
    let chain = identity.map(|identity| identity.chain.clone()).unwrap_or_default();
    let outcome = authenticator.authenticate(&PeerCertificates::new(chain), &mut map).await;
    for name in map.keys() {
        let name = name.as_str();
        let secret = name.starts_with("x-remote-") || name == "authorization";
        assert!(!secret, "{name} was passed on after {headers:?}");
    }
    match outcome {
        Ok(User { name, groups, .. }) => format!("{name} [{}]", groups.join(" ")),
        Err(_) => "-".to_owned(),
    }
}

/// One header a line.
fn header_map(lines: &str) -> HeaderMap {
    let mut map = HeaderMap::new();
    for line in lines.split('\n').filter(|line| !line.is_empty()) {
        let (name, value) = line.split_once(": ").unwrap_or((line.trim_end_matches(':'), ""));
        map.append(
            HeaderName::from_bytes(name.as_bytes()).unwrap(),
            HeaderValue::from_str(value).unwrap(),
        );
    }
    map
}

#[tokio::test]
async fn everybody_is_who_their_credentials_say_and_nobody_else() {
    let world = &*WORLD;
    let authenticator = authenticator(&config(world));
    let odd = |ca: &Ca, odd| ca.issue_odd("front-proxy", &[], odd);
    let expired = Odd { expired: true, ..Odd::default() };
    let not_yet = Odd { not_yet: true, ..Odd::default() };
    let server = Odd { server_only: true, ..Odd::default() };
    let proxy = || Some(world.proxies.issue("front-proxy", &[]));
    let jane = || Some(world.clients.issue("jane", &["dev", "ops"]));

    const USER: &str = "X-Remote-User: ann\nX-Remote-Group: g";
    const ANONYMOUS: &str = "system:anonymous [system:unauthenticated]";
    const JANE: &str = "jane [dev ops system:authenticated]";
    const ANN: &str = "ann [g system:authenticated]";
    const POD: &str = "pod [system:authenticated]";
    let good = "Authorization: Bearer good";
    let rows: Vec<(&str, Option<Identity>, String, &str)> = vec![
        ("nothing", None, String::new(), ANONYMOUS),
        ("headers without a certificate", None, USER.into(), ANONYMOUS),
        ("the front proxy", proxy(), USER.into(), ANN),
        ("lower-case headers", proxy(), USER.to_lowercase(), ANN),
        ("the proxy without a user", proxy(), String::new(), "-"),
        ("the proxy with an empty user", proxy(), "X-Remote-User:".into(), "-"),
        ("two users: the first counts", proxy(), format!("{USER}\nX-Remote-User: bob"), ANN),
        (
            "two groups",
            proxy(),
            format!("{USER}\nX-Remote-Group: h"),
            "ann [g h system:authenticated]",
        ),
        (
            "an anonymous user through the proxy",
            proxy(),
            "X-Remote-User: system:anonymous\nX-Remote-Group: system:unauthenticated".into(),
            ANONYMOUS,
        ),
        (
            "a helper without groups",
            proxy(),
            "X-Remote-User: system:aggregator".into(),
            "system:aggregator [system:authenticated]",
        ),
        (
            "the group is not added twice",
            proxy(),
            "X-Remote-User: ann\nX-Remote-Group: system:authenticated".into(),
            "ann [system:authenticated]",
        ),
        ("wrong name, right CA", Some(world.proxies.issue("jane", &[])), USER.into(), "-"),
        ("no name, right CA", Some(world.proxies.issue("", &[])), USER.into(), "-"),
        (
            "right name, client CA: a client, whatever its headers say",
            Some(world.clients.issue("front-proxy", &[])),
            USER.into(),
            "front-proxy [system:authenticated]",
        ),
        (
            "right name, strange CA",
            Some(world.strangers.issue("front-proxy", &[])),
            USER.into(),
            "-",
        ),
        ("expired proxy", Some(odd(&world.proxies, expired)), USER.into(), "-"),
        ("proxy of tomorrow", Some(odd(&world.proxies, not_yet)), USER.into(), "-"),
        ("a server's certificate as proxy", Some(odd(&world.proxies, server)), USER.into(), "-"),
        ("a client certificate", jane(), String::new(), JANE),
        ("a client certificate with another's headers", jane(), USER.into(), JANE),
        ("expired client", Some(odd(&world.clients, expired)), String::new(), "-"),
        ("client of tomorrow", Some(odd(&world.clients, not_yet)), String::new(), "-"),
        ("a server's certificate as client", Some(odd(&world.clients, server)), String::new(), "-"),
        ("a client of a strange CA", Some(world.strangers.issue("jane", &[])), String::new(), "-"),
        ("a good token", None, good.into(), POD),
        ("scheme in lower case", None, good.to_lowercase(), POD),
        ("a bad token is no anonymous user", None, "Authorization: Bearer bad".into(), "-"),
        ("a token that nobody can review", None, "Authorization: Bearer down".into(), "-"),
        ("an empty token", None, "Authorization: Bearer ".into(), ANONYMOUS),
        ("another scheme", None, "Authorization: Basic Zzp4".into(), ANONYMOUS),
        ("a certificate comes before a token", jane(), good.into(), JANE),
        (
            "a bad certificate beside a good token",
            Some(world.strangers.issue("jane", &[])),
            good.into(),
            POD,
        ),
        ("the proxy comes before its own token", proxy(), format!("{USER}\n{good}"), ANN),
        ("a token with another's headers", None, format!("{USER}\n{good}"), POD),
        ("impersonation is asked of the rules", jane(), "Impersonate-User: root".into(), JANE),
    ];
    let mut wrong = Vec::new();
    for (what, identity, headers, expected) in &rows {
        let found = who(&authenticator, identity.as_ref(), headers).await;
        if found != *expected {
            wrong.push(format!("{what}: {found}, expected {expected}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[tokio::test]
async fn extras_are_lower_case_and_decoded() {
    let authenticator = authenticator(&config(&WORLD));
    let mut headers = header_map(
        "X-Remote-User: ann\nX-Remote-Uid: 7\n\
         X-Remote-Extra-Authentication.kubernetes.io%2Fpod-name: p\nX-Remote-Extra-Scopes: a\n\
         X-Remote-Extra-scopes: b",
    );
    let proxy = PeerCertificates::new(WORLD.proxies.issue("front-proxy", &[]).chain);
    let user = authenticator.authenticate(&proxy, &mut headers).await.unwrap();
    assert_eq!(user.uid.as_deref(), Some("7"));
    assert_eq!(user.extra("authentication.kubernetes.io/pod-name"), Some("p"));
    assert_eq!(user.extra["scopes"], ["a", "b"]);
    assert!(headers.is_empty(), "{headers:?}");
}

#[tokio::test]
async fn a_client_certificate_names_a_user_and_itself() {
    let authenticator = authenticator(&config(&WORLD));
    let identity = WORLD.clients.issue("jane", &["dev"]);
    let digest = Sha256::digest(&identity.chain[0]);
    let hex: String = digest.iter().fold(String::new(), |hex, byte| hex + &format!("{byte:02x}"));
    let presented = PeerCertificates::new(identity.chain);
    let user = authenticator.authenticate(&presented, &mut HeaderMap::new()).await.unwrap();
    assert_eq!((user.name.as_str(), user.uid.as_deref()), ("jane", None));
    let credential = user.extra("authentication.kubernetes.io/credential-id");
    assert_eq!(credential, Some(format!("X509SHA256={hex}").as_str()));
    // The subject may hold the user's uid.
    let presented = PeerCertificates::new(WORLD.clients.issue_with_uid("jane", "u-1").chain);
    let user = authenticator.authenticate(&presented, &mut HeaderMap::new()).await.unwrap();
    assert_eq!(user.uid.as_deref(), Some("u-1"));
    // A certificate without a common name has no user, and its client is not anonymous either.
    let nameless = WORLD.clients.issue("", &["dev"]);
    assert_eq!(who(&authenticator, Some(&nameless), "").await, "-");
}

#[tokio::test]
async fn a_chain_that_was_good_is_judged_anew_by_another_ca() {
    let mut later = config(&WORLD);
    later.insert("requestheader-client-ca-file".into(), WORLD.strangers.pem.clone());
    let (trust, seen) = watch::channel(Arc::new(ClusterTrust::parse(&config(&WORLD)).unwrap()));
    let authenticator = Authenticator::new(seen, Arc::new(Tokens), Arc::new(Metrics::new()));
    let proxy = PeerCertificates::new(WORLD.proxies.issue("front-proxy", &[]).chain);
    let stranger = PeerCertificates::new(WORLD.strangers.issue("front-proxy", &[]).chain);
    let passes = async |chain: &PeerCertificates| {
        let mut headers = header_map("X-Remote-User: ann");
        authenticator.authenticate(chain, &mut headers).await.is_ok()
    };
    for _ in 0..2 {
        assert_eq!((passes(&proxy).await, passes(&stranger).await), (true, false));
    }
    trust.send_replace(Arc::new(ClusterTrust::parse(&later).unwrap()));
    for _ in 0..2 {
        assert_eq!((passes(&proxy).await, passes(&stranger).await), (false, true));
    }
}

#[tokio::test]
async fn a_uid_header_that_is_not_configured_is_not_believed() {
    let mut config = config(&WORLD);
    config.remove("requestheader-uid-headers");
    let authenticator = authenticator(&config);
    let mut headers = header_map("X-Remote-User: ann\nX-Remote-Uid: 7");
    let proxy = PeerCertificates::new(WORLD.proxies.issue("front-proxy", &[]).chain);
    let user = authenticator.authenticate(&proxy, &mut headers).await.unwrap();
    assert_eq!(user.uid, None);
    assert!(headers.is_empty(), "{headers:?}");
}

#[test]
fn a_configuration_that_would_let_anybody_in_is_refused() {
    let world = &*WORLD;
    let refused = |change: &dyn Fn(&mut BTreeMap<String, String>)| {
        let mut config = config(world);
        change(&mut config);
        ClusterTrust::parse(&config).is_err()
    };
    assert!(!refused(&|_| {}));
    assert!(refused(&|config| {
        config.remove("requestheader-client-ca-file");
    }));
    assert!(refused(&|config| {
        config.insert("requestheader-client-ca-file".into(), "nonsense".into());
    }));
    assert!(refused(&|config| {
        config.insert("client-ca-file".into(), "-----BEGIN CERTIFICATE-----\nx".into());
    }));
    assert!(refused(&|config| {
        config.remove("requestheader-username-headers");
    }));
    assert!(refused(&|config| {
        config.insert("requestheader-allowed-names".into(), "front-proxy".into());
    }));
    // Any name is fine as long as clients have another CA.
    assert!(!refused(&|config| {
        config.insert("requestheader-allowed-names".into(), "[]".into());
    }));
    assert!(refused(&|config| {
        config.insert("requestheader-allowed-names".into(), "[]".into());
        config.insert("client-ca-file".into(), world.proxies.pem.clone());
    }));
}

#[tokio::test]
async fn new_cas_count_at_once() {
    let (sender, trust) = watch::channel(Arc::new(ClusterTrust::parse(&config(&WORLD)).unwrap()));
    let authenticator = Authenticator::new(trust, Arc::new(Tokens), Arc::new(Metrics::new()));
    let stranger = WORLD.strangers.issue("jane", &[]);
    assert_eq!(who(&authenticator, Some(&stranger), "").await, "-");
    let mut rotated = config(&WORLD);
    rotated.insert("client-ca-file".into(), WORLD.strangers.pem.clone());
    sender.send_replace(Arc::new(ClusterTrust::parse(&rotated).unwrap()));
    assert_eq!(who(&authenticator, Some(&stranger), "").await, "jane [system:authenticated]");
}

/// Bundles keep old CAs for years.
#[tokio::test]
async fn a_ca_outside_of_its_validity_vouches_for_nobody() {
    let world = &*WORLD;
    let past = Ca::odd("past-ca", Odd { expired: true, ..Odd::default() });
    let future = Ca::odd("future-ca", Odd { not_yet: true, ..Odd::default() });
    let both = format!("{}{}{}", past.pem, world.clients.pem, future.pem);
    for (bundle, by_client) in [(both, "jane"), (past.pem.clone(), "-")] {
        let mut config = config(world);
        config.insert("client-ca-file".to_owned(), bundle);
        let authenticator = authenticator(&config);
        for (ca, expected) in [(&past, "-"), (&future, "-"), (&world.clients, by_client)] {
            let found = who(&authenticator, Some(&ca.issue("jane", &[])), "").await;
            let name = found.split(' ').next().unwrap();
            assert_eq!(name, expected);
        }
    }
}

/// Any client would be the proxy, whatever certificates its CA's key has.
#[test]
fn one_key_under_two_certificates_is_one_ca() {
    let world = &*WORLD;
    let renewed = world.clients.renewed("client-ca-of-next-year");
    assert_ne!(renewed.pem, world.clients.pem);
    let mut config = config(world);
    config.insert("requestheader-client-ca-file".to_owned(), renewed.pem.clone());
    config.insert("requestheader-allowed-names".to_owned(), String::new());
    let error = ClusterTrust::parse(&config).unwrap_err().to_string();
    assert!(error.contains("any client could then vouch for any user"), "{error}");
}

/// A long chain is expensive to verify, so it is not.
#[tokio::test]
async fn a_long_chain_is_refused_before_it_is_judged() {
    let authenticator = authenticator(&config(&WORLD));
    let chain = PeerCertificates::new(pki::maze().chain);
    let outcome = authenticator.authenticate(&chain, &mut HeaderMap::new()).await;
    let Err(CredentialError::ClientCertificate(rustls::Error::General(why))) = outcome else {
        panic!("{outcome:?}");
    };
    assert!(why.contains("send the leaf and its intermediates only"), "{why}");
}

/// What was found about a chain is changed behind the authenticator's back: it goes by that, and so does
/// not verify the chain once more.
#[tokio::test]
async fn a_chain_that_failed_is_not_verified_again() {
    let authenticator = authenticator(&config(&WORLD));
    let chain = PeerCertificates::new(WORLD.strangers.issue("jane", &[]).chain);
    let authenticate = async || authenticator.authenticate(&chain, &mut HeaderMap::new()).await;
    let outcome = authenticate().await;
    let bad = |outcome| match outcome {
        Err(CredentialError::ClientCertificate(error)) => error,
        other => panic!("{other:?}"),
    };
    let first = bad(outcome);
    let pools = (0..10_000).map(CaPoolId).filter(|pool| chain.verdict(*pool).is_some());
    let pools: Vec<CaPoolId> = pools.collect();
    assert!(!pools.is_empty(), "nothing is remembered of {first:?}");
    let changed = rustls::Error::General("as found before".to_owned());
    for pool in pools {
        chain.record_verdict(pool, ChainVerdict::Bad(changed.clone()));
    }
    assert_ne!(first, changed);
    assert_eq!(bad(authenticate().await), changed);
}
