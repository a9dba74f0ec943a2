//! Create, update, patch, delete and deletecollection.

use axum::body::Body;
use futures::FutureExt as _;
use http::{Response, StatusCode};
use serde_json::json;

use super::{
    RequestScope, given,
    read::{respond_object, respond_page, selection, view},
};
use crate::apiserver::{
    account::MemoryShare,
    negotiate::{ResponseFormat, content_type, read_body},
    operation::PatchType,
    options::{ApplyOptions, DeleteOptions, ListOptions, WriteOptions},
    registry::{ApplyPatch, DeletionOutcome, ObjectChange, ObjectPatch, RegistryObject},
    request_cost::{self, RequestBody},
    status::{ApiError, Result},
    view::ObjectViewer,
};

/// Parses a body by `read`, and takes memory from the budget for what is made of it.
async fn understand<T>(
    target: &RequestScope<'_>,
    body: RequestBody,
    read: impl FnOnce(&[u8]) -> Result<T>,
) -> Result<(T, MemoryShare)> {
    let yaml = content_type(target.headers) == "application/yaml";
    let share = request_cost::body(yaml, &body.bytes).await?;
    let meant = request_cost::work(body.bytes.len(), || read(&body.bytes))?;
    Ok((meant, share))
}

pub(super) async fn create(
    target: &RequestScope<'_>,
    options: WriteOptions,
    body: RequestBody,
) -> Result<Response<Body>> {
    let (output, viewer) = view(target)?;
    let read = |bytes: &[u8]| read_body(target.headers, bytes);
    let (document, share) = understand(target, body, read).await?;
    let mut call = target.call();
    let created = target.registry.create(&mut call, document, options).await;
    // The client gets the warnings with an error, too.
    target.warn(call);
    let created = created?;
    if let Some(subject) = target.subject {
        subject.set_name(created.name());
    }
    let response = respond_written(StatusCode::CREATED, &output, &viewer, &created)?;
    Ok(request_cost::written(response, share).await)
}

pub(super) async fn update(
    target: &RequestScope<'_>,
    options: WriteOptions,
    body: RequestBody,
) -> Result<Response<Body>> {
    let read = |bytes: &[u8]| read_body(target.headers, bytes);
    let (document, _share) = understand(target, body, read).await?;
    if let Some(subject) = target.subject {
        subject.set_sent(&document.value);
    }
    change(target, ObjectChange::Replace(&document), options).await
}

pub(super) async fn patch(
    target: &RequestScope<'_>,
    form: PatchType,
    options: &Result<WriteOptions>,
    body: RequestBody,
) -> Result<Response<Body>> {
    let read = match form {
        PatchType::Json => ObjectPatch::json,
        PatchType::Merge => ObjectPatch::merge,
        PatchType::Strategic if target.registry.kind().takes_strategic() => ObjectPatch::strategic,
        PatchType::Strategic | PatchType::Unknown => return Err(unknown_form()),
    };
    let options = *given(options)?;
    let (patch, _share) = understand(target, body, read).await?;
    change(target, ObjectChange::Patch(&patch), options).await
}

fn unknown_form() -> ApiError {
    ApiError::unsupported_media_type(
        "the body of the request was in an unknown format - accepted media types include: \
         application/json-patch+json, application/merge-patch+json, \
         application/apply-patch+yaml",
    )
}

pub(super) async fn apply(
    target: &RequestScope<'_>,
    options: &Result<(WriteOptions, ApplyOptions)>,
    body: RequestBody,
) -> Result<Response<Body>> {
    let (options, apply) = given(options)?.clone();
    let (output, viewer) = view(target)?;
    let (apply, _share) = understand(target, body, |bytes| ApplyPatch::new(bytes, &apply)).await?;
    let mut call = target.call();
    let name = &target.operation.name;
    let applied = {
        let may_create = || target.may_create().boxed();
        target.registry.apply(&mut call, name, target.part, &apply, options, may_create).await
    };
    target.warn(call);
    let (object, created) = applied?;
    let code = if created { StatusCode::CREATED } else { StatusCode::OK };
    respond_written(code, &output, &viewer, &object)
}

/// Returns the response to a write, made of the object in the cache if the write left one there.
fn respond_written(
    code: StatusCode,
    output: &ResponseFormat,
    viewer: &ObjectViewer,
    object: &RegistryObject,
) -> Result<Response<Body>> {
    match &object.shown {
        Some(shown) => respond_object(code, output, viewer, shown),
        None => output.respond(code, &viewer.object(&object.whole())?),
    }
}

async fn change(
    target: &RequestScope<'_>,
    change: ObjectChange<'_>,
    options: WriteOptions,
) -> Result<Response<Body>> {
    let (output, viewer) = view(target)?;
    let mut call = target.call();
    let name = &target.operation.name;
    let updated = target.registry.update(&mut call, name, target.part, change, options).await;
    target.warn(call);
    let mut updated = updated?;
    let response = respond_written(StatusCode::OK, &output, &viewer, &updated)?;
    let share = std::mem::take(&mut updated.share);
    drop(updated);
    Ok(request_cost::written(response, share).await)
}

pub(super) async fn delete(target: &RequestScope<'_>, body: RequestBody) -> Result<Response<Body>> {
    let (output, viewer) = view(target)?;
    let options = delete_options(target, body).await?;
    let deleted = target.registry.delete(&target.call(), &target.operation.name, &options).await?;
    match deleted {
        DeletionOutcome::Gone(object) => output.respond(StatusCode::OK, &success(target, &object)),
        DeletionOutcome::Pending(object) => {
            // The deprecated `orphanDependents: false` deletes the dependents first, so the
            // deletion only began.
            let begun = options.orphan_dependents == Some(false);
            let code = if begun { StatusCode::ACCEPTED } else { StatusCode::OK };
            output.respond(code, &viewer.object(&object.whole())?)
        }
    }
}

pub(super) async fn delete_collection(
    target: &RequestScope<'_>,
    list: &ListOptions,
    body: RequestBody,
) -> Result<Response<Body>> {
    let (output, viewer) = view(target)?;
    let selector = selection(target, list)?;
    let options = delete_options(target, body).await?;
    let call = target.call();
    let page = target.registry.delete_collection(&call, &selector, list, &options).await?;
    respond_page(&output, &viewer, page).await
}

/// Returns the options of the body, or those of the query when the body is empty.
async fn delete_options(target: &RequestScope<'_>, body: RequestBody) -> Result<DeleteOptions> {
    if body.bytes.is_empty() {
        return DeleteOptions::parse(target.query, None);
    }
    let read = |bytes: &[u8]| read_body(target.headers, bytes);
    let (document, _share) = understand(target, body, read).await?;
    match document.value["kind"].as_str() {
        None | Some("" | "DeleteOptions") => {
            DeleteOptions::parse(target.query, Some(&document.value))
        }
        Some(kind) => Err(ApiError::bad_request(format!(
            "decoded object cannot be converted to DeleteOptions: it is a {kind}"
        ))),
    }
}

/// Returns the `metav1.Status` of an object that is gone.
fn success(target: &RequestScope<'_>, object: &RegistryObject) -> serde_json::Value {
    json!({
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Success",
        "details": {
            "name": object.name(),
            "group": target.registry.kind().group(),
            "kind": target.registry.kind().plural(),
            "uid": object.hub["metadata"]["uid"],
        },
    })
}
