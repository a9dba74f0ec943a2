//! One watcher: lists and watches as client-go does, and goes on from the last revision that it
//! knows whenever its watch ends.

use std::{sync::Arc, time::Duration};

use http::Method;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use rand::{Rng, SeedableRng, rngs::StdRng};
use serde_json::Value;
use tokio::{
    sync::watch,
    time::{Instant, sleep, timeout},
};

use super::{
    check::{Asked, At, Ended, Filter, Line, Outcome, Record, Seen, Start, Stream},
    clients::failure,
    recorder::Recorder,
    servers::Servers,
    wire::{self, Connection},
};

/// How a watcher begins, and begins again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Style {
    /// A list, then a watch from its revision.
    Listing,
    /// A watch that shows the state first.
    Streaming,
    /// Listing without bookmarks, and slow to read.
    Slow,
    /// A watch from some revision of the past, each time.
    Rewinding,
}

pub(crate) struct Watcher {
    servers: Arc<Servers>,
    recorder: Arc<Recorder>,
    number: usize,
    style: Style,
    filter: Filter,
    rng: StdRng,
    /// The revision from which the watcher goes on.
    position: Option<u64>,
}

/// All of them: style and what is watched.
pub(crate) fn all() -> Vec<(Style, Filter)> {
    let lane = |lane: &str| Filter::Lane(lane.to_owned());
    vec![
        (Style::Listing, Filter::Everything),
        (Style::Streaming, Filter::Everything),
        (Style::Listing, lane("a")),
        (Style::Streaming, lane("b")),
        (Style::Streaming, Filter::Name("k0".to_owned())),
        (Style::Slow, Filter::Everything),
        (Style::Rewinding, Filter::Everything),
        (Style::Rewinding, lane("a")),
        (Style::Listing, Filter::Everything),
        (Style::Streaming, Filter::Everything),
    ]
}

impl Watcher {
    pub(crate) fn new(
        servers: &Arc<Servers>,
        recorder: &Arc<Recorder>,
        number: usize,
        (style, filter): (Style, Filter),
        seed: u64,
    ) -> Self {
        let rng = StdRng::seed_from_u64(seed.wrapping_mul(1_000).wrapping_add(500 + number as u64));
        let (servers, recorder) = (Arc::clone(servers), Arc::clone(recorder));
        Self { servers, recorder, number, style, filter, rng, position: None }
    }

    /// Runs until the watcher has seen the revision that comes last.
    pub(crate) async fn run(mut self, last: watch::Receiver<Option<u64>>) {
        while !self.is_content(&last) {
            let server = self.rng.random_range(0..self.servers.count());
            let Ok(connection) = Connection::open(&self.servers, server).await else {
                sleep(Duration::from_millis(20)).await;
                continue;
            };
            self.begin(connection, &last).await;
        }
    }

    /// Has the watcher seen all that it can?
    fn is_content(&self, last: &watch::Receiver<Option<u64>>) -> bool {
        let rewinds = self.style == Style::Rewinding;
        last.borrow().is_some_and(|last| rewinds || self.position >= Some(last))
    }

    async fn begin(&mut self, mut connection: Connection, last: &watch::Receiver<Option<u64>>) {
        if self.style == Style::Rewinding {
            let back = self.rng.random_range(0..400);
            self.position = Some(self.recorder.highest().saturating_sub(back).max(1));
        }
        let start = match (self.position, self.style) {
            (Some(position), _) => Start::From(position),
            (None, Style::Streaming) if self.rng.random_ratio(1, 4) => Start::State(At::Any),
            (None, Style::Streaming) => Start::State(At::Latest),
            (None, _) => match self.list(&mut connection).await {
                Some(revision) => Start::From(revision),
                None => return,
            },
        };
        let seconds = self.rng.random_range(2..6);
        let mut path = format!("?watch=1&timeoutSeconds={seconds}{}", wire::selected(&self.filter));
        if self.style != Style::Slow {
            path.push_str("&allowWatchBookmarks=true");
        }
        match start {
            Start::From(revision) => path.push_str(&wire::at(At::NotOlderThan(revision))),
            Start::State(at) => {
                path.push_str("&sendInitialEvents=true&resourceVersionMatch=NotOlderThan");
                path.push_str(&wire::at(at));
            }
        }
        let begin = self.recorder.now();
        let opened = connection.stream(wire::request(Method::GET, &path, &Value::Null)).await;
        let (lines, ended) = match opened {
            Ok((status, body)) if status.is_success() => {
                let over = Instant::now() + Duration::from_secs(seconds + 3);
                self.follow(body, start, over, last).await
            }
            Ok((status, _)) => (Vec::new(), Ended::Refused(status.as_u16())),
            Err(_) => (Vec::new(), Ended::Lost),
        };
        let expired = ended == Ended::Refused(410)
            || lines.last().is_some_and(|line| matches!(line.seen, Seen::Error(410)));
        if expired {
            self.position = None;
        }
        let begun = matches!(ended, Ended::Closed | Ended::Content);
        let (watcher, filter, end) = (self.number, self.filter.clone(), self.recorder.now());
        self.recorder.add(Record::Stream(Stream {
            watcher,
            begin,
            end,
            filter,
            start,
            lines,
            ended,
        }));
        if !begun {
            sleep(Duration::from_millis(50)).await;
        }
    }

