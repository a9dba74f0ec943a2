//! `matchConditions`: expressions in CEL that must hold before a webhook is called.
//!
//! Owns how a webhook's conditions decide together, by the rules of upstream's package
//! `matchconditions`. Expressions are compiled once, when the configuration is read. An expression
//! that cannot be compiled, fails, calls an unknown function or would take too long is an error of
//! its condition, and not true or false.

mod library;
mod meter;
mod pricing;
mod program;
mod quantity;
mod values;

use std::sync::Arc;

use cel::Context;
use k8s_openapi::api::admissionregistration::v1::MatchCondition;

use self::{
    library::{CompiledPatterns, ENV},
    meter::CostMeter,
    program::ConditionProgram,
};

const OBJECT: &str = "object";
const OLD_OBJECT: &str = "oldObject";
const REQUEST: &str = "request";

/// Upstream's message for an expression that is too expensive.
const OVER: &str =
    "validation failed due to running out of cost budget, no further validation rules will be run";

/// The conditions of one webhook, compiled.
pub(super) struct MatchConditions {
    conditions: Vec<CompiledCondition>,
    patterns: Arc<CompiledPatterns>,
}

struct CompiledCondition {
    expression: String,
    program: Result<ConditionProgram, String>,
}

/// The variables that conditions see, as JSON.
#[derive(Clone, Copy)]
pub(super) struct ConditionVariables<'a> {
    pub(super) object: Option<&'a str>,
    pub(super) old: Option<&'a str>,
    pub(super) request: &'a str,
}

/// Outcome of a webhook's conditions together.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct MatchResult {
    /// True when all conditions hold, false when one is false, and an error when none is false but
    /// some have errors.
    pub(super) holds: Result<bool, String>,
    /// How many conditions had errors.
    pub(super) errors: usize,
}

impl MatchConditions {
    pub(super) fn new(conditions: Vec<MatchCondition>) -> Self {
        let mut patterns = CompiledPatterns::new();
        let compile = |condition: MatchCondition| {
            let MatchCondition { name: _, expression } = condition;
            let mut program = ConditionProgram::compile(&expression);
            if let Ok(program) = &mut program {
                patterns.append(&mut program.patterns);
            }
            CompiledCondition { expression, program }
        };
        let conditions = conditions.into_iter().map(compile).collect();
        Self { conditions, patterns: Arc::new(patterns) }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.conditions.is_empty()
    }

    /// Estimates how many bytes the expressions go through; nested loops multiply them.
    pub(super) fn estimate_bytes(&self, variables: ConditionVariables<'_>) -> usize {
        let length = |json: Option<&str>| json.map_or(0, str::len);
        let bytes = length(variables.object) + length(variables.old) + variables.request.len();
        let nesting = self.programs().map(|program| program.nesting).max().unwrap_or_default();
        bytes.saturating_pow(nesting.max(1))
    }

    pub(super) fn evaluate(&self, variables: ConditionVariables<'_>) -> MatchResult {
        self.evaluate_within(&CostMeter::new(meter::BUDGET), variables)
    }

    fn evaluate_within(
        &self,
        meter: &Arc<CostMeter>,
        variables: ConditionVariables<'_>,
    ) -> MatchResult {
        let context = match self.build_context(meter, variables) {
            Ok(context) => context,
            Err(reason) => {
                return MatchResult { holds: Err(reason), errors: self.conditions.len() };
            }
        };
        let mut errors = Vec::new();
        for CompiledCondition { expression, program } in &self.conditions {
            let outcome = match program {
                Ok(program) => program.evaluate(&context, meter).map_err(|reason| {
                    format!("expression '{expression}' resulted in error: {reason}")
                }),
                Err(reason) => Err(format!("compilation error: compilation failed: {reason}")),
            };
            match outcome {
                Ok(true) => {}
                Ok(false) => return MatchResult { holds: Ok(false), errors: errors.len() },
                Err(error) => errors.push(error),
            }
        }
        let combined_outcome = match errors.as_slice() {
            [] => Ok(true),
            [error] => Err(error.clone()),
            messages => Err(format!("[{}]", messages.join(", "))),
        };
        MatchResult { holds: combined_outcome, errors: errors.len() }
    }

    /// Creates the context of an evaluation, with only those variables that the expressions use.
    fn build_context<'v>(
        &self,
        meter: &Arc<CostMeter>,
        variables: ConditionVariables<'v>,
    ) -> Result<Context<'v, 'v>, String> {
        let mut context = Context::with_env(Arc::clone(&ENV));
        meter.add_to(&mut context)?;
        library::add_to(&mut context, meter, &self.patterns)?;
        let ConditionVariables { object, old, request } = variables;
        let json_by_name = [(OBJECT, object), (OLD_OBJECT, old), (REQUEST, Some(request))];
        for (name, json) in json_by_name {
            if self.programs().any(|program| program.names.contains(name)) {
                let value = values::parse_json(json).map_err(|error| error.to_string())?;
                context.add_variable_as_val(name, value);
            }
        }
        Ok(context)
    }

    fn programs(&self) -> impl Iterator<Item = &ConditionProgram> {
        self.conditions.iter().filter_map(|condition| condition.program.as_ref().ok())
    }
}

#[cfg(test)]
mod tests;
