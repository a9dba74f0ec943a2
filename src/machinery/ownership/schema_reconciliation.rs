//! Adapts sets that were written under another schema: the owner of a part of a value that is
//! atomic now owns the whole value.

use super::{
    path_element::PathElement, path_set::PathSet, schema_mismatch::SchemaMismatches,
    validate::NO_FORM,
};
use crate::machinery::schema::compiled::{Schema, SchemaForm, TypeRef};

/// Returns `set` as `schema` has it; `None` when it stays as it is.
pub fn reconcile_set(schema: &Schema, set: &PathSet) -> Result<Option<PathSet>, SchemaMismatches> {
    Ok(match reconcile_below(schema, Some(schema.root()), set, false)? {
        ReconciledSet::Below(set) => Some(set),
        // No manager owns an object as a whole.
        ReconciledSet::AsIs | ReconciledSet::Whole => None,
    })
}

enum ReconciledSet {
    AsIs,
    /// The step itself is owned, and nothing below it.
    Whole,
    Below(PathSet),
}

/// Reconciles what is below a step. `is_leaf` says that the step itself is a member and has nothing
/// below it.
fn reconcile_below(
    schema: &Schema,
    type_: Option<TypeRef>,
    set: &PathSet,
    is_leaf: bool,
) -> Result<ReconciledSet, SchemaMismatches> {
    let form = schema.form(type_, None).ok_or_else(|| SchemaMismatches::new(NO_FORM))?;
    match form {
        SchemaForm::Scalar(_) => return Ok(ReconciledSet::AsIs),
        SchemaForm::Map(map) if Schema::is_free(map) => return Ok(ReconciledSet::AsIs),
        SchemaForm::List(list) if list.atomic && !is_leaf => return Ok(ReconciledSet::Whole),
        SchemaForm::Map(map) if map.atomic && !is_leaf => return Ok(ReconciledSet::Whole),
        SchemaForm::List(_) | SchemaForm::Map(_) => {}
    }
    let mut has_changed = false;
    let mut reconciled_set = PathSet::default();
    for (element, member, set) in set.steps() {
        let inner = match (form, element) {
            (SchemaForm::List(list), _) => list.items,
            (SchemaForm::Map(map), PathElement::Field(name)) => map.field_type(name),
            (SchemaForm::Map(map), _) => map.values,
            (SchemaForm::Scalar(_), _) => None,
        };
        let is_leaf = member && set.is_empty();
        let outcome = match (form, inner) {
            // What the schema does not know is left alone.
            (SchemaForm::Map(_), None) => ReconciledSet::AsIs,
            (_, inner) => {
                reconcile_below(schema, inner, set, is_leaf).map_err(|p| p.prefix_path(element))?
            }
        };
        has_changed |= !matches!(outcome, ReconciledSet::AsIs);
        match outcome {
            ReconciledSet::AsIs => reconciled_set.add_step(element.clone(), member, set.clone()),
            ReconciledSet::Whole => {
                reconciled_set.add_step(element.clone(), true, PathSet::default());
            }
            ReconciledSet::Below(set) => reconciled_set.add_step(element.clone(), member, set),
        }
    }
    Ok(if has_changed { ReconciledSet::Below(reconciled_set) } else { ReconciledSet::AsIs })
}
