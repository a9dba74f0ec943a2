//! Get and list.

use std::{iter, mem};

use axum::body::Body;
use bytes::Bytes;
use http::{Response, StatusCode};
use serde_json::Value;

use super::RequestScope;
use crate::apiserver::{
    cache::CachedObject,
    negotiate::{BodyEncoding, ITEM, ObjectView, ResponseFormat},
    operation::ResourceOperation,
    options::{ListOptions, ReadConsistency},
    protobuf,
    registry::ListPage,
    request_cost,
    response_body::attach_guard,
    selector::Selector,
    status::Result,
    view::ObjectViewer,
};

pub(super) async fn get_object(
    target: &RequestScope<'_>,
    consistency: ReadConsistency,
) -> Result<Response<Body>> {
    let (output, viewer) = negotiate_view(target)?;
    let ResourceOperation { namespace, name, .. } = target.operation;
    let (object, share) = target.registry.get(namespace, name, consistency).await?;
    let response = respond_object(StatusCode::OK, &output, &viewer, &object)?;
    drop(object);
    request_cost::guard_response(response, share).await
}

/// Responds with one object in the form that the client asked for.
pub(super) fn respond_object(
    code: StatusCode,
    output: &ResponseFormat,
    viewer: &ObjectViewer,
    object: &CachedObject,
) -> Result<Response<Body>> {
    if output.is_compact_json()
        && viewer.view != ObjectView::PartialObjectMetadataList
        && let Some(encoded) =
            request_cost::run_blocking(object.json().len(), || viewer.shared_encoding(object))
    {
        let parts = vec![encoded.json(), Bytes::from_static(b"\n")];
        return output.respond_parts(code, parts);
    }
    if output.encoding == BodyEncoding::Protobuf && viewer.view == ObjectView::PartialObjectMetadata
    {
        return request_cost::run_blocking(object.weight, || {
            output.respond(code, &viewer.metadata(object))
        });
    }
    request_cost::run_blocking(object.weight, || {
        output.respond(code, &viewer.encode_object(&object.to_value())?)
    })
}

pub(super) async fn list_objects(
    target: &RequestScope<'_>,
    options: &ListOptions,
) -> Result<Response<Body>> {
    let (output, viewer) = negotiate_view(target)?;
    let selector = build_selector(target, options)?;
    let page = target.registry.list(&target.operation.namespace, &selector, options).await?;
    respond_page(&output, &viewer, page).await
}

/// Most bytes of a list that is encoded as a whole before it is sent; a longer one is encoded item
/// by item.
const SHORT: usize = 1 << 20;

/// Responds with a list in the form that the client asked for. JSON is sent out of what the cache
/// holds, item by item, so that its readers share the memory; in every other form a long list is
/// written item by item.
pub(super) async fn respond_page(
    output: &ResponseFormat,
    viewer: &ObjectViewer,
    mut page: ListPage,
) -> Result<Response<Body>> {
    let share = mem::take(&mut page.share);
    let response = respond_items(output, viewer, page).await?;
    Ok(if share.is_none() { response } else { attach_guard(response, share) })
}

async fn respond_items(
    output: &ResponseFormat,
    viewer: &ObjectViewer,
    page: ListPage,
) -> Result<Response<Body>> {
    let bytes: usize = page.items.iter().map(|object| object.json().len()).sum();
    let is_shared =
        page.items.first().is_none_or(|object| viewer.shared_encoding(object).is_some());
    if output.is_compact_json()
        && is_shared
        && let Some(head) = viewer.list_head(&page.meta)?
    {
        let pieces = list_pieces(head.to_string(), *viewer, page);
        // A long list of items that are encoded for it alone is encoded while it is sent.
        if viewer.is_kept() || bytes <= SHORT {
            let parts = request_cost::run_blocking(bytes, || pieces.collect());
            return output.respond_parts(StatusCode::OK, parts);
        }
        return output.respond_pieces(StatusCode::OK, pieces);
    }
    // Memory of each object's tree of JSON values and of what is encoded from the tree.
    let weight = page.items.iter().map(|object| 3 * object.weight).sum();
    if weight > SHORT {
        return match (output.encoding, viewer.list_head(&page.meta)?) {
            (BodyEncoding::Protobuf, Some(head)) => long_protobuf(output, *viewer, &head, page),
            _ => long_text(*output, *viewer, page),
        };
    }
    let share = request_cost::reserve_response(weight).await?;
    let response = request_cost::run_blocking(weight, || {
        if output.encoding == BodyEncoding::Protobuf
            && let Some(mut list) = viewer.list_head(&page.meta)?
        {
            list["items"] = page.items.iter().map(|object| viewer.metadata(object)).collect();
            return output.respond(StatusCode::OK, &list);
        }
        let trees = page.items.iter().map(|object| object.to_value());
        output.respond(StatusCode::OK, &viewer.encode_list(trees, &page.meta)?)
    })?;
    request_cost::guard_response(response, share).await
}

