//! Makes the volumes of a pod: decides which kinds are served on this host, and writes the files of
//! those that come from other objects.
//!
//! Invariant: a volume that is not served, or a value that is missing, is an error with its name;
//! nothing is left out in silence.

use std::{
    collections::BTreeMap,
    fs, io,
    os::unix::fs::{PermissionsExt, chown},
    path::{Component, Path, PathBuf},
};

use k8s_openapi::api::core::v1::{Container, DownwardAPIVolumeFile, KeyToPath, Pod, Volume};
use serde_json::json;

use super::{
    launch::{self, LaunchContext},
    referenced_objects::{ObjectData, ReferencedObjects, ValueSource},
    variables::{pod_field, resource_amount},
};

/// Mode of a file where the volume gives none.
const MODE: i32 = 0o644;

/// Content and mode of the files of a volume, by the path in the volume.
type VolumeFiles = BTreeMap<PathBuf, (Vec<u8>, u32)>;

/// Returns the volumes that one of `containers` mounts; the others are not made.
pub(crate) fn mounted_volumes(pod: &Pod, containers: &[Container]) -> Vec<Volume> {
    let volumes = pod.spec.as_ref().and_then(|spec| spec.volumes.clone()).unwrap_or_default();
    let is_mounted = |volume: &Volume| {
        let mut mounts =
            containers.iter().flat_map(|container| container.volume_mounts.iter().flatten());
        mounts.any(|mount| mount.name == volume.name)
    };
    volumes.into_iter().filter(is_mounted).collect()
}

/// Makes the folder of a volume, and writes its files as their objects are now.
///
/// # Errors
/// When the kind of volume is not served, or an object that it is made of is missing.
pub(crate) fn write_volume(
    context: &LaunchContext<'_>,
    pod: &Pod,
    volume: &Volume,
    objects: &ReferencedObjects,
) -> Result<(), String> {
    let volume_error = |message: String| format!("volume {:?}: {message}", volume.name);
    let folder = launch::volume_folder(context.folder, pod, volume).ok_or_else(|| {
        volume_error(format!("{} is not served on this host", volume_kind(volume)))
    })?;
    let write_error =
        |error: io::Error| volume_error(format!("failed to write {}: {error}", folder.display()));
    fs::create_dir_all(&folder).map_err(write_error)?;
    let Some(files) = collect_files(context, pod, volume, objects).map_err(volume_error)? else {
        return Ok(());
    };
    write_files(&folder, &files, pod_owner(pod).filter(|_| context.root)).map_err(write_error)
}

/// Returns the kind of a volume, which is the name of its source's field.
fn volume_kind(volume: &Volume) -> String {
    let fields = json!(volume);
    let mut names = fields.as_object().into_iter().flatten().map(|(name, _)| name.as_str());
    names.find(|name| *name != "name").unwrap_or("one of no kind").to_owned()
}

