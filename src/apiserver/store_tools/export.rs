//! Writes a store as JSON lines.

use std::io::Write;

use base64::{Engine, prelude::BASE64_STANDARD};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json, value::RawValue};

use super::{Error, open_store, unreadable_reason, visit_objects};
use crate::{
    apiserver::{run::StoreConfig, storage::StoreEntry},
    machinery::served_kinds::ServedKinds,
};

/// Version of an export's format. It is raised when an older binary can no longer read an export.
pub(super) const FORMAT: u64 = 1;

/// The first line of an export.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct ExportHead {
    pub store: String,
    /// The revision that the export shows.
    pub revision: u64,
    pub format: u64,
}

/// The line of an object in an export. The value is kept byte by byte.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct ExportLine {
    pub key: String,
    pub revision: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<Box<RawValue>>,
    /// The value in base64, instead of `value`, if it is not JSON in one line.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base64: Option<String>,
}

/// The last line of an export.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct ExportEnd {
    pub objects: usize,
}

/// What an export holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExportReport {
    pub objects: usize,
    /// Key and reason of each object that is in the export and cannot be read by this binary.
    pub unreadable: Vec<(String, String)>,
}

/// Writes every object of a store as of one revision.
pub async fn export_store(
    store: &StoreConfig,
    scheme: &ServedKinds,
    out: &mut impl Write,
) -> Result<ExportReport, Error> {
    let store = open_store(store).await?;
    let status = store.store_status().await?;
    let store_id = status.id.ok_or(Error::NoStore)?;
    let mut lines = Vec::new();
    let mut report = ExportReport { objects: 0, unreadable: Vec::new() };
    let revision = visit_objects(&*store, scheme.group().name, |entry| {
        report.objects += 1;
        if let Some(reason) = unreadable_reason(scheme, &entry) {
            report.unreadable.push((entry.key.as_str().to_owned(), reason));
        }
        lines.push(format_line(&entry));
        Ok(())
    })
    .await?;
    let head = ExportHead { store: store_id, revision: revision.0, format: FORMAT };
    let end = ExportEnd { objects: report.objects };
    let mut write_line = |text: &str| writeln!(out, "{text}").map_err(Error::Write);
    write_line(&json!(head).to_string())?;
    for line in lines {
        write_line(&line)?;
    }
    write_line(&json!(end).to_string())?;
    out.flush().map_err(Error::Write)?;
    Ok(report)
}

/// Returns an object's line in an export.
pub(super) fn format_line(entry: &StoreEntry) -> String {
    let text = std::str::from_utf8(&entry.value).ok().filter(|text| !text.contains('\n'));
    // A value is written as JSON only if its bytes come back the same, not if it merely means the
    // same.
    let value = text
        .filter(|text| serde_json::from_str::<Value>(text).is_ok())
        .and_then(|text| RawValue::from_string(text.to_owned()).ok())
        .filter(|value| value.get().as_bytes() == &*entry.value);
    let base64 = value.is_none().then(|| BASE64_STANDARD.encode(&entry.value));
    let line = ExportLine {
        key: entry.key.as_str().to_owned(),
        revision: entry.revision.0,
        value,
        base64,
    };
    serde_json::to_string(&line).expect("a line has string keys only")
}
