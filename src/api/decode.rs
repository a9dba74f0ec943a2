//! Reading request bodies, JSON and YAML, so that nothing which was written goes unseen:
//! duplicate keys, numbers digit by digit.
//!
//! Owns the limits that keep a hostile body cheap. Knows no kind: what the fields mean is for
//! `strict` and the scheme. One visitor serves both formats.

use std::{collections::BTreeMap, fmt};

use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

use super::field::Path;

/// Largest body in bytes; the same as kube-apiserver's.
pub const MAX_BODY: usize = 3 * 1024 * 1024;

/// Deepest nesting. serde_json reads 127 levels, and what we store has to be readable again
/// inside a list inside a watch event.
const MAX_DEPTH: usize = 100;

/// Most values of a body. 3 MiB of `0,` hold half as many as bytes; only YAML aliases need more.
const MAX_NODES: usize = MAX_BODY / 2 + 1;

/// Most bytes of keys and strings after YAML aliases are expanded.
const MAX_TEXT: usize = 2 * MAX_BODY;

/// A parsed body.
#[derive(Clone, Debug, PartialEq)]
pub struct Document {
    /// The body, the last of duplicate keys winning, as Go's decoder has it.
    pub value: Value,
    /// Paths of keys that occurred more than once, as `spec.nodePools[0].name`.
    pub duplicates: Vec<String>,
    /// Numbers whose digits `value` cannot repeat (`1.50`, `1e3`), as written, by path. JSON only:
    /// YAML numbers are canonical before anyone sees them, as in upstream's YAML to JSON pass.
    pub numbers: BTreeMap<String, String>,
}

impl Document {
    /// The number at `path` with the digits that were written.
    pub fn digits(&self, path: &str, number: &Number) -> String {
        self.numbers.get(path).cloned().unwrap_or_else(|| number.to_string())
    }
}

impl From<Value> for Document {
    fn from(value: Value) -> Self {
        Self { value, duplicates: Vec::new(), numbers: BTreeMap::new() }
    }
}

/// Reads a JSON body. The error says what is wrong and where: `… at line 3 column 7`.
pub fn json(bytes: &[u8]) -> Result<Document, String> {
    check_size(bytes)?;
    let mut collector =
        Collector { tokens: Some(NumberTokens { rest: bytes }), ..Collector::default() };
    let mut deserializer = serde_json::Deserializer::from_slice(bytes);
    let value = collector.deserialize(&mut deserializer).map_err(|error| error.to_string())?;
    deserializer.end().map_err(|error| error.to_string())?;
    Ok(collector.finish(value))
}

/// Reads a YAML body of one document. Keys that are numbers or booleans become strings.
pub fn yaml(bytes: &[u8]) -> Result<Document, String> {
    check_size(bytes)?;
    let mut collector = Collector::default();
    let deserializer = serde_yaml::Deserializer::from_slice(bytes);
    let value = collector.deserialize(deserializer).map_err(|error| format!("yaml: {error}"))?;
    Ok(collector.finish(value))
}

fn check_size(bytes: &[u8]) -> Result<(), String> {
    if bytes.len() > MAX_BODY {
        return Err(format!("the body has {} bytes; at most {MAX_BODY} are read", bytes.len()));
    }
    Ok(())
}

enum Step {
    Key(String),
    Index(usize),
}

/// Builds a [`Value`] and remembers what a `Value` cannot hold.
#[derive(Default)]
struct Collector<'a> {
    path: Vec<Step>,
    duplicates: Vec<String>,
    numbers: BTreeMap<String, String>,
    tokens: Option<NumberTokens<'a>>,
    nodes: usize,
    text: usize,
}

impl Collector<'_> {
    fn finish(self, value: Value) -> Document {
        Document { value, duplicates: self.duplicates, numbers: self.numbers }
    }

    fn here(&self) -> String {
        let mut path = Path::new("");
        for step in &self.path {
            path = match step {
                Step::Key(key) => path.child(key),
                Step::Index(index) => path.index(*index),
            };
        }
        path.to_string()
    }

    fn count<E: Error>(&mut self, text: usize) -> Result<(), E> {
        self.nodes += 1;
        self.text += text;
        if self.nodes > MAX_NODES || self.text > MAX_TEXT {
            return Err(E::custom("the body expands to more than an object may hold"));
        }
        Ok(())
    }

    /// Counts a list or an object, into which the visitor is about to go.
    fn nest<E: Error>(&mut self) -> Result<(), E> {
        self.count(0)?;
        if self.path.len() >= MAX_DEPTH {
            return Err(E::custom(format!("nested more than {MAX_DEPTH} levels deep")));
        }
        Ok(())
    }

    fn number<E: Error>(&mut self, number: Number) -> Result<Value, E> {
        self.count(0)?;
        if let Some(written) = self.tokens.as_mut().and_then(Iterator::next)
            && written != number.to_string()
        {
            self.numbers.insert(self.here(), written.to_owned());
        }
        Ok(Value::Number(number))
    }
}

