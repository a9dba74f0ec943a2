//! Create, update, patch, delete and deletecollection.

use axum::body::Body;
use futures::FutureExt as _;
use http::{Response, StatusCode};
use serde_json::json;

use super::{
    Target, given,
    read::{respond_object, respond_page, selection, view},
};
use crate::apiserver::{
    account::Share,
    load::{self, Arrived},
    negotiate::{Output, content_type, read_body},
    operation::PatchForm,
    options::{ApplyOptions, DeleteOptions, ListOptions, WriteOptions},
    registry::{Apply, Change, Deleted, Object, Patch},
    status::{ApiError, Result},
    view::Viewer,
};

/// Reads a body, and takes memory for everything that is made of it.
async fn understand<T>(
    target: &Target<'_>,
    body: Arrived,
    read: impl FnOnce(&[u8]) -> Result<T>,
) -> Result<(T, Share)> {
    let yaml = content_type(target.headers) == "application/yaml";
    let share = load::body(yaml, &body.bytes).await?;
    let meant = load::work(body.bytes.len(), || read(&body.bytes))?;
    Ok((meant, share))
}

pub(super) async fn create(
    target: &Target<'_>,
    options: WriteOptions,
    body: Arrived,
) -> Result<Response<Body>> {
    let (output, viewer) = view(target)?;
    let read = |bytes: &[u8]| read_body(target.headers, bytes);
    let (document, share) = understand(target, body, read).await?;
    let mut call = target.call();
    let created = target.registry.create(&mut call, document, options).await;
    // A refusal carries the warnings, too.
    target.warn(call);
    let created = created?;
    if let Some(subject) = target.subject {
        subject.set_name(created.name());
    }
    let response = respond_written(StatusCode::CREATED, &output, &viewer, &created)?;
    Ok(load::written(response, share).await)
}

pub(super) async fn update(
    target: &Target<'_>,
    options: WriteOptions,
    body: Arrived,
) -> Result<Response<Body>> {
    let read = |bytes: &[u8]| read_body(target.headers, bytes);
    let (document, _share) = understand(target, body, read).await?;
    if let Some(subject) = target.subject {
        subject.set_sent(&document.value);
    }
    change(target, Change::Replace(&document), options).await
}

pub(super) async fn patch(
    target: &Target<'_>,
    form: PatchForm,
    options: &Result<WriteOptions>,
    body: Arrived,
) -> Result<Response<Body>> {
    let read = match form {
        PatchForm::Json => Patch::json,
        PatchForm::Merge => Patch::merge,
        PatchForm::Strategic if target.registry.kind().takes_strategic() => Patch::strategic,
        PatchForm::Strategic | PatchForm::Unknown => return Err(unknown_form()),
    };
    let options = *given(options)?;
    let (patch, _share) = understand(target, body, read).await?;
    change(target, Change::Patch(&patch), options).await
}

fn unknown_form() -> ApiError {
    ApiError::unsupported_media_type(
        "the body of the request was in an unknown format - accepted media types include: \
         application/json-patch+json, application/merge-patch+json, \
         application/apply-patch+yaml",
    )
}

pub(super) async fn apply(
    target: &Target<'_>,
    options: &Result<(WriteOptions, ApplyOptions)>,
    body: Arrived,
) -> Result<Response<Body>> {
    let (options, apply) = given(options)?.clone();
    let (output, viewer) = view(target)?;
    let (apply, _share) = understand(target, body, |bytes| Apply::new(bytes, &apply)).await?;
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

/// The response to a write, made of the form that the cache shares.
fn respond_written(
    code: StatusCode,
    output: &Output,
    viewer: &Viewer,
    object: &Object,
) -> Result<Response<Body>> {
    match &object.shown {
        Some(shown) => respond_object(code, output, viewer, shown),
        None => output.respond(code, &viewer.object(&object.whole())?),
    }
}

async fn change(
    target: &Target<'_>,
    change: Change<'_>,
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
    Ok(load::written(response, share).await)
}

pub(super) async fn delete(target: &Target<'_>, body: Arrived) -> Result<Response<Body>> {
    let (output, viewer) = view(target)?;
    let options = delete_options(target, body).await?;
    let deleted = target.registry.delete(&target.call(), &target.operation.name, &options).await?;
    match deleted {
        Deleted::Gone(object) => output.respond(StatusCode::OK, &success(target, &object)),
        Deleted::Pending(object) => {
            // The deprecated option asks for the dependents first, so the request only began.
            let begun = options.orphan_dependents == Some(false);
            let code = if begun { StatusCode::ACCEPTED } else { StatusCode::OK };
            output.respond(code, &viewer.object(&object.whole())?)
        }
    }
}

pub(super) async fn delete_collection(
    target: &Target<'_>,
    list: &ListOptions,
    body: Arrived,
) -> Result<Response<Body>> {
    let (output, viewer) = view(target)?;
    let selector = selection(target, list)?;
    let options = delete_options(target, body).await?;
    let call = target.call();
    let page = target.registry.delete_collection(&call, &selector, list, &options).await?;
    respond_page(&output, &viewer, page).await
}

/// The body's options; those of the query when there is no body.
async fn delete_options(target: &Target<'_>, body: Arrived) -> Result<DeleteOptions> {
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

/// `metav1.Status` of an object that is gone.
fn success(target: &Target<'_>, object: &Object) -> serde_json::Value {
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
