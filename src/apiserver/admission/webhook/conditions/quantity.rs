//! `quantity('1Gi')`: Kubernetes' quantities as values in expressions of CEL.

use std::{any::Any, cmp::Ordering};

use cel::{
    DeclarationError, Env, ExecutionError, add_member_overload, add_overload,
    common::{
        types::{CelBool, CelInt, CelString, Type},
        value::{StaticVal, Val},
    },
};

use crate::machinery::quantity::parse_nanos;

static TYPE: Type = Type::new_unspecified_type("kubernetes.Quantity");

const UNIT: i128 = 1_000_000_000;

/// A quantity as a value of CEL, in billionths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct CelQuantity(i128);

impl Val for CelQuantity {
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

impl StaticVal for CelQuantity {}

pub(super) fn register_functions(env: &mut Env) -> Result<(), DeclarationError> {
    add_overload!(env, fn quantity: (CelString<'_>) -> Result<CelQuantity>)?;
    add_member_overload!(env, fn is_greater_than: (CelQuantity, CelQuantity) -> CelBool)?;
    add_member_overload!(env, fn is_less_than: (CelQuantity, CelQuantity) -> CelBool)?;
    add_member_overload!(env, fn compare_to: (CelQuantity, CelQuantity) -> CelInt)?;
    add_member_overload!(env, fn is_integer: (CelQuantity) -> CelBool)?;
    add_member_overload!(env, fn as_integer: (CelQuantity) -> Result<CelInt>)?;
    add_member_overload!(env, fn add: (CelQuantity, CelQuantity) -> Result<CelQuantity>)?;
    add_member_overload!(env, fn sub: (CelQuantity, CelQuantity) -> Result<CelQuantity>)
}

fn quantity(text: &CelString<'_>) -> Result<CelQuantity, ExecutionError> {
    let parse_error =
        || ExecutionError::function_error("quantity", "it is no quantity, or too large");
    parse_nanos(text.inner()).map(CelQuantity).ok_or_else(parse_error)
}

fn is_greater_than(one: &CelQuantity, other: &CelQuantity) -> CelBool {
    (one.0 > other.0).into()
}

fn is_less_than(one: &CelQuantity, other: &CelQuantity) -> CelBool {
    (one.0 < other.0).into()
}

fn compare_to(one: &CelQuantity, other: &CelQuantity) -> CelInt {
    CelInt::from(match one.0.cmp(&other.0) {
        Ordering::Less => -1,
        Ordering::Equal => 0,
        Ordering::Greater => 1,
    })
}

fn to_integer(quantity: CelQuantity) -> Option<i64> {
    (quantity.0 % UNIT == 0).then(|| i64::try_from(quantity.0 / UNIT).ok()).flatten()
}

fn is_integer(quantity: &CelQuantity) -> CelBool {
    to_integer(*quantity).is_some().into()
}

fn as_integer(quantity: &CelQuantity) -> Result<CelInt, ExecutionError> {
    let convert_error =
        || ExecutionError::function_error("asInteger", "cannot convert value to integer");
    to_integer(*quantity).map(CelInt::from).ok_or_else(convert_error)
}

fn add(one: &CelQuantity, other: &CelQuantity) -> Result<CelQuantity, ExecutionError> {
    one.0.checked_add(other.0).map(CelQuantity).ok_or_else(|| too_large("add"))
}

fn sub(one: &CelQuantity, other: &CelQuantity) -> Result<CelQuantity, ExecutionError> {
    one.0.checked_sub(other.0).map(CelQuantity).ok_or_else(|| too_large("sub"))
}

fn too_large(function: &str) -> ExecutionError {
    ExecutionError::function_error(function, "the quantity is too large")
}
