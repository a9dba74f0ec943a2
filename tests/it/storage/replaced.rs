//! An etcd that is not the one that was opened any more: the first answer of each kind says so.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use futures::{StreamExt, future::BoxFuture};
use navigator::{
    apiserver::storage::{
        Error, PageRequest, Revision, Storage,
        etcd::{Config, EtcdStore},
    },
    runtime::Shutdown,
};
use tokio::time::{Instant, sleep, timeout};

use super::{
    connect,
    etcd_server::Server,
    keys::{key, pilots},
};

const VALUE: Bytes = Bytes::from_static(b"value");
const PREFIX: &str = "replaced";

/// What is asked first. `old` is the revision of the key `there`.
type Ask = fn(&EtcdStore, Revision) -> BoxFuture<'_, Option<Error>>;

const FIRST: [(&str, Ask); 12] = [
    ("get", |etcd, _| Box::pin(async { etcd.get(&key("ns", "there")).await.err() })),
    ("get of what never was", |etcd, _| {
        Box::pin(async { etcd.get(&key("ns", "never")).await.err() })
    }),
    ("list", |etcd, _| {
        Box::pin(async { etcd.list(&pilots(), PageRequest::default()).await.err() })
    }),
    ("list of one", |etcd, _| {
        let request = PageRequest { limit: Some(1), ..PageRequest::default() };
        Box::pin(async { etcd.list(&pilots(), request).await.err() })
    }),
    ("list at a revision", |etcd, old| {
        let request = PageRequest { at: Some(old), ..PageRequest::default() };
        Box::pin(async { etcd.list(&pilots(), request).await.err() })
    }),
    ("create", |etcd, _| Box::pin(async { etcd.create(&key("ns", "new"), VALUE).await.err() })),
    ("create of what is there", |etcd, _| {
        Box::pin(async { etcd.create(&key("ns", "there"), VALUE).await.err() })
    }),
    ("update", |etcd, old| {
        Box::pin(async move { etcd.update(&key("ns", "there"), old, VALUE).await.err() })
    }),
    ("delete", |etcd, old| {
        Box::pin(async move { etcd.delete(&key("ns", "there"), Revision(old.0 + 1)).await.err() })
    }),
    ("watch", |etcd, old| Box::pin(async move { etcd.watch(&pilots(), old).await.err() })),
    ("current revision", |etcd, _| Box::pin(async { etcd.current_revision().await.err() })),
    ("id", |etcd, _| Box::pin(async { etcd.store_id().await.err() })),
];

/// Waits until etcd answers, through a connection of its own that opens no store.
async fn answers(server: &Server) {
    let endpoints = vec![server.url().to_owned()];
    let config = Config { endpoints, prefix: "/probe".into(), tls: None };
    let etcd = EtcdStore::connect(&config).await.unwrap();
    let deadline = Instant::now() + Duration::from_secs(60);
    while let Err(error) = etcd.current_revision().await {
        assert!(Instant::now() < deadline, "etcd does not answer: {error:?}");
        sleep(Duration::from_millis(20)).await;
    }
}

/// A store with one object, opened once for each first question.
async fn opened(server: &Server) -> (Vec<EtcdStore>, Revision) {
    let writer = connect(server.url(), PREFIX).await;
    let written = writer.create(&key("ns", "there"), VALUE).await.unwrap();
    let mut stores = Vec::new();
    for _ in FIRST {
        stores.push(connect(server.url(), PREFIX).await);
    }
    (stores, written)
}

/// Every first question is refused, and the alarm is raised before it is.
async fn refuse(stores: Vec<EtcdStore>, old: Revision, why: &str) {
    for ((what, ask), store) in FIRST.into_iter().zip(stores) {
        let alarms = Arc::new(AtomicUsize::new(0));
        let heard = Arc::clone(&alarms);
        store.on_replaced(Box::new(move |_| {
            heard.fetch_add(1, Ordering::SeqCst);
        }));
        // The connection is new, as is the server at its other end.
        let deadline = Instant::now() + Duration::from_secs(60);
        let error = loop {
            match ask(&store, old).await {
                Some(Error::Unavailable { source }) => {
                    assert!(Instant::now() < deadline, "{what}: {source}");
                    sleep(Duration::from_millis(20)).await;
                }
                other => break other,
            }
        };
        let Some(Error::Replaced { reason }) = &error else { panic!("{what}: {error:?}") };
        assert!(reason.contains(why), "{what}: {reason}");
        assert!(what == "id" || alarms.load(Ordering::SeqCst) > 0, "{what}: nobody heard");
    }
}

#[tokio::test]
async fn a_wiped_etcd_is_refused_from_the_first_answer_on() {
    let mut server = Server::start();
    let (stores, old) = opened(&server).await;
    server.wipe();
    answers(&server).await;
    refuse(stores, old, "etcd").await;
}

#[tokio::test]
async fn another_store_that_has_come_further_is_refused_from_the_first_answer_on() {
    let mut server = Server::start();
    let (stores, old) = opened(&server).await;
    server.wipe();
    let other = connect(server.url(), PREFIX).await;
    for n in 0..old.0 + 10 {
        other.create(&key("ns", &format!("k{n}")), VALUE).await.unwrap();
    }
    assert!(other.current_revision().await.unwrap() > old);
    other.create(&key("ns", "there"), VALUE).await.unwrap();
    refuse(stores, old, "etcd holds the store").await;
}

