//! Objects as clients see them: in a version, as rows of a Table, or as metadata alone.
//!
//! Owns the shapes of lists, Tables and PartialObjectMetadata. Works on hub objects that carry
//! their resourceVersion; versions are the scheme's business.

use serde_json::{Map, Value, json};

use super::{
    cache::{CachedObject, EncodedObject},
    negotiate::{ObjectView, ResponseFormat},
    status::{ApiError, Result},
    url::Query,
};
use crate::machinery::served_kind::{ServedKind, ServedVersion};

/// What a Table holds as the `object` of each row.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum IncludeObjectPolicy {
    None,
    #[default]
    Metadata,
    Object,
}

/// The form in which one client wants objects of one kind.
#[derive(Clone, Copy)]
pub struct ObjectViewer {
    pub kind: &'static dyn ServedKind,
    pub version: ServedVersion,
    pub view: ObjectView,
    view_version: &'static str,
    include: IncludeObjectPolicy,
    /// Returns the current time, as seconds since the epoch, from which ages are computed.
    now: fn() -> i64,
}

/// The fields of a list's `metadata`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListMeta {
    pub resource_version: String,
    pub continue_token: Option<String>,
    pub remaining: Option<usize>,
}

impl ListMeta {
    fn to_value(&self) -> Value {
        let mut meta = json!({"resourceVersion": self.resource_version});
        if let Some(token) = &self.continue_token {
            meta["continue"] = json!(token);
        }
        if let Some(remaining) = self.remaining {
            meta["remainingItemCount"] = json!(remaining);
        }
        meta
    }
}

impl ObjectViewer {
    pub fn new(
        kind: &'static dyn ServedKind,
        version: ServedVersion,
        output: &ResponseFormat,
        query: &Query,
    ) -> Result<Self> {
        let include = match query.text("includeObject") {
            "" | "Metadata" => IncludeObjectPolicy::Metadata,
            "Object" => IncludeObjectPolicy::Object,
            "None" => IncludeObjectPolicy::None,
            other if output.view == ObjectView::Table => {
                return Err(ApiError::bad_request(format!(
                    "Unable to convert to Table as requested: unrecognized includeObject value: \
                     {other:?}"
                )));
            }
            _ => IncludeObjectPolicy::default(),
        };
        let now = || jiff::Timestamp::now().as_second();
        let (view, view_version) = (output.view, output.view_version);
        Ok(Self { kind, version, view, view_version, include, now })
    }

    /// Returns one object as the client wants it: the answer to get, create, update, patch and
    /// delete.
    pub fn encode_object(&self, hub: &Value) -> Result<Value> {
        match self.view {
            ObjectView::Object => Ok(self.kind.encode(self.version, hub)),
            ObjectView::PartialObjectMetadata => Ok(self.partial_metadata(hub)),
            ObjectView::Table => Ok(self.table_of(hub, true)),
            ObjectView::PartialObjectMetadataList => Err(ApiError::not_acceptable(
                "you requested PartialObjectMetadataList, but the requested object is not a list",
            )),
        }
    }

    /// Returns a page of a list as the client wants it.
    pub fn encode_list(
        &self,
        items: impl Iterator<Item = Value>,
        meta: &ListMeta,
    ) -> Result<Value> {
        let Some(mut list) = self.list_head(meta)? else {
            let rows = items.map(|hub| self.build_row(&hub)).collect();
            return Ok(self.build_table(meta.to_value(), rows, true));
        };
        list["items"] = match self.view {
            ObjectView::Object => items.map(|hub| self.kind.encode(self.version, &hub)).collect(),
            _ => items.map(|hub| self.partial_metadata(&hub)).collect(),
        };
        Ok(list)
    }

    /// Returns a list whose only item is `item`.
    pub fn list_around(&self, item: &str, meta: &ListMeta) -> Result<Value> {
        let Some(mut list) = self.list_head(meta)? else {
            return Ok(self.build_table(meta.to_value(), vec![json!(item)], true));
        };
        list["items"] = json!([item]);
        Ok(list)
    }

    /// Returns an object in the form that it has in a list.
    pub fn encode_item(&self, hub: &Value) -> Value {
        match self.view {
            ObjectView::Object => self.kind.encode(self.version, hub),
            ObjectView::Table => self.build_row(hub),
            ObjectView::PartialObjectMetadata | ObjectView::PartialObjectMetadataList => {
                self.partial_metadata(hub)
            }
        }
    }

    /// Returns a list without its items; `None` for a Table, which has rows instead.
    pub fn list_head(&self, meta: &ListMeta) -> Result<Option<Value>> {
        let head = |kind: &str, api_version: &str| {
            Ok(Some(json!({"kind": kind, "apiVersion": api_version, "metadata": meta.to_value()})))
        };
        match self.view {
            ObjectView::Object => head(&format!("{}List", self.kind.kind()), &self.api_version()),
            ObjectView::PartialObjectMetadataList => {
                head("PartialObjectMetadataList", self.view_api_version())
            }
            ObjectView::Table => Ok(None),
            ObjectView::PartialObjectMetadata => Err(ApiError::not_acceptable(format!(
                "you requested PartialObjectMetadata, but the requested object is a list ({}List)",
                self.kind.kind()
            ))),
        }
    }

