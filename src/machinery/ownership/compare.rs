//! Compares two objects path by path.

use std::collections::BTreeMap;

use serde_json::Value;

use super::{
    list_items::element_of,
    path_element::PathElement,
    path_set::PathSet,
    schema_mismatch::{MismatchCollector, SchemaMismatches},
    validate::{NO_FORM, scalar_problem},
    value_order::is_same_value,
};
use crate::machinery::schema::compiled::{ListSchema, MapSchema, Schema, SchemaForm, TypeRef};

/// Paths that differ between two objects. Each path is in only one of the sets, unless a list has
/// its item several times.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ObjectComparison {
    pub removed: PathSet,
    pub modified: PathSet,
    pub added: PathSet,
}

impl ObjectComparison {
    pub fn is_same(&self) -> bool {
        self.removed.is_empty() && self.modified.is_empty() && self.added.is_empty()
    }

    /// Returns the comparison without `paths` and the paths below them.
    #[must_use]
    pub fn without_paths(self, paths: &PathSet) -> Self {
        if paths.is_empty() {
            return self;
        }
        Self {
            removed: self.removed.recursive_difference(paths),
            modified: self.modified.recursive_difference(paths),
            added: self.added.recursive_difference(paths),
        }
    }
}

/// Returns how `new` differs from `old`.
pub fn compare_objects(
    schema: &Schema,
    old: &Value,
    new: &Value,
) -> Result<ObjectComparison, SchemaMismatches> {
    Ok(ComparingWalker { schema }.compare_pair(Some(schema.root()), Some(old), Some(new))?.below)
}

/// What differs at a path and below it.
#[derive(Default)]
struct PathComparison {
    removed: bool,
    modified: bool,
    added: bool,
    below: ObjectComparison,
}

impl PathComparison {
    fn for_leaf(old: Option<&Value>, new: Option<&Value>) -> Self {
        let modified = old.zip(new).is_some_and(|(old, new)| !is_same_value(old, new));
        Self { modified, ..Self::for_presence(old, new, ObjectComparison::default()) }
    }

    fn for_presence(old: Option<&Value>, new: Option<&Value>, below: ObjectComparison) -> Self {
        Self { removed: new.is_none(), added: old.is_none(), modified: false, below }
    }

    fn add_to(self, element: &PathElement, comparison: &mut ObjectComparison) {
        let ObjectComparison { removed, modified, added } = self.below;
        comparison.removed.add_step(element.clone(), self.removed, removed);
        comparison.modified.add_step(element.clone(), self.modified, modified);
        comparison.added.add_step(element.clone(), self.added, added);
    }

    fn combined_with(self, other: &Self) -> Self {
        Self {
            removed: self.removed || other.removed,
            modified: self.modified || other.modified,
            added: self.added || other.added,
            below: ObjectComparison {
                removed: self.below.removed.union(&other.below.removed),
                modified: self.below.modified.union(&other.below.modified),
                added: self.below.added.union(&other.below.added),
            },
        }
    }
}

struct ComparingWalker<'a> {
    schema: &'a Schema,
}

impl<'a> ComparingWalker<'a> {
    fn compare_pair(
        &self,
        type_: Option<TypeRef>,
        old: Option<&Value>,
        new: Option<&Value>,
    ) -> Result<PathComparison, SchemaMismatches> {
        let old_form =
            self.schema.form(type_, old).ok_or_else(|| SchemaMismatches::new(NO_FORM))?;
        let new_form =
            self.schema.form(type_, new).ok_or_else(|| SchemaMismatches::new(NO_FORM))?;
        match (old, new) {
            (_, None) => self.compare_form(old_form, old, new),
            (None, _) => self.compare_form(new_form, old, new),
            _ if old_form.is_like(new_form) => self.compare_form(new_form, old, new),
            // The value changed its form: the old content is removed, the new content is added.
            _ => Ok(self
                .compare_form(old_form, old, new)?
                .combined_with(&self.compare_form(new_form, old, new)?)),
        }
    }

    fn compare_form(
        &self,
        form: SchemaForm<'a>,
        old: Option<&Value>,
        new: Option<&Value>,
    ) -> Result<PathComparison, SchemaMismatches> {
        match form {
            SchemaForm::Scalar(scalar) => {
                match (scalar_problem(scalar, old), scalar_problem(scalar, new)) {
                    (Some(old), Some(new)) => {
                        Err(SchemaMismatches::new(format!("old: {old}, new: {new}")))
                    }
                    _ => Ok(PathComparison::for_leaf(old, new)),
                }
            }
            SchemaForm::List(list) => {
                let (old_items, new_items) = (array_items(old), array_items(new));
                if list.atomic || old_items.is_empty() && new_items.is_empty() {
                    return Ok(PathComparison::for_leaf(old, new));
                }
                Ok(PathComparison::for_presence(
                    old,
                    new,
                    self.compare_list(list, old_items, new_items)?,
                ))
            }
            SchemaForm::Map(map) => {
                let is_empty = |value: Option<&Value>| {
                    value.and_then(Value::as_object).is_none_or(serde_json::Map::is_empty)
                };
                if map.atomic || is_empty(old) && is_empty(new) {
                    return Ok(PathComparison::for_leaf(old, new));
                }
                Ok(PathComparison::for_presence(old, new, self.compare_map(map, old, new)?))
            }
        }
    }