/// Returns the files of a volume that comes from other objects; `None` for one that is a folder.
fn collect_files(
    context: &LaunchContext<'_>,
    pod: &Pod,
    volume: &Volume,
    objects: &ReferencedObjects,
) -> Result<Option<VolumeFiles>, String> {
    let mut files = VolumeFiles::new();
    if let Some(secret) = &volume.secret {
        let name = secret.secret_name.as_deref().unwrap_or_default();
        let data = objects.object_values(ValueSource::Secret, name, secret.optional)?;
        let mode = secret.default_mode;
        add_object_values(&mut files, data, secret.items.as_deref(), mode, secret.optional)?;
    } else if let Some(map) = &volume.config_map {
        let data = objects.object_values(ValueSource::ConfigMap, &map.name, map.optional)?;
        add_object_values(&mut files, data, map.items.as_deref(), map.default_mode, map.optional)?;
    } else if let Some(downward) = &volume.downward_api {
        let items = downward.items.as_deref().unwrap_or_default();
        add_pod_fields(&mut files, context, pod, items, downward.default_mode)?;
    } else if let Some(projected) = &volume.projected {
        let mode = projected.default_mode;
        for projection in projected.sources.iter().flatten() {
            if let Some(secret) = &projection.secret {
                let data =
                    objects.object_values(ValueSource::Secret, &secret.name, secret.optional)?;
                add_object_values(
                    &mut files,
                    data,
                    secret.items.as_deref(),
                    mode,
                    secret.optional,
                )?;
            } else if let Some(map) = &projection.config_map {
                let data =
                    objects.object_values(ValueSource::ConfigMap, &map.name, map.optional)?;
                add_object_values(&mut files, data, map.items.as_deref(), mode, map.optional)?;
            } else if let Some(downward) = &projection.downward_api {
                let items = downward.items.as_deref().unwrap_or_default();
                add_pod_fields(&mut files, context, pod, items, mode)?;
            } else {
                let fields = json!(projection);
                let names: Vec<_> =
                    fields.as_object().into_iter().flatten().map(|(name, _)| name).collect();
                return Err(format!("projected {names:?} is not served on this host"));
            }
        }
    } else {
        return Ok(None);
    }
    Ok(Some(files))
}

/// Adds the values of a Secret or ConfigMap: all of them, or those that are listed.
fn add_object_values(
    files: &mut VolumeFiles,
    data: Option<&ObjectData>,
    items: Option<&[KeyToPath]>,
    mode: Option<i32>,
    optional: Option<bool>,
) -> Result<(), String> {
    let Some(data) = data else { return Ok(()) };
    let Some(items) = items.filter(|items| !items.is_empty()) else {
        for (key, value) in data {
            add_file(files, key, value.clone(), mode)?;
        }
        return Ok(());
    };
    for KeyToPath { key, path, mode: file_mode } in items {
        match data.get(key) {
            Some(value) => add_file(files, path, value.clone(), file_mode.or(mode))?,
            None if optional == Some(true) => {}
            None => return Err(format!("references non-existent key {key:?}")),
        }
    }
    Ok(())
}

/// Adds files with fields of the pod, by their paths in the downward API.
fn add_pod_fields(
    files: &mut VolumeFiles,
    context: &LaunchContext<'_>,
    pod: &Pod,
    items: &[DownwardAPIVolumeFile],
    mode: Option<i32>,
) -> Result<(), String> {
    let containers = pod.spec.as_ref().map(|spec| spec.containers.as_slice()).unwrap_or_default();
    for DownwardAPIVolumeFile { path, field_ref, resource_field_ref, mode: file_mode } in items {
        let text = if let Some(field_ref) = field_ref {
            pod_field(context, pod, &field_ref.field_path)?
        } else if let Some(selector) = resource_field_ref {
            let name = selector.container_name.as_deref().unwrap_or_default();
            let container = containers.iter().find(|container| container.name == name);
            resource_amount(
                container.ok_or_else(|| format!("container {name:?} not found"))?,
                selector,
            )?
        } else {
            return Err(format!("nothing says {path:?}"));
        };
        add_file(files, path, text.into_bytes(), file_mode.or(mode))?;
    }
    Ok(())
}

fn add_file(
    files: &mut VolumeFiles,
    path: &str,
    value: Vec<u8>,
    mode: Option<i32>,
) -> Result<(), String> {
    let parts = Path::new(path).components();
    // The daemon may be root, so a path must not lead out of the volume.
    if path.is_empty() || !parts.clone().all(|part| matches!(part, Component::Normal(_))) {
        return Err(format!("{path:?} leads out of it"));
    }
    let mode = u32::try_from(mode.unwrap_or(MODE)).unwrap_or_default() & 0o777;
    files.insert(parts.collect(), (value, mode));
    Ok(())
}

