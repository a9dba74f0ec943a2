//! Serves `kubectl logs`: what a container wrote, from the log file that the node keeps.
//!
//! Owns the answer to `…/pods/NAME/log`: which container and which of its runs, how much of the
//! log, and that a followed log goes on through restarts, until the pod is gone.

use std::{
    io::{self, SeekFrom},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use axum::{Router, body::Body, extract::State, response::IntoResponse};
use bytes::Bytes;
use futures::stream;
use http::{Request, Response, StatusCode, header};
use serde_json::Value;
use tokio::{
    fs::File,
    io::{AsyncReadExt, AsyncSeekExt},
};
use tower::ServiceExt;

use super::kinds;
use crate::{
    apiserver::{
        operation::{ResourceAction, ResourceOperation},
        request_info::RequestInfo,
        status::{ApiError, GroupResource},
        storage::{Key, Storage},
        url::Query,
    },
    local::log_retention,
    runtime::Shutdown,
};

const PODS: GroupResource<'static> = GroupResource { group: "", resource: "pods" };
/// Bytes that are read from a log file at a time.
const CHUNK: usize = 64 * 1024;
/// Pause before a followed log that has no more lines is read again.
const LOOK: Duration = Duration::from_millis(250);

#[derive(Clone)]
struct LogHandler {
    others: Router,
    folder: Arc<Path>,
    store: Arc<dyn Storage>,
    closing: Shutdown,
}

/// Answers requests for logs, and passes all others to `others`.
pub(super) fn wrap_router(
    router: Router,
    folder: PathBuf,
    store: Arc<dyn Storage>,
    closing: Shutdown,
) -> Router {
    let logs = LogHandler { others: router, folder: folder.into(), store, closing };
    Router::new().fallback(handle_request).with_state(logs)
}

async fn handle_request(State(logs): State<LogHandler>, request: Request<Body>) -> Response<Body> {
    let info = request.extensions().get::<Arc<RequestInfo>>().cloned();
    let operation_query =
        info.as_ref().and_then(|info| Some((info.operation.as_ref()?, &info.query)));
    match operation_query {
        Some((operation, query))
            if operation.is_log()
                && operation.version == "v1"
                && matches!(operation.action, ResourceAction::Get(_)) =>
        {
            let log = logs.stream_log(operation, query).await;
            log.unwrap_or_else(IntoResponse::into_response)
        }
        _ => {
            let Ok(response) = logs.others.oneshot(request).await;
            response
        }
    }
}

/// Parameters of a request for a log.
#[derive(Debug, Default, PartialEq, Eq)]
struct PodLogOptions {
    follow: bool,
    /// Number of lines from the end; the whole log when absent.
    tail: Option<usize>,
    /// Limit of the bytes that are sent.
    limit: Option<usize>,
}

impl PodLogOptions {
    fn parse(query: &Query) -> Result<Self, ApiError> {
        let parse_number = |key: &str| match query.text(key) {
            "" => Ok(None),
            text => text.parse().map(Some).map_err(|_| {
                ApiError::bad_request(format!("{key}: {text:?} must be greater than or equal to 0"))
            }),
        };
        // Lines are kept as they were written, without their times.
        for key in ["sinceSeconds", "sinceTime", "timestamps"] {
            if !matches!(query.text(key), "" | "false" | "0") {
                return Err(ApiError::bad_request(format!("{key}: is not supported here")));
            }
        }
        let follow = matches!(query.text("follow"), "true" | "1");
        Ok(Self { follow, tail: parse_number("tailLines")?, limit: parse_number("limitBytes")? })
    }
}

impl LogHandler {
    async fn stream_log(
        &self,
        operation: &ResourceOperation,
        query: &Query,
    ) -> Result<Response<Body>, ApiError> {
        let ResourceOperation { namespace, name, .. } = operation;
        let options = PodLogOptions::parse(query)?;
        let not_found = || ApiError::not_found(PODS, name);
        let key = Key::new(kinds::CORE, "pods", namespace, name).map_err(|_| not_found())?;
        let pod =
            self.store.get(&key).await.map_err(ApiError::internal_error)?.ok_or_else(not_found)?;
        let pod: Value = serde_json::from_slice(&pod.value).map_err(ApiError::internal_error)?;
        let container = select_container(&pod, name, query.text("container"))?;
        let is_previous = matches!(query.text("previous"), "true" | "1");
        let file = if is_previous {
            format!("{container}.previous.log")
        } else {
            format!("{container}.log")
        };
        // Namespace, pod and container name were checked: none of them leads out of the folder.
        let path = self.folder.join(namespace).join(name).join(file);
        let file = match File::open(&path).await {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(ApiError::bad_request(if is_previous {
                    format!("previous terminated container {container:?} in pod {name:?} not found")
                } else {
                    format!(
                        "container {container:?} in pod {name:?} is waiting to start: \
                         ContainerCreating"
                    )
                }));
            }
            Err(error) => return Err(ApiError::internal_error(error)),
        };
        let start_offset =
            log_retention::first_line_offset(&path).map_err(ApiError::internal_error)?;
        let mut log_stream = LogStream {
            file,
            path,
            left: options.limit.unwrap_or(usize::MAX),
            follows: (options.follow && !is_previous).then(|| FollowedPod {
                store: Arc::clone(&self.store),
                pod: key,
                uid: pod["metadata"]["uid"].clone(),
                closing: self.closing.clone(),
            }),
        };
        let lines = options.tail.unwrap_or(usize::MAX);
        log_stream.seek_last(lines, start_offset).await.map_err(ApiError::internal_error)?;
        let chunks = stream::unfold(log_stream, |mut log_stream| async {
            let chunk = log_stream.next().await.transpose()?;
            Some((chunk, log_stream))
        });
        let response = Response::builder()
            .status(StatusCode::OK)
            .header(header::CONTENT_TYPE, "text/plain")
            .body(Body::from_stream(chunks));
        response.map_err(ApiError::internal_error)
    }
}