/// Responds with a list in JSON or YAML of which only one item at a time is a tree of JSON values.
fn long_text(
    output: ResponseFormat,
    viewer: ObjectViewer,
    page: ListPage,
) -> Result<Response<Body>> {
    let parts = output.around_items(&viewer.list_around(ITEM, &page.meta)?)?;
    let [prefix, separator, suffix] = parts.map(Bytes::from);
    let items = page.items.into_iter().enumerate().flat_map(move |(index, object)| {
        let separator = if index == 0 { Bytes::new() } else { separator.clone() };
        [separator, output.encode_item(&viewer.encode_item(&object.to_value())).into()]
    });
    let pieces = iter::once(prefix).chain(items).chain(iter::once(suffix));
    output.respond_pieces(StatusCode::OK, pieces)
}

/// Responds with a long list in protobuf. The length of the whole list stands before it, so each
/// item is encoded twice.
fn long_protobuf(
    output: &ResponseFormat,
    viewer: ObjectViewer,
    head: &Value,
    page: ListPage,
) -> Result<Response<Body>> {
    let item = {
        let head = head.clone();
        move |object: &CachedObject| protobuf::encode_item(&head, &viewer.partial_of(object))
    };
    let bytes = request_cost::run_blocking(usize::MAX, || {
        page.items.iter().map(|object| item(object).len()).sum()
    });
    let [prefix, suffix] = protobuf::list_envelope(head, bytes).map(Bytes::from);
    let items = page.items.into_iter().map(move |object| Bytes::from(item(&object)));
    let pieces = iter::once(prefix).chain(items).chain(iter::once(suffix));
    output.respond_pieces(StatusCode::OK, pieces)
}

/// Returns the pieces of a list in compact JSON, made from the encodings that readers share.
fn list_pieces(
    mut head: String,
    viewer: ObjectViewer,
    page: ListPage,
) -> impl Iterator<Item = Bytes> + Send + Unpin + 'static {
    // The items are a field of the head, before its closing brace.
    head.pop();
    head.push_str(",\"items\":[");
    let items = page.items.into_iter().enumerate().flat_map(move |(index, object)| {
        let separator = if index == 0 { Bytes::new() } else { Bytes::from_static(b",") };
        [
            separator,
            viewer.shared_encoding(&object).map_or_else(Bytes::new, |encoded| encoded.json()),
        ]
    });
    let suffix = iter::once(Bytes::from_static(b"]}\n"));
    iter::once(Bytes::from(head)).chain(items).chain(suffix)
}

pub(super) fn negotiate_view(target: &RequestScope<'_>) -> Result<(ResponseFormat, ObjectViewer)> {
    let output = ResponseFormat::negotiate(target.headers, target.query)?;
    let viewer = ObjectViewer::new(target.registry.kind(), target.version, &output, target.query)?;
    Ok((output, viewer))
}

pub(super) fn build_selector(target: &RequestScope<'_>, options: &ListOptions) -> Result<Selector> {
    let (labels, fields) = (&options.label_selector, &options.field_selector);
    let mut selector = Selector::parse(target.registry.kind(), labels, fields)?;
    // Authorization saw this name, from the path or from the selector.
    if !target.operation.name.is_empty() {
        selector.fields.require_name(&target.operation.name)?;
    }
    Ok(selector)
}
