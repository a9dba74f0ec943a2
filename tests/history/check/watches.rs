//! What a watch promises. Each stream is held against all that happened, wherever it went on from.

use std::{collections::BTreeMap, ops::Bound};

use super::{
    At, Ended, Filter, Findings, Floors, Guarantee, History, Seen, Start, Stream, Version,
    tape::{Change, Tape},
};

pub(super) fn check(history: &History, tape: &Tape, floors: &Floors, findings: &mut Findings) {
    for stream in &history.streams {
        let before = findings.0.len();
        one(stream, tape, floors, findings);
        for violation in &mut findings.0[before..] {
            let Stream { watcher, begin, filter, start, .. } = stream;
            violation.what = format!(
                "watcher {watcher} ({filter:?}, {start:?}, {begin} µs): {}",
                violation.what
            );
        }
    }
}

/// A change as this watcher has to see it; `None` when the watcher must not see it.
fn expected(filter: &Filter, key: &str, before: Option<&Version>, change: &Change) -> Option<Seen> {
    let before = before.filter(|version| filter.selects(key, version));
    let key = key.to_owned();
    match change {
        Change::Put(version) => match (before, filter.selects(&key, version)) {
            (None, false) => None,
            (None, true) => Some(Seen::Added(key, version.clone())),
            (Some(_), true) => Some(Seen::Modified(key, version.clone())),
            (Some(before), false) => {
                let last = Version { revision: version.revision, ..before.clone() };
                Some(Seen::Deleted(key, last))
            }
        },
        Change::Deleted(last) => {
            filter.selects(&key, last).then(|| Seen::Deleted(key, last.clone()))
        }
    }
}

fn revision(seen: &Seen) -> Option<u64> {
    match seen {
        Seen::Added(_, version) | Seen::Modified(_, version) | Seen::Deleted(_, version) => {
            Some(version.revision)
        }
        Seen::Bookmark { .. } | Seen::Error(_) => None,
    }
}

fn one(stream: &Stream, tape: &Tape, floors: &Floors, findings: &mut Findings) {
    // The revision after which events count; the end of a state that comes first sets it.
    let mut from = match stream.start {
        Start::From(revision) => Some(revision),
        Start::State(_) => None,
    };
    let mut events: BTreeMap<u64, &Seen> = BTreeMap::new();
    let (mut last, mut bookmark) = (from.unwrap_or_default(), 0);
    for line in &stream.lines {
        match &line.seen {
            Seen::Bookmark { revision, ends_state: true } => {
                findings.unless(from.is_none(), Guarantee::Bookmarkable, || {
                    format!("a second end of its state at {revision}")
                });
                fresh(stream, *revision, floors, findings);
                from = Some(*revision);
                (last, bookmark) = (*revision, *revision);
            }
            Seen::Bookmark { revision, ends_state: false } => {
                findings.unless(*revision >= last, Guarantee::Bookmarkable, || {
                    format!("a bookmark of {revision} after an event of {last}")
                });
                bookmark = bookmark.max(*revision);
                last = last.max(*revision);
            }
            Seen::Error(code) => error(*code, stream, last, line.at, floors, findings),
            // An item of the state that comes first.
            _ if from.is_none() => {}
            seen => {
                let at = revision(seen).expect("it is an event");
                if events.insert(at, seen).is_some() {
                    findings.add(Guarantee::Unique, format!("two events of revision {at}"));
                } else if at <= bookmark {
                    let what = format!("an event of {at} after a bookmark of {bookmark}: {seen:?}");
                    findings.add(Guarantee::Bookmarkable, what);
                } else if from.is_some_and(|from| at <= from) {
                    let what = format!("an event of {at}, from before the watch began: {seen:?}");
                    findings.add(Guarantee::Unique, what);
                } else if at < last {
                    let what = format!("an event of {at} after one of {last}: {seen:?}");
                    findings.add(Guarantee::Ordered, what);
                }
                last = last.max(at);
            }
        }
    }
    if let (Ended::Refused(410), Start::From(asked)) = (&stream.ended, stream.start) {
        findings.unless(floors.may_be_forgotten(asked, stream.end), Guarantee::Resumable, || {
            format!("refused with 410, but {asked} was kept")
        });
    }
    if let Some(from) = from {
        complete(stream, from, last, &events, tape, findings);
    }
}

/// A state that was asked for as the latest is not older than what was known before.
fn fresh(stream: &Stream, shown: u64, floors: &Floors, findings: &mut Findings) {
    let wanted = match stream.start {
        Start::State(At::Latest) => floors.before(stream.begin),
        Start::State(At::NotOlderThan(wanted)) => wanted,
        _ => 0,
    };
    findings.unless(shown >= wanted, Guarantee::Fresh, || {
        format!("its state is of {shown}, not of {wanted} or later")
    });
}

/// 410 is right for a revision that is forgotten, and wrong for every other.
fn error(code: u16, stream: &Stream, last: u64, at: u64, floors: &Floors, findings: &mut Findings) {
    let begun = matches!(stream.start, Start::From(_)) || last > 0;
    if code == 410 && begun {
        findings.unless(floors.may_be_forgotten(last, at), Guarantee::Resumable, || {
            format!("410 after revision {last}, which was kept")
        });
    }
}

/// The watch told every change between its begin and its last word, and nothing else.
fn complete(
    stream: &Stream,
    from: u64,
    last: u64,
    events: &BTreeMap<u64, &Seen>,
    tape: &Tape,
    findings: &mut Findings,
) {
    let told = (Bound::Excluded(from), Bound::Included(last.max(from)));
    for (at, (key, change)) in tape.changes.range(told) {
        let before = tape.last(key, at - 1).and_then(|(_, change)| change.after());
        if let Change::Deleted(deleted) = change
            && let Some(before) = before
        {
            let same = Version { revision: *at, ..before.clone() } == *deleted;
            if events.contains_key(at) {
                findings.unless(same, Guarantee::LastState, || {
                    format!("{key} was {before:?} when it was deleted, not {deleted:?}")
                });
            }
        }
        let wanted = expected(&stream.filter, key, before, change);
        let got = events.get(at).copied();
        match (&wanted, got) {
            (None, None) => {}
            (Some(wanted), None) => {
                let what = format!("it never saw {wanted:?}, and went on to {last}");
                findings.add(Guarantee::Reliable, what);
            }
            (Some(wanted), Some(got)) if alike(wanted, got) => {}
            // No watch showed the deletion before this creation.
            (Some(Seen::Modified(_, one)), Some(Seen::Added(_, other)))
                if one == other && tape.may_be_deleted(key, stream.end) => {}
            (_, Some(got)) => findings.add(
                if matches!(stream.filter, Filter::Lane(_)) {
                    Guarantee::Filtered
                } else {
                    Guarantee::Genuine
                },
                format!("it saw {got:?} where {wanted:?} was right; before that {before:?}"),
            ),
        }
    }
}

fn alike(one: &Seen, other: &Seen) -> bool {
    match (one, other) {
        (Seen::Added(key, version), Seen::Added(other_key, other))
        | (Seen::Modified(key, version), Seen::Modified(other_key, other))
        | (Seen::Deleted(key, version), Seen::Deleted(other_key, other)) => {
            key == other_key && version == other
        }
        _ => false,
    }
}
