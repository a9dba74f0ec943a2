//! Forgives an update the problems that the stored object already had.
//!
//! A problem is forgiven when the stored object has it at the same place with the same value.

use serde_json::Value;

use super::validator::Validator;
use crate::machinery::field_error::{FieldError, FieldErrorKind, FieldPath};

/// Removes from `validator` the problems that `old_validator` found in the stored object.
pub(super) fn remove_old_problems(
    validator: &mut Validator,
    new: &Value,
    old_validator: &Validator,
    old: &Value,
) {
    // Nothing is forgiven where there may be more problems than were collected.
    if validator.is_full() {
        return;
    }
    let old_problems: Vec<_> =
        old_validator.errors.iter().map(|error| ProblemKey::new(error, old)).collect();
    validator.errors.retain(|error| !old_problems.contains(&ProblemKey::new(error, new)));
}

/// The identity of a problem: its place (list entries by their name), its text and, where the text
/// does not hold the value, the value.
#[derive(PartialEq)]
struct ProblemKey {
    place: String,
    text: String,
    value: Option<Value>,
}

impl ProblemKey {
    fn new(error: &FieldError, object: &Value) -> Self {
        let (place, value) = locate_value(&error.path.to_string(), object);
        let text_holds_value = matches!(
            error.problem,
            FieldErrorKind::NotFound(_)
                | FieldErrorKind::Duplicate(_)
                | FieldErrorKind::Invalid(_)
                | FieldErrorKind::NotSupported(..)
                | FieldErrorKind::TypeInvalid(_)
        );
        let value = if text_holds_value { None } else { value.cloned() };
        Self { place, text: error.cause_message(), value }
    }
}

/// Returns the path with list entries by name instead of position, and the value at the path.
fn locate_value<'a>(path: &str, object: &'a Value) -> (String, Option<&'a Value>) {
    let mut place = FieldPath::new("");
    let mut current_value = Some(object);
    for step in split_path(path) {
        if let Ok(index) = step.parse::<usize>() {
            current_value = current_value.and_then(|value| value.get(index));
            let name = current_value.and_then(|entry| entry.get("name")).and_then(Value::as_str);
            place = place.key(name.unwrap_or(step));
        } else {
            current_value = current_value.and_then(|value| value.get(step));
            place = place.child(step);
        }
    }
    (place.to_string(), current_value)
}

/// Splits a path into its steps: `spec.nodePools[1].config[a.b]` → `spec`, `nodePools`, `1`,
/// `config`, `a.b`.
fn split_path(path: &str) -> Vec<&str> {
    let mut steps = Vec::new();
    let mut rest = path;
    while !rest.is_empty() {
        if let Some(bracketed) = rest.strip_prefix('[') {
            let (key, tail) = bracketed.split_once(']').unwrap_or((bracketed, ""));
            steps.push(key);
            rest = tail.strip_prefix('.').unwrap_or(tail);
        } else {
            let end = rest.find(['.', '[']).unwrap_or(rest.len());
            steps.push(&rest[..end]);
            rest = rest[end..].strip_prefix('.').unwrap_or(&rest[end..]);
        }
    }
    steps
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::api::{V1BETA1, scheme::Scheme};

    fn forbidden(path: &str) -> Validator {
        let mut validator = Validator::new(V1BETA1, Scheme::new(&[]).schemas());
        validator.forbidden(&FieldPath::new(path), "no");
        validator
    }

    #[test]
    fn an_unchanged_problem_is_forgiven_though_its_entry_moved() {
        let old = json!({"spec": {"pools": [{"name": "a", "x": 1}, {"name": "b"}]}});
        let new = json!({"spec": {"pools": [{"name": "b"}, {"name": "a", "x": 1}]}});
        let mut validator = forbidden("spec.pools[1].x");
        remove_old_problems(&mut validator, &new, &forbidden("spec.pools[0].x"), &old);
        assert!(validator.errors.is_empty());
    }

    #[test]
    fn a_changed_value_is_judged_again() {
        let old = json!({"spec": {"x": 1}});
        let new = json!({"spec": {"x": 2}});
        let mut validator = forbidden("spec.x");
        remove_old_problems(&mut validator, &new, &forbidden("spec.x"), &old);
        assert_eq!(validator.errors.len(), 1);
    }

    #[test]
    fn paths_come_apart_at_dots_and_brackets() {
        assert_eq!(split_path("spec.a[1].config[x.y]"), ["spec", "a", "1", "config", "x.y"]);
    }
}