#[tokio::test]
async fn an_etcd_restored_from_a_backup_is_refused_from_the_first_answer_on() {
    let mut server = Server::start();
    let (stores, old) = opened(&server).await;
    server.save();
    let writer = connect(server.url(), PREFIX).await;
    let lost = writer.create(&key("ns", "lost"), VALUE).await.unwrap();
    for store in &stores {
        assert_eq!(store.current_revision().await.unwrap(), lost);
    }
    server.restore();
    answers(&server).await;
    refuse(stores, old, &format!("and was at {lost} before")).await;
}

#[tokio::test]
async fn a_store_that_was_away_and_is_back_is_served_on() {
    let mut server = Server::start();
    let (stores, _) = opened(&server).await;
    server.kill_and_start_again();
    answers(&server).await;
    for store in stores {
        let deadline = Instant::now() + Duration::from_secs(60);
        loop {
            match store.get(&key("ns", "there")).await {
                Ok(found) => break assert!(found.is_some()),
                Err(error) => assert!(Instant::now() < deadline, "{error:?}"),
            }
            sleep(Duration::from_millis(20)).await;
        }
    }
}

#[tokio::test]
async fn an_id_is_made_once_and_never_by_looking() {
    let mut server = Server::start();
    let store = connect(server.url(), PREFIX).await;
    let id = store.store_id().await.unwrap();
    assert_eq!(store.establish_id().await.unwrap(), id);
    server.wipe();
    answers(&server).await;
    let deadline = Instant::now() + Duration::from_secs(60);
    let sight = loop {
        match store.store_status().await {
            Ok(sight) => break sight,
            Err(error) => assert!(Instant::now() < deadline, "{error:?}"),
        }
        sleep(Duration::from_millis(20)).await;
    };
    assert_eq!(sight.id, None, "a wiped etcd got a new id");
    assert!(sight.other.is_some(), "{sight:?}");
    assert!(store.store_id().await.is_err());
}

/// The oldest revision that is known, if `from` is older. Something was written after `from`.
async fn forgotten(store: &EtcdStore, from: Revision) -> Option<Revision> {
    let first = match store.watch(&pilots(), from).await {
        Ok(mut events) => timeout(Duration::from_secs(60), events.next()).await.unwrap().unwrap(),
        Err(error) => Err(error),
    };
    match first {
        Err(Error::Compacted { oldest, .. }) => Some(oldest),
        Err(error) => panic!("{error:?}"),
        Ok(_) => None,
    }
}

#[tokio::test]
async fn an_accepted_backup_leaves_every_revision_behind_that_was_given_out() {
    let server = Server::start();
    let store = connect(server.url(), PREFIX).await;
    let created = store.create(&key("ns", "there"), VALUE).await.unwrap();
    let past = Revision(created.0 + 3_000);
    let advanced = store.advance_revision(past).await.unwrap();
    assert!(advanced > past, "{advanced}");
    assert_eq!(store.current_revision().await.unwrap(), advanced);
    for old in [created, past] {
        let oldest = forgotten(&store, old).await;
        assert!(oldest > Some(past), "{old}: {oldest:?}");
    }
    assert!(store.get(&key("ns", "there")).await.unwrap().is_some());
    // An advance that would take for ever is refused, with what to do.
    let too_far = store.advance_revision(Revision(advanced.0 + 10_000_000)).await.unwrap_err();
    assert!(navigator::error::chain(&too_far).to_string().contains("--bump-revision"), "{too_far}");
}

#[tokio::test]
async fn servers_of_one_etcd_take_turns_to_forget_its_history() {
    let server = Server::start();
    let store = connect(server.url(), PREFIX).await;
    let first = store.create(&key("ns", "there"), VALUE).await.unwrap();
    let mut last = first;
    for _ in 0..10 {
        last = store.update(&key("ns", "there"), last, VALUE).await.unwrap();
    }
    let shutdown = Shutdown::new();
    let mut compacting = Vec::new();
    for _ in 0..2 {
        let (store, shutdown) = (connect(server.url(), PREFIX).await, shutdown.clone());
        #[expect(clippy::disallowed_methods, reason = "joined below")]
        compacting.push(tokio::spawn(async move {
            store.compact_periodically(Duration::from_millis(50), || true, shutdown).await;
        }));
    }
    let deadline = Instant::now() + Duration::from_secs(60);
    let oldest = loop {
        match forgotten(&store, first).await {
            Some(oldest) => break oldest,
            None => assert!(Instant::now() < deadline, "history is kept for ever"),
        }
        sleep(Duration::from_millis(20)).await;
    };
    assert!(oldest > first, "{oldest}");
    let found = store.get(&key("ns", "there")).await.unwrap().unwrap();
    assert_eq!(found.revision, last, "the latest values stay");
    shutdown.trigger();
    for task in compacting {
        task.await.unwrap();
    }
}