    async fn list(&mut self, connection: &mut Connection) -> Option<u64> {
        let begin = self.recorder.now();
        let filter = self.filter.clone();
        let path = format!("?{}", wire::selected(&filter));
        let asked = connection.ask(wire::request(Method::GET, &path, &Value::Null)).await;
        let outcome = match asked {
            Err(why) => Outcome::Unknown(why),
            Ok(answer) if !answer.status.is_success() => failure(&answer, 0),
            Ok(answer) => Outcome::Listed {
                revisions: wire::revision(&answer.body).into_iter().collect(),
                items: answer.body["items"].as_array().unwrap().iter().map(wire::version).collect(),
            },
        };
        let shown = match &outcome {
            Outcome::Listed { revisions, .. } => revisions.first().copied(),
            _ => None,
        };
        let asked = Asked::List { filter, at: At::Latest, limit: 0 };
        self.recorder.ended(100 + self.number, begin, asked, outcome);
        if shown.is_none() {
            sleep(Duration::from_millis(50)).await;
        }
        self.position = shown;
        shown
    }

    /// Reads a watch to its end.
    async fn follow(
        &mut self,
        mut body: Incoming,
        start: Start,
        over: Instant,
        last: &watch::Receiver<Option<u64>>,
    ) -> (Vec<Line>, Ended) {
        let mut lines = Vec::new();
        let mut buffer = Vec::new();
        // A watch that shows the state first has no revision to go on from until the state is
        // complete.
        let mut begun = matches!(start, Start::From(_));
        if let Start::From(revision) = start {
            self.position = Some(revision);
        }
        loop {
            while let Some(end) = buffer.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = buffer.drain(..=end).collect();
                // A line that a kill cut short has no newline, and is left out.
                let Ok(value) = serde_json::from_slice::<Value>(&line) else {
                    panic!("no JSON: {}", String::from_utf8_lossy(&line));
                };
                let seen = seen(&value);
                let revision = match &seen {
                    Seen::Added(_, version)
                    | Seen::Modified(_, version)
                    | Seen::Deleted(_, version) => Some(version.revision),
                    Seen::Bookmark { revision, ends_state } => {
                        begun |= ends_state;
                        Some(*revision)
                    }
                    Seen::Error(_) => None,
                };
                lines.push(Line { at: self.recorder.now(), seen });
                if let Some(revision) = revision.filter(|_| begun) {
                    self.recorder.saw(revision);
                    self.position = Some(revision);
                }
            }
            if self.is_content(last) {
                return (lines, Ended::Content);
            }
            if self.style == Style::Slow && last.borrow().is_none() {
                sleep(Duration::from_millis(15)).await;
            }
            let now = Instant::now();
            if now > over {
                return (lines, Ended::Lost);
            }
            let wait = (over - now).min(Duration::from_millis(200));
            match timeout(wait, body.frame()).await {
                Err(_) => {}
                Ok(None) => return (lines, Ended::Closed),
                Ok(Some(Err(_))) => return (lines, Ended::Lost),
                Ok(Some(Ok(frame))) => {
                    if let Some(data) = frame.data_ref() {
                        buffer.extend_from_slice(data);
                    }
                }
            }
        }
    }
}

fn seen(line: &Value) -> Seen {
    let object = &line["object"];
    let event = |make: fn(String, super::check::Version) -> Seen| {
        let (key, version) = wire::version(object);
        make(key, version)
    };
    match line["type"].as_str() {
        Some("ADDED") => event(Seen::Added),
        Some("MODIFIED") => event(Seen::Modified),
        Some("DELETED") => event(Seen::Deleted),
        Some("BOOKMARK") => Seen::Bookmark {
            revision: wire::revision(object).unwrap(),
            ends_state: object["metadata"]["annotations"]["k8s.io/initial-events-end"] == "true",
        },
        _ => Seen::Error(u16::try_from(object["code"].as_u64().unwrap_or_default()).unwrap()),
    }
}
