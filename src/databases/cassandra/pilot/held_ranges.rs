//! Records the ranges of which a node may hold rows, to find those that it does not own any more.
//!
//! Owns `.navigator/cassandra-ranges.json`: for each keyspace, what the node owned when it was
//! cleaned up last, and what it owned since. A range in the file that the node does not own now was
//! given away, to a node that joined or by a lower replication factor, and its rows still lie here.
//! So a node that has just joined has nothing to clean up, nor has one whose pilot has only begun
//! to write the file.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::pilot::{upkeep_job::UpkeepJob, volume::state_file::StateFile};

/// Ranges of tokens by keyspace.
pub(super) type OwnedRanges = BTreeMap<String, TokenRanges>;

/// Ranges of the ring, sorted; no two touch. Each excludes its first token and includes its last. A
/// range that goes round the ring is stored as two.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Deserialize, Serialize)]
#[serde(transparent)]
pub(super) struct TokenRanges(Vec<(i64, i64)>);

impl FromIterator<(i64, i64)> for TokenRanges {
    fn from_iter<T: IntoIterator<Item = (i64, i64)>>(ranges: T) -> Self {
        let mut intervals = Vec::new();
        for (start, end) in ranges {
            if start < end {
                intervals.push((start, end));
            } else {
                intervals.extend([(i64::MIN, end), (start, i64::MAX)]);
            }
        }
        intervals.retain(|(start, end)| start < end);
        intervals.sort_unstable();
        let mut merged: Vec<(i64, i64)> = Vec::new();
        for (start, end) in intervals {
            match merged.last_mut() {
                Some(last) if start <= last.1 => last.1 = last.1.max(end),
                _ => merged.push((start, end)),
            }
        }
        Self(merged)
    }
}

impl TokenRanges {
    fn union(&self, other: &Self) -> Self {
        self.0.iter().chain(&other.0).copied().collect()
    }

    /// Is every token of `self` in `others`, too?
    fn is_within(&self, others: &Self) -> bool {
        self.0
            .iter()
            .all(|(start, end)| others.0.iter().any(|(first, last)| first <= start && end <= last))
    }
}

/// The ranges of which the node may hold rows, and the last cleanup.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(from = "StoredRanges", into = "StoredRanges")]
pub(super) struct HeldRanges {
    held: OwnedRanges,
    /// Number of ring members when the node last looked.
    pub(super) members: Option<usize>,
    pub(super) errand: Option<UpkeepJob>,
}

/// The form of the file. Keyspaces of one replication have the same ranges, which are written once.
#[derive(Default, Deserialize, Serialize)]
#[serde(default)]
struct StoredRanges {
    held: Vec<KeyspaceRanges>,
    #[serde(skip_serializing_if = "Option::is_none")]
    members: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    errand: Option<UpkeepJob>,
}

#[derive(Deserialize, Serialize)]
struct KeyspaceRanges {
    keyspaces: Vec<String>,
    ranges: TokenRanges,
}

impl From<StoredRanges> for HeldRanges {
    fn from(StoredRanges { held, members, errand }: StoredRanges) -> Self {
        let expand = |shared: KeyspaceRanges| {
            let ranges = shared.ranges;
            shared.keyspaces.into_iter().map(move |keyspace| (keyspace, ranges.clone()))
        };
        Self { held: held.into_iter().flat_map(expand).collect(), members, errand }
    }
}

impl From<HeldRanges> for StoredRanges {
    fn from(HeldRanges { held, members, errand }: HeldRanges) -> Self {
        let mut groups: BTreeMap<TokenRanges, Vec<String>> = BTreeMap::new();
        for (keyspace, ranges) in held {
            groups.entry(ranges).or_default().push(keyspace);
        }
        let shared = |(ranges, keyspaces)| KeyspaceRanges { keyspaces, ranges };
        Self { held: groups.into_iter().map(shared).collect(), members, errand }
    }
}

impl StateFile for HeldRanges {
    const FILE: &'static str = "cassandra-ranges.json";
}

