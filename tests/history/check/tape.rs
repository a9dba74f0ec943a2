//! What happened, put together from all that clients and watchers saw: one change for each
//! revision.

use std::collections::{BTreeMap, HashMap};

use super::{
    Asked, Filter, Findings, Guarantee, History, Moment, Outcome, Seen, Version, history::Operation,
};

/// A change of an object.
#[derive(Clone, Debug)]
pub(super) enum Change {
    Put(Version),
    /// The last state, under the revision of the deletion.
    Deleted(Version),
}

impl Change {
    /// The object after the change.
    pub(super) fn after(&self) -> Option<&Version> {
        match self {
            Self::Put(version) => Some(version),
            Self::Deleted(_) => None,
        }
    }
}

#[derive(Default)]
pub(super) struct Tape {
    /// By revision.
    pub(super) changes: BTreeMap<u64, (String, Change)>,
    keys: BTreeMap<String, BTreeMap<u64, Change>>,
    /// When an object's state was first seen, by the word of the write.
    first_seen: HashMap<String, (Moment, u64)>,
    /// Deletions whose outcome is not known: key and begin.
    doubtful: Vec<(String, Moment)>,
    /// Deletions that were acknowledged: key and begin.
    deletions: Vec<(String, Moment)>,
}

impl Tape {
    pub(super) fn read(history: &History, findings: &mut Findings) -> Self {
        let mut tape = Self::default();
        for operation in &history.operations {
            tape.note_operation(operation, findings);
        }
        for stream in &history.streams {
            for line in &stream.lines {
                match &line.seen {
                    Seen::Added(key, version) | Seen::Modified(key, version) => {
                        tape.put(key, version, line.at, findings);
                    }
                    // With a selector, DELETED may mean a change of an object that is selected no
                    // more.
                    Seen::Deleted(key, version) if !matches!(stream.filter, Filter::Lane(_)) => {
                        tape.deleted(key, version, findings);
                    }
                    Seen::Deleted(..) | Seen::Bookmark { .. } | Seen::Error(_) => {}
                }
            }
        }
        tape.check_words(history, findings);
        tape
    }

    fn note_operation(&mut self, operation: &Operation, findings: &mut Findings) {
        match (&operation.asked, &operation.outcome) {
            (_, Outcome::Listed { items, .. }) => {
                for (key, version) in items {
                    self.put(key, version, operation.end, findings);
                }
            }
            (asked, Outcome::Written(version) | Outcome::Found(version)) => {
                let key = asked.key().unwrap_or_default();
                self.put(key, version, operation.end, findings);
            }
            (Asked::Delete { key, .. }, Outcome::Deleted) => {
                self.deletions.push((key.clone(), operation.begin));
            }
            (Asked::Delete { key, .. }, Outcome::Unknown(_)) => {
                self.doubtful.push((key.clone(), operation.begin));
            }
            _ => {}
        }
    }

    fn put(&mut self, key: &str, version: &Version, at: Moment, findings: &mut Findings) {
        for word in [&version.main, &version.status] {
            let first = self.first_seen.entry(word.clone()).or_insert((at, version.revision));
            first.0 = first.0.min(at);
            first.1 = first.1.min(version.revision);
        }
        self.change(version.revision, key, Change::Put(version.clone()), findings);
    }

    fn deleted(&mut self, key: &str, last: &Version, findings: &mut Findings) {
        self.change(last.revision, key, Change::Deleted(last.clone()), findings);
    }

    fn change(&mut self, revision: u64, key: &str, change: Change, findings: &mut Findings) {
        let Some((known_key, known)) = self.changes.get(&revision) else {
            self.keys.entry(key.to_owned()).or_default().insert(revision, change.clone());
            self.changes.insert(revision, (key.to_owned(), change));
            return;
        };
        if known_key != key {
            let what = format!("revision {revision} changed {known_key} and {key}");
            findings.add(Guarantee::Atomic, what);
            return;
        }
        let same = match (known, &change) {
            (Change::Put(one), Change::Put(other))
            | (Change::Deleted(one), Change::Deleted(other)) => one == other,
            _ => false,
        };
        findings.unless(same, Guarantee::Genuine, || {
            format!("revision {revision} of {key} looks different: {known:?} and {change:?}")
        });
    }

