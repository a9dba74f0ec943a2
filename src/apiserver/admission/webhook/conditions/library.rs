//! The functions that expressions may call: CEL's own, those of strings, and some of Kubernetes'.
//!
//! Leaves out `authorizer`, times, and what `docs/admission.md` names: an expression that calls
//! those fails.

use std::{
    collections::BTreeMap,
    sync::{Arc, LazyLock},
};

use cel::{
    Context, Env, ExecutionError, FunctionContext, IdedExpr,
    common::{
        ast::Expr,
        types::{CelBool, CelList, CelString},
        value::{CowVal, FromVal, Val},
    },
    extensions,
};
use regex::{Regex, RegexBuilder};

use super::{
    meter::{self, CallPrice, CostMeter},
    quantity,
};

/// Most bytes of a compiled regular expression, and of the cache that it fills while it runs.
const PATTERN: usize = 64 * 1024;

/// Price in units of compiling a regular expression, and below the least price of each byte of a
/// text that one is matched against.
const COMPILE: u64 = 20_000;
const STATES: u64 = 100;

/// Name of our function that replaces CEL's `matches`, which compiles its pattern each time.
const MATCHES: &str = "@matches";

/// Regular expressions that were compiled with the conditions, by pattern.
pub(super) type CompiledPatterns = BTreeMap<String, Result<Regex, String>>;

/// Environment that expressions are parsed with and evaluated in.
pub(super) static ENV: LazyLock<Arc<Env>> = LazyLock::new(|| {
    let mut env = Env::stdlib();
    extensions::strings(&mut env).expect("no function has the name of another");
    quantity::register_functions(&mut env).expect("no function has the name of another");
    Arc::new(env)
});

/// Returns the namespace in front of a function's name, such as `sets`, if `part` is one and no
/// value.
pub(super) fn function_namespace(part: &IdedExpr) -> Option<&'static str> {
    let Expr::Ident(name) = &part.expr else { return None };
    ["optional", "sets", "strings"].into_iter().find(|namespace| name == namespace)
}

/// Returns the name of our function that replaces the library's and spends its own price, if any.
pub(super) fn metered_function(namespace: Option<&str>, function: &str) -> Option<&'static str> {
    match (namespace, function) {
        (None, "matches") => Some(MATCHES),
        (Some("sets"), "contains") => Some("contains"),
        (Some("sets"), "intersects") => Some("intersects"),
        (Some("sets"), "equivalent") => Some("equivalent"),
        _ => None,
    }
}

/// Returns how much of its operands a call of `function` looks at.
pub(super) fn call_price(namespace: Option<&str>, function: &str) -> CallPrice {
    match (namespace, function) {
        (
            None,
            "bool" | "bytes" | "charAt" | "contains" | "double" | "dyn" | "endsWith" | "int"
            | "lowerAscii" | "size" | "startsWith" | "string" | "substring" | "trim" | "type"
            | "uint" | "upperAscii",
        ) => CallPrice::Text,
        (None, "split") => CallPrice::Pieces,
        (None, "hasValue" | "or" | "orValue" | "value") | (Some("optional" | "strings"), _) => {
            CallPrice::Whole
        }
        _ => CallPrice::Squared,
    }
}

/// Adds the functions that need the meter or the compiled patterns to `context`.
pub(super) fn add_to(
    context: &mut Context<'_, '_>,
    meter: &Arc<CostMeter>,
    patterns: &Arc<CompiledPatterns>,
) -> Result<(), String> {
    for (name, predicate) in [
        ("sets.contains", has_all_items as fn(&CelList<'_>, &CelList<'_>) -> bool),
        ("sets.intersects", has_any_item),
        ("sets.equivalent", |one, other| has_all_items(one, other) && has_all_items(other, one)),
    ] {
        let meter = Arc::clone(meter);
        meter::add_function(context, name, move |call| {
            let (list, others) = two_operands::<CelList<'_>>(call)?;
            // Each item of one list is compared with each of the other, perhaps both ways round.
            let comparisons = meter::to_units(2 * others.inner().len());
            meter.spend(meter::weigh_value(list, meter.remaining()).saturating_mul(comparisons))?;
            Ok(CowVal::owned(CelBool::from(predicate(list, others))))
        })?;
    }
    let (meter, patterns) = (Arc::clone(meter), Arc::clone(patterns));
    meter::add_function(context, MATCHES, move |call| {
        let (text, pattern) = two_operands::<CelString<'_>>(call)?;
        let (text, pattern) = (text.inner(), pattern.inner());
        let bytes = |text: &str| meter::to_units(text.len());
        meter.spend(bytes(text).saturating_mul(bytes(pattern).max(STATES)))?;
        let match_result = if let Some(compile_result) = patterns.get(pattern) {
            compile_result.as_ref().map(|regex| regex.is_match(text)).map_err(Clone::clone)
        } else {
            meter.spend(bytes(pattern).saturating_add(COMPILE))?;
            compile_pattern(pattern).map(|regex| regex.is_match(text))
        };
        let is_match =
            match_result.map_err(|message| ExecutionError::function_error("matches", message))?;
        Ok(CowVal::owned(CelBool::from(is_match)))
    })
}

