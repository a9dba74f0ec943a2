//! Traces in a program that was built without them: nothing.

use std::{borrow::Cow, path::Path, time::SystemTime};

use axum::body::Body;
use http::{HeaderMap, Response, StatusCode};

use crate::runtime::Runtime;

/// Why requests cannot be traced.
#[derive(Debug, thiserror::Error)]
#[error(
    "--tracing-config-file: this program cannot trace requests: it was built without the cargo \
     feature otlp"
)]
pub struct OpenError;

#[derive(Clone, Debug)]
pub struct Traces;

impl Traces {
    pub fn off() -> Self {
        Self
    }

    /// Refuses a file: whoever gives one relies on what it says.
    pub fn open(file: Option<&Path>, _: &Runtime) -> Result<Self, OpenError> {
        file.map_or(Ok(Self), |_| Err(OpenError))
    }

    pub fn begin(
        &self,
        _: &HeaderMap,
        _: impl FnOnce() -> bool,
        _: SystemTime,
        _: impl FnOnce() -> Span,
    ) -> Begun {
        Begun
    }
}

#[derive(Debug)]
pub struct Begun;

impl Begun {
    pub fn within<W: Future>(&self, work: W) -> W {
        work
    }

    pub fn over(self, response: Response<Body>) -> Response<Body> {
        response
    }

    pub fn refused(self, _: StatusCode) {}
}

#[derive(Debug)]
pub struct Span;

impl Span {
    pub fn new(_: impl Into<Cow<'static, str>>) -> Self {
        Self
    }

    pub fn post(_: &str) -> Self {
        Self
    }

    #[must_use]
    pub fn with(self, _: &'static str, _: impl Into<String>) -> Self {
        self
    }

    #[must_use]
    pub fn with_number(self, _: &'static str, _: i64) -> Self {
        self
    }
}

pub fn span<W: Future>(_: impl FnOnce() -> Span, work: W) -> W {
    work
}

pub fn failed(_: impl FnOnce() -> String) {}

pub fn answered(_: StatusCode) {}

pub fn pass_on(_: &mut HeaderMap) {}
