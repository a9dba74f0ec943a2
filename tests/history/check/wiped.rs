//! After its store was emptied a server says nothing about objects: an absence would be believed,
//! and a write would be lost to whoever knows the old store.

use super::{Asked, At, Findings, Guarantee, History, Outcome, Seen, Start, Stream};

pub(super) fn check(history: &History, findings: &mut Findings) {
    let wipe = history.operations.iter().find(|operation| matches!(operation.asked, Asked::Wipe));
    let Some(wiped) = wipe.map(|operation| operation.end) else { return };
    for operation in history.operations.iter().filter(|operation| operation.begin > wiped) {
        // What the cache still shows was true.
        let old = matches!(
            operation.asked,
            Asked::Get { at: At::Any | At::NotOlderThan(_) | At::Exact(_), .. }
                | Asked::List { at: At::Any | At::NotOlderThan(_) | At::Exact(_), .. }
        );
        let misleads = match &operation.outcome {
            Outcome::Written(_)
            | Outcome::Deleted
            | Outcome::Exists
            | Outcome::Conflict
            | Outcome::Absent => true,
            Outcome::Found(_) | Outcome::Listed { .. } => !old,
            Outcome::Expired { .. } | Outcome::Refused(_) | Outcome::Unknown(_) | Outcome::Done => {
                false
            }
        };
        findings.unless(!misleads, Guarantee::Refusing, || {
            format!("answered for a store that was wiped at {wiped} µs: {operation:?}")
        });
    }
    let latest =
        |stream: &&Stream| stream.begin > wiped && stream.start == Start::State(At::Latest);
    for stream in history.streams.iter().filter(latest) {
        let told = stream.lines.iter().find(|line| !matches!(line.seen, Seen::Error(_)));
        if let Some(line) = told {
            let what = format!("a watch of {:?} began after the wipe: {line:?}", stream.start);
            findings.add(Guarantee::Refusing, what);
        }
    }
}
