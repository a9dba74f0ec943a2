//! Reads that are not of the latest state: lists are snapshots, and nothing is older than asked.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    Asked, At, Filter, Findings, Guarantee, History, Moment, Outcome, Seen, Start, Stream, Version,
    history::Operation,
    tape::{Change, Tape},
};

pub(super) fn check(history: &History, tape: &Tape, findings: &mut Findings) {
    for operation in &history.operations {
        match (&operation.asked, &operation.outcome) {
            (Asked::List { filter, .. }, Outcome::Listed { revisions, items }) => {
                let one = revisions.iter().all(|revision| *revision == revisions[0]);
                findings.unless(one, Guarantee::Snapshot, || {
                    format!("pages of one list show revisions {revisions:?}")
                });
                let names: Vec<_> = items.iter().map(|(key, _)| key).collect();
                let sorted = names.is_sorted_by(|one, other| one < other);
                findings.unless(sorted, Guarantee::Snapshot, || {
                    format!("a list repeats or mixes up its items: {names:?}")
                });
                let revision = revisions.first().copied().unwrap_or_default();
                let who = format!("list by client {}", operation.client);
                snapshot(&who, filter, revision, items, operation.end, tape, findings);
            }
            (Asked::Get { key, at }, _) => get(key, *at, operation, tape, findings),
            _ => {}
        }
    }
    for stream in &history.streams {
        initial_state(stream, tape, findings);
    }
}

/// The state that a watch began with, when it came to its end.
fn initial_state(stream: &Stream, tape: &Tape, findings: &mut Findings) {
    if !matches!(stream.start, Start::State(_)) {
        return;
    }
    let mut items = Vec::new();
    for line in &stream.lines {
        match &line.seen {
            Seen::Added(key, version) => items.push((key.clone(), version.clone())),
            Seen::Bookmark { revision, ends_state: true } => {
                let who = format!("state of watcher {}", stream.watcher);
                snapshot(&who, &stream.filter, *revision, &items, line.at, tape, findings);
                return;
            }
            _ => return,
        }
    }
}

/// Are these items the state at that revision, as far as clients and watchers saw its changes?
fn snapshot(
    who: &str,
    filter: &Filter,
    revision: u64,
    items: &[(String, Version)],
    by: Moment,
    tape: &Tape,
    findings: &mut Findings,
) {
    let items: BTreeMap<&String, &Version> = items.iter().map(|(key, item)| (key, item)).collect();
    let keys: BTreeSet<&String> = tape.keys().chain(items.keys().copied()).collect();
    for key in keys {
        let last = tape.last(key, revision);
        let expected = last.and_then(|(_, change)| change.after());
        let expected = expected.filter(|version| filter.selects(key, version));
        let item = items.get(key).copied();
        let right = match (expected, item) {
            (Some(expected), Some(item)) => expected == item,
            (None, None) => true,
            (Some(_), None) => tape.may_be_deleted(key, by),
            (None, Some(_)) => false,
        };
        findings.unless(right, Guarantee::Snapshot, || {
            format!(
                "{who} at revision {revision} shows {key} as {item:?}; the last change by then \
                 was {last:?}"
            )
        });
    }
}

/// A get from the cache shows a state that was true at the revision that was asked for, or later.
fn get(key: &str, at: At, operation: &Operation, tape: &Tape, findings: &mut Findings) {
    let wanted = match at {
        At::NotOlderThan(wanted) => wanted,
        At::Any | At::Latest | At::Exact(_) => return,
    };
    let right = match &operation.outcome {
        Outcome::Found(version) => {
            let next = tape.later(key, version.revision).next();
            next.is_none_or(|(revision, _)| revision > wanted)
        }
        Outcome::Absent => {
            let present =
                tape.last(key, wanted).is_some_and(|(_, change)| change.after().is_some());
            let mut later = tape.later(key, wanted);
            !present
                || later.any(|(_, change)| matches!(change, Change::Deleted(_)))
                || tape.may_be_deleted(key, operation.end)
        }
        _ => true,
    };
    findings.unless(right, Guarantee::Fresh, || {
        format!("older than the revision {wanted} that was asked for: {operation:?}")
    });
}
