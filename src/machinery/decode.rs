//! Reads request bodies in JSON and YAML without hiding what a client wrote: duplicate keys are
//! found, numbers are kept digit by digit.
//!
//! Keeps a hostile body cheap; `weight` has the limits. Knows no kind: what the fields mean is for
//! `strict` and the scheme. One visitor serves both formats.

pub mod weight;

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

use serde::de::{DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value, value::RawValue};

use self::weight::{MAX_DEPTH, MAX_PATH, MAX_TREE};
use super::ownership::RawManagedFields;

/// Largest request body in bytes; the same as kube-apiserver's.
pub const MAX_BODY: usize = 3 * 1024 * 1024;

/// Most findings of one sort that are reported for a body: a client with a hundred mistakes needs
/// no more of them. Upstream has the same limit.
pub const MAX_FINDINGS: usize = 100;

/// Why a request body was not read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Status 400: the body is malformed, or nested too deep; the text says what is wrong.
    #[error("{0}")]
    Malformed(String),
    /// Status 413: the body is larger or costs more memory than a request may.
    #[error("{0}")]
    TooLarge(String),
}

/// A parsed body.
#[derive(Clone, Debug, PartialEq)]
pub struct ParsedBody {
    /// The body, the last of duplicate keys winning, as Go's decoder has it.
    pub value: Value,
    /// Paths of keys that occurred more than once, as `spec.nodePools[0].name`; not more than
    /// [`MAX_FINDINGS`].
    pub duplicates: Vec<String>,
    /// Numbers whose digits `value` cannot repeat (`1.50`, `1e3`), as written, by path. Filled for
    /// JSON only: YAML numbers are canonical before the visitor sees them, as in upstream's YAML to
    /// JSON pass.
    pub numbers: BTreeMap<String, String>,
    /// Content of `metadata.managedFields`, which is kept out of `value`.
    pub owners: Option<RawManagedFields>,
    /// Estimated memory of the parsed body, in bytes.
    pub weight: usize,
}

impl ParsedBody {
    /// Returns the number at `path` with the digits that the client wrote.
    pub fn digits(&self, path: &str, number: &Number) -> String {
        self.numbers.get(path).cloned().unwrap_or_else(|| number.to_string())
    }
}

impl From<Value> for ParsedBody {
    fn from(mut value: Value) -> Self {
        let owners = RawManagedFields::take_from(&mut value);
        let weight = weight::value_bytes(&value) + owners.as_ref().map_or(0, weigh_owners);
        Self { value, duplicates: Vec::new(), numbers: BTreeMap::new(), owners, weight }
    }
}

/// Reads a JSON body. The error says what is wrong and where: `… at line 3 column 7`.
pub fn parse_json(bytes: &[u8]) -> Result<ParsedBody, Error> {
    check_size(bytes)?;
    let mut collector =
        BodyVisitor { tokens: Some(NumberTokens { rest: bytes }), ..BodyVisitor::default() };
    let mut deserializer = serde_json::Deserializer::from_slice(bytes);
    let parse_result = collector.deserialize(&mut deserializer);
    let parse_result = parse_result.and_then(|value| deserializer.end().map(|()| value));
    collector.into_body(parse_result.map_err(|error| error.to_string()))
}

/// Reads a YAML body of one document. Keys that are numbers or booleans become strings.
pub fn parse_yaml(bytes: &[u8]) -> Result<ParsedBody, Error> {
    check_size(bytes)?;
    weight::check_yaml(bytes)?;
    let mut collector = BodyVisitor::default();
    let parse_result = collector.deserialize(serde_yaml::Deserializer::from_slice(bytes));
    collector.into_body(parse_result.map_err(|error| format!("yaml: {error}")))
}

fn weigh_owners(owners: &RawManagedFields) -> usize {
    weight::heap_bytes(owners.text().len())
}

fn check_size(bytes: &[u8]) -> Result<(), Error> {
    if bytes.len() > MAX_BODY {
        let text = format!("the body has {} bytes; at most {MAX_BODY} are read", bytes.len());
        return Err(Error::TooLarge(text));
    }
    Ok(())
}

enum PathStep {
    Key(String),
    Index(usize),
}

