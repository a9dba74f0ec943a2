//! Writes a store as JSON lines.

use std::io::Write;

use base64::{Engine, prelude::BASE64_STANDARD};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json, value::RawValue};

use super::{Error, each, open, unreadable};
use crate::{
    apiserver::{run::StoreConfig, storage::StoreEntry},
    machinery::served_kinds::ServedKinds,
};

/// Version of an export's format, raised when an older binary could not read an export any more.
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
    /// The value in base64, in place of `value`, where it is not JSON in one line.
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
pub async fn export(
    store: &StoreConfig,
    scheme: &ServedKinds,
    out: &mut impl Write,
) -> Result<ExportReport, Error> {
    let store = open(store).await?;
    let sight = store.sight().await?;
    let store_id = sight.id.ok_or(Error::NoStore)?;
    let mut lines = Vec::new();
    let mut found = ExportReport { objects: 0, unreadable: Vec::new() };
    let revision = each(&*store, scheme.group().name, |entry| {
        found.objects += 1;
        if let Some(why) = unreadable(scheme, &entry) {
            found.unreadable.push((entry.key.as_str().to_owned(), why));
        }
        lines.push(line(&entry));
        Ok(())
    })
    .await?;
    let head = ExportHead { store: store_id, revision: revision.0, format: FORMAT };
    let end = ExportEnd { objects: found.objects };
    let mut write = |text: &str| writeln!(out, "{text}").map_err(Error::Write);
    write(&json!(head).to_string())?;
    for line in lines {
        write(&line)?;
    }
    write(&json!(end).to_string())?;
    out.flush().map_err(Error::Write)?;
    Ok(found)
}

/// Returns an object's line in an export.
pub(super) fn line(entry: &StoreEntry) -> String {
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
