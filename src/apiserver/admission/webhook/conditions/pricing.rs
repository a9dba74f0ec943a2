//! Puts prices into an expression: calls of the functions of `meter`.
//!
//! Operations that take the same time whatever the values are cost nothing: names, fields, logic,
//! and keys and indices that are literals. Other operations pay for the values that they look at or
//! copy, before or after they do.

use std::collections::BTreeSet;

use cel::{
    IdedExpr,
    common::ast::{
        CallExpr, ComprehensionExpr, EntryExpr, Expr, LiteralValue,
        operators::{
            ADD, CONDITIONAL, DIVIDE, EQUALS, GREATER, GREATER_EQUALS, IN, INDEX, LESS,
            LESS_EQUALS, LOGICAL_AND, LOGICAL_NOT, LOGICAL_OR, MODULO, MULTIPLY, NEGATE,
            NOT_EQUALS, NOT_STRICTLY_FALSE, OPT_INDEX, OPT_SELECT, SUBSTRACT,
        },
    },
};

use super::{
    library,
    meter::{self, CallPrice},
};

/// Deepest nesting of an expression, and below of its loops. Each level takes stack when evaluated.
const DEEPEST: usize = 32;
const DEEPEST_LOOPS: u32 = 6;

/// Facts about an expression that are known before it is evaluated.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct ExpressionAnalysis {
    /// Names that the expression uses, those of its loops among them.
    pub(super) names: BTreeSet<String>,
    /// Regular expressions that are literals in the expression.
    pub(super) patterns: BTreeSet<String>,
    /// How deep the expression's loops are nested.
    pub(super) nesting: u32,
}

/// Puts prices into an expression. Fails when the expression is nested too deeply.
pub(super) fn price_expression(expression: &mut IdedExpr) -> Result<ExpressionAnalysis, String> {
    let mut pricing = PricingVisitor { known: ExpressionAnalysis::default(), depth: 0, loops: 0 };
    pricing.visit(expression)?;
    Ok(pricing.known)
}

struct PricingVisitor {
    known: ExpressionAnalysis,
    depth: usize,
    loops: u32,
}

impl PricingVisitor {
    fn visit(&mut self, expression: &mut IdedExpr) -> Result<(), String> {
        if self.depth == DEEPEST {
            return Err(format!("it is nested more than {DEEPEST} levels deep"));
        }
        self.depth += 1;
        match &mut expression.expr {
            Expr::Unspecified => return Err("a part of it is missing".to_owned()),
            Expr::Literal(_) => {}
            Expr::Ident(name) => {
                self.known.names.insert(name.clone());
            }
            Expr::Select(select) => {
                self.visit(&mut select.operand)?;
                charge_field(&mut select.operand);
            }
            Expr::Call(call) => {
                self.visit_call(call)?;
                // The call copies the value that it finds.
                if matches!(call.func_name.as_str(), OPT_INDEX | OPT_SELECT) {
                    charge_part(expression, CallPrice::Whole);
                }
            }
            Expr::List(list) => {
                for element in &mut list.elements {
                    self.visit(element)?;
                    charge_part(element, CallPrice::Whole);
                }
            }
            Expr::Map(map) => {
                for entry in &mut map.entries {
                    let EntryExpr::MapEntry(entry) = &mut entry.expr else { continue };
                    for part in [&mut entry.key, &mut entry.value] {
                        self.visit(part)?;
                        charge_part(part, CallPrice::Whole);
                    }
                }
            }
            Expr::Comprehension(comprehension) => self.visit_comprehension(comprehension)?,
            Expr::Struct(struct_expression) => {
                return Err(format!("there is no type {:?}", struct_expression.type_name));
            }
        }
        self.depth -= 1;
        Ok(())
    }