    /// Returns an object as JSON in an encoding that readers share; `None` where none is shared, as
    /// for rows of Tables, which differ from one reader to the next.
    pub fn shared_encoding(&self, object: &CachedObject) -> Option<EncodedObject> {
        let is_newest = self.version == self.kind.versions()[0];
        match self.view {
            ObjectView::Object if is_newest => Some(object.encoded_object().clone()),
            ObjectView::Object => {
                Some(object.older_version(|tree| self.kind.encode(self.version, tree)))
            }
            ObjectView::PartialObjectMetadata | ObjectView::PartialObjectMetadataList => {
                let is_shared = is_newest && self.view_version != "v1beta1";
                is_shared.then(|| object.partial_metadata(|tree| self.partial_metadata(tree)))
            }
            ObjectView::Table => None,
        }
    }

    /// Tells whether the cache always holds objects as this reader wants them.
    pub fn is_kept(&self) -> bool {
        self.view == ObjectView::Object && self.version == self.kind.versions()[0]
    }

    /// Returns an object's metadata alone, from the encoding that readers share where there is one.
    pub fn metadata(&self, object: &CachedObject) -> Value {
        match self.shared_encoding(object) {
            Some(encoded) => encoded.to_value(),
            None => self.partial_metadata(&object.to_value()),
        }
    }

    /// Returns an object's metadata for one reader; no encoding of it is kept.
    pub fn partial_of(&self, object: &CachedObject) -> Value {
        self.partial_metadata(&object.to_value())
    }

    /// Returns the object of a watch event. Only the first Table of a stream names its columns.
    pub fn encode_event(&self, hub: &Value, is_first: bool) -> Value {
        match self.view {
            ObjectView::Object => self.kind.encode(self.version, hub),
            ObjectView::Table => self.table_of(hub, is_first),
            ObjectView::PartialObjectMetadata | ObjectView::PartialObjectMetadataList => {
                self.partial_metadata(hub)
            }
        }
    }

    /// Returns the object of a bookmark: nothing but a revision, and the annotation that ends the
    /// initial state.
    pub fn build_bookmark(
        &self,
        revision: &str,
        ends_initial_state: bool,
        is_first: bool,
    ) -> Value {
        let mut metadata = json!({"resourceVersion": revision, "creationTimestamp": null});
        if ends_initial_state {
            metadata["annotations"] = json!({"k8s.io/initial-events-end": "true"});
        }
        let object = |kind: &str, api_version: &str| json!({"kind": kind, "apiVersion": api_version, "metadata": metadata});
        match self.view {
            ObjectView::Object => object(self.kind.kind(), &self.api_version()),
            ObjectView::PartialObjectMetadata | ObjectView::PartialObjectMetadataList => {
                object("PartialObjectMetadata", self.view_api_version())
            }
            ObjectView::Table => {
                let row_object = match self.include {
                    IncludeObjectPolicy::Object => object(self.kind.kind(), &self.api_version()),
                    _ => object("PartialObjectMetadata", self.view_api_version()),
                };
                let cells = vec![Value::Null; self.kind.columns().len()];
                let row = json!({"cells": cells, "object": row_object});
                self.build_table(json!({"resourceVersion": revision}), vec![row], is_first)
            }
        }
    }

    fn api_version(&self) -> String {
        self.kind.api_version(self.version)
    }

    fn view_api_version(&self) -> &'static str {
        if self.view_version == "v1beta1" { "meta.k8s.io/v1beta1" } else { "meta.k8s.io/v1" }
    }

    /// Returns an object's metadata as the version shows it: an older form may carry more in its
    /// annotations.
    fn partial_metadata(&self, hub: &Value) -> Value {
        let mut encoded = if self.version == self.kind.hub_version() {
            // Encoding the whole object would copy it for nothing.
            self.kind.encode(self.version, &json!({"metadata": hub["metadata"]}))
        } else {
            self.kind.encode(self.version, hub)
        };
        json!({
            "kind": "PartialObjectMetadata",
            "apiVersion": self.view_api_version(),
            "metadata": encoded["metadata"].take(),
        })
    }

    fn table_of(&self, hub: &Value, has_columns: bool) -> Value {
        let metadata = json!({"resourceVersion": hub["metadata"]["resourceVersion"]});
        self.build_table(metadata, vec![self.build_row(hub)], has_columns)
    }

    fn build_table(&self, metadata: Value, rows: Vec<Value>, has_columns: bool) -> Value {
        let mut table = Map::new();
        table.insert("kind".into(), "Table".into());
        table.insert("apiVersion".into(), self.view_api_version().into());
        table.insert("metadata".into(), metadata);
        let columns = if has_columns { self.column_definitions() } else { Value::Null };
        table.insert("columnDefinitions".into(), columns);
        table.insert("rows".into(), rows.into());
        table.into()
    }

    fn column_definitions(&self) -> Value {
        let describe = |column: &crate::machinery::served_kind::PrinterColumn| {
            // kubectl shows the name column as the object's name in `-o name` and in errors.
            let format = if column.name == "Name" { "name" } else { "" };
            json!({
                "name": column.name,
                "type": column.type_,
                "format": format,
                "description": column.description,
                "priority": column.priority,
            })
        };
        self.kind.columns().iter().map(describe).collect()
    }

    fn build_row(&self, hub: &Value) -> Value {
        let mut row = Map::new();
        row.insert("cells".into(), self.kind.cells(hub, (self.now)()).into());
        match self.include {
            IncludeObjectPolicy::None => {}
            IncludeObjectPolicy::Metadata => {
                row.insert("object".into(), self.partial_metadata(hub));
            }
            IncludeObjectPolicy::Object => {
                row.insert("object".into(), self.kind.encode(self.version, hub));
            }
        }
        row.into()
    }
}
