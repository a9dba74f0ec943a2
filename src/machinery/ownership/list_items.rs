//! Finds the path step of an item of a list that is merged item by item.

use serde_json::Value;

use super::path_element::PathElement;
use crate::machinery::schema::compiled::{ListSchema, Schema};

/// Returns the step to an item: by its keys, or by its value where the list has none.
pub(super) fn element_of(
    schema: &Schema,
    list: &ListSchema,
    item: &Value,
) -> Result<PathElement, String> {
    if list.atomic {
        return Err("invalid indexing of non-associative list".to_owned());
    }
    if list.keys.is_empty() {
        return match item {
            Value::Object(_) => {
                Err("associative list without keys has an element that's a map type".to_owned())
            }
            Value::Array(_) => {
                Err("not supported: associative list with lists as elements".to_owned())
            }
            Value::Null => {
                Err("associative list without keys has an element that's an explicit null"
                    .to_owned())
            }
            scalar => Ok(PathElement::Value(Box::new(scalar.clone()))),
        };
    }
    let fields = match item {
        Value::Object(fields) => fields,
        Value::Null => {
            return Err("associative list with keys may not have a null element".to_owned());
        }
        _ => return Err("associative list with keys may not have non-map elements".to_owned()),
    };
    let mut keys = Vec::with_capacity(list.keys.len());
    for key in &list.keys {
        // An absent key without default is a key of its own: it is left out.
        if let Some(value) = fields.get(&**key).or_else(|| schema.key_default(list, key)) {
            keys.push((key.clone(), value.clone()));
        }
    }
    if keys.is_empty() {
        let names: Vec<String> = list.keys.iter().map(|key| format!("{key:?}")).collect();
        return Err(format!(
            "associative list with keys has an element that omits all key fields [{}] (and doesn't \
             have default values for any key fields)",
            names.join(" ")
        ));
    }
    Ok(PathElement::key(keys))
}
