//! `quantity('1Gi')`: what Kubernetes' quantities are in expressions.

use std::{any::Any, cmp::Ordering};

use cel::{
    DeclarationError, Env, ExecutionError, add_member_overload, add_overload,
    common::{
        types::{CelBool, CelInt, CelString, Type},
        value::{StaticVal, Val},
    },
};

use crate::api::quantity::nanos;

static TYPE: Type = Type::new_unspecified_type("kubernetes.Quantity");

const UNIT: i128 = 1_000_000_000;

/// A quantity, in billionths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Quantity(i128);

impl Val for Quantity {
    fn get_type(&self) -> &Type {
        &TYPE
    }

    fn cel_type() -> &'static Type {
        &TYPE
    }

    fn equals(&self, other: &dyn Val) -> bool {
        other.downcast_ref::<Self>() == Some(self)
    }

    fn clone_as_boxed<'v>(&self) -> Box<dyn Val + 'v> {
        Box::new(*self)
    }

    fn as_any(&self) -> Option<&dyn Any> {
        Some(self)
    }
}

impl StaticVal for Quantity {}

pub(super) fn extension(env: &mut Env) -> Result<(), DeclarationError> {
    add_overload!(env, fn quantity: (CelString<'_>) -> Result<Quantity>)?;
    add_member_overload!(env, fn is_greater_than: (Quantity, Quantity) -> CelBool)?;
    add_member_overload!(env, fn is_less_than: (Quantity, Quantity) -> CelBool)?;
    add_member_overload!(env, fn compare_to: (Quantity, Quantity) -> CelInt)?;
    add_member_overload!(env, fn is_integer: (Quantity) -> CelBool)?;
    add_member_overload!(env, fn as_integer: (Quantity) -> Result<CelInt>)?;
    add_member_overload!(env, fn add: (Quantity, Quantity) -> Result<Quantity>)?;
    add_member_overload!(env, fn sub: (Quantity, Quantity) -> Result<Quantity>)
}

fn quantity(text: &CelString<'_>) -> Result<Quantity, ExecutionError> {
    let none = || ExecutionError::function_error("quantity", "it is no quantity, or too large");
    nanos(text.inner()).map(Quantity).ok_or_else(none)
}

fn is_greater_than(one: &Quantity, other: &Quantity) -> CelBool {
    (one.0 > other.0).into()
}

fn is_less_than(one: &Quantity, other: &Quantity) -> CelBool {
    (one.0 < other.0).into()
}

fn compare_to(one: &Quantity, other: &Quantity) -> CelInt {
    CelInt::from(match one.0.cmp(&other.0) {
        Ordering::Less => -1,
        Ordering::Equal => 0,
        Ordering::Greater => 1,
    })
}

fn integer(quantity: Quantity) -> Option<i64> {
    (quantity.0 % UNIT == 0).then(|| i64::try_from(quantity.0 / UNIT).ok()).flatten()
}

fn is_integer(quantity: &Quantity) -> CelBool {
    integer(*quantity).is_some().into()
}

fn as_integer(quantity: &Quantity) -> Result<CelInt, ExecutionError> {
    let none = || ExecutionError::function_error("asInteger", "cannot convert value to integer");
    integer(*quantity).map(CelInt::from).ok_or_else(none)
}

fn add(one: &Quantity, other: &Quantity) -> Result<Quantity, ExecutionError> {
    one.0.checked_add(other.0).map(Quantity).ok_or_else(|| too_large("add"))
}

fn sub(one: &Quantity, other: &Quantity) -> Result<Quantity, ExecutionError> {
    one.0.checked_sub(other.0).map(Quantity).ok_or_else(|| too_large("sub"))
}

fn too_large(function: &str) -> ExecutionError {
    ExecutionError::function_error(function, "the quantity is too large")
}
