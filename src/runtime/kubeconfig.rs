//! Kubeconfig files, read as kubectl reads them.
//!
//! `kube` has a reader of its own. It brings a second YAML library into the program, decoded once
//! more for each of its types (half a MiB), and its errors print lines of the file, tokens among them.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use kube::{
    Config,
    config::{KubeConfigOptions, Kubeconfig, KubeconfigError},
};
use serde::Deserialize;

/// Why there is no kubeconfig to work with.
#[derive(Debug, thiserror::Error)]
pub enum KubeconfigFailure {
    #[error("failed to read {path}")]
    Read { path: PathBuf, source: io::Error },
    #[error("{path} is not YAML")]
    Yaml { path: PathBuf, source: serde_yaml::Error },
    #[error("{path} is no kubeconfig")]
    Fields { path: PathBuf, source: serde_json::Error },
    #[error(transparent)]
    Content(#[from] KubeconfigError),
}

/// Returns the settings of a file's current context.
///
/// # Errors
/// When the file cannot be read, or names what is not there.
pub async fn load_config(path: &Path) -> Result<Config, KubeconfigFailure> {
    Ok(Config::from_custom_kubeconfig(read_kubeconfig(path)?, &KubeConfigOptions::default())
        .await?)
}

/// Reads several files as one; the first to name something has its way.
///
/// # Errors
/// When one of them cannot be read.
pub fn read_all(paths: &[PathBuf]) -> Result<Kubeconfig, KubeconfigFailure> {
    merge_kubeconfigs(paths.iter().map(|path| read_kubeconfig(path)))
}

/// Reads a file, whose documents are put together. Paths in it are relative to its folder
/// (client-go's `ResolveLocalPaths`).
///
/// # Errors
/// When it cannot be read.
pub fn read_kubeconfig(path: &Path) -> Result<Kubeconfig, KubeconfigFailure> {
    let text =
        fs::read(path).map_err(|source| KubeconfigFailure::Read { path: path.into(), source })?;
    let folder = path.parent().unwrap_or(Path::new(""));
    merge_kubeconfigs(serde_yaml::Deserializer::from_slice(&text).map(|document| {
        let document = serde_json::Value::deserialize(document)
            .map_err(|source| KubeconfigFailure::Yaml { path: path.into(), source })?;
        if document.is_null() {
            return Ok(Kubeconfig::default());
        }
        let mut kubeconfig: Kubeconfig = serde_json::from_value(document)
            .map_err(|source| KubeconfigFailure::Fields { path: path.into(), source })?;
        resolve_paths(&mut kubeconfig, folder);
        Ok(kubeconfig)
    }))
}

fn merge_kubeconfigs(
    mut parts: impl Iterator<Item = Result<Kubeconfig, KubeconfigFailure>>,
) -> Result<Kubeconfig, KubeconfigFailure> {
    parts.try_fold(Kubeconfig::default(), |sum, part| Ok(sum.merge(part?)?))
}

fn resolve_paths(kubeconfig: &mut Kubeconfig, folder: &Path) {
    let resolve = |path: &mut Option<String>| {
        if let Some(path) = path.as_mut().filter(|path| Path::new(path).is_relative())
            && let Some(absolute_path) = folder.join(&*path).to_str()
        {
            absolute_path.clone_into(path);
        }
    };
    for cluster in kubeconfig.clusters.iter_mut().filter_map(|entry| entry.cluster.as_mut()) {
        resolve(&mut cluster.certificate_authority);
    }
    for user in kubeconfig.auth_infos.iter_mut().filter_map(|entry| entry.auth_info.as_mut()) {
        resolve(&mut user.client_certificate);
        resolve(&mut user.client_key);
        resolve(&mut user.token_file);
        // A command without a slash is looked for on PATH.
        if let Some(exec) = &mut user.exec
            && exec.command.as_ref().is_some_and(|command| command.contains('/'))
        {
            resolve(&mut exec.command);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_file_names_is_found_from_its_folder() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("config");
        let text = "\
clusters:
- name: here
  cluster: {server: 'https://127.0.0.1:1', certificate-authority: ca.crt}
users:
- name: me
  user:
    client-certificate: /etc/me.crt
    client-key: keys/me.key
    exec: {apiVersion: client.authentication.k8s.io/v1, command: bin/login, provideClusterInfo: true}
- name: other
  user:
    tokenFile: token
    exec: {apiVersion: client.authentication.k8s.io/v1, command: login}
---
current-context: here
contexts:
- name: here
  context: {cluster: here, user: me, namespace: shop}
";
        fs::write(&path, text).unwrap();
        let read = read_kubeconfig(&path).unwrap();
        let below = |name: &str| Some(dir.path().join(name).to_str().unwrap().to_owned());
        let cluster = read.clusters[0].cluster.as_ref().unwrap();
        assert_eq!(cluster.certificate_authority, below("ca.crt"));
        let me = read.auth_infos[0].auth_info.as_ref().unwrap();
        assert_eq!(me.client_certificate.as_deref(), Some("/etc/me.crt"));
        assert_eq!(me.client_key, below("keys/me.key"));
        assert_eq!(me.exec.as_ref().unwrap().command, below("bin/login"));
        let other = read.auth_infos[1].auth_info.as_ref().unwrap();
        assert_eq!(other.token_file, below("token"));
        assert_eq!(other.exec.as_ref().unwrap().command.as_deref(), Some("login"));
        assert_eq!(read.current_context.as_deref(), Some("here"));
    }

    #[test]
    fn an_error_names_the_file_and_prints_nothing_of_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("config");
        let refused = |text: &str| {
            fs::write(&path, text).unwrap();
            let failure = crate::error::chain(&read_kubeconfig(&path).unwrap_err()).to_string();
            assert!(failure.contains(path.to_str().unwrap()), "{failure}");
            assert!(!failure.contains("hunter2"), "{failure}");
            failure
        };
        let failure = refused("users:\n- user: {token: hunter2\n");
        assert!(failure.contains("is not YAML"), "{failure}");
        let failure = refused("users:\n- name: me\n  user: {token: hunter2, exec: 7}\n");
        assert!(failure.contains("is no kubeconfig"), "{failure}");
        fs::write(&path, "").unwrap();
        assert!(
            read_kubeconfig(&path).unwrap().contexts.is_empty(),
            "an empty file is an empty kubeconfig"
        );
        fs::remove_file(&path).unwrap();
        let failure = crate::error::chain(&read_kubeconfig(&path).unwrap_err()).to_string();
        assert!(failure.contains("failed to read"), "{failure}");
    }
}