/// Returns the container that the request is for: the one it names, or the pod's only one.
fn select_container(pod: &Value, name: &str, requested_name: &str) -> Result<String, ApiError> {
    let names = |list: &str| -> Vec<&str> {
        let list = pod["spec"][list].as_array().map_or(&[][..], Vec::as_slice);
        list.iter().filter_map(|container| container["name"].as_str()).collect()
    };
    let (containers, inits) = (names("containers"), names("initContainers"));
    let ephemeral = names("ephemeralContainers");
    if requested_name.is_empty() {
        return match containers.as_slice() {
            [only] => Ok((*only).to_owned()),
            several => Err(ApiError::bad_request(format!(
                "a container name must be specified for pod {name}, choose one of: [{}]",
                several.join(" ")
            ))),
        };
    }
    if [containers, inits, ephemeral].iter().any(|list| list.contains(&requested_name)) {
        return Ok(requested_name.to_owned());
    }
    let message = format!("container {requested_name} is not valid for pod {name}");
    Err(ApiError::bad_request(message))
}

/// A log that is being sent to the client.
struct LogStream {
    file: File,
    path: PathBuf,
    /// Bytes that may still be sent.
    left: usize,
    /// The pod of a followed log; absent when the log is not followed.
    follows: Option<FollowedPod>,
}

/// Tells whether a followed log goes on: by its pod, and by the server's shutdown.
struct FollowedPod {
    store: Arc<dyn Storage>,
    pod: Key,
    uid: Value,
    closing: Shutdown,
}

