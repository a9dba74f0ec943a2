//! One client: draws its requests from its seed, remembers what it saw, and goes on at another
//! server when one does not answer.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use http::Method;
use rand::{Rng, SeedableRng, rngs::StdRng};
use serde_json::Value;
use tokio::{sync::watch, time::sleep};

use super::{
    check::{Asked, At, Filter, Outcome, Version},
    recorder::Recorder,
    servers::Servers,
    wire::{self, Answer, Connection},
};

/// Few keys, so that clients meet.
const KEYS: usize = 10;
/// Longest pause between two requests of one client, in microseconds.
const PAUSE: u64 = 12_000;

pub(crate) struct Client {
    servers: Arc<Servers>,
    recorder: Arc<Recorder>,
    number: usize,
    rng: StdRng,
    server: usize,
    connection: Option<Connection>,
    /// The last version of each object that the client saw.
    known: BTreeMap<String, Version>,
    written: usize,
}

pub(crate) fn key(n: usize) -> String {
    format!("k{n}")
}

impl Client {
    pub(crate) fn new(
        servers: &Arc<Servers>,
        recorder: &Arc<Recorder>,
        number: usize,
        seed: u64,
    ) -> Self {
        let rng = StdRng::seed_from_u64(seed.wrapping_mul(1_000).wrapping_add(number as u64));
        Self {
            servers: Arc::clone(servers),
            recorder: Arc::clone(recorder),
            number,
            rng,
            server: number % servers.count(),
            connection: None,
            known: BTreeMap::new(),
            written: 0,
        }
    }

    pub(crate) async fn run(mut self, done: watch::Receiver<bool>) {
        while !*done.borrow() {
            let asked = self.draw();
            self.ask(asked).await;
            let pause = self.rng.random_range(0..PAUSE);
            sleep(Duration::from_micros(pause)).await;
        }
    }

    fn draw(&mut self) -> Asked {
        let key = key(self.rng.random_range(0..KEYS));
        let known = self.known.get(&key).map(|version| version.revision);
        let what = self.rng.random_range(0..100);
        let highest = self.recorder.highest();
        let earlier = highest.saturating_sub(self.rng.random_range(0..100)).max(1);
        let mut word = || {
            self.written += 1;
            format!("c{}-{}", self.number, self.written)
        };
        match (what, known) {
            (0..12, _) => Asked::Create { key, main: word() },
            (12..34, Some(expected)) => Asked::Update { key, main: word(), expected },
            (34..46, Some(expected)) => Asked::Status { key, status: word(), expected },
            (46..56, _) => Asked::Patch { key, main: word() },
            (56..60, _) => Asked::Delete { key, expected: None },
            (60..66, Some(expected)) => Asked::Delete { key, expected: Some(expected) },
            (66..72, _) => {
                let at = if what < 69 { At::Any } else { At::NotOlderThan(highest) };
                Asked::Get { key, at }
            }
            (72..88, _) => {
                let filter = match self.rng.random_range(0..4) {
                    0 => Filter::Lane("a".to_owned()),
                    _ => Filter::Everything,
                };
                let limit = if self.rng.random() { 0 } else { self.rng.random_range(1..4) };
                let at = match self.rng.random_range(0..8) {
                    0 => At::Any,
                    1 => At::Exact(earlier),
                    2 if limit == 0 => At::NotOlderThan(highest),
                    _ => At::Latest,
                };
                Asked::List { filter, at, limit }
            }
            _ => Asked::Get { key, at: At::Latest },
        }
    }

    /// Sends one request, if its server is there; a request that was not sent is not recorded.
    pub(crate) async fn ask(&mut self, asked: Asked) -> Option<Outcome> {
        if self.rng.random_ratio(1, 50) {
            self.move_on();
        }
        let good = self.connection.as_ref().is_some_and(|c| c.is_good(&self.servers, self.server));
        if !good {
            self.connection = Connection::open(&self.servers, self.server).await.ok();
        }
        if self.connection.is_none() {
            self.move_on();
            sleep(Duration::from_millis(20)).await;
            return None;
        }
        let begin = self.recorder.now();
        let outcome = self.outcome(&asked).await;
        self.recorder.ended(self.number, begin, asked.clone(), outcome.clone());
        self.remember(&asked, &outcome);
        if matches!(outcome, Outcome::Unknown(_)) {
            self.connection = None;
            self.move_on();
            sleep(Duration::from_millis(20)).await;
        }
        Some(outcome)
    }