impl PathStep {
    fn length(&self) -> usize {
        match self {
            Self::Key(key) => weight::step_bytes(key),
            Self::Index(_) => weight::INDEX,
        }
    }
}

/// Builds a [`Value`] and records what a `Value` cannot hold: duplicate keys, digits of numbers,
/// weight.
#[derive(Default)]
struct BodyVisitor<'a> {
    path: Vec<PathStep>,
    /// Total length in bytes of the steps in `path`.
    path_length: usize,
    duplicates: Vec<String>,
    numbers: BTreeMap<String, String>,
    tokens: Option<NumberTokens<'a>>,
    owners: Option<RawManagedFields>,
    /// Estimated memory of all values read so far, in bytes.
    weight: usize,
}

impl BodyVisitor<'_> {
    fn into_body(self, result: Result<Value, String>) -> Result<ParsedBody, Error> {
        let is_too_large = self.weight > MAX_TREE;
        match result {
            Ok(mut value) => {
                let Self { duplicates, numbers, owners, weight, .. } = self;
                // In a YAML body `managedFields` was read as part of the tree of JSON values.
                let owners = owners.or_else(|| RawManagedFields::take_from(&mut value));
                Ok(ParsedBody { value, duplicates, numbers, owners, weight })
            }
            Err(text) if is_too_large => Err(Error::TooLarge(text)),
            Err(text) => Err(Error::Malformed(text)),
        }
    }

    fn current_path(&self) -> String {
        let mut path = String::with_capacity(self.path_length);
        for step in &self.path {
            match step {
                PathStep::Key(key) => {
                    if !path.is_empty() {
                        path.push('.');
                    }
                    path.push_str(key);
                }
                PathStep::Index(index) => path.extend(["[", &index.to_string(), "]"]),
            }
        }
        path
    }

    /// Adds `bytes` to the weight of what was read, and fails past [`MAX_TREE`].
    fn add_weight<E: serde::de::Error>(&mut self, bytes: usize) -> Result<(), E> {
        self.weight += bytes;
        if self.weight > MAX_TREE { Err(E::custom(weight::too_heavy())) } else { Ok(()) }
    }

    /// Fails when one more list or object would be nested deeper than [`MAX_DEPTH`].
    fn check_depth<E: serde::de::Error>(&self) -> Result<(), E> {
        if self.path.len() >= MAX_DEPTH { Err(E::custom(weight::too_deep())) } else { Ok(()) }
    }

    fn enter_step<E: serde::de::Error>(&mut self, step: PathStep) -> Result<(), E> {
        self.path_length += step.length();
        self.path.push(step);
        if self.path_length > MAX_PATH { Err(E::custom(weight::long_path())) } else { Ok(()) }
    }

    fn leave_step(&mut self) -> Option<PathStep> {
        let step = self.path.pop()?;
        self.path_length -= step.length();
        Some(step)
    }

    fn build_number<E: serde::de::Error>(&mut self, number: Number) -> Result<Value, E> {
        if let Some(token) = self.tokens.as_mut().and_then(Iterator::next)
            && token != number.to_string()
        {
            let path = self.current_path();
            let bytes = weight::heap_bytes(path.len()) + weight::heap_bytes(token.len());
            self.add_weight(weight::ENTRY + bytes)?;
            self.numbers.insert(path, token.to_owned());
        }
        Ok(Value::Number(number))
    }

    /// Is `key`, at the current path, the key of `metadata.managedFields` in a JSON body?
    fn at_owners(&self, key: &str) -> bool {
        let is_metadata = |step: &PathStep| matches!(step, PathStep::Key(key) if key == "metadata");
        key == "managedFields"
            && self.tokens.is_some()
            && matches!(&self.path[..], [parent] if is_metadata(parent))
    }

    /// Stores the value of `metadata.managedFields` as raw text, after checking its weight and
    /// depth.
    fn store_owners<E: serde::de::Error>(&mut self, raw: &RawValue) -> Result<(), E> {
        self.add_weight(weight::heap_bytes(raw.get().len()))?;
        if weight::depth_of_text(raw.get()) > weight::MAX_OWNERS_DEPTH {
            return Err(E::custom(format!("metadata.managedFields is {}", weight::too_deep())));
        }
        if self.owners.is_some() {
            self.record_duplicate();
        }
        self.owners = RawManagedFields::from_json(raw);
        // The visitor does not meet the numbers in this text, so their tokens are skipped.
        let numbers = NumberTokens { rest: raw.get().as_bytes() }.count();
        if let Some(tokens) = &mut self.tokens {
            tokens.take(numbers).for_each(drop);
        }
        Ok(())
    }

    /// Records the current path as one whose key occurred before.
    fn record_duplicate(&mut self) {
        if self.duplicates.len() < MAX_FINDINGS {
            let path = self.current_path();
            if !self.duplicates.contains(&path) {
                self.duplicates.push(path);
            }
        }
    }
}