/// Returns the two operands of a call; the receiver of a method call is the first of them.
fn two_operands<'a, 'v, T: FromVal<'a, 'v>>(
    call: &'a FunctionContext<'_, 'v>,
) -> Result<(&'a T, &'a T), ExecutionError> {
    let operands: Vec<_> = call.this.iter().chain(&call.args).collect();
    let [one, other] = operands.as_slice() else {
        return Err(ExecutionError::invalid_argument_count(2, operands.len()));
    };
    let (Some(one), Some(other)) = (one.downcast_ref(), other.downcast_ref()) else {
        let types = operands.iter().map(|operand| operand.get_type().name().to_owned());
        return Err(ExecutionError::no_such_overload(call.name, types.collect()));
    };
    Ok((one, other))
}

pub(super) fn compile_pattern(pattern: &str) -> Result<Regex, String> {
    let mut builder = RegexBuilder::new(&to_ascii_classes(pattern));
    builder.size_limit(PATTERN).dfa_size_limit(PATTERN);
    builder.build().map_err(|error| error.to_string())
}

/// Rewrites a pattern so that `\d`, `\s`, `\w` and `\b` mean ASCII only, as upstream's do; for
/// `regex` they mean Unicode.
fn to_ascii_classes(pattern: &str) -> String {
    let mut plain = String::with_capacity(pattern.len());
    let mut rest = pattern.chars();
    while let Some(char) = rest.next() {
        if char != '\\' {
            plain.push(char);
            continue;
        }
        match rest.next() {
            Some('d') => plain.push_str("[0-9]"),
            Some('D') => plain.push_str("[^0-9]"),
            Some('s') => plain.push_str(r"[\t\n\f\r ]"),
            Some('S') => plain.push_str(r"[^\t\n\f\r ]"),
            Some('w') => plain.push_str("[0-9A-Za-z_]"),
            Some('W') => plain.push_str("[^0-9A-Za-z_]"),
            Some('b') => plain.push_str(r"(?-u:\b)"),
            Some(other) => plain.extend(['\\', other]),
            None => plain.push('\\'),
        }
    }
    plain
}

/// Tells whether `list` has each item of `others`. Order and duplicates count for nothing in sets.
fn has_all_items(list: &CelList<'_>, others: &CelList<'_>) -> bool {
    others.inner().iter().all(|item| has_item(list, item.as_ref()))
}

fn has_any_item(list: &CelList<'_>, others: &CelList<'_>) -> bool {
    others.inner().iter().any(|item| has_item(list, item.as_ref()))
}

fn has_item(list: &CelList<'_>, item: &dyn Val) -> bool {
    list.inner().iter().any(|element| element.equals(item))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn regular_expressions_are_of_ascii_and_of_bounded_size() {
        for (pattern, text, found) in [
            (r"^\d+$", "42", true),
            (r"^\d+$", "٤٢", false),
            (r"^[\w.-]+@\w+$", "a.b-c@d", true),
            (r"^\w$", "é", false),
            (r"^.$", "é", true),
            (r"\\d", r"\d", true),
            (r"\bpilots\b", "all pilots", true),
        ] {
            assert_eq!(
                compile_pattern(pattern).map(|known| known.is_match(text)),
                Ok(found),
                "{pattern}"
            );
        }
        for pattern in ["(", r"((a{100}){100}){100}", r"\pL{500}", r"(?<=a)b"] {
            assert!(compile_pattern(pattern).is_err(), "{pattern}");
        }
    }
}
