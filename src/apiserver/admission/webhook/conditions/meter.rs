//! Budget of the evaluation of expressions.
//!
//! Expressions come from administrators, but the objects that they go through from any client. A
//! function that takes longer the larger a value is pays for that value first. So do the iterations
//! of loops such as `all` and `exists`: see `priced`, which puts the calls of these functions into
//! expressions. Once the budget is spent, each further payment is an error, and so no further loop
//! begins.
//!
//! A unit is about a byte of text. To spend all of [`BUDGET`] takes about a tenth of a second. The
//! budget bounds memory, too, since copies pay for what they copy.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use cel::{
    Context, ExecutionError, FunctionContext,
    common::{
        types::{CelBool, CelBytes, CelDouble, CelList, CelMap, CelOptional, CelString},
        value::{CowVal, Val},
    },
};

/// Units that all conditions of a webhook may spend together, for one request.
pub(super) const BUDGET: u64 = 20_000_000;

/// Price in units of one value, or of one turn of a loop.
const STEP: u64 = 32;

/// Largest number that is accepted as an index: no list is as long.
const LARGEST_INDEX: f64 = 1e15;

/// Name of the function that charges a turn of a loop, and below of the one that charges an index.
/// CEL's grammar lets no author write such names in an expression.
pub(super) const TURN: &str = "@turn";
pub(super) const INDEX: &str = "@index";

/// How much of a value a function looks at, and so what a call pays for the value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CallPrice {
    /// All that the value holds.
    Whole,
    /// All of a list, whose items are searched, and nothing of a map, which is looked up by key.
    Search,
    /// The whole of a text. Of a list or a map the function looks at no item, which costs one step.
    Text,
    /// All of a value many times over, because each character of a text may become a text of its
    /// own.
    Pieces,
    /// All of an optional value, whose field is copied, and nothing of other values, whose fields
    /// are borrowed.
    Held,
    /// All of the value, once for each part of another value that may be as large.
    Squared,
}

impl CallPrice {
    const ALL: [Self; 6] =
        [Self::Whole, Self::Search, Self::Text, Self::Pieces, Self::Held, Self::Squared];

    pub(super) fn function_name(self) -> &'static str {
        match self {
            Self::Whole => "@whole",
            Self::Search => "@search",
            Self::Text => "@text",
            Self::Pieces => "@pieces",
            Self::Held => "@held",
            Self::Squared => "@squared",
        }
    }

    fn units_for(self, value: &dyn Val, max_units: u64) -> u64 {
        match self {
            Self::Search if value.downcast_ref::<CelMap<'_>>().is_some() => STEP,
            Self::Text if is_container(value) => STEP,
            Self::Held if value.downcast_ref::<CelOptional<'_>>().is_none() => 0,
            Self::Pieces => weigh_value(value, max_units).saturating_mul(2 * STEP),
            Self::Squared => {
                let weight = weigh_value(value, max_units);
                weight.saturating_mul(weight)
            }
            Self::Whole | Self::Search | Self::Text | Self::Held => weigh_value(value, max_units),
        }
    }
}

/// Counter of the units that are left of the budget.
#[derive(Debug)]
pub(super) struct CostMeter {
    left: AtomicU64,
    /// Payments, and those of them that came when nothing was left.
    #[cfg(test)]
    pub(super) payments: AtomicU64,
    #[cfg(test)]
    pub(super) refused: AtomicU64,
}

impl CostMeter {
    pub(super) fn new(budget: u64) -> Arc<Self> {
        Arc::new(Self {
            left: AtomicU64::new(budget),
            #[cfg(test)]
            payments: AtomicU64::new(0),
            #[cfg(test)]
            refused: AtomicU64::new(0),
        })
    }

    pub(super) fn spend(&self, units: u64) -> Result<(), ExecutionError> {
        #[cfg(test)]
        {
            self.payments.fetch_add(1, Ordering::Relaxed);
            self.refused.fetch_add(u64::from(self.is_spent()), Ordering::Relaxed);
        }
        let remaining_units = self.remaining().saturating_sub(units);
        self.left.store(remaining_units, Ordering::Relaxed);
        if remaining_units == 0 { Err(budget_error()) } else { Ok(()) }
    }

    /// Tells whether the budget is spent. Then the outcome of the evaluation is no answer.
    pub(super) fn is_spent(&self) -> bool {
        self.remaining() == 0
    }

    pub(super) fn remaining(&self) -> u64 {
        self.left.load(Ordering::Relaxed)
    }

