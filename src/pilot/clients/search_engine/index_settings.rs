//! One setting of all indices: which of them have a value, giving it to those without one, and
//! taking it back; and how many replicas they have at least.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
};

use http::Method;
use serde::Deserialize;
use serde_json::{Value, json};

use super::{PATIENCE, SearchClient};
use crate::pilot::{driver::Error, query_answer::UnansweredQuery};

/// All indices but those whose name begins with a dot: these are the system's, whose settings may
/// not be changed.
const INDICES: &str = "/*,-.*/_settings";
/// Closed indices are meant, too; and having no index is no error.
const WIDE: &str = "expand_wildcards=open,closed&allow_no_indices=true";
/// Most bytes of index names in one request, whose first line may have 4 KiB at most.
const NAMES: usize = 2 << 10;

/// Path that asks for the replicas of all indices, the system's and hidden ones too. Every index
/// has a number, so an index without one was not heard.
const REPLICAS: &str = "/*/_settings/index.number_of_replicas,index.auto_expand_replicas\
                        ?expand_wildcards=all&allow_no_indices=true";
/// Blocks of an index under which the engine refuses every change of its settings but that of the
/// block itself (`TransportUpdateSettingsAction.checkBlock`; they are of the level
/// `METADATA_WRITE`).
const READ_ONLY: [&str; 2] = ["read_only", "read_only_allow_delete"];

#[derive(Debug, Deserialize)]
struct IndexSettings {
    settings: Value,
}

impl IndexSettings {
    /// Returns the text of a setting. 5.6 cannot be asked for flat settings.
    fn text(&self, key: &str) -> Option<&str> {
        self.settings.pointer(&format!("/{}", key.replace('.', "/")))?.as_str()
    }

    fn is_read_only(&self) -> bool {
        READ_ONLY.iter().any(|block| self.text(&format!("index.blocks.{block}")) == Some("true"))
    }
}

/// The range of replicas in which the engine chooses by the number of data nodes,
/// `index.auto_expand_replicas`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplicaRange {
    /// The setting: `0-1`, `0-all`.
    pub text: String,
    /// Fewest replicas.
    pub least: usize,
}

impl ReplicaRange {
    /// Reads the setting; `None` where the engine does not choose: it is `false` then.
    fn parse(text: &str) -> Option<Self> {
        let least = text.split_once('-')?.0.trim().parse().ok()?;
        Some(Self { text: text.to_owned(), least })
    }
}

impl SearchClient {
    /// Returns the names of the indices whose setting `key` has this value, and which let it be
    /// changed: those that are read-only refuse that, and would have all others refused with them.
    pub async fn indices_with(&self, key: &str, value: &str) -> Result<Vec<String>, Error> {
        let path = format!("{INDICES}/{key},index.blocks.*?{WIDE}");
        let settings_by_index =
            self.query::<BTreeMap<String, IndexSettings>>(&path).await.or_fail()?;
        let is_match =
            |index: &IndexSettings| index.text(key) == Some(value) && !index.is_read_only();
        Ok(settings_by_index
            .into_iter()
            .filter(|(_, index)| is_match(index))
            .map(|(name, _)| name)
            .collect())
    }

    /// Returns the ranges of those of the indices that expand their replicas by themselves. Fails
    /// when the answer leaves one of the indices out.
    pub async fn replica_ranges(
        &self,
        indices: &BTreeSet<&str>,
    ) -> Result<BTreeMap<String, ReplicaRange>, Error> {
        let settings_by_index =
            self.query::<BTreeMap<String, IndexSettings>>(REPLICAS).await.or_fail()?;
        let mut ranges = BTreeMap::new();
        for &name in indices {
            let index = settings_by_index
                .get(name)
                .filter(|settings| settings.text("index.number_of_replicas").is_some());
            let Some(index) = index else {
                let reason = format!("leaves index {name} out");
                return Err(UnansweredQuery::new(REPLICAS, reason).into());
            };
            let range = index.text("index.auto_expand_replicas").and_then(ReplicaRange::parse);
            ranges.extend(range.map(|range| (name.to_owned(), range)));
        }
        Ok(ranges)
    }

    /// Gives the setting `key` to every index that has no value of its own.
    pub async fn set_where_unset(&self, key: &str, value: &str) -> Result<(), Error> {
        let path = format!("{INDICES}?preserve_existing=true&{WIDE}");
        let body = json!({key: value});
        self.send_change(Method::PUT, &path, Some(&body), PATIENCE).await.map(drop)
    }

    /// Takes the setting `key` from the indices of one of the [`batch_names`].
    pub async fn unset_setting(&self, names: &str, key: &str) -> Result<(), Error> {
        let path = format!("/{names}/_settings?ignore_unavailable=true&allow_no_indices=true");
        let body = json!({key: Value::Null});
        self.send_change(Method::PUT, &path, Some(&body), PATIENCE).await.map(drop)
    }
}

/// Joins encoded names for request paths, in as many batches as [`NAMES`] requires.
pub fn batch_names(names: &[String]) -> Vec<String> {
    let mut batches: Vec<String> = Vec::new();
    for name in names {
        let name = percent_encode(name);
        match batches.last_mut().filter(|batch| batch.len() + name.len() < NAMES) {
            Some(batch) => {
                batch.push(',');
                batch.push_str(&name);
            }
            None => batches.push(name),
        }
    }
    batches
}

fn percent_encode(name: &str) -> String {
    let mut text = String::with_capacity(name.len());
    for byte in name.bytes() {
        if byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte) {
            text.push(byte.into());
        } else {
            // Writing to a String cannot fail.
            write!(text, "%{byte:02X}").ok();
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_index_is_read_only_by_the_blocks_that_refuse_its_settings() {
        let is_read_only = |blocks: Value| {
            let settings = json!({"index": {"blocks": blocks}});
            IndexSettings { settings }.is_read_only()
        };
        assert!(is_read_only(json!({"read_only": "true"})));
        assert!(is_read_only(json!({"read_only": "false", "read_only_allow_delete": "true"})));
        assert!(!is_read_only(json!({"write": "true", "read_only": "false"})));
        assert!(!IndexSettings { settings: json!({}) }.is_read_only());
    }

    #[test]
    fn replica_range_has_a_lower_bound_unless_it_is_off() {
        let least = |text: &str| ReplicaRange::parse(text).map(|range| range.least);
        for (text, expected) in [("0-1", Some(0)), ("0-all", Some(0)), ("2-5", Some(2))] {
            assert_eq!(least(text), expected);
        }
        assert_eq!((least("false"), least("")), (None, None));
    }

    #[test]
    fn names_go_into_paths_in_as_many_requests_as_they_need() {
        let names = ["logs", "größe+1"].map(str::to_owned);
        assert_eq!(batch_names(&names), ["logs,gr%C3%B6%C3%9Fe%2B1"]);
        let many: Vec<String> = (0..1000).map(|n| format!("index-{n:04}")).collect();
        let batches = batch_names(&many);
        assert!(batches.len() > 3 && batches.iter().all(|batch| batch.len() <= NAMES));
        assert_eq!(batches.join(",").split(',').count(), 1000);
        assert!(super::batch_names(&[]).is_empty());
    }
}