impl<'de> DeserializeSeed<'de> for &mut BodyVisitor<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for &mut BodyVisitor<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E: serde::de::Error>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_none<E: serde::de::Error>(self) -> Result<Value, E> {
        self.visit_unit()
    }

    fn visit_bool<E: serde::de::Error>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_u64<E: serde::de::Error>(self, value: u64) -> Result<Value, E> {
        self.build_number(value.into())
    }

    fn visit_i64<E: serde::de::Error>(self, value: i64) -> Result<Value, E> {
        self.build_number(value.into())
    }

    fn visit_f64<E: serde::de::Error>(self, value: f64) -> Result<Value, E> {
        match Number::from_f64(value) {
            Some(number) => self.build_number(number),
            None => Err(E::custom(format!("{value} is not a number that JSON knows"))),
        }
    }

    fn visit_str<E: serde::de::Error>(self, value: &str) -> Result<Value, E> {
        self.add_weight(weight::heap_bytes(value.len()))?;
        Ok(Value::String(value.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        self.check_depth()?;
        let mut list = Vec::new();
        loop {
            self.enter_step(PathStep::Index(list.len()))?;
            let item = items.next_element_seed(&mut *self)?;
            self.leave_step();
            match item {
                Some(item) => {
                    self.add_weight(weight::item_bytes(list.len()))?;
                    list.push(item);
                }
                None => return Ok(Value::Array(list)),
            }
        }
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        self.check_depth()?;
        let mut map = Map::new();
        let mut repeated_keys = BTreeSet::new();
        while let Some(key) = entries.next_key_seed(KeySeed)? {
            if self.at_owners(&key) {
                self.enter_step(PathStep::Key(key))?;
                self.store_owners(entries.next_value()?)?;
                self.leave_step();
                continue;
            }
            self.add_weight(weight::entry_bytes(map.len(), &key))?;
            let is_repeated = map.contains_key(&key) && !repeated_keys.contains(&key);
            self.enter_step(PathStep::Key(key))?;
            let value = entries.next_value_seed(&mut *self)?;
            if is_repeated {
                self.record_duplicate();
            }
            if let Some(PathStep::Key(key)) = self.leave_step() {
                if is_repeated {
                    repeated_keys.insert(key.clone());
                }
                map.insert(key, value);
            }
        }
        Ok(Value::Object(map))
    }
}

/// Reads a key as text: YAML allows scalars other than strings, which upstream's YAML to JSON pass
/// writes out.
struct KeySeed;

impl<'de> DeserializeSeed<'de> for KeySeed {
    type Value = String;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<String, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl Visitor<'_> for KeySeed {
    type Value = String;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string as key")
    }

    fn visit_str<E: serde::de::Error>(self, value: &str) -> Result<String, E> {
        Ok(value.to_owned())
    }

    fn visit_bool<E: serde::de::Error>(self, value: bool) -> Result<String, E> {
        Ok(value.to_string())
    }

    fn visit_u64<E: serde::de::Error>(self, value: u64) -> Result<String, E> {
        Ok(value.to_string())
    }

    fn visit_i64<E: serde::de::Error>(self, value: i64) -> Result<String, E> {
        Ok(value.to_string())
    }

    fn visit_f64<E: serde::de::Error>(self, value: f64) -> Result<String, E> {
        Ok(value.to_string())
    }
}

