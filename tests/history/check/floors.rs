//! Real time: what was known by when, and so how new an answer has to be.

use super::{Asked, At, Findings, Guarantee, History, Moment, Outcome, Seen};

/// Revisions that a server remembers at its start, however much was written since.
const REMEMBERED: u64 = 4096;

/// The highest revision that any client had been told at a moment, and how far history was
/// forgotten.
pub(super) struct Floors {
    /// Ascending in both.
    known: Vec<(Moment, u64)>,
    forgotten: Vec<(Moment, u64)>,
}

impl Floors {
    pub(super) fn read(history: &History) -> Self {
        let mut known = Vec::new();
        let mut forgotten = Vec::new();
        for operation in &history.operations {
            match (&operation.asked, &operation.outcome) {
                (Asked::Compact { revision }, _) => forgotten.push((operation.begin, *revision)),
                (Asked::Wipe, _) => forgotten.push((operation.begin, u64::MAX)),
                (_, Outcome::Written(version) | Outcome::Found(version)) => {
                    known.push((operation.end, version.revision));
                }
                (_, Outcome::Listed { revisions, .. }) => {
                    known.extend(revisions.iter().map(|revision| (operation.end, *revision)));
                }
                _ => {}
            }
        }
        for line in history.streams.iter().flat_map(|stream| &stream.lines) {
            let revision = match &line.seen {
                Seen::Added(_, version)
                | Seen::Modified(_, version)
                | Seen::Deleted(_, version) => version.revision,
                Seen::Bookmark { revision, .. } => *revision,
                Seen::Error(_) => continue,
            };
            known.push((line.at, revision));
        }
        Self { known: rising(known), forgotten: rising(forgotten) }
    }

    /// The highest revision that was known before this moment.
    pub(super) fn before(&self, moment: Moment) -> u64 {
        last(&self.known, moment)
    }

    /// May a server have forgotten what came after this revision, by then?
    pub(super) fn may_be_forgotten(&self, asked: u64, by: Moment) -> bool {
        asked < last(&self.forgotten, by + 1) || asked + REMEMBERED < self.before(by)
    }

    /// Writes and fresh reads are later than everything that was known before they began.
    pub(super) fn check(&self, history: &History, findings: &mut Findings) {
        for operation in &history.operations {
            let before = self.before(operation.begin);
            match (&operation.asked, &operation.outcome) {
                (_, Outcome::Written(version)) => {
                    findings.unless(version.revision > before, Guarantee::Monotonic, || {
                        format!("revision {before} was known before {operation:?} began")
                    });
                }
                (Asked::List { at, .. }, Outcome::Listed { revisions, .. }) => {
                    let revision = revisions.first().copied().unwrap_or_default();
                    let (holds, wanted) = match *at {
                        At::Latest => (revision >= before, before),
                        At::Any => (true, 0),
                        At::NotOlderThan(wanted) => (revision >= wanted, wanted),
                        At::Exact(wanted) => (revision == wanted, wanted),
                    };
                    findings.unless(holds, Guarantee::Fresh, || {
                        let (client, begin) = (operation.client, operation.begin);
                        format!(
                            "client {client} listed {at:?} at {begin} µs: it shows revision \
                             {revision}, not {wanted}"
                        )
                    });
                }
                (asked, Outcome::Expired { asked: revision }) => {
                    let may = self.may_be_forgotten(*revision, operation.end);
                    findings.unless(may, Guarantee::Resumable, || {
                        format!("revision {revision} expired although it was kept: {asked:?}")
                    });
                }
                _ => {}
            }
        }
    }
}

/// Points in the order of time, each with a higher revision than all before.
fn rising(mut points: Vec<(Moment, u64)>) -> Vec<(Moment, u64)> {
    points.sort_unstable();
    let mut highest = 0;
    points.retain(|(_, revision)| {
        let rises = *revision > highest;
        highest = highest.max(*revision);
        rises
    });
    points
}

fn last(points: &[(Moment, u64)], before: Moment) -> u64 {
    let count = points.partition_point(|(moment, _)| *moment < before);
    count.checked_sub(1).map_or(0, |at| points[at].1)
}
