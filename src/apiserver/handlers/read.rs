//! Get and list.

use axum::body::Body;
use bytes::Bytes;
use http::{Response, StatusCode};

use super::Target;
use crate::apiserver::{
    negotiate::Output,
    options::{ListOptions, get_read_at},
    registry::Page,
    selector::Selector,
    status::Result,
    view::Viewer,
};

pub(super) async fn get(target: &Target<'_>) -> Result<Response<Body>> {
    let (output, viewer) = view(target)?;
    let at = get_read_at(target.query)?;
    let object = target.registry.get(&target.info.namespace, &target.info.name, at).await?;
    output.respond(StatusCode::OK, &viewer.object(&object.hub)?)
}

pub(super) async fn list(target: &Target<'_>) -> Result<Response<Body>> {
    let (output, viewer) = view(target)?;
    let (selector, options) = selection(target, false)?;
    let page = target.registry.list(&target.info.namespace, &selector, &options).await?;
    respond_page(&output, &viewer, &page)
}

/// A list as the client wants it. Plain JSON is put together from what was encoded before.
pub(super) fn respond_page(
    output: &Output,
    viewer: &Viewer,
    page: &Page,
) -> Result<Response<Body>> {
    if output.is_plain_json() {
        let items = page.items.iter().map(|object| viewer.encoded(object));
        return output.respond_bytes(StatusCode::OK, list_bytes(viewer, page, items));
    }
    let value = viewer.list(page.items.iter().map(|object| &object.hub), &page.meta)?;
    output.respond(StatusCode::OK, &value)
}

fn list_bytes(viewer: &Viewer, page: &Page, items: impl Iterator<Item = Bytes>) -> Vec<u8> {
    let head = viewer.list_head(&page.meta).to_string();
    let mut bytes = Vec::with_capacity(head.len() + 64 + page.items.len() * 1024);
    // The head without its closing brace.
    bytes.extend_from_slice(&head.as_bytes()[..head.len() - 1]);
    bytes.extend_from_slice(b",\"items\":[");
    for (at, item) in items.enumerate() {
        if at > 0 {
            bytes.push(b',');
        }
        bytes.extend_from_slice(&item);
    }
    bytes.extend_from_slice(b"]}\n");
    bytes
}

pub(super) fn view(target: &Target<'_>) -> Result<(Output, Viewer)> {
    let output = Output::negotiate(target.headers, target.query)?;
    let viewer = Viewer::new(target.registry.kind(), target.version, &output, target.query)?;
    Ok((output, viewer))
}

pub(super) fn selection(target: &Target<'_>, watch: bool) -> Result<(Selector, ListOptions)> {
    let options = ListOptions::parse(target.query, watch)?;
    let (labels, fields) = (&options.label_selector, &options.field_selector);
    let mut selector = Selector::parse(target.registry.kind(), labels, fields)?;
    // Authorization saw this name, from the path or from the selector.
    if !target.info.name.is_empty() {
        selector.fields.require_name(&target.info.name)?;
    }
    Ok((selector, options))
}