/// Iterates over the numbers of a JSON text in the order in which they stand there, which is the
/// order in which the visitor meets them.
struct NumberTokens<'a> {
    rest: &'a [u8],
}

impl<'a> Iterator for NumberTokens<'a> {
    type Item = &'a str;

    fn next(&mut self) -> Option<&'a str> {
        let mut position = 0;
        while let Some(&byte) = self.rest.get(position) {
            match byte {
                b'"' => {
                    position += 1;
                    while let Some(&inner_byte) = self.rest.get(position) {
                        match inner_byte {
                            b'\\' => position += 2,
                            b'"' => break,
                            _ => position += 1,
                        }
                    }
                    position += 1;
                }
                b'-' | b'0'..=b'9' => {
                    let length = self.rest[position..]
                        .iter()
                        .take_while(|b| matches!(b, b'0'..=b'9' | b'-' | b'+' | b'.' | b'e' | b'E'))
                        .count();
                    let token = &self.rest[position..position + length];
                    self.rest = &self.rest[position + length..];
                    return str::from_utf8(token).ok();
                }
                _ => position += 1,
            }
        }
        self.rest = &[];
        None
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn every_duplicate_is_reported_with_its_path_and_the_last_one_wins() {
        let text = br#"{"a":1,"b":[{"c":1,"c":2,"c":3}],"a":2,"x":{"y.z":{"q":1,"q":1}}}"#;
        let document = parse_json(text).unwrap();
        assert_eq!(document.value, json!({"a": 2, "b": [{"c": 3}], "x": {"y.z": {"q": 1}}}));
        assert_eq!(document.duplicates, ["b[0].c", "a", "x.y.z.q"]);
    }

    #[test]
    fn yaml_keeps_duplicates_too() {
        let document = parse_yaml(b"a: 1\nb:\n- c: 1\n  c: 2\na: 3\n").unwrap();
        assert_eq!(document.value, json!({"a": 3, "b": [{"c": 2}]}));
        assert_eq!(document.duplicates, ["b[0].c", "a"]);
    }

    #[test]
    fn digits_are_kept_as_written() {
        let text = br#"{"s":"1.0 \" 2.0","a":1.50,"b":[3,1e3,-0.10],"c":12345678901234567890123}"#;
        let document = parse_json(text).unwrap();
        let numbers: Vec<_> =
            document.numbers.iter().map(|(path, text)| (path.as_str(), text.as_str())).collect();
        assert_eq!(
            numbers,
            [("a", "1.50"), ("b[1]", "1e3"), ("b[2]", "-0.10"), ("c", "12345678901234567890123")]
        );
    }