impl HeldRanges {
    /// Adds the ranges that the node owns now. Returns whether the held ranges changed.
    pub(super) fn record_owned(&mut self, owned: &OwnedRanges) -> bool {
        let old_ranges = self.held.clone();
        // A dropped keyspace has no rows here.
        self.held.retain(|keyspace, _| owned.contains_key(keyspace));
        for (keyspace, ranges) in owned {
            let held_ranges = self.held.entry(keyspace.clone()).or_default();
            *held_ranges = held_ranges.union(ranges);
        }
        self.held != old_ranges
    }

    /// Returns the keyspaces with held ranges that other nodes own now.
    pub(super) fn given_away(&self, owned: &OwnedRanges) -> Vec<String> {
        let no_ranges = TokenRanges::default();
        let is_lost = |(keyspace, held): &(&String, &TokenRanges)| {
            !held.is_within(owned.get(*keyspace).unwrap_or(&no_ranges))
        };
        self.held.iter().filter(is_lost).map(|(keyspace, _)| keyspace.clone()).collect()
    }

    /// Records that a keyspace was cleaned up. The node owned `owned` of it when the cleanup began,
    /// and `now` at its end.
    pub(super) fn record_cleanup(
        &mut self,
        keyspace: &str,
        owned: &TokenRanges,
        current: &TokenRanges,
    ) {
        if let Some(held) = self.held.get_mut(keyspace) {
            *held = owned.union(current);
        }
    }
}

/// The ranges of one node in Cassandra's map from ranges to replicas.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum RangeMap {
    Own(TokenRanges),
    /// The tokens are not integers as of the default partitioner, so they are not compared.
    OtherPartitioner,
    /// The value is not a map from ranges to replicas.
    Nonsense,
}

impl RangeMap {
    /// Reads the map. `is_own` tells whether the node is among the replicas; `None` where the value
    /// is no list of replicas.
    pub(super) fn parse(map: &Value, is_own: impl Fn(&Value) -> Option<bool>) -> Self {
        let Some(map) = map.as_object() else { return Self::Nonsense };
        let mut own_ranges = Vec::new();
        for (range, replicas) in map {
            let (Some(is_own), Some(ends)) = (is_own(replicas), split_range(range)) else {
                return Self::Nonsense;
            };
            let (Ok(start), Ok(end)) = (ends.0.parse(), ends.1.parse()) else {
                return Self::OtherPartitioner;
            };
            if is_own {
                own_ranges.push((start, end));
            }
        }
        Self::Own(own_ranges.into_iter().collect())
    }
}