    /// The words in objects were written, and by a write that was not refused.
    fn check_words(&self, history: &History, findings: &mut Findings) {
        let mut written: HashMap<&str, &Operation> = HashMap::new();
        for operation in &history.operations {
            if let Some(word) = operation.asked.word() {
                written.insert(word, operation);
            }
        }
        for (word, (at, revision)) in &self.first_seen {
            if word.is_empty() {
                continue;
            }
            let Some(operation) = written.get(word.as_str()) else {
                let what = format!("{word:?}, seen at revision {revision}, was written by nobody");
                findings.add(Guarantee::Genuine, what);
                continue;
            };
            findings.unless(operation.begin <= *at, Guarantee::Genuine, || {
                format!("{word:?} was seen before it was written: {operation:?}")
            });
            let denied = matches!(
                operation.outcome,
                Outcome::Absent | Outcome::Exists | Outcome::Conflict | Outcome::Refused(_)
            );
            findings.unless(!denied, Guarantee::Genuine, || {
                format!("revision {revision} is of a write that was refused: {operation:?}")
            });
        }
        for operation in &history.operations {
            let Outcome::Written(version) = &operation.outcome else { continue };
            let (word, shown) = match &operation.asked {
                Asked::Status { status, .. } => (status, &version.status),
                asked => match asked.word() {
                    Some(word) => (&word.to_owned(), &version.main),
                    None => continue,
                },
            };
            findings.unless(word == shown, Guarantee::Genuine, || {
                format!("the answer is not what was written: {operation:?}")
            });
        }
    }

    /// When a write of this word was seen for the first time, and its revision.
    pub(super) fn first_seen(&self, word: &str) -> Option<(Moment, u64)> {
        self.first_seen.get(word).copied()
    }

    /// The last change of a key up to a revision.
    pub(super) fn last(&self, key: &str, revision: u64) -> Option<(u64, &Change)> {
        let changes = self.keys.get(key)?;
        changes.range(..=revision).next_back().map(|(revision, change)| (*revision, change))
    }

    /// Changes of a key after a revision.
    pub(super) fn later(&self, key: &str, revision: u64) -> impl Iterator<Item = (u64, &Change)> {
        let changes = self.keys.get(key).into_iter();
        changes
            .flat_map(move |changes| changes.range(revision + 1..))
            .map(|(revision, change)| (*revision, change))
    }

    /// Since when the key exists, if it does after all changes.
    pub(super) fn there_since(&self, key: &str) -> Option<Moment> {
        let changes = self.keys.get(key)?.values().rev();
        let created = changes.map_while(Change::after).last()?;
        self.first_seen(&created.main).map(|(moment, _)| moment)
    }

    pub(super) fn keys(&self) -> impl Iterator<Item = &String> {
        self.keys.keys()
    }

    /// May the key have been deleted by then, although no watch showed the event?
    pub(super) fn may_be_deleted(&self, key: &str, by: Moment) -> bool {
        let doubtful = self.doubtful.iter().any(|(own, begin)| own == key && *begin <= by);
        let acknowledged = self.deletions.iter().any(|(own, begin)| own == key && *begin <= by);
        doubtful || (acknowledged && self.has_unseen_deletion(key))
    }

    /// Fewer deletions were seen than acknowledged.
    fn has_unseen_deletion(&self, key: &str) -> bool {
        let seen = self.keys.get(key).map_or(0, |changes| {
            changes.values().filter(|change| matches!(change, Change::Deleted(_))).count()
        });
        seen < self.deletions.iter().filter(|(own, _)| own == key).count()
    }
}
