//! Orders and compares JSON values as Go's code does: `1` and `1.0` are equal.

use std::cmp::Ordering;

use serde_json::{Number, Value};

/// Compares values of any types in a total order: numbers, texts, booleans, lists, objects, null.
pub fn order_values(left: &Value, right: &Value) -> Ordering {
    match (left, right) {
        (Value::Number(left), Value::Number(right)) => order_numbers(left, right),
        (Value::String(left), Value::String(right)) => left.cmp(right),
        (Value::Bool(left), Value::Bool(right)) => left.cmp(right),
        (Value::Array(left), Value::Array(right)) => {
            let items = left.iter().zip(right).map(|(left, right)| order_values(left, right));
            first_difference(items).then(left.len().cmp(&right.len()))
        }
        (Value::Object(left), Value::Object(right)) => {
            let fields = left.iter().zip(right).map(|((name, value), (other, right))| {
                name.cmp(other).then_with(|| order_values(value, right))
            });
            first_difference(fields).then(left.len().cmp(&right.len()))
        }
        _ => type_rank(left).cmp(&type_rank(right)),
    }
}

/// Are both values the same to a client?
pub fn is_same_value(left: &Value, right: &Value) -> bool {
    match (left, right) {
        (Value::Array(left), Value::Array(right)) => {
            left.len() == right.len()
                && left.iter().zip(right).all(|(left, right)| is_same_value(left, right))
        }
        (Value::Object(left), Value::Object(right)) => {
            left.len() == right.len()
                && left
                    .iter()
                    .all(|(name, value)| right.get(name).is_some_and(|r| is_same_value(value, r)))
        }
        _ => order_values(left, right).is_eq(),
    }
}

/// Returns a value as paths show it.
pub(super) fn value_text(value: &Value) -> String {
    match value {
        Value::String(text) => format!("{text:?}"),
        Value::Array(items) => {
            let items: Vec<String> = items.iter().map(value_text).collect();
            format!("[{}]", items.join(","))
        }
        other => other.to_string(),
    }
}

fn first_difference(mut orders: impl Iterator<Item = Ordering>) -> Ordering {
    orders.find(|order| order.is_ne()).unwrap_or(Ordering::Equal)
}

fn type_rank(value: &Value) -> u8 {
    match value {
        Value::Number(_) => 0,
        Value::String(_) => 1,
        Value::Bool(_) => 2,
        Value::Array(_) => 3,
        Value::Object(_) => 4,
        Value::Null => 5,
    }
}

fn order_numbers(left: &Number, right: &Number) -> Ordering {
    match (left.as_i64(), right.as_i64()) {
        (Some(left), Some(right)) => left.cmp(&right),
        _ => to_float(left).total_cmp(&to_float(right)),
    }
}

fn to_float(number: &Number) -> f64 {
    // Turns negative zero into zero, which is equal to it.
    number.as_f64().unwrap_or_default() + 0.0
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn values_of_all_types_have_one_order() {
        let rising = [
            json!(-1),
            json!(0.5),
            json!(1),
            json!(1.5),
            json!("a"),
            json!("b"),
            json!(false),
            json!(true),
            json!([]),
            json!([1]),
            json!([1, 2]),
            json!([2]),
            json!({}),
            json!({"a": 1}),
            json!({"a": 1, "b": 1}),
            json!({"a": 2}),
            json!({"b": 0}),
            json!(null),
        ];
        for (at, left) in rising.iter().enumerate() {
            for (other, right) in rising.iter().enumerate() {
                assert_eq!(order_values(left, right), at.cmp(&other), "{left} and {right}");
            }
        }
        assert!(is_same_value(&json!({"a": [1]}), &json!({"a": [1.0]})));
        assert!(!is_same_value(&json!({"a": 1}), &json!({"b": 1})));
    }
}