    fn compare_map(
        &self,
        map: &MapSchema,
        old: Option<&Value>,
        new: Option<&Value>,
    ) -> Result<ObjectComparison, SchemaMismatches> {
        let old = old.and_then(Value::as_object);
        let new = new.and_then(Value::as_object);
        let mut mismatches = MismatchCollector::default();
        let mut comparison = ObjectComparison::default();
        for name in field_names(old, new) {
            let element = PathElement::field(name);
            let (old, new) = (old.and_then(|o| o.get(name)), new.and_then(|n| n.get(name)));
            if let (Some(old), Some(new)) = (old, new)
                && old == new
                && map.field_type(name).is_some()
            {
                continue;
            }
            let difference = self
                .compare_pair(map.field_type(name), old, new)
                .map_err(|p| p.prefix_path(&element));
            if let Some(difference) = mismatches.record_mismatches(difference) {
                difference.add_to(&element, &mut comparison);
            }
        }
        mismatches.into_result()?;
        Ok(comparison)
    }

    fn compare_list(
        &self,
        list: &ListSchema,
        old: &[Value],
        new: &[Value],
    ) -> Result<ObjectComparison, SchemaMismatches> {
        let mut mismatches = MismatchCollector::default();
        let mut by_element: BTreeMap<PathElement, (Vec<&Value>, Vec<&Value>)> = BTreeMap::new();
        let places = [old, new].into_iter().enumerate();
        for (side, position, item) in places.flat_map(|(side, items)| {
            items.iter().enumerate().map(move |(position, i)| (side, position, i))
        }) {
            let element = element_of(self.schema, list, item)
                .map_err(|reason| SchemaMismatches::new(format!("element {position}: {reason}")));
            if let Some(element) = mismatches.record_mismatches(element) {
                let (old_items, new_items) = by_element.entry(element).or_default();
                if side == 0 { old_items.push(item) } else { new_items.push(item) }
            }
        }
        let mut comparison = ObjectComparison::default();
        for (element, (old_items, new_items)) in by_element {
            let mut compare_items =
                |old: Option<&Value>, new: Option<&Value>, target: &mut ObjectComparison| {
                    let difference = self
                        .compare_pair(list.items, old, new)
                        .map_err(|p| p.prefix_path(&element));
                    if let Some(difference) = mismatches.record_mismatches(difference) {
                        difference.add_to(&element, target);
                    }
                };
            match (&old_items[..], &new_items[..]) {
                ([] | [_], [] | [_]) => {
                    compare_items(
                        old_items.first().copied(),
                        new_items.first().copied(),
                        &mut comparison,
                    );
                }
                // Items that are there several times are compared together, as one leaf.
                ([_, _, ..], [_, _, ..]) => {
                    let is_equal = old_items.len() == new_items.len()
                        && old_items
                            .iter()
                            .zip(&new_items)
                            .all(|(old, new)| is_same_value(old, new));
                    comparison.modified.add_step(element, !is_equal, PathSet::default());
                }
                ([_, _, ..], rest) => {
                    if let [only_item] = rest {
                        compare_items(None, Some(only_item), &mut comparison);
                    }
                    comparison.removed.add_step(element, true, PathSet::default());
                }
                (rest, [_, _, ..]) => {
                    if let [only_item] = rest {
                        compare_items(Some(only_item), None, &mut comparison);
                    }
                    comparison.added.add_step(element, true, PathSet::default());
                }
            }
        }
        mismatches.into_result()?;
        Ok(comparison)
    }
}

fn array_items(value: Option<&Value>) -> &[Value] {
    value.and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

/// Returns the field names of both objects, sorted, each once.
pub(super) fn field_names<'a>(
    left: Option<&'a serde_json::Map<String, Value>>,
    right: Option<&'a serde_json::Map<String, Value>>,
) -> Vec<&'a str> {
    let mut names: Vec<&str> =
        left.into_iter().chain(right).flat_map(|map| map.keys().map(String::as_str)).collect();
    names.sort_unstable();
    names.dedup();
    names
}