    /// Adds the functions that priced expressions call to `context`.
    pub(super) fn add_to(self: &Arc<Self>, context: &mut Context<'_, '_>) -> Result<(), String> {
        for price in CallPrice::ALL {
            let meter = Arc::clone(self);
            add_function(context, price.function_name(), move |call| {
                let value = call.args.pop().ok_or(ExecutionError::MissingArgumentOrTarget)?;
                meter.spend(price.units_for(value.as_ref(), meter.remaining()))?;
                Ok(value)
            })?;
        }
        let meter = Arc::clone(self);
        add_function(context, TURN, move |_| {
            meter.spend(STEP)?;
            Ok(CowVal::owned(CelBool::from(true)))
        })?;
        let meter = Arc::clone(self);
        add_function(context, INDEX, move |call| {
            let value = call.args.pop().ok_or(ExecutionError::MissingArgumentOrTarget)?;
            meter.spend(CallPrice::Whole.units_for(value.as_ref(), meter.remaining()))?;
            // The library's error for any other number would hold a copy of the list.
            let is_valid_index =
                |number: f64| number.fract() == 0.0 && number.abs() < LARGEST_INDEX;
            if value
                .downcast_ref::<CelDouble>()
                .is_some_and(|number| !is_valid_index(*number.inner()))
            {
                return Err(ExecutionError::function_error("_[_]", "no index is such a number"));
            }
            Ok(value)
        })
    }
}

fn budget_error() -> ExecutionError {
    ExecutionError::InternalError(super::OVER.to_owned())
}

/// Adds a function that gets its arguments as they are, without copies.
pub(super) fn add_function(
    context: &mut Context<'_, '_>,
    name: &str,
    function: impl for<'c, 'v> Fn(
        &mut FunctionContext<'c, 'v>,
    ) -> Result<CowVal<'c, 'v>, ExecutionError>
    + Send
    + Sync
    + 'static,
) -> Result<(), String> {
    type BoxedFunction = Box<
        dyn for<'c, 'v> Fn(&mut FunctionContext<'c, 'v>) -> Result<CowVal<'c, 'v>, ExecutionError>
            + Send
            + Sync,
    >;
    let function: BoxedFunction = Box::new(function);
    context.add_function(name, function).map_err(|error| error.to_string())
}

/// Converts a count of bytes, or of turns at one unit each, to units.
pub(super) fn to_units(count: usize) -> u64 {
    u64::try_from(count).unwrap_or(u64::MAX)
}

fn is_container(value: &dyn Val) -> bool {
    value.downcast_ref::<CelList<'_>>().is_some() || value.downcast_ref::<CelMap<'_>>().is_some()
}

/// Returns about how many units a value weighs. A value heavier than `max_units` may be found
/// lighter than it is, but not lighter than `max_units`.
pub(super) fn weigh_value(value: &dyn Val, max_units: u64) -> u64 {
    let mut weight = STEP;
    if let Some(text) = value.downcast_ref::<CelString<'_>>() {
        weight += to_units(text.inner().len());
    } else if let Some(bytes) = value.downcast_ref::<CelBytes<'_>>() {
        weight += to_units(bytes.inner().len());
    } else if let Some(list) = value.downcast_ref::<CelList<'_>>() {
        for item in list.inner() {
            if weight >= max_units {
                break;
            }
            weight += weigh_value(item.as_ref(), max_units - weight);
        }
    } else if let Some(map) = value.downcast_ref::<CelMap<'_>>() {
        for (key, value) in map.inner() {
            if weight >= max_units {
                break;
            }
            weight += weigh_value(key.inner(), max_units);
            weight += weigh_value(value.as_ref(), max_units.saturating_sub(weight));
        }
    } else if let Some(inner_value) =
        value.downcast_ref::<CelOptional<'_>>().and_then(CelOptional::option)
    {
        weight += weigh_value(inner_value, max_units);
    }
    weight
}

#[cfg(test)]
mod tests {
    use cel::common::types::CelInt;

    use super::*;

    #[test]
    fn nothing_is_weighed_beyond_what_is_left() {
        let list: Vec<Box<dyn Val>> =
            (0..1000).map(|number| Box::new(CelInt::from(number)) as _).collect();
        let list = CelList::from(list);
        assert_eq!(weigh_value(&list, u64::MAX), 1001 * STEP);
        assert_eq!(weigh_value(&list, 10 * STEP), 10 * STEP);
        assert_eq!(CallPrice::Text.units_for(&list, u64::MAX), STEP);
        let meter = CostMeter::new(10 * STEP);
        assert!(meter.spend(9 * STEP).is_ok() && !meter.is_spent());
        assert!(meter.spend(STEP).is_err() && meter.is_spent());
    }
}
