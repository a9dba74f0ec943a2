//! Random histories against a model: a map and a list of events.

use std::collections::BTreeMap;

use bytes::Bytes;
use futures::StreamExt;
use navigator::apiserver::storage::{Error, PageRequest, Revision, Storage, StoreEvent};
use proptest::{
    prelude::*,
    test_runner::{Config, TestRunner},
};

use super::{
    Scratch, connect, etcd_server,
    keys::{key, pilots},
    kube_apiserver,
};

/// Something that a client does. Keys are few, so that histories are deep.
#[derive(Clone, Debug)]
enum Step {
    Create(u8),
    Update(u8),
    Delete(u8),
    /// An update or deletion at a revision that is not the key's.
    Stale(u8, bool),
    /// Lists at an earlier revision, this far back among those seen, in pages of this size.
    List(usize, usize),
    /// Reads a watch from an earlier revision to the end.
    Watch(usize),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        3 => (0..5u8).prop_map(Step::Create),
        5 => (0..5u8).prop_map(Step::Update),
        2 => (0..5u8).prop_map(Step::Delete),
        1 => (0..5u8, any::<bool>()).prop_map(|(key, update)| Step::Stale(key, update)),
        2 => (0..20usize, 1..4usize).prop_map(|(back, limit)| Step::List(back, limit)),
        1 => (0..20usize).prop_map(Step::Watch),
    ];
    prop::collection::vec(step, 1..40)
}

type State = BTreeMap<u8, (Revision, Bytes)>;

/// What the store should hold, after every revision that it gave.
struct Model {
    states: Vec<(Revision, State)>,
    events: Vec<StoreEvent>,
}

impl Model {
    fn now(&self) -> State {
        self.states.last().unwrap().1.clone()
    }

    /// The state `back` writes ago.
    fn earlier(&self, back: usize) -> &(Revision, State) {
        &self.states[self.states.len().saturating_sub(back + 1)]
    }

    fn put(&mut self, n: u8, revision: Revision, value: Bytes) {
        let mut state = self.now();
        let created = state.insert(n, (revision, value.clone())).is_none();
        let entry = navigator::apiserver::storage::StoreEntry { key: name(n), value, revision };
        self.events.push(StoreEvent::Put { entry, created });
        self.states.push((revision, state));
    }

    fn delete(&mut self, n: u8, revision: Revision) {
        let mut state = self.now();
        state.remove(&n).unwrap();
        self.events.push(StoreEvent::Delete { key: name(n), revision });
        self.states.push((revision, state));
    }
}

fn name(n: u8) -> navigator::apiserver::storage::Key {
    key(if n.is_multiple_of(2) { "even" } else { "odd" }, &format!("k{n}"))
}

async fn run(store: &dyn Storage, steps: &[Step]) {
    // A case may find what an earlier one left: it begins with an empty range.
    let left = store.list(&pilots(), PageRequest::default()).await.unwrap();
    for entry in left.entries {
        store.delete(&entry.key, entry.revision).await.unwrap();
    }
    let start = store.current_revision().await.unwrap();
    let mut model = Model { states: vec![(start, State::new())], events: Vec::new() };
    for (number, step) in steps.iter().enumerate() {
        let value = Bytes::from(number.to_string());
        let state = model.now();
        match *step {
            Step::Create(n) => match (store.create(&name(n), value.clone()).await, state.get(&n)) {
                (Ok(revision), None) => model.put(n, revision, value),
                (Err(Error::Exists(_)), Some(_)) => {}
                (got, had) => panic!("create: {got:?} although {had:?}"),
            },
            Step::Update(n) => {
                let expected = state.get(&n).map_or(start, |(revision, _)| *revision);
                match (store.update(&name(n), expected, value.clone()).await, state.get(&n)) {
                    (Ok(revision), Some(_)) => model.put(n, revision, value),
                    (Err(Error::NotFound(_)), None) => {}
                    (got, had) => panic!("update: {got:?} although {had:?}"),
                }
            }
            Step::Delete(n) => {
                let expected = state.get(&n).map_or(start, |(revision, _)| *revision);
                match (store.delete(&name(n), expected).await, state.get(&n)) {
                    (Ok(revision), Some(_)) => model.delete(n, revision),
                    (Err(Error::NotFound(_)), None) => {}
                    (got, had) => panic!("delete: {got:?} although {had:?}"),
                }
            }
            Step::Stale(n, update) => {
                let got = if update {
                    store.update(&name(n), start, value).await
                } else {
                    store.delete(&name(n), start).await
                };
                match (got, state.get(&n)) {
                    (Err(Error::NotFound(_)), None) => {}
                    (Err(Error::Conflict { actual, .. }), Some((revision, _))) => {
                        assert_eq!(actual, *revision);
                    }
                    (got, had) => panic!("stale: {got:?} although {had:?}"),
                }
            }
            Step::List(back, limit) => check_list(store, model.earlier(back), limit).await,
            Step::Watch(back) => check_watch(store, &model, model.earlier(back).0).await,
        }
    }
    for state in &model.states {
        check_list(store, state, 2).await;
    }
    check_watch(store, &model, start).await;
}

async fn check_list(store: &dyn Storage, (at, state): &(Revision, State), limit: usize) {
    let mut expected: Vec<_> =
        state.iter().map(|(n, (revision, value))| (name(*n), value.clone(), *revision)).collect();
    expected.sort();
    let mut listed = Vec::new();
    let mut request =
        PageRequest { at: Some(*at), limit: Some(limit), count: true, ..PageRequest::default() };
    loop {
        let page = store.list(&pilots(), request.clone()).await.unwrap();
        assert_eq!(page.revision, *at);
        request.after = page.entries.last().map(|entry| entry.key.clone());
        listed.extend(page.entries.into_iter().map(|e| (e.key, e.value, e.revision)));
        assert_eq!(page.remaining, expected.len() - listed.len(), "at {at}");
        if !page.more {
            break;
        }
    }
    assert_eq!(listed, expected, "at {at}");
}

async fn check_watch(store: &dyn Storage, model: &Model, from: Revision) {
    let mut events = store.watch(&pilots(), from).await.unwrap();
    for expected in model.events.iter().filter(|event| event.revision() > from) {
        loop {
            match events.next().await.unwrap().unwrap() {
                StoreEvent::Progress(_) => {}
                event => {
                    assert_eq!(event, *expected);
                    break;
                }
            }
        }
    }
}

fn check(cases: u32, store: &dyn Storage, runtime: &tokio::runtime::Runtime) {
    let config = Config { cases, failure_persistence: None, ..Config::default() };
    let outcome = TestRunner::new(config).run(&steps(), |steps| {
        runtime.block_on(run(store, &steps));
        Ok(())
    });
    if let Err(error) = outcome {
        panic!("{error}");
    }
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

#[test]
fn random_histories_on_embedded_are_those_of_the_model() {
    let runtime = runtime();
    let scratch = runtime.block_on(Scratch::new());
    check(48, &scratch.store, &runtime);
}

#[test]
fn random_histories_on_etcd_are_those_of_the_model() {
    let runtime = runtime();
    let server = etcd_server::shared();
    let store = runtime.block_on(connect(server.url(), "model"));
    check(24, &store, &runtime);
}

#[test]
fn random_histories_on_kubernetes_are_those_of_the_model() {
    let runtime = runtime();
    let store = runtime.block_on(kube_apiserver::shared().store("model"));
    check(4, &store, &runtime);
}