    fn move_on(&mut self) {
        self.server = self.rng.random_range(0..self.servers.count());
    }

    async fn outcome(&mut self, asked: &Asked) -> Outcome {
        let lane = if self.rng.random() { "a" } else { "b" };
        let (method, path, body) = match asked {
            Asked::Create { key, main } => {
                (Method::POST, String::new(), wire::object(key, main, lane, None))
            }
            Asked::Update { key, main, expected } => {
                (Method::PUT, format!("/{key}"), wire::object(key, main, lane, Some(*expected)))
            }
            Asked::Status { key, status, expected } => {
                (Method::PUT, format!("/{key}/status"), wire::status(key, status, *expected))
            }
            Asked::Patch { key, main } => {
                (Method::PATCH, format!("/{key}"), wire::patch(main, lane))
            }
            Asked::Delete { key, expected } => {
                let body = expected.map_or(Value::Null, |expected| {
                    serde_json::json!({
                        "kind": "DeleteOptions", "apiVersion": "v1",
                        "preconditions": {"resourceVersion": expected.to_string()},
                    })
                });
                (Method::DELETE, format!("/{key}"), body)
            }
            Asked::Get { key, at } => {
                (Method::GET, format!("/{key}?{}", wire::at(*at)), Value::Null)
            }
            Asked::List { filter, at, limit } => return self.list(filter, *at, *limit).await,
            Asked::Compact { .. } | Asked::Wipe => unreachable!("no client asks for it"),
        };
        let answer = match self.send(method, &path, &body).await {
            Ok(answer) => answer,
            Err(why) => return Outcome::Unknown(why),
        };
        if !answer.status.is_success() {
            return failure(&answer, 0);
        }
        match asked {
            Asked::Delete { .. } => Outcome::Deleted,
            Asked::Get { .. } => Outcome::Found(wire::version(&answer.body).1),
            _ => Outcome::Written(wire::version(&answer.body).1),
        }
    }

    async fn send(&mut self, method: Method, path: &str, body: &Value) -> Result<Answer, String> {
        let connection = self.connection.as_mut().ok_or("no connection")?;
        connection.ask(wire::request(method, path, body)).await
    }

    /// Lists all pages.
    async fn list(&mut self, filter: &Filter, at: At, limit: usize) -> Outcome {
        let selected = wire::selected(filter);
        let (mut revisions, mut items) = (Vec::new(), Vec::new());
        let mut which = wire::at(at);
        loop {
            let path = format!("?limit={limit}{which}{selected}");
            let answer = match self.send(Method::GET, &path, &Value::Null).await {
                Ok(answer) => answer,
                Err(why) => return Outcome::Unknown(why),
            };
            if !answer.status.is_success() {
                let asked = match at {
                    At::Exact(revision) => revision,
                    _ => 0,
                };
                return failure(&answer, revisions.first().copied().unwrap_or(asked));
            }
            revisions.extend(wire::revision(&answer.body));
            items.extend(answer.body["items"].as_array().unwrap().iter().map(wire::version));
            match answer.body["metadata"]["continue"].as_str() {
                Some(token) if !token.is_empty() => which = format!("&continue={token}"),
                _ => return Outcome::Listed { revisions, items },
            }
            // Other clients may write between two pages.
            let pause = self.rng.random_range(0..20);
            sleep(Duration::from_millis(pause)).await;
        }
    }

    fn remember(&mut self, asked: &Asked, outcome: &Outcome) {
        match (asked.key(), outcome) {
            (Some(key), Outcome::Written(version) | Outcome::Found(version)) => {
                self.known.insert(key.to_owned(), version.clone());
            }
            (Some(key), Outcome::Deleted | Outcome::Absent) => drop(self.known.remove(key)),
            (None, Outcome::Listed { items, .. }) => self.known.extend(items.iter().cloned()),
            _ => {}
        }
    }
}

/// The outcome of an answer that is no success. `asked` is the revision that was asked for.
pub(crate) fn failure(answer: &Answer, asked: u64) -> Outcome {
    let code = answer.status.as_u16();
    match (code, answer.reason()) {
        (404, "NotFound") => Outcome::Absent,
        (409, "AlreadyExists") => Outcome::Exists,
        (409, "Conflict") => Outcome::Conflict,
        (410, _) => Outcome::Expired { asked },
        (400..=499, _) => Outcome::Refused(code),
        // The server may have carried the request out.
        _ => Outcome::Unknown(format!("{code} {}", answer.body["message"])),
    }
}
