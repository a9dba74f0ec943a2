//! Create, update, patch, delete and deletecollection.

use axum::body::Body;
use futures::FutureExt as _;
use http::{Response, StatusCode};
use serde_json::json;

use super::{
    RequestScope,
    read::{build_selector, negotiate_view, respond_object, respond_page},
    require_options,
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
async fn parse_body<T>(
    target: &RequestScope<'_>,
    body: RequestBody,
    parse: impl FnOnce(&[u8]) -> Result<T>,
) -> Result<(T, MemoryShare)> {
    let is_yaml = content_type(target.headers) == "application/yaml";
    let share = request_cost::reserve_body(is_yaml, &body.bytes).await?;
    let parsed_body = request_cost::run_blocking(body.bytes.len(), || parse(&body.bytes))?;
    Ok((parsed_body, share))
}

pub(super) async fn create_object(
    target: &RequestScope<'_>,
    options: WriteOptions,
    body: RequestBody,
) -> Result<Response<Body>> {
    let (output, viewer) = negotiate_view(target)?;
    let parse = |bytes: &[u8]| read_body(target.headers, bytes);
    let (document, share) = parse_body(target, body, parse).await?;
    let mut call = target.registry_call();
    let create_result = target.registry.create(&mut call, document, options).await;
    // The client gets the warnings with an error, too.
    target.add_warnings(call);
    let created_object = create_result?;
    if let Some(subject) = target.subject {
        subject.set_name(created_object.name());
    }
    let response = respond_written(StatusCode::CREATED, &output, &viewer, &created_object)?;
    Ok(request_cost::guard_write_response(response, share).await)
}

pub(super) async fn update_object(
    target: &RequestScope<'_>,
    options: WriteOptions,
    body: RequestBody,
) -> Result<Response<Body>> {
    let parse = |bytes: &[u8]| read_body(target.headers, bytes);
    let (document, _share) = parse_body(target, body, parse).await?;
    if let Some(subject) = target.subject {
        subject.set_sent(&document.value);
    }
    change_object(target, ObjectChange::Replace(&document), options).await
}

pub(super) async fn patch_object(
    target: &RequestScope<'_>,
    form: PatchType,
    options: &Result<WriteOptions>,
    body: RequestBody,
) -> Result<Response<Body>> {
    let parse = match form {
        PatchType::Json => ObjectPatch::parse_json,
        PatchType::Merge => ObjectPatch::parse_merge,
        PatchType::Strategic if target.registry.kind().takes_strategic() => {
            ObjectPatch::parse_strategic
        }
        PatchType::Strategic | PatchType::Unknown => return Err(unknown_form()),
    };
    let options = *require_options(options)?;
    let (patch, _share) = parse_body(target, body, parse).await?;
    change_object(target, ObjectChange::Patch(&patch), options).await
}

fn unknown_form() -> ApiError {
    ApiError::unsupported_media_type(
        "the body of the request was in an unknown format - accepted media types include: \
         application/json-patch+json, application/merge-patch+json, \
         application/apply-patch+yaml",
    )
}

pub(super) async fn apply_object(
    target: &RequestScope<'_>,
    options: &Result<(WriteOptions, ApplyOptions)>,
    body: RequestBody,
) -> Result<Response<Body>> {
    let (options, apply) = require_options(options)?.clone();
    let (output, viewer) = negotiate_view(target)?;
    let (apply, _share) = parse_body(target, body, |bytes| ApplyPatch::new(bytes, &apply)).await?;
    let mut call = target.registry_call();
    let name = &target.operation.name;
    let apply_result = {
        let may_create = || target.may_create().boxed();
        target.registry.apply(&mut call, name, target.part, &apply, options, may_create).await
    };
    target.add_warnings(call);
    let (object, is_created) = apply_result?;
    let code = if is_created { StatusCode::CREATED } else { StatusCode::OK };
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
        Some(cached_object) => respond_object(code, output, viewer, cached_object),
        None => output.respond(code, &viewer.encode_object(&object.to_value())?),
    }
}

async fn change_object(
    target: &RequestScope<'_>,
    change: ObjectChange<'_>,
    options: WriteOptions,
) -> Result<Response<Body>> {
    let (output, viewer) = negotiate_view(target)?;
    let mut call = target.registry_call();
    let name = &target.operation.name;
    let update_result = target.registry.update(&mut call, name, target.part, change, options).await;
    target.add_warnings(call);
    let mut updated_object = update_result?;
    let response = respond_written(StatusCode::OK, &output, &viewer, &updated_object)?;
    let share = std::mem::take(&mut updated_object.share);
    drop(updated_object);
    Ok(request_cost::guard_write_response(response, share).await)
}

pub(super) async fn delete_object(
    target: &RequestScope<'_>,
    body: RequestBody,
) -> Result<Response<Body>> {
    let (output, viewer) = negotiate_view(target)?;
    let options = delete_options(target, body).await?;
    let outcome =
        target.registry.delete(&target.registry_call(), &target.operation.name, &options).await?;
    match outcome {
        DeletionOutcome::Gone(object) => {
            output.respond(StatusCode::OK, &success_status(target, &object))
        }
        DeletionOutcome::Pending(object) => {
            // The deprecated `orphanDependents: false` deletes the dependents first, so the
            // deletion only began.
            let is_deletion_pending = options.orphan_dependents == Some(false);
            let code = if is_deletion_pending { StatusCode::ACCEPTED } else { StatusCode::OK };
            output.respond(code, &viewer.encode_object(&object.to_value())?)
        }
    }
}

pub(super) async fn delete_collection(
    target: &RequestScope<'_>,
    list: &ListOptions,
    body: RequestBody,
) -> Result<Response<Body>> {
    let (output, viewer) = negotiate_view(target)?;
    let selector = build_selector(target, list)?;
    let options = delete_options(target, body).await?;
    let call = target.registry_call();
    let page = target.registry.delete_collection(&call, &selector, list, &options).await?;
    respond_page(&output, &viewer, page).await
}

/// Returns the options of the body, or those of the query when the body is empty.
async fn delete_options(target: &RequestScope<'_>, body: RequestBody) -> Result<DeleteOptions> {
    if body.bytes.is_empty() {
        return DeleteOptions::parse(target.query, None);
    }
    let parse = |bytes: &[u8]| read_body(target.headers, bytes);
    let (document, _share) = parse_body(target, body, parse).await?;
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
fn success_status(target: &RequestScope<'_>, object: &RegistryObject) -> serde_json::Value {
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