impl<'de> DeserializeSeed<'de> for &mut Collector<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for &mut Collector<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E: Error>(self) -> Result<Value, E> {
        self.count(0)?;
        Ok(Value::Null)
    }

    fn visit_none<E: Error>(self) -> Result<Value, E> {
        self.visit_unit()
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<Value, E> {
        self.count(0)?;
        Ok(Value::Bool(value))
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Value, E> {
        self.number(value.into())
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Value, E> {
        self.number(value.into())
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Value, E> {
        match Number::from_f64(value) {
            Some(number) => self.number(number),
            None => Err(E::custom(format!("{value} is not a number that JSON knows"))),
        }
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<Value, E> {
        self.count(value.len())?;
        Ok(Value::String(value.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        self.nest()?;
        let mut list = Vec::new();
        loop {
            self.path.push(Step::Index(list.len()));
            let item = items.next_element_seed(&mut *self)?;
            self.path.pop();
            match item {
                Some(item) => list.push(item),
                None => return Ok(Value::Array(list)),
            }
        }
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        self.nest()?;
        let mut map = Map::new();
        while let Some(key) = entries.next_key_seed(KeySeed)? {
            self.count(key.len())?;
            self.path.push(Step::Key(key.clone()));
            let value = entries.next_value_seed(&mut *self)?;
            if map.contains_key(&key) {
                let here = self.here();
                if !self.duplicates.contains(&here) {
                    self.duplicates.push(here);
                }
            }
            self.path.pop();
            map.insert(key, value);
        }
        Ok(Value::Object(map))
    }
}

/// A key: YAML allows scalars other than strings, which upstream's YAML to JSON pass writes out.
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

    fn visit_str<E: Error>(self, value: &str) -> Result<String, E> {
        Ok(value.to_owned())
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<String, E> {
        Ok(value.to_string())
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<String, E> {
        Ok(value.to_string())
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<String, E> {
        Ok(value.to_string())
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<String, E> {
        Ok(value.to_string())
    }
}

/// The numbers of a JSON text in the order in which they stand there, which is the order in
/// which the visitor meets them.
struct NumberTokens<'a> {
    rest: &'a [u8],
}

impl<'a> Iterator for NumberTokens<'a> {
    type Item = &'a str;

    fn next(&mut self) -> Option<&'a str> {
        let mut at = 0;
        while let Some(&byte) = self.rest.get(at) {
            match byte {
                b'"' => {
                    at += 1;
                    while let Some(&inner) = self.rest.get(at) {
                        match inner {
                            b'\\' => at += 2,
                            b'"' => break,
                            _ => at += 1,
                        }
                    }
                    at += 1;
                }
                b'-' | b'0'..=b'9' => {
                    let length = self.rest[at..]
                        .iter()
                        .take_while(|b| matches!(b, b'0'..=b'9' | b'-' | b'+' | b'.' | b'e' | b'E'))
                        .count();
                    let token = &self.rest[at..at + length];
                    self.rest = &self.rest[at + length..];
                    return str::from_utf8(token).ok();
                }
                _ => at += 1,
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
        let document = json(text).unwrap();
        assert_eq!(document.value, json!({"a": 2, "b": [{"c": 3}], "x": {"y.z": {"q": 1}}}));
        assert_eq!(document.duplicates, ["b[0].c", "a", "x.y.z.q"]);
    }

    #[test]
    fn yaml_keeps_duplicates_too() {
        let document = yaml(b"a: 1\nb:\n- c: 1\n  c: 2\na: 3\n").unwrap();
        assert_eq!(document.value, json!({"a": 3, "b": [{"c": 2}]}));
        assert_eq!(document.duplicates, ["b[0].c", "a"]);
    }

    #[test]
    fn digits_are_kept_as_written() {
        let text = br#"{"s":"1.0 \" 2.0","a":1.50,"b":[3,1e3,-0.10],"c":12345678901234567890123}"#;
        let document = json(text).unwrap();
        let numbers: Vec<_> =
            document.numbers.iter().map(|(path, text)| (path.as_str(), text.as_str())).collect();
        assert_eq!(
            numbers,
            [("a", "1.50"), ("b[1]", "1e3"), ("b[2]", "-0.10"), ("c", "12345678901234567890123")]
        );
    }

    #[test]
    fn nesting_is_limited() {
        let deep = |levels: usize| format!("{}{}", "[".repeat(levels), "]".repeat(levels));
        assert!(json(deep(MAX_DEPTH).as_bytes()).is_ok());
        let error = json(deep(MAX_DEPTH + 1).as_bytes()).unwrap_err();
        assert_eq!(error, "nested more than 100 levels deep at line 1 column 102");
    }

    #[test]
    fn an_alias_bomb_is_refused() {
        let mut lines = vec!["a0: &a0 [x, x, x, x, x, x, x, x, x, x]".to_owned()];
        for level in 1..12 {
            let previous = format!("*a{}", level - 1);
            let list = vec![previous; 10].join(", ");
            lines.push(format!("a{level}: &a{level} [{list}]"));
        }
        let error = yaml(lines.join("\n").as_bytes()).unwrap_err();
        assert!(error.contains("repetition limit") || error.contains("expands to more"), "{error}");
    }

    #[test]
    fn errors_say_where() {
        assert_eq!(json(b"{\n \"a\": }").unwrap_err(), "expected value at line 2 column 7");
        let error = yaml(b"a: b\n c: d: e\n").unwrap_err();
        assert!(error.starts_with("yaml: ") && error.contains("line 2"), "{error}");
        assert!(json(b"{} {}").unwrap_err().contains("trailing characters"));
        assert!(yaml(b"a: 1\n---\nb: 2\n").unwrap_err().contains("more than one document"));
    }

    #[test]
    fn yaml_keys_become_strings() {
        assert_eq!(yaml(b"1: a\ntrue: b\n").unwrap().value, json!({"1": "a", "true": "b"}));
    }
}