/// Returns the user and group that the pod's programs run as.
fn pod_owner(pod: &Pod) -> Option<(u32, u32)> {
    let context = pod.spec.as_ref()?.security_context.as_ref()?;
    let user = context.run_as_user?;
    let group = context.fs_group.or(context.run_as_group).unwrap_or(user);
    Some((u32::try_from(user).ok()?, u32::try_from(group).ok()?))
}

/// Writes the files of a volume. A changed file is replaced as a whole. Only the folder's owner can
/// enter it.
fn write_files(folder: &Path, files: &VolumeFiles, owner: Option<(u32, u32)>) -> io::Result<()> {
    let set_owner = |path: &Path| match owner {
        Some((user, group)) => chown(path, Some(user), Some(group)),
        None => Ok(()),
    };
    fs::set_permissions(folder, fs::Permissions::from_mode(0o700))?;
    set_owner(folder)?;
    for path in all_files(folder)? {
        if path.strip_prefix(folder).is_ok_and(|relative_path| !files.contains_key(relative_path)) {
            fs::remove_file(path)?;
        }
    }
    for (relative_path, (content, mode)) in files {
        let path = folder.join(relative_path);
        let has_mode = fs::metadata(&path)
            .is_ok_and(|metadata| metadata.permissions().mode() & 0o777 == *mode);
        if has_mode && fs::read(&path)? == *content {
            continue;
        }
        let parent = path.parent().unwrap_or(folder);
        fs::create_dir_all(parent)?;
        if parent != folder {
            set_owner(parent)?;
        }
        let temporary_path = tempfile_beside(&path);
        fs::write(&temporary_path, content)?;
        fs::set_permissions(&temporary_path, fs::Permissions::from_mode(*mode))?;
        set_owner(&temporary_path)?;
        fs::rename(&temporary_path, &path)?;
    }
    Ok(())
}

fn tempfile_beside(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push("..new");
    name.into()
}

