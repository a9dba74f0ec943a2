//! Damages manifests: whole values in the right or wrong place, and bytes.

use rand::{Rng, rngs::StdRng, seq::IndexedRandom};
use serde_json::{Map, Value, json};

/// Makes bodies from a corpus.
pub(crate) struct Mutator<'a> {
    pub(crate) rng: &'a mut StdRng,
    pub(crate) corpus: &'a [Value],
}

impl Mutator<'_> {
    /// A body that resembles a manifest, as JSON, which is YAML too.
    pub(crate) fn body(&mut self) -> Vec<u8> {
        let mut value = self.manifest();
        for _ in 0..self.rng.random_range(0..6) {
            self.damage(&mut value);
        }
        let mut bytes = value.to_string().into_bytes();
        if self.rng.random_bool(0.3) {
            for _ in 0..self.rng.random_range(1..8) {
                self.damage_bytes(&mut bytes);
            }
        }
        bytes
    }

    fn manifest(&mut self) -> Value {
        self.corpus.choose(self.rng).unwrap().clone()
    }

    /// Changes one value somewhere below.
    fn damage(&mut self, value: &mut Value) {
        let deeper = self.rng.random_bool(0.8);
        match value {
            Value::Object(fields) if deeper && !fields.is_empty() => {
                let index = self.rng.random_range(0..fields.len());
                let (_, inner) = fields.iter_mut().nth(index).unwrap();
                self.damage(inner);
            }
            Value::Array(items) if deeper && !items.is_empty() => {
                let index = self.rng.random_range(0..items.len());
                self.damage(&mut items[index]);
            }
            Value::Object(fields) => self.damage_fields(fields),
            Value::Array(items) => match self.rng.random_range(0..3) {
                0 => items.push(self.odd()),
                1 if !items.is_empty() => {
                    let item = items[self.rng.random_range(0..items.len())].clone();
                    items.push(item);
                }
                _ => drop(items.pop()),
            },
            scalar => *scalar = self.odd(),
        }
    }

    fn damage_fields(&mut self, fields: &mut Map<String, Value>) {
        let names: Vec<String> = fields.keys().cloned().collect();
        match self.rng.random_range(0..4) {
            0 => {
                if let Some(name) = names.choose(self.rng) {
                    fields.remove(name);
                }
            }
            1 => {
                // A field of another manifest at the same depth or not.
                let donor = self.manifest();
                let mut place = &donor;
                for _ in 0..self.rng.random_range(0..4) {
                    let Some(object) = place.as_object().filter(|object| !object.is_empty()) else {
                        break;
                    };
                    let index = self.rng.random_range(0..object.len());
                    let (name, value) = object.iter().nth(index).unwrap();
                    fields.insert(name.clone(), value.clone());
                    place = value;
                }
            }
            2 => {
                let name = if self.rng.random_bool(0.5) { "name" } else { "unknown" };
                let odd = self.odd();
                fields.insert(name.to_owned(), odd);
            }
            _ => {
                if let Some(name) = names.choose(self.rng) {
                    fields[name] = self.odd();
                }
            }
        }
    }

    /// A value over which parsers have stumbled.
    fn odd(&mut self) -> Value {
        let odd = [
            json!(null),
            json!(true),
            json!(0),
            json!(-1),
            json!(i64::MAX),
            json!(u64::MAX),
            json!(1.5),
            json!(1e300),
            json!(""),
            json!(" "),
            json!("é\u{0}\u{202e}"),
            json!("10Gi"),
            json!("1e-40"),
            json!("-0"),
            json!("99999999999999999999999999999999999999999"),
            json!("2026-11-20T10:00:00Z"),
            json!("2017-10-01T19:00:00+00"),
            json!("-9999-01-01T00:00:00Z"),
            json!("2026-11-20T24:00:60.999999999999+23:59"),
            json!("5.0.6"),
            json!("Decommissioned"),
            json!("100%"),
            json!("{\"spec\":{\"nodePools\":[{}]}}"),
            json!([]),
            json!({}),
            json!([null]),
            json!({"": {}}),
            json!({"name": "a"}),
            json!({"navigator.jetstack.io/v1beta1": "{}", "navigator.jetstack.io/allow-unsafe": ","}),
        ];
        odd.choose(self.rng).unwrap().clone()
    }

    fn damage_bytes(&mut self, bytes: &mut Vec<u8>) {
        if bytes.is_empty() {
            return;
        }
        let at = self.rng.random_range(0..bytes.len());
        match self.rng.random_range(0..5) {
            0 => bytes[at] = self.rng.random(),
            1 => drop(bytes.remove(at)),
            2 => bytes.insert(at, *b"{}[],:\"\\\n -&*!|>#%0".choose(self.rng).unwrap()),
            3 => bytes.truncate(at),
            _ => {
                let end = (at + self.rng.random_range(1..40)).min(bytes.len());
                let piece = bytes[at..end].to_vec();
                let to = self.rng.random_range(0..=bytes.len());
                bytes.splice(to..to, piece);
            }
        }
    }
}