/// Returns the two ends of a range, which Jolokia writes as `[1, 2]`.
fn split_range(text: &str) -> Option<(&str, &str)> {
    let (start, end) = text.strip_prefix('[')?.strip_suffix(']')?.split_once(',')?;
    Some((start.trim(), end.trim()))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn ranges(all: &[(i64, i64)]) -> TokenRanges {
        all.iter().copied().collect()
    }

    fn owned(keyspaces: &[(&str, &[(i64, i64)])]) -> OwnedRanges {
        keyspaces.iter().map(|(name, all)| ((*name).to_owned(), ranges(all))).collect()
    }

    #[test]
    fn ranges_are_the_same_however_they_are_cut() {
        assert_eq!(ranges(&[(0, 5), (5, 9)]), ranges(&[(0, 9)]));
        assert_eq!(ranges(&[(5, 5)]), ranges(&[(5, 0), (0, 5)]), "all of the ring");
        assert_eq!(ranges(&[(7, -7)]), ranges(&[(7, i64::MAX), (i64::MIN, -7)]));
        assert!(ranges(&[(1, 2), (4, 5)]).is_within(&ranges(&[(0, 3), (3, 9)])));
        assert!(!ranges(&[(1, 4)]).is_within(&ranges(&[(0, 2), (3, 9)])));
        assert!(ranges(&[]).is_within(&ranges(&[])));
        assert!(ranges(&[(8, 2)]).is_within(&ranges(&[(7, 3)])), "over the end of the ring");
    }

    #[test]
    fn a_node_owes_for_what_it_had_and_has_not_and_for_nothing_else() {
        let mut holdings = HeldRanges::default();
        let alone = owned(&[("shop", &[(0, 0)]), ("logs", &[(0, 0)])]);
        assert!(holdings.record_owned(&alone));
        assert_eq!(holdings.given_away(&alone), [""; 0], "it has just joined, or nobody knows");
        assert!(!holdings.record_owned(&alone), "no news");

        let shared = owned(&[("shop", &[(0, 50)]), ("logs", &[(0, 0)])]);
        assert!(!holdings.record_owned(&shared));
        assert_eq!(holdings.given_away(&shared), ["shop"], "of `logs` it has all as before");
        assert_eq!(holdings.given_away(&alone), [""; 0], "they came back");
        assert_eq!(holdings.given_away(&owned(&[])), ["logs", "shop"]);

        let dropped = owned(&[("logs", &[(0, 0)])]);
        assert!(holdings.record_owned(&dropped));
        assert_eq!(
            holdings.given_away(&dropped),
            [""; 0],
            "a keyspace that is gone is not owed for"
        );
    }

    #[test]
    fn a_cleanup_ends_it_for_its_keyspace_and_not_for_what_was_given_away_meanwhile() {
        let (all, half, less) = (ranges(&[(0, 0)]), ranges(&[(0, 50)]), ranges(&[(0, 20)]));
        let mut holdings = HeldRanges::default();
        holdings.record_owned(&owned(&[("shop", &[(0, 0)])]));
        holdings.record_cleanup("shop", &half, &half);
        assert_eq!(holdings.given_away(&owned(&[("shop", &[(0, 50)])])), [""; 0]);
        holdings.record_cleanup("shop", &half, &less);
        let now = owned(&[("shop", &[(0, 20)])]);
        assert_eq!(holdings.given_away(&now), ["shop"], "another joined while it ran");
        holdings.record_cleanup("shop", &less, &all);
        assert_eq!(holdings.given_away(&owned(&[("shop", &[(0, 0)])])), [""; 0]);
        holdings.record_cleanup("gone", &less, &less);
    }

    #[test]
    fn what_was_asked_for_goes_on_over_a_restart_and_begins_anew_when_asked_again() {
        let volume = tempfile::tempdir().unwrap();
        let mut holdings = HeldRanges::default();
        holdings.record_owned(&owned(&[("a", &[(0, 9)]), ("b", &[(0, 9)]), ("c", &[(0, 0)])]));
        UpkeepJob::ensure_job(&mut holdings.errand, "monday").done.insert("a".to_owned());
        holdings.save(volume.path()).unwrap();
        let mut again = HeldRanges::load(volume.path()).unwrap();
        assert_eq!(again, holdings);
        assert!(UpkeepJob::ensure_job(&mut again.errand, "monday").done.contains("a"));
        UpkeepJob::ensure_job(&mut again.errand, "monday").failure = Some("no".to_owned());
        assert!(
            UpkeepJob::ensure_job(&mut again.errand, "monday").is_over()
                && !UpkeepJob::ensure_job(&mut again.errand, "tuesday").is_over()
        );
        assert!(UpkeepJob::ensure_job(&mut again.errand, "tuesday").done.is_empty());
        assert_eq!(
            HeldRanges::load(tempfile::tempdir().unwrap().path()).unwrap(),
            HeldRanges::default()
        );
    }

    #[test]
    fn only_the_ranges_of_the_node_itself_are_its_own() {
        let map = json!({
            "[0, 5]": ["a"], "[5, 9]": ["b", "a"], "[9, 0]": ["b"],
        });
        let of = |name: &'static str, map: &Value| {
            RangeMap::parse(map, |replicas| {
                Some(replicas.as_array()?.iter().any(|replica| replica == name))
            })
        };
        assert_eq!(of("a", &map), RangeMap::Own(ranges(&[(0, 9)])));
        assert_eq!(of("b", &map), RangeMap::Own(ranges(&[(5, 0)])));
        let least = json!({"[-9223372036854775808, 42]": ["a"]});
        assert_eq!(of("a", &least), RangeMap::Own(ranges(&[(i64::MIN, 42)])));
        for other in ["[0, 85070591730234615865843651857942052864]", "[0a, 0b]"] {
            assert_eq!(of("a", &json!({other: ["a"]})), RangeMap::OtherPartitioner);
        }
        for no in [json!("<html>"), json!({"x": ["a"]}), json!({"[1, 2]": "a"}), json!(null)] {
            assert_eq!(of("a", &no), RangeMap::Nonsense, "{no}");
        }
    }
}