fn all_files(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let mut paths = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            paths.extend(all_files(&path)?);
        } else {
            paths.push(path);
        }
    }
    Ok(paths)
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;
    use crate::local::state_folder::StateFolder;

    fn pod() -> Pod {
        serde_json::from_value(json!({
            "metadata": {"name": "demo-0", "namespace": "shop", "labels": {"app": "demo"}},
            "spec": {"containers": [
                {"name": "main", "resources": {"limits": {"memory": "2Mi"}},
                 "volumeMounts": [{"name": "keys", "mountPath": "/keys"}]},
                {"name": "side", "volumeMounts": [{"name": "other", "mountPath": "/other"}]},
            ], "volumes": [{"name": "keys", "emptyDir": {}}, {"name": "other", "nfs": {"server": "a", "path": "/"}}]},
        }))
        .unwrap()
    }

    fn made(
        folder: &StateFolder,
        volume: serde_json::Value,
        given: &ReferencedObjects,
    ) -> Result<String, String> {
        let place = LaunchContext {
            folder,
            program: Path::new("/navigator"),
            machine: "host",
            address: Ipv4Addr::LOCALHOST,
            environment: &[],
            java: None,
            root: false,
        };
        let volume: Volume = serde_json::from_value(volume).unwrap();
        write_volume(&place, &pod(), &volume, given)?;
        let at = folder.pod("shop", "demo-0").join(&volume.name);
        assert_eq!(fs::metadata(&at).unwrap().permissions().mode() & 0o777, 0o700);
        let mut files = all_files(&at).unwrap();
        files.sort();
        let line = |path: &PathBuf| {
            let mode = fs::metadata(path).unwrap().permissions().mode() & 0o777;
            let inside = path.strip_prefix(&at).unwrap().display();
            format!("{inside} {mode:o} {}", fs::read_to_string(path).unwrap())
        };
        Ok(files.iter().map(line).collect::<Vec<_>>().join(", "))
    }

    #[test]
    fn files_are_those_of_the_objects_and_follow_them() {
        let place = tempfile::tempdir().unwrap();
        let folder = StateFolder::new(place.path());
        let given = ReferencedObjects::default()
            .with(ValueSource::Secret, "keys", &[("a", "1"), ("b", "2")])
            .with(ValueSource::ConfigMap, "settings", &[("c", "3")]);
        let secret =
            json!({"name": "keys", "secret": {"secretName": "keys", "defaultMode": 0o400}});
        assert_eq!(made(&folder, secret.clone(), &given).unwrap(), "a 400 1, b 400 2");
        let later = ReferencedObjects::default().with(ValueSource::Secret, "keys", &[("b", "new")]);
        assert_eq!(made(&folder, secret, &later).unwrap(), "b 400 new");
        let map = json!({"name": "map", "configMap": {
            "name": "settings", "items": [{"key": "c", "path": "deep/er", "mode": 0o600}],
        }});
        assert_eq!(made(&folder, map, &given).unwrap(), "deep/er 600 3");
        let none = json!({"name": "none", "secret": {"secretName": "none", "optional": true}});
        assert_eq!(made(&folder, none, &given).unwrap(), "");
        let projected = json!({"name": "all", "projected": {"defaultMode": 0o440, "sources": [
            {"secret": {"name": "keys", "items": [{"key": "a", "path": "a"}]}},
            {"configMap": {"name": "settings"}},
            {"downwardAPI": {"items": [
                {"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}},
                {"path": "memory", "resourceFieldRef": {
                    "containerName": "main", "resource": "limits.memory", "divisor": "1Ki",
                }},
            ]}},
        ]}});
        let seen = made(&folder, projected, &given).unwrap();
        assert_eq!(seen, "a 440 1, c 440 3, labels 440 app=\"demo\"\n, memory 440 2048");
        let downward = json!({"name": "down", "downwardAPI": {"items": [
            {"path": "name", "fieldRef": {"fieldPath": "metadata.name"}},
        ]}});
        assert_eq!(made(&folder, downward, &given).unwrap(), "name 644 demo-0");
    }

    #[test]
    fn what_cannot_be_made_is_named() {
        let place = tempfile::tempdir().unwrap();
        let folder = StateFolder::new(place.path());
        let given = ReferencedObjects::default().with(
            ValueSource::Secret,
            "keys",
            &[("..", "1"), ("a", "2")],
        );
        let items = |key: &str, path: &str| json!({"name": "v", "secret": {"secretName": "keys", "items": [{"key": key, "path": path}]}});
        for (volume, expected) in [
            (
                json!({"name": "v", "nfs": {"server": "a", "path": "/"}}),
                "nfs is not served on this host",
            ),
            (
                json!({"name": "v", "hostPath": {"path": "/"}}),
                "hostPath is not served on this host",
            ),
            (json!({"name": "v", "secret": {"secretName": "none"}}), "secret \"none\" not found"),
            (json!({"name": "v", "secret": {"secretName": "keys"}}), "\"..\" leads out of it"),
            (items("b", "b"), "references non-existent key \"b\""),
            (items("a", "../b"), "\"../b\" leads out of it"),
            (items("a", "/b"), "\"/b\" leads out of it"),
            (
                json!({"name": "v", "projected": {"sources": [{"serviceAccountToken": {"path": "t"}}]}}),
                "projected [\"serviceAccountToken\"] is not served on this host",
            ),
        ] {
            let why = made(&folder, volume.clone(), &given).unwrap_err();
            assert!(why.contains("volume \"v\": ") && why.contains(expected), "{volume}: {why}");
        }
    }

    #[test]
    fn volumes_of_what_is_not_run_are_nobodys() {
        let pod = pod();
        let containers = &pod.spec.as_ref().unwrap().containers;
        let names = |containers: &[Container]| {
            let all = mounted_volumes(&pod, containers);
            all.into_iter().map(|volume| volume.name).collect::<Vec<_>>()
        };
        assert_eq!(names(&containers[..1]), ["keys"]);
        assert_eq!(names(&containers[1..]), ["other"]);
    }
}
