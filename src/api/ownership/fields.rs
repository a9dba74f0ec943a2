//! FieldsV1: sets of paths in JSON, both ways, with no tree between.

use std::fmt;

use serde::{
    Deserialize, Deserializer, Serialize, Serializer,
    de::{Error as _, IgnoredAny, MapAccess, Visitor},
    ser::SerializeMap as _,
};

use super::{
    element::Element,
    set::{Set, Step},
};

/// Key in FieldsV1 that makes the path itself a member.
const ITSELF: &str = ".";

struct Nothing;

impl Serialize for Nothing {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_map(Some(0))?.end()
    }
}

/// What stands under the key of a step.
struct Under<'a>(&'a Step);

impl Serialize for Under<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Self(step) = self;
        let mut fields = serializer.serialize_map(None)?;
        if step.member && !step.below.is_empty() {
            fields.serialize_entry(ITSELF, &Nothing)?;
        }
        for step in &step.below.steps {
            fields.serialize_entry(&step.element.to_key(), &Under(step))?;
        }
        fields.end()
    }
}

impl Serialize for Set {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut fields = serializer.serialize_map(None)?;
        for step in &self.steps {
            fields.serialize_entry(&step.element.to_key(), &Under(step))?;
        }
        fields.end()
    }
}

/// What is below a key, and whether the key itself is a member.
struct Read {
    set: Set,
    member: bool,
}

impl<'de> Deserialize<'de> for Read {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Fields;

        impl<'de> Visitor<'de> for Fields {
            type Value = Read;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_unit<E>(self) -> Result<Read, E> {
                Ok(Read { set: Set::default(), member: true })
            }

            fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Read, A::Error> {
                let (mut set, mut member) = (Set::default(), false);
                while let Some(key) = fields.next_key::<String>()? {
                    if key == ITSELF {
                        fields.next_value::<IgnoredAny>()?;
                        member = true;
                    } else if let Some(element) = Element::parse(&key).map_err(A::Error::custom)? {
                        let below: Read = fields.next_value()?;
                        set.add(element, below.member, below.set);
                    } else {
                        fields.next_value::<IgnoredAny>()?;
                    }
                }
                let member = member || set.is_empty();
                Ok(Read { set, member })
            }
        }

        deserializer.deserialize_any(Fields)
    }
}

/// Keys that only a later server knows are left out.
impl<'de> Deserialize<'de> for Set {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(Read::deserialize(deserializer)?.set)
    }
}
