//! FieldsV1: reads and writes sets of paths as JSON, without a tree of JSON values between.

use std::fmt;

use serde::{
    Deserialize, Deserializer, Serialize, Serializer,
    de::{Error as _, IgnoredAny, MapAccess, Visitor},
    ser::SerializeMap as _,
};

use super::{
    path_element::PathElement,
    path_set::{PathNode, PathSet},
};

/// Key in FieldsV1 that marks the enclosing path itself as a member.
const ITSELF: &str = ".";

struct EmptyFields;

impl Serialize for EmptyFields {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_map(Some(0))?.end()
    }
}

/// Serializes what stands under a step's key in FieldsV1.
struct NodeFields<'a>(&'a PathNode);

impl Serialize for NodeFields<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Self(step) = self;
        let mut fields = serializer.serialize_map(None)?;
        if step.member && !step.below.is_empty() {
            fields.serialize_entry(ITSELF, &EmptyFields)?;
        }
        for step in &step.below.steps {
            fields.serialize_entry(&step.element.to_key(), &NodeFields(step))?;
        }
        fields.end()
    }
}

impl Serialize for PathSet {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut fields = serializer.serialize_map(None)?;
        for step in &self.steps {
            fields.serialize_entry(&step.element.to_key(), &NodeFields(step))?;
        }
        fields.end()
    }
}

/// The parsed value of a FieldsV1 key: the set below it, and whether the key itself is a member.
struct ParsedFields {
    set: PathSet,
    member: bool,
}

impl<'de> Deserialize<'de> for ParsedFields {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct FieldsVisitor;

        impl<'de> Visitor<'de> for FieldsVisitor {
            type Value = ParsedFields;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_unit<E>(self) -> Result<ParsedFields, E> {
                Ok(ParsedFields { set: PathSet::default(), member: true })
            }

            fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<ParsedFields, A::Error> {
                let (mut set, mut member) = (PathSet::default(), false);
                while let Some(key) = fields.next_key::<String>()? {
                    if key == ITSELF {
                        fields.next_value::<IgnoredAny>()?;
                        member = true;
                    } else if let Some(element) =
                        PathElement::parse(&key).map_err(A::Error::custom)?
                    {
                        let below: ParsedFields = fields.next_value()?;
                        set.add_step(element, below.member, below.set);
                    } else {
                        fields.next_value::<IgnoredAny>()?;
                    }
                }
                let member = member || set.is_empty();
                Ok(ParsedFields { set, member })
            }
        }

        deserializer.deserialize_any(FieldsVisitor)
    }
}

/// Reading a set leaves out keys that only a newer server knows.
impl<'de> Deserialize<'de> for PathSet {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(ParsedFields::deserialize(deserializer)?.set)
    }
}
