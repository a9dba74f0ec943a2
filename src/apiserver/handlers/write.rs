//! Create, update, patch, delete and deletecollection.

use axum::body::Body;
use bytes::Bytes;
use http::{Response, StatusCode};
use serde_json::json;

use super::{
    Target,
    read::{respond_page, selection, view},
};
use crate::{
    api::GROUP,
    apiserver::{
        negotiate::{content_type, read_body},
        options::{DeleteOptions, WriteOptions},
        registry::{Change, Deleted, Object, Patch},
        status::{ApiError, Result},
    },
};

pub(super) async fn create(target: &Target<'_>, body: Bytes) -> Result<Response<Body>> {
    let (output, viewer) = view(target)?;
    let options = WriteOptions::parse(target.query, "CreateOptions")?;
    let document = read_body(target.headers, &body)?;
    let mut call = target.call();
    let created = target.registry.create(&mut call, &document, options).await?;
    target.warn(call);
    if let Some(subject) = target.subject {
        subject.set_name(created.name());
    }
    output.respond(StatusCode::CREATED, &viewer.object(&created.hub)?)
}

pub(super) async fn update(target: &Target<'_>, body: Bytes) -> Result<Response<Body>> {
    let options = WriteOptions::parse(target.query, "UpdateOptions")?;
    let document = read_body(target.headers, &body)?;
    change(target, Change::Replace(&document), options).await
}

pub(super) async fn patch(target: &Target<'_>, body: Bytes) -> Result<Response<Body>> {
    let patch = match content_type(target.headers).as_str() {
        "application/json-patch+json" => Patch::json(&body)?,
        "application/merge-patch+json" => Patch::merge(&body)?,
        _ => {
            return Err(ApiError::unsupported_media_type(
                "the body of the request was in an unknown format - accepted media types include: \
                 application/json-patch+json, application/merge-patch+json",
            ));
        }
    };
    let options = WriteOptions::parse(target.query, "PatchOptions")?;
    change(target, Change::Patch(&patch), options).await
}

async fn change(
    target: &Target<'_>,
    change: Change<'_>,
    options: WriteOptions,
) -> Result<Response<Body>> {
    let (output, viewer) = view(target)?;
    let mut call = target.call();
    let name = &target.info.name;
    let updated = target.registry.update(&mut call, name, target.part, change, options).await?;
    target.warn(call);
    output.respond(StatusCode::OK, &viewer.object(&updated.hub)?)
}

pub(super) async fn delete(target: &Target<'_>, body: Bytes) -> Result<Response<Body>> {
    let (output, viewer) = view(target)?;
    let options = delete_options(target, &body)?;
    let deleted = target.registry.delete(&target.call(), &target.info.name, &options).await?;
    match deleted {
        Deleted::Gone(object) => output.respond(StatusCode::OK, &success(target, &object)),
        Deleted::Pending(object) => {
            // The deprecated option asks for the dependents first, so the request only began.
            let begun = options.orphan_dependents == Some(false);
            let code = if begun { StatusCode::ACCEPTED } else { StatusCode::OK };
            output.respond(code, &viewer.object(&object.hub)?)
        }
    }
}

pub(super) async fn delete_collection(target: &Target<'_>, body: Bytes) -> Result<Response<Body>> {
    let (output, viewer) = view(target)?;
    let (selector, list) = selection(target, false)?;
    let options = delete_options(target, &body)?;
    let call = target.call();
    let page = target.registry.delete_collection(&call, &selector, &list, &options).await?;
    respond_page(&output, &viewer, &page)
}

/// The body's options; those of the query when there is no body.
fn delete_options(target: &Target<'_>, body: &[u8]) -> Result<DeleteOptions> {
    if body.is_empty() {
        return DeleteOptions::parse(target.query, None);
    }
    let document = read_body(target.headers, body)?;
    match document.value["kind"].as_str() {
        None | Some("" | "DeleteOptions") => {
            DeleteOptions::parse(target.query, Some(&document.value))
        }
        Some(kind) => Err(ApiError::bad_request(format!(
            "decoded object cannot be converted to DeleteOptions: it is a {kind}"
        ))),
    }
}

/// `metav1.Status` of an object that is gone.
fn success(target: &Target<'_>, object: &Object) -> serde_json::Value {
    json!({
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Success",
        "details": {
            "name": object.name(),
            "group": GROUP,
            "kind": target.registry.kind().plural(),
            "uid": object.hub["metadata"]["uid"],
        },
    })
}
