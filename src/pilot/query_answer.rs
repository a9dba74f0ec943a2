//! A database's answer to a question, or the fact that it was not heard.
//!
//! Owns the rule that a missing answer is not an empty one. [`QueryAnswer`] has no default and
//! turns into no other value by itself: code that needs the answer fails without it
//! ([`QueryAnswer::or_fail`]), or the report tells what was not heard ([`QueryAnswer::or_note`]),
//! and then every earlier blocker stays. Without a word are left out only figures that decide
//! nothing ([`QueryAnswer::into_option`]).

/// An answer that was understood, or why there is none.
#[must_use = "what was not heard is not nothing"]
#[derive(Clone, Debug, PartialEq)]
pub enum QueryAnswer<T> {
    Said(T),
    Not(UnansweredQuery),
}

/// A question that was left open, and why: no answer in time, a refusal, or an answer that is not
/// understood.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{question}: {why}")]
pub struct UnansweredQuery {
    question: String,
    why: String,
}

impl UnansweredQuery {
    /// Makes an open question of `question`, less its query string: `/_cluster/health`.
    pub fn new(question: &str, reason: impl Into<String>) -> Self {
        let question = question.split('?').next().unwrap_or_default().to_owned();
        Self { question, why: reason.into() }
    }
}

impl<T> QueryAnswer<T> {
    pub fn as_ref(&self) -> QueryAnswer<&T> {
        match self {
            Self::Said(answer) => QueryAnswer::Said(answer),
            Self::Not(query) => QueryAnswer::Not(query.clone()),
        }
    }

    pub fn map<U>(self, transform: impl FnOnce(T) -> U) -> QueryAnswer<U> {
        self.and_then(|answer| QueryAnswer::Said(transform(answer)))
    }

    /// Passes the answer to `transform`, which may find that the database was not heard after all.
    pub fn and_then<U>(self, transform: impl FnOnce(T) -> QueryAnswer<U>) -> QueryAnswer<U> {
        match self {
            Self::Said(answer) => transform(answer),
            Self::Not(query) => QueryAnswer::Not(query),
        }
    }

    /// Returns the answer, or the open question as the error of a caller that cannot go on without.
    pub fn or_fail(self) -> Result<T, UnansweredQuery> {
        match self {
            Self::Said(answer) => Ok(answer),
            Self::Not(query) => Err(query),
        }
    }

    /// Returns the answer; an open question is added to `unanswered`, for the report to tell.
    pub fn or_note(self, unanswered: &mut Vec<UnansweredQuery>) -> Option<T> {
        match self {
            Self::Said(answer) => Some(answer),
            Self::Not(query) => {
                unanswered.push(query);
                None
            }
        }
    }

    /// Returns a figure that people read and that decides nothing; without an answer it is left
    /// out.
    pub fn into_option(self) -> Option<T> {
        match self {
            Self::Said(answer) => Some(answer),
            Self::Not(_) => None,
        }
    }
}
