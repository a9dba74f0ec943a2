//! Adapts sets that were written under another schema: the owner of a part of a value that is
//! atomic now owns the whole value.

use super::{
    path_element::PathElement, path_set::PathSet, schema_mismatch::SchemaMismatches,
    validate::NO_FORM,
};
use crate::machinery::schema::compiled::{Schema, SchemaForm, TypeRef};

/// Returns `set` as `schema` has it; `None` when it stays as it is.
pub fn reconcile(schema: &Schema, set: &PathSet) -> Result<Option<PathSet>, SchemaMismatches> {
    Ok(match below(schema, Some(schema.root()), set, false)? {
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

/// Reconciles what is below a step. `leaf` says that the step itself is a member and has nothing
/// below it.
fn below(
    schema: &Schema,
    type_: Option<TypeRef>,
    set: &PathSet,
    leaf: bool,
) -> Result<ReconciledSet, SchemaMismatches> {
    let form = schema.form(type_, None).ok_or_else(|| SchemaMismatches::new(NO_FORM))?;
    match form {
        SchemaForm::Scalar(_) => return Ok(ReconciledSet::AsIs),
        SchemaForm::Map(map) if Schema::is_free(map) => return Ok(ReconciledSet::AsIs),
        SchemaForm::List(list) if list.atomic && !leaf => return Ok(ReconciledSet::Whole),
        SchemaForm::Map(map) if map.atomic && !leaf => return Ok(ReconciledSet::Whole),
        SchemaForm::List(_) | SchemaForm::Map(_) => {}
    }
    let mut changed = false;
    let mut reconciled = PathSet::default();
    for (element, member, set) in set.steps() {
        let inner = match (form, element) {
            (SchemaForm::List(list), _) => list.items,
            (SchemaForm::Map(map), PathElement::Field(name)) => map.of_field(name),
            (SchemaForm::Map(map), _) => map.values,
            (SchemaForm::Scalar(_), _) => None,
        };
        let leaf = member && set.is_empty();
        let outcome = match (form, inner) {
            // What the schema does not know is left alone.
            (SchemaForm::Map(_), None) => ReconciledSet::AsIs,
            (_, inner) => below(schema, inner, set, leaf).map_err(|p| p.below(element))?,
        };
        changed |= !matches!(outcome, ReconciledSet::AsIs);
        match outcome {
            ReconciledSet::AsIs => reconciled.add(element.clone(), member, set.clone()),
            ReconciledSet::Whole => reconciled.add(element.clone(), true, PathSet::default()),
            ReconciledSet::Below(set) => reconciled.add(element.clone(), member, set),
        }
    }
    Ok(if changed { ReconciledSet::Below(reconciled) } else { ReconciledSet::AsIs })
}
