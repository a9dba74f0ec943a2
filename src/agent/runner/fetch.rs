//! Fetches programs, by HTTPS or from the machine's own disk.

use std::{
    fs::File,
    io::{self, Read, Write},
    path::Path,
    time::Duration,
};

use http::{Request, Response, Uri};
use http_body_util::BodyExt;
use kube::{
    Client,
    client::{Body, ClientBuilder},
};
use tokio::time::timeout;

use crate::{engine::machines::StepFailure, error::chain};

/// Most bytes of a program: several times a kubelet.
const MOST: u64 = 512 << 20;
/// Time that one program may take.
const LIMIT: Duration = Duration::from_secs(15 * 60);

/// Fetches a file, and waits until it is on the disk.
pub(super) async fn fetch_file(
    url: &str,
    ca: Option<&Path>,
    target: &Path,
) -> Result<(), StepFailure> {
    let retry_error = |reason: String| StepFailure::Again(format!("{url}: {reason}"));
    let mut file = File::create(target).map_err(|error| retry_error(error.to_string()))?;
    let size = match url.strip_prefix("file://") {
        Some(path) => copy_file(path, &mut file).map_err(|error| retry_error(error.to_string()))?,
        None => match timeout(LIMIT, download_file(url, ca, &mut file)).await {
            Ok(download_result) => download_result.map_err(retry_error)?,
            Err(_) => return Err(retry_error(format!("it took more than {} s", LIMIT.as_secs()))),
        },
    };
    if size > MOST {
        return Err(StepFailure::Final(format!("{url} is larger than {MOST} bytes")));
    }
    file.sync_all().map_err(|error| retry_error(error.to_string()))
}

fn copy_file(path: &str, target: &mut File) -> io::Result<u64> {
    io::copy(&mut File::open(path)?.take(MOST + 1), target)
}

/// Stops after a byte too many.
async fn download_file(url: &str, ca: Option<&Path>, target: &mut File) -> Result<u64, String> {
    let response = get_url(url, ca).await?;
    if !response.status().is_success() {
        return Err(format!("the server answers {}", response.status()));
    }
    let (mut body, mut size) = (response.into_body(), 0);
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| chain(&error).to_string())?;
        let Ok(data) = frame.into_data() else { continue };
        size += u64::try_from(data.len()).unwrap_or(u64::MAX);
        if size > MOST {
            break;
        }
        target.write_all(&data).map_err(|error| error.to_string())?;
    }
    Ok(size)
}

/// Asks a server, by kube's client: it trusts those certificates that the system trusts, or these, and
/// follows no redirect.
pub(super) async fn get_url(url: &str, ca: Option<&Path>) -> Result<Response<Body>, String> {
    let uri: Uri = url.parse().map_err(|error| format!("{error}"))?;
    let path = uri.path_and_query().map_or("/", |path| path.as_str()).to_owned();
    let mut parts = uri.into_parts();
    parts.path_and_query = Some(http::uri::PathAndQuery::from_static("/"));
    let base = Uri::from_parts(parts).map_err(|error| error.to_string())?;
    let mut config = kube::Config::new(base);
    config.root_cert_file = ca.map(Path::to_owned);
    config.default_retry = false;
    let client: Client =
        ClientBuilder::try_from(config).map_err(|error| chain(&error).to_string())?.build();
    let request = Request::get(path).body(Body::empty()).map_err(|error| error.to_string())?;
    client.send(request).await.map_err(|error| chain(&error).to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_file_of_the_disk_is_copied_and_one_that_is_missing_is_asked_for_again() {
        let place = tempfile::tempdir().unwrap();
        let (from, into) = (place.path().join("from"), place.path().join("into"));
        std::fs::write(&from, "program").unwrap();
        let url = format!("file://{}", from.display());
        fetch_file(&url, None, &into).await.unwrap();
        assert_eq!(std::fs::read(&into).unwrap(), b"program");
        std::fs::remove_file(&from).unwrap();
        assert!(matches!(fetch_file(&url, None, &into).await, Err(StepFailure::Again(_))));
        // Nobody listens there.
        let failed = fetch_file("https://127.0.0.1:1/kubelet", None, &into).await;
        assert!(matches!(failed, Err(StepFailure::Again(_))), "{failed:?}");
        File::create(&from).unwrap().set_len(MOST + 1).unwrap();
        assert!(matches!(fetch_file(&url, None, &into).await, Err(StepFailure::Final(_))));
    }
}
