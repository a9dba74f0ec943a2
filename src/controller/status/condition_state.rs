//! What one condition of a cluster says, without its times.

use std::borrow::Cow;

pub(super) struct ConditionState {
    pub(super) status: &'static str,
    pub(super) reason: Cow<'static, str>,
    pub(super) message: String,
}

pub(super) fn finding(
    status: &'static str,
    reason: impl Into<Cow<'static, str>>,
    message: impl Into<String>,
) -> ConditionState {
    ConditionState { status, reason: reason.into(), message: message.into() }
}
