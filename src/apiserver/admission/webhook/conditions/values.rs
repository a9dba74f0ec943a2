//! Converts JSON texts to values of CEL.
//!
//! Values are read straight from the text, without a tree of JSON values between, and plain strings
//! are borrowed from it.

use std::{borrow::Cow, collections::HashMap, fmt};

use cel::common::{
    types::{CelBool, CelDouble, CelInt, CelList, CelMap, CelMapKey, CelNull, CelString},
    value::Val,
};
use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};

/// A value of CEL that may borrow from the JSON text.
pub(super) type BoxedCelValue<'v> = Box<dyn Val + 'v>;

/// Reads a JSON text; CEL's `null` when there is no text.
pub(super) fn parse_json(json: Option<&str>) -> Result<BoxedCelValue<'_>, serde_json::Error> {
    let Some(json) = json else { return Ok(Box::new(CelNull)) };
    JsonValueSeed.deserialize(&mut serde_json::Deserializer::from_str(json))
}

struct JsonValueSeed;

impl<'v> DeserializeSeed<'v> for JsonValueSeed {
    type Value = BoxedCelValue<'v>;

    fn deserialize<D: Deserializer<'v>>(
        self,
        deserializer: D,
    ) -> Result<BoxedCelValue<'v>, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'v> Visitor<'v> for JsonValueSeed {
    type Value = BoxedCelValue<'v>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E>(self) -> Result<BoxedCelValue<'v>, E> {
        Ok(Box::new(CelNull))
    }

    fn visit_bool<E>(self, value: bool) -> Result<BoxedCelValue<'v>, E> {
        Ok(Box::new(CelBool::from(value)))
    }

    fn visit_i64<E>(self, value: i64) -> Result<BoxedCelValue<'v>, E> {
        Ok(Box::new(CelInt::from(value)))
    }

    /// Reads a number that does not fit `int` as a `double`, as apimachinery does.
    #[expect(clippy::cast_precision_loss, reason = "upstream loses it, too")]
    fn visit_u64<E>(self, value: u64) -> Result<BoxedCelValue<'v>, E> {
        Ok(match i64::try_from(value) {
            Ok(value) => Box::new(CelInt::from(value)),
            Err(_) => Box::new(CelDouble::from(value as f64)),
        })
    }

    fn visit_f64<E>(self, value: f64) -> Result<BoxedCelValue<'v>, E> {
        Ok(Box::new(CelDouble::from(value)))
    }

    fn visit_borrowed_str<E>(self, text: &'v str) -> Result<BoxedCelValue<'v>, E> {
        Ok(Box::new(CelString::from(text)))
    }

    fn visit_str<E>(self, text: &str) -> Result<BoxedCelValue<'v>, E> {
        Ok(Box::new(CelString::from(text.to_owned())))
    }

    fn visit_seq<A: SeqAccess<'v>>(self, mut items: A) -> Result<BoxedCelValue<'v>, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = items.next_element_seed(JsonValueSeed)? {
            list.push(item);
        }
        Ok(Box::new(CelList::from(list)))
    }

    fn visit_map<A: MapAccess<'v>>(self, mut fields: A) -> Result<BoxedCelValue<'v>, A::Error> {
        let mut map = HashMap::new();
        while let Some((JsonKey(key), value)) =
            fields.next_entry_seed(JsonKeySeed, JsonValueSeed)?
        {
            map.insert(CelMapKey::String(CelString::from(key)), value);
        }
        Ok(Box::new(CelMap::from(map)))
    }
}

struct JsonKey<'v>(Cow<'v, str>);

struct JsonKeySeed;

impl<'v> DeserializeSeed<'v> for JsonKeySeed {
    type Value = JsonKey<'v>;

    fn deserialize<D: Deserializer<'v>>(self, deserializer: D) -> Result<JsonKey<'v>, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl<'v> Visitor<'v> for JsonKeySeed {
    type Value = JsonKey<'v>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a key")
    }

    fn visit_borrowed_str<E: Error>(self, key: &'v str) -> Result<JsonKey<'v>, E> {
        Ok(JsonKey(Cow::Borrowed(key)))
    }

    fn visit_str<E: Error>(self, key: &str) -> Result<JsonKey<'v>, E> {
        Ok(JsonKey(Cow::Owned(key.to_owned())))
    }
}