    #[test]
    fn owners_stay_text() {
        let text = r#"{"metadata":{"a":1.50,"managedFields":[{"x":1.0},2e3],"z":2.50},"b":3.50}"#;
        let document = parse_json(text.as_bytes()).unwrap();
        assert_eq!(document.owners.unwrap().text(), r#"[{"x":1.0},2e3]"#);
        let rest = json!({"metadata": {"a": 1.5, "z": 2.5}, "b": 3.5});
        assert_eq!(document.value, rest);
        let numbers: Vec<_> = document.numbers.into_iter().collect();
        let number = |path: &str, text: &str| (path.to_owned(), text.to_owned());
        let expected =
            [number("b", "3.50"), number("metadata.a", "1.50"), number("metadata.z", "2.50")];
        assert_eq!(numbers, expected);

        let document = parse_yaml(b"metadata:\n  managedFields: []\n  name: a\n").unwrap();
        assert_eq!(document.value, json!({"metadata": {"name": "a"}}));
        assert!(document.owners.unwrap().is_reset());
        for text in [r#"{"metadata":{"managedFields":null}}"#, r#"{"spec":{"managedFields":[]}}"#] {
            assert_eq!(parse_json(text.as_bytes()).unwrap().owners, None, "{text}");
        }
        let twice = br#"{"metadata":{"managedFields":[],"managedFields":[{}]}}"#;
        let document = parse_json(twice).unwrap();
        assert_eq!(document.duplicates, ["metadata.managedFields"]);
        assert_eq!(document.owners.unwrap().text(), "[{}]");
    }

    #[test]
    fn nesting_is_limited() {
        let deep = |levels: usize| format!("{}{}", "[".repeat(levels), "]".repeat(levels));
        assert!(parse_json(deep(MAX_DEPTH).as_bytes()).is_ok());
        let error = parse_json(deep(MAX_DEPTH + 1).as_bytes()).unwrap_err();
        let text = "nested more than 100 levels deep at line 1 column 102";
        assert_eq!(error, Error::Malformed(text.to_owned()));
    }

    #[test]
    fn an_alias_bomb_is_refused() {
        let mut lines = vec!["a0: &a0 [x, x, x, x, x, x, x, x, x, x]".to_owned()];
        for level in 1..12 {
            let previous = format!("*a{}", level - 1);
            let list = vec![previous; 10].join(", ");
            lines.push(format!("a{level}: &a{level} [{list}]"));
        }
        let error = parse_yaml(lines.join("\n").as_bytes()).unwrap_err().to_string();
        assert!(error.contains("repetition limit") || error.contains("too many values"), "{error}");
    }

    /// Each row is a hostile body (much cheaper to send than to read) and whether it is accepted.
    #[test]
    fn hostile_bodies_cost_little() {
        let fill = |unit: &str| unit.repeat(MAX_BODY / unit.len() - 400);
        let long = "k".repeat(3000);
        let trim = |text: String| text.trim_end_matches(',').to_owned();
        let rows = [
            ("small maps", format!("[{}]", trim(fill("{\"a\":0},"))), false),
            ("wide", format!("[{}]", trim(fill("0,"))), false),
            ("deep", fill("["), false),
            ("a key again and again", format!("{{{}}}", trim(fill("\"a\":0,"))), false),
            (
                "keys twice",
                format!("{{{0},{0}}}", {
                    let keys = (0..20_000).map(|key| format!("\"{key}\":0"));
                    keys.collect::<Vec<_>>().join(",")
                }),
                true,
            ),
            (
                "a long key above keys that repeat",
                format!("{{{long:?}:{{{}}}}}", trim("\"a\":0,".repeat(50_000))),
                true,
            ),
            (
                "a long key above odd numbers",
                format!("{{{long:?}:[{}]}}", trim("1.50,".repeat(600_000))),
                false,
            ),
            ("a key that is too long", format!("{{{:?}:0}}", "k".repeat(MAX_PATH)), false),
        ];
        for (name, body, read) in rows {
            let began = std::time::Instant::now();
            let outcome = parse_json(body.as_bytes());
            let took = began.elapsed();
            // Without the limits some bodies take minutes; a build without optimisation is slow.
            assert!(took.as_secs() < 60, "{name}: {took:?}");
            match outcome {
                Ok(document) => {
                    assert!(read, "{name} was read");
                    assert!(document.duplicates.len() <= MAX_FINDINGS, "{name}");
                    assert!(!document.duplicates.is_empty(), "{name}");
                }
                Err(error) => assert!(!read, "{name}: {error}"),
            }
        }
    }

    #[test]
    fn a_yaml_body_with_more_values_than_its_reader_may_keep_is_refused() {
        let body = format!("[{}0]", "0,".repeat(100_000));
        let error = parse_yaml(body.as_bytes()).unwrap_err();
        assert!(matches!(&error, Error::TooLarge(text) if text.contains("as JSON")), "{error}");
    }

    #[test]
    fn errors_say_where() {
        let error = parse_json(b"{\n \"a\": }").unwrap_err().to_string();
        assert_eq!(error, "expected value at line 2 column 7");
        let error = parse_yaml(b"a: b\n c: d: e\n").unwrap_err().to_string();
        assert!(error.starts_with("yaml: ") && error.contains("line 2"), "{error}");
        assert!(parse_json(b"{} {}").unwrap_err().to_string().contains("trailing characters"));
        let two = parse_yaml(b"a: 1\n---\nb: 2\n").unwrap_err().to_string();
        assert!(two.contains("more than one document"), "{two}");
    }

    #[test]
    fn yaml_keys_become_strings() {
        assert_eq!(parse_yaml(b"1: a\ntrue: b\n").unwrap().value, json!({"1": "a", "true": "b"}));
    }
}