impl LogStream {
    /// Seeks to the start of the last `lines` lines, at `start_offset` at the earliest.
    async fn seek_last(&mut self, lines: usize, start_offset: u64) -> io::Result<()> {
        if lines == usize::MAX {
            self.file.seek(SeekFrom::Start(start_offset)).await?;
            return Ok(());
        }
        let mut position = self.file.seek(SeekFrom::End(0)).await?;
        // The newline at the end of the file does not begin another line.
        let mut line_count = 0;
        let mut buffer = vec![0; CHUNK];
        let end_position = position;
        while position > start_offset {
            let size = (position - start_offset).min(CHUNK as u64);
            position -= size;
            let chunk = &mut buffer[..usize::try_from(size).unwrap_or(CHUNK)];
            self.file.seek(SeekFrom::Start(position)).await?;
            self.file.read_exact(chunk).await?;
            for (index, byte) in chunk.iter().enumerate().rev() {
                let line_start = position + index as u64 + 1;
                if *byte == b'\n' && line_start < end_position {
                    line_count += 1;
                }
                if *byte == b'\n'
                    && (line_count == lines && line_start < end_position || lines == 0)
                {
                    self.file.seek(SeekFrom::Start(line_start)).await?;
                    return Ok(());
                }
            }
        }
        let start = if lines == 0 { end_position } else { start_offset };
        self.file.seek(SeekFrom::Start(start)).await?;
        Ok(())
    }

    /// Returns the next chunk; `None` at the end. Not cancel-safe: a dropped future drops the
    /// response.
    async fn next(&mut self) -> io::Result<Option<Bytes>> {
        let mut buffer = vec![0; CHUNK.min(self.left)];
        loop {
            self.skip_hole().await?;
            let length = self.file.read(&mut buffer).await?;
            if length > 0 || self.left == 0 {
                self.left -= length;
                buffer.truncate(length);
                return Ok((length > 0).then(|| buffer.into()));
            }
            let Some(followed_pod) = &self.follows else { return Ok(None) };
            // The pod is looked up before the file, so that its last lines are still read.
            let is_running = followed_pod.is_still_running().await;
            if self.reopen_log().await? {
                continue;
            }
            if !is_running {
                let length = self.file.read(&mut buffer).await?;
                self.left -= length;
                buffer.truncate(length);
                return Ok((length > 0).then(|| buffer.into()));
            }
        }
    }

    /// Skips lines whose space was given back to the file system before this slow reader got them.
    async fn skip_hole(&mut self) -> io::Result<()> {
        let position = self.file.stream_position().await?;
        if let Some(data_position) = log_retention::next_data_offset(&self.file, position)?
            && data_position != position
        {
            self.file.seek(SeekFrom::Start(data_position)).await?;
        }
        Ok(())
    }

    /// Opens the log of the restarted container, at the same path, once the old file is read to its
    /// end.
    async fn reopen_log(&mut self) -> io::Result<bool> {
        use std::os::unix::fs::MetadataExt;
        let file = match File::open(&self.path).await {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
            Err(error) => return Err(error),
        };
        let (old_metadata, new_metadata) = (self.file.metadata().await?, file.metadata().await?);
        if old_metadata.ino() == new_metadata.ino() {
            // On a file system without holes, the log was emptied.
            let is_truncated = new_metadata.len() < self.file.stream_position().await?;
            if is_truncated {
                self.file.seek(SeekFrom::Start(0)).await?;
            }
            return Ok(is_truncated);
        }
        // No process writes into the old file any more; its last lines come first.
        if self.file.stream_position().await? < old_metadata.len() {
            return Ok(true);
        }
        self.file = file;
        Ok(true)
    }
}

impl FollowedPod {
    /// Waits a moment, and returns whether the pod still exists and runs.
    async fn is_still_running(&self) -> bool {
        tokio::select! {
            () = tokio::time::sleep(LOOK) => {}
            () = self.closing.triggered() => return false,
        }
        match self.store.get(&self.pod).await {
            Ok(Some(entry)) => {
                let pod: Value = serde_json::from_slice(&entry.value).unwrap_or_default();
                let phase = pod["status"]["phase"].as_str().unwrap_or_default();
                pod["metadata"]["uid"] == self.uid && !matches!(phase, "Succeeded" | "Failed")
            }
            Ok(None) | Err(_) => false,
        }
    }
}
