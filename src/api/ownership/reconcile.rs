//! Sets that were written under another schema: the owner of a part of a value that is atomic now
//! owns the whole value.

use super::{element::Element, problem::Problems, set::Set, validate::NO_FORM};
use crate::api::schema::compiled::{Form, Schema, Type};

/// The set under this schema; `None` when the schema makes no difference.
pub fn reconcile(schema: &Schema, set: &Set) -> Result<Option<Set>, Problems> {
    Ok(match below(schema, Some(schema.root()), set, false)? {
        Outcome::Below(set) => Some(set),
        // No manager owns an object as a whole.
        Outcome::AsIs | Outcome::Whole => None,
    })
}

enum Outcome {
    AsIs,
    /// The step itself is owned, and nothing below it.
    Whole,
    Below(Set),
}

/// `leaf` says that the step itself is a member and nothing is below it.
fn below(schema: &Schema, type_: Option<Type>, set: &Set, leaf: bool) -> Result<Outcome, Problems> {
    let form = schema.form(type_, None).ok_or_else(|| Problems::new(NO_FORM))?;
    match form {
        Form::Scalar(_) => return Ok(Outcome::AsIs),
        Form::Map(map) if Schema::is_free(map) => return Ok(Outcome::AsIs),
        Form::List(list) if list.atomic && !leaf => return Ok(Outcome::Whole),
        Form::Map(map) if map.atomic && !leaf => return Ok(Outcome::Whole),
        Form::List(_) | Form::Map(_) => {}
    }
    let mut changed = false;
    let mut reconciled = Set::default();
    for (element, member, set) in set.steps() {
        let inner = match (form, element) {
            (Form::List(list), _) => list.items,
            (Form::Map(map), Element::Field(name)) => map.of_field(name),
            (Form::Map(map), _) => map.values,
            (Form::Scalar(_), _) => None,
        };
        let leaf = member && set.is_empty();
        let outcome = match (form, inner) {
            // What the schema does not know is left alone.
            (Form::Map(_), None) => Outcome::AsIs,
            (_, inner) => below(schema, inner, set, leaf).map_err(|p| p.below(element))?,
        };
        changed |= !matches!(outcome, Outcome::AsIs);
        match outcome {
            Outcome::AsIs => reconciled.add(element.clone(), member, set.clone()),
            Outcome::Whole => reconciled.add(element.clone(), true, Set::default()),
            Outcome::Below(set) => reconciled.add(element.clone(), member, set),
        }
    }
    Ok(if changed { Outcome::Below(reconciled) } else { Outcome::AsIs })
}
