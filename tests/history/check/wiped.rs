//! After its store was emptied a server says nothing about objects: clients that know the old store
//! would believe an absence, and would never see a write.

use super::{
    Asked, At, Findings, Guarantee, History, Moment, Outcome, Seen, Start, Stream, tape::Tape,
};

/// So far may a cache be behind, in microseconds: what was written later may look absent.
const LAG: Moment = 1_000_000;

pub(super) fn check(history: &History, tape: &Tape, findings: &mut Findings) {
    let wipe = history.operations.iter().find(|operation| matches!(operation.asked, Asked::Wipe));
    let Some((begun, wiped)) = wipe.map(|operation| (operation.begin, operation.end)) else {
        return;
    };
    // Was it in the old store, as far as watches showed? No watch may have shown its deletion.
    let was_there = |key: &str| {
        let since = tape.there_since(key).filter(|_| !tape.may_be_deleted(key, wiped));
        since.is_some_and(|since| since + LAG < begun)
    };
    for operation in history.operations.iter().filter(|operation| operation.begin > wiped) {
        // An old state that the cache still shows is true.
        let old = matches!(
            operation.asked,
            Asked::Get { at: At::Any | At::NotOlderThan(_) | At::Exact(_), .. }
                | Asked::List { at: At::Any | At::NotOlderThan(_) | At::Exact(_), .. }
        );
        let misleads = match &operation.outcome {
            Outcome::Written(_) | Outcome::Deleted | Outcome::Exists | Outcome::Conflict => true,
            Outcome::Absent => !old || operation.asked.key().is_some_and(was_there),
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
