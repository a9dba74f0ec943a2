//! One expression, compiled and priced.

use std::{
    collections::BTreeSet,
    fmt::{self, Write as _},
    panic::{AssertUnwindSafe, catch_unwind},
    thread,
};

use cel::{Context, IdedExpr, Value, common::types::CelBool};

use super::{
    library::{self, CompiledPatterns, ENV},
    meter::CostMeter,
    pricing,
};

/// Stack of the thread that parses: the parser goes many calls deep for each level of an
/// expression.
const STACK: usize = 64 * 1024 * 1024;

/// Most bytes of an expression. The parser takes hundreds of times as much memory while it reads
/// one.
const LONGEST: usize = 16 * 1024;

/// Most bytes of an error's text, which may hold values of the object.
const LONGEST_ERROR: usize = 1024;

pub(super) struct ConditionProgram {
    expression: IdedExpr,
    /// Names that the expression uses.
    pub(super) names: BTreeSet<String>,
    pub(super) patterns: CompiledPatterns,
    /// How deep the expression's loops are nested.
    pub(super) nesting: u32,
}

impl ConditionProgram {
    pub(super) fn compile(text: &str) -> Result<Self, String> {
        if text.len() > LONGEST {
            return Err(format!("it has more than {LONGEST} bytes"));
        }
        thread::scope(|scope| {
            let thread = thread::Builder::new().name("cel".into()).stack_size(STACK);
            let parser_thread = thread.spawn_scoped(scope, || Self::parse(text));
            let parser_thread = parser_thread.map_err(|error| error.to_string())?;
            parser_thread.join().unwrap_or_else(|_| Err("the parser panicked".to_owned()))
        })
    }

    fn parse(text: &str) -> Result<Self, String> {
        let parse_result = ENV.parser().parse(text);
        let mut expression = parse_result.map_err(|errors| truncate_error(&errors))?;
        let pricing::ExpressionAnalysis { names, patterns, nesting } =
            pricing::price_expression(&mut expression)?;
        let compile_pattern = |pattern: String| {
            let regex = library::compile_pattern(&pattern);
            (pattern, regex)
        };
        let patterns = patterns.into_iter().map(compile_pattern).collect();
        Ok(Self { expression, names, patterns, nesting })
    }

    /// Evaluates the expression. `context` has the variables, and the functions of `meter` and
    /// `library`.
    pub(super) fn evaluate(
        &self,
        context: &Context<'_, '_>,
        meter: &CostMeter,
    ) -> Result<bool, String> {
        let evaluate = || {
            let value = Value::resolve_val(&self.expression, context);
            let value = value.map_err(|error| truncate_error(&error))?;
            let is_true = value.downcast_ref::<CelBool>().map(|value| *value.inner());
            is_true.ok_or_else(|| format!("it is {}, no bool", value.get_type().name()))
        };
        let outcome = catch_unwind(AssertUnwindSafe(evaluate));
        let outcome = outcome.unwrap_or_else(|_| Err("the evaluation panicked".to_owned()));
        // `&&` and `||` may have gone on without the operand that was too expensive.
        if meter.is_spent() { Err(super::OVER.to_owned()) } else { outcome }
    }
}

/// Returns the beginning of a text that may be long, up to [`LONGEST_ERROR`] bytes.
fn truncate_error(text: &dyn fmt::Display) -> String {
    struct TruncatingWriter(String);

    impl fmt::Write for TruncatingWriter {
        fn write_str(&mut self, chunk: &str) -> fmt::Result {
            let room = LONGEST_ERROR - self.0.len();
            let is_boundary = |end: &usize| chunk.is_char_boundary(*end);
            let end = (0..=chunk.len().min(room)).rev().find(is_boundary).unwrap_or_default();
            self.0.push_str(&chunk[..end]);
            if end < chunk.len() { Err(fmt::Error) } else { Ok(()) }
        }
    }

    let mut writer = TruncatingWriter(String::new());
    // `write!` stops at the first error: as soon as no room is left.
    if write!(writer, "{text}").is_err() {
        writer.0.push('…');
    }
    writer.0
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::{
        super::meter::{BUDGET, add_function},
        *,
    };

    #[test]
    fn a_panic_is_an_error_of_the_expression() {
        let mut context = Context::with_env(Arc::clone(&ENV));
        let meter = CostMeter::new(BUDGET);
        meter.add_to(&mut context).unwrap();
        add_function(&mut context, "broken", |_| panic!("a bug of the library")).unwrap();
        let program = ConditionProgram::compile("broken() || true").unwrap();
        let outcome = program.evaluate(&context, &meter);
        assert_eq!(outcome, Err("the evaluation panicked".to_owned()));
    }
}
