//! Estimates what a parsed body costs in memory, and measures how deep it is.
//!
//! Owns the limits. The figures are those of `serde_json`'s tree on a 64-bit machine, where a small
//! map takes eighty times its text; they are estimates from above.

use serde_json::Value;

use super::Error;

/// Most bytes of memory that a parsed body may take. While a request is handled, up to three trees
/// of this size are in memory at once.
pub const MAX_TREE: usize = 8 * 1024 * 1024;

/// Deepest nesting of a body. `serde_json` reads 127 levels, and a stored object must be readable
/// again inside a list inside a watch event.
pub const MAX_DEPTH: usize = 100;

/// Deepest nesting of an object's `managedFields`: a set is one level deeper than its object, and
/// stands in an entry of a list.
pub const MAX_OWNERS_DEPTH: usize = MAX_DEPTH + 4;

/// Longest path of a field, in bytes. Findings and errors repeat the path for each field.
pub const MAX_PATH: usize = 4096;

/// Most places of a YAML body where a value may begin. The YAML reader keeps all of them in memory
/// before it hands out the first one.
const MAX_YAML_MARKS: usize = 64 * 1024;

/// Most brackets of a YAML body that are open at a time; brackets inside texts are counted too.
const MAX_YAML_BRACKETS: usize = 10 * MAX_DEPTH;

/// Bytes of memory that a map's first entry costs (a whole B-tree node), and that each further
/// entry adds.
const MAP: usize = 640;
pub(super) const ENTRY: usize = 110;
/// Bytes of memory that a list's first item costs, and that each further item adds while the list
/// grows.
const LIST: usize = 128;
const ITEM: usize = 64;

/// Returns the memory that an allocation of `bytes` bytes takes, in bytes.
pub(super) fn heap_bytes(bytes: usize) -> usize {
    if bytes == 0 { 0 } else { (bytes + 16).max(32) }
}

/// Returns the memory that the entry `key` adds to a map of `others` entries, without its value.
pub(super) fn entry_bytes(others: usize, key: &str) -> usize {
    heap_bytes(key.len()) + if others == 0 { MAP } else { ENTRY }
}

/// Returns the memory that one more item adds to a list of `others` items, without what the item
/// holds.
pub(super) fn item_bytes(others: usize) -> usize {
    if others == 0 { LIST } else { ITEM }
}

/// Returns the bytes of heap memory that a value takes, without the `Value` itself.
pub fn value_bytes(value: &Value) -> usize {
    match value {
        Value::Null | Value::Bool(_) | Value::Number(_) => 0,
        Value::String(text) => heap_bytes(text.len()),
        Value::Array(items) => items
            .iter()
            .enumerate()
            .map(|(others, value)| item_bytes(others) + value_bytes(value))
            .sum(),
        Value::Object(fields) => fields
            .iter()
            .enumerate()
            .map(|(others, (key, value))| entry_bytes(others, key) + value_bytes(value))
            .sum(),
    }
}

/// Returns how many levels of lists and maps are nested in a value.
pub fn nesting_depth(value: &Value) -> usize {
    match value {
        Value::Array(items) => 1 + items.iter().map(nesting_depth).max().unwrap_or_default(),
        Value::Object(fields) => 1 + fields.values().map(nesting_depth).max().unwrap_or_default(),
        _ => 0,
    }
}

