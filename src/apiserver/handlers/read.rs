//! Get and list.

use std::sync::Arc;

use axum::body::Body;
use bytes::Bytes;
use http::{Response, StatusCode};

use super::Target;
use crate::{
    api::{decode::weight, kind::Version},
    apiserver::{
        cache::Cached,
        load,
        negotiate::{Output, View},
        operation::Operation,
        options::{ListOptions, ReadAt},
        registry::Page,
        selector::Selector,
        status::Result,
        view::Viewer,
    },
};

pub(super) async fn get(target: &Target<'_>, at: ReadAt) -> Result<Response<Body>> {
    let (output, viewer) = view(target)?;
    let Operation { namespace, name, .. } = target.operation;
    let mut object = target.registry.get(namespace, name, at).await?;
    let share = std::mem::take(&mut object.share);
    let respond = || output.respond(StatusCode::OK, &viewer.object(&object.hub)?);
    let response = load::work(object.size, respond)?;
    drop(object);
    Ok(load::sent(response, share).await)
}

pub(super) async fn list(target: &Target<'_>, options: &ListOptions) -> Result<Response<Body>> {
    let (output, viewer) = view(target)?;
    let selector = selection(target, options)?;
    let page = target.registry.list(&target.operation.namespace, &selector, options).await?;
    respond_page(&output, &viewer, &page).await
}

/// What a row of a Table or the metadata of an object takes beside the metadata itself.
const ROW: usize = 2 * 1024;

/// A list as the client wants it. Plain JSON is sent out of what was encoded before, item by
/// item, so that its readers share the memory; everything else is made in its turn.
pub(super) async fn respond_page(
    output: &Output,
    viewer: &Viewer,
    page: &Page,
) -> Result<Response<Body>> {
    if output.is_plain_json() {
        let parts = load::work(page.items.len() * ROW, || list_parts(viewer, page));
        return output.respond_parts(StatusCode::OK, parts).await;
    }
    let weigh = |object: &Arc<Cached>| match (viewer.view, viewer.version) {
        (View::Object, _) | (_, Version::V1alpha1) => 2 * weight::of(&object.hub),
        (_, Version::V1beta1 | Version::V1) => ROW + 2 * weight::of(&object.hub["metadata"]),
    };
    let bytes = page.items.iter().map(weigh).sum();
    let share = load::response(bytes).await;
    let response = load::work(bytes, || {
        let value = viewer.list(page.items.iter().map(|object| &object.hub), &page.meta)?;
        output.respond(StatusCode::OK, &value)
    })?;
    Ok(load::sent(response, share).await)
}

fn list_parts(viewer: &Viewer, page: &Page) -> Vec<Bytes> {
    let mut head = viewer.list_head(&page.meta).to_string();
    // The head goes on behind its closing brace.
    head.pop();
    head.push_str(",\"items\":[");
    let mut parts = Vec::with_capacity(2 * page.items.len() + 2);
    parts.push(head.into());
    for (at, object) in page.items.iter().enumerate() {
        if at > 0 {
            parts.push(Bytes::from_static(b","));
        }
        parts.push(viewer.encoded(object));
    }
    parts.push(Bytes::from_static(b"]}\n"));
    parts
}

pub(super) fn view(target: &Target<'_>) -> Result<(Output, Viewer)> {
    let output = Output::negotiate(target.headers, target.query)?;
    let viewer = Viewer::new(target.registry.kind(), target.version, &output, target.query)?;
    Ok((output, viewer))
}

pub(super) fn selection(target: &Target<'_>, options: &ListOptions) -> Result<Selector> {
    let (labels, fields) = (&options.label_selector, &options.field_selector);
    let mut selector = Selector::parse(target.registry.kind(), labels, fields)?;
    // Authorization saw this name, from the path or from the selector.
    if !target.operation.name.is_empty() {
        selector.fields.require_name(&target.operation.name)?;
    }
    Ok(selector)
}