    fn visit_call(&mut self, call: &mut CallExpr) -> Result<(), String> {
        // In `sets.contains(a, b)`, `sets` is no value.
        let target = call.target.as_deref_mut();
        let (target, namespace) =
            match target.map(|target| (library::function_namespace(target), target)) {
                Some((Some(namespace), _)) => (None, Some(namespace)),
                Some((None, target)) => (Some(target), None),
                None => (None, None),
            };
        let mut operands: Vec<&mut IdedExpr> = target.into_iter().chain(&mut call.args).collect();
        for operand in &mut operands {
            self.visit(operand)?;
        }
        match (call.func_name.as_str(), operands.as_mut_slice()) {
            (CONDITIONAL | LOGICAL_AND | LOGICAL_OR | LOGICAL_NOT | NOT_STRICTLY_FALSE, _) => {}
            (INDEX | OPT_INDEX | OPT_SELECT, [container, index]) => {
                charge_field(container);
                if !is_plain_index(index) {
                    wrap_in_call(index, meter::INDEX);
                }
            }
            // How loops count and collect: the library knows these calls by their form.
            (ADD, [left, _]) if is_own_name(left) => {}
            // A comparison goes no further than the smaller side, so the price of one side is
            // enough. Compared with a literal, a list or a map is not looked into.
            (EQUALS | NOT_EQUALS, [left, right]) => {
                charge_part(
                    left,
                    if is_literal(right) { CallPrice::Text } else { CallPrice::Whole },
                );
            }
            (IN, [item, container]) => {
                charge_part(item, CallPrice::Whole);
                charge_part(container, CallPrice::Search);
            }
            (
                ADD | SUBSTRACT | MULTIPLY | DIVIDE | MODULO | NEGATE | LESS | LESS_EQUALS
                | GREATER | GREATER_EQUALS,
                operands,
            ) => operands.iter_mut().for_each(|operand| charge_part(operand, CallPrice::Whole)),
            (name, operands) => {
                // Our functions in `library` spend their price themselves.
                if let Some(metered_name) = library::metered_function(namespace, name) {
                    if let [.., pattern] = operands
                        && let Expr::Literal(LiteralValue::String(pattern)) = &pattern.expr
                    {
                        self.known.patterns.insert(pattern.inner().to_owned());
                    }
                    metered_name.clone_into(&mut call.func_name);
                    return Ok(());
                }
                let variable_operands =
                    operands.iter().filter(|operand| !is_literal(operand)).count();
                let price = match library::call_price(namespace, name) {
                    CallPrice::Squared if variable_operands < 2 => CallPrice::Whole,
                    price => price,
                };
                for operand in operands {
                    charge_part(operand, price);
                }
            }
        }
        Ok(())
    }

    fn visit_comprehension(&mut self, comprehension: &mut ComprehensionExpr) -> Result<(), String> {
        let ComprehensionExpr {
            iter_range,
            iter_var: _,
            iter_var2: _,
            accu_var: _,
            accu_init,
            loop_cond,
            loop_step,
            result,
        } = comprehension;
        self.visit(iter_range)?;
        // The loop copies each item.
        charge_part(iter_range, CallPrice::Whole);
        self.visit(accu_init)?;
        if !matches!(accu_init.expr, Expr::List(_)) {
            charge_part(accu_init, CallPrice::Whole);
        }
        if self.loops == DEEPEST_LOOPS {
            return Err(format!("its loops are nested more than {DEEPEST_LOOPS} levels deep"));
        }
        self.loops += 1;
        self.known.nesting = self.known.nesting.max(self.loops);
        self.visit(loop_cond)?;
        // After an error of a step, `all` and `exists` go on; an error of the loop's condition ends
        // the loop.
        if !is_literal(loop_cond) {
            let turn = build_call(meter::TURN, Vec::new());
            let condition = std::mem::take(loop_cond);
            let stop = build_literal(LiteralValue::Boolean(false.into()));
            *loop_cond = build_call(CONDITIONAL, vec![turn, condition, stop]);
        }
        self.visit(loop_step)?;
        self.loops -= 1;
        self.visit(result)?;
        charge_part(result, CallPrice::Whole);
        Ok(())
    }
}

/// Makes a part of an expression pay for its value. A literal is free: it is no heavier than the
/// expression.
fn charge_part(part: &mut IdedExpr, price: CallPrice) {
    if !is_literal(part) && !is_own_name(part) {
        wrap_in_call(part, price.function_name());
    }
}

/// Makes a part of an expression pay for a field that is read from it. For a field of a field, the
/// outer value has paid.
fn charge_field(part: &mut IdedExpr) {
    if !matches!(part.expr, Expr::Select(_)) {
        charge_part(part, CallPrice::Held);
    }
}

fn wrap_in_call(part: &mut IdedExpr, function: &str) {
    let argument = std::mem::take(part);
    *part = build_call(function, vec![argument]);
}

fn build_call(function: &str, args: Vec<IdedExpr>) -> IdedExpr {
    let call = CallExpr { func_name: function.to_owned(), target: None, args };
    IdedExpr { id: 0, expr: Expr::Call(call) }
}

fn build_literal(value: LiteralValue) -> IdedExpr {
    IdedExpr { id: 0, expr: Expr::Literal(value) }
}

fn is_literal(part: &IdedExpr) -> bool {
    matches!(part.expr, Expr::Literal(_))
}

/// Returns whether an index is a literal that finds an item without comparing it with the others.
fn is_plain_index(part: &IdedExpr) -> bool {
    use LiteralValue::{Boolean, Int, String, UInt};
    matches!(part.expr, Expr::Literal(String(_) | Int(_) | UInt(_) | Boolean(_)))
}

/// Tells whether a part is a name that only the macros of loops write, such as `@result`.
fn is_own_name(part: &IdedExpr) -> bool {
    matches!(&part.expr, Expr::Ident(name) if name.starts_with('@'))
}