/// Returns how many levels of lists and maps are nested in a text of valid JSON.
pub(super) fn depth_of_text(json: &str) -> usize {
    let (mut depth, mut deepest, mut is_quoted) = (0_usize, 0, false);
    let mut bytes = json.bytes();
    while let Some(byte) = bytes.next() {
        match byte {
            b'\\' if is_quoted => drop(bytes.next()),
            b'"' => is_quoted = !is_quoted,
            b'{' | b'[' if !is_quoted => {
                depth += 1;
                deepest = deepest.max(depth);
            }
            b'}' | b']' if !is_quoted => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    deepest
}

/// Checks a value that a patch produced against the limits of a request body.
pub fn check_limits(value: &Value) -> Result<(), Error> {
    if nesting_depth(value) > MAX_DEPTH {
        return Err(Error::Malformed(too_deep()));
    }
    if longest_path(value) > MAX_PATH {
        return Err(Error::Malformed(long_path()));
    }
    if value_bytes(value) > MAX_TREE { Err(Error::TooLarge(too_heavy())) } else { Ok(()) }
}

fn longest_path(value: &Value) -> usize {
    let longest = match value {
        Value::Array(items) => items.iter().map(|value| INDEX + longest_path(value)).max(),
        Value::Object(fields) => {
            fields.iter().map(|(key, value)| step_bytes(key) + longest_path(value)).max()
        }
        _ => None,
    };
    longest.unwrap_or_default()
}

/// Estimated bytes that a list index adds to a path.
pub(super) const INDEX: usize = 8;

/// Returns the bytes that a key adds to a path.
pub(super) fn step_bytes(key: &str) -> usize {
    key.len() + 1
}

/// Estimates from above the memory that a JSON body will take, in bytes, without parsing it.
pub fn estimate_json(json: &[u8]) -> usize {
    let mut weight = 0;
    let mut is_quoted = false;
    let mut bytes = json.iter();
    while let Some(byte) = bytes.next() {
        weight += match byte {
            b'"' => {
                is_quoted = !is_quoted;
                if is_quoted { 32 } else { 0 }
            }
            b'\\' if is_quoted => {
                bytes.next();
                2
            }
            _ if is_quoted => 1,
            b'{' => MAP,
            b'[' => LIST,
            b',' => ENTRY,
            _ => 0,
        };
    }
    weight.min(MAX_TREE)
}

/// Estimates from above the memory that a YAML body will take, in bytes: aliases may turn a small
/// body into a large tree.
pub fn estimate_yaml(yaml: &[u8]) -> usize {
    if yaml.contains(&b'*') { MAX_TREE } else { (yaml.len() * MAP / 4).min(MAX_TREE) }
}

/// Refuses a YAML body that has more places for values than its reader may keep.
pub(super) fn check_yaml(yaml: &[u8]) -> Result<(), Error> {
    let marks = yaml.iter().filter(|byte| matches!(byte, b'\n' | b',' | b'[' | b'{' | b'-' | b':'));
    if marks.count() > MAX_YAML_MARKS {
        let text = format!(
            "it has more than {MAX_YAML_MARKS} places where a value may begin, too many for YAML; \
             send it as JSON"
        );
        return Err(Error::TooLarge(text));
    }
    // The YAML reader searches all open brackets for each further one, so many open brackets take
    // quadratic time.
    let mut open_brackets = 0_usize;
    for byte in yaml {
        match byte {
            b'[' | b'{' => open_brackets += 1,
            b']' | b'}' => open_brackets = open_brackets.saturating_sub(1),
            _ => {}
        }
        if open_brackets > MAX_YAML_BRACKETS {
            return Err(Error::Malformed(too_deep()));
        }
    }
    Ok(())
}

pub(super) fn too_heavy() -> String {
    format!("it would take more than {} MiB of memory: it holds too many values", MAX_TREE >> 20)
}

pub(super) fn too_deep() -> String {
    format!("nested more than {MAX_DEPTH} levels deep")
}

pub(super) fn long_path() -> String {
    format!("the names that lead to a field have more than {MAX_PATH} bytes")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Returns the bytes that a parsed value has allocated at least: a map has further ones.
    fn allocated(value: &Value) -> usize {
        let place = size_of::<Value>();
        match value {
            Value::Null | Value::Bool(_) | Value::Number(_) => 0,
            Value::String(text) => text.capacity(),
            Value::Array(items) => {
                items.capacity() * place + items.iter().map(allocated).sum::<usize>()
            }
            Value::Object(fields) => fields
                .iter()
                .map(|(key, value)| size_of::<String>() + key.len() + place + allocated(value))
                .sum(),
        }
    }

    #[test]
    fn what_is_foreseen_is_what_is_allocated_and_at_most_twice_the_estimate() {
        for value in [
            json!({"a": {"b": [1, 2, {"c": "d"}], "e\"\\f": "x".repeat(100)}}),
            json!([[], {}, [[]], "", {"": ""}, {"a": 1, "b": 2, "c": 3, "d": 4}]),
            json!(vec![json!({"a": 0}); 500]),
            json!(vec!["x"; 500]),
            json!(vec![0; 500]),
            (0..500).map(|number| (number.to_string(), json!(number))).collect(),
        ] {
            let text = value.to_string();
            let parsed: Value = serde_json::from_str(&text).unwrap();
            let (foreseen, estimate) = (estimate_json(text.as_bytes()), value_bytes(&parsed));
            let allocated = allocated(&parsed);
            assert!(allocated <= estimate, "{allocated} > {estimate}: {text}");
            assert!(estimate <= foreseen, "{estimate} > {foreseen}: {text}");
            assert!(foreseen <= 2 * estimate, "{foreseen} > 2 * {estimate}: {text}");
        }
    }

    #[test]
    fn a_text_is_as_deep_as_its_tree() {
        for value in [
            json!(1),
            json!("[[["),
            json!({"[{\"\\": ["\\", "]]\"{", [[], {"a": {"{": "}"}}]], "b": {}}),
            json!([[[]], [[[[1]]]], []]),
        ] {
            assert_eq!(depth_of_text(&value.to_string()), nesting_depth(&value), "{value}");
        }
    }

    #[test]
    fn a_value_that_a_patch_made_is_held_to_the_limits_of_a_body() {
        let mut deep = json!(0);
        for _ in 0..MAX_DEPTH {
            deep = json!([deep]);
        }
        assert_eq!(check_limits(&deep), Ok(()));
        assert!(matches!(check_limits(&json!([deep])), Err(Error::Malformed(_))));
        let long = json!({"a".repeat(MAX_PATH / 2): {"b".repeat(MAX_PATH / 2): 1}});
        assert!(matches!(check_limits(&long), Err(Error::Malformed(_))));
        let heavy = json!(vec![json!({"a": 0}); MAX_TREE / MAP]);
        assert!(matches!(check_limits(&heavy), Err(Error::TooLarge(_))));
    }
}
