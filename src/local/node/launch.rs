//! Decides how a container of a pod is run on a host without containers: which program, with which
//! arguments, folders and variables. Pure.
//!
//! Only two programs are run, both of them this binary: the installer and the pilot of a database.
//! An image is never pulled and never run.

use std::{
    collections::BTreeMap,
    ffi::{OsStr, OsString},
    net::Ipv4Addr,
    path::{Path, PathBuf},
};

use k8s_openapi::api::core::v1::{Container, Pod, Volume};

use super::process::LaunchSpec;
use crate::{
    api::names,
    local::state_folder::StateFolder,
    machinery::quantity,
    pilot::database::{DrivenDatabase, JavaLocation},
};

/// Path in the container where a pod's pilot writes its configuration.
pub(crate) const CONFIG_DIR: &str = "/etc/navigator";

/// The program that a container runs.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ContainerRole {
    /// The installer, which puts the pilot into a folder of the pod.
    Installer,
    Pilot(&'static DrivenDatabase),
}

/// The facts about the host that starting a pod's programs needs.
#[derive(Clone, Debug)]
pub(crate) struct LaunchContext<'a> {
    pub(crate) folder: &'a StateFolder,
    /// Path of this program.
    pub(crate) program: &'a Path,
    /// Name of the Node.
    pub(crate) machine: &'a str,
    pub(crate) address: Ipv4Addr,
    /// Environment variables that every process gets.
    pub(crate) environment: &'a [(OsString, OsString)],
    /// Installation folder of the Java on the search path, where not every launcher looks.
    pub(crate) java: Option<&'a Path>,
    /// The daemon is root, so it may run programs as other users.
    pub(crate) root: bool,
}

/// Returns the program that a container runs; `None` for one that is in an image.
pub(crate) fn container_role(
    databases: &[&'static DrivenDatabase],
    container: &Container,
) -> Option<ContainerRole> {
    let words: Vec<&str> = container.command.iter().flatten().map(String::as_str).collect();
    match words.as_slice() {
        [_, "install", _] => Some(ContainerRole::Installer),
        [_, "pilot", name] => {
            let database = databases.iter().find(|database| database.names.word == *name)?;
            Some(ContainerRole::Pilot(database))
        }
        _ => None,
    }
}

/// Returns the folder of this host that stands for a volume of a pod. `None` for kinds of volumes
/// that are not served here.
pub(crate) fn volume_folder(folder: &StateFolder, pod: &Pod, volume: &Volume) -> Option<PathBuf> {
    let (namespace, name) = pod_key(pod);
    if let Some(claim) = &volume.persistent_volume_claim {
        return Some(folder.claim(namespace, &claim.claim_name));
    }
    let is_supported = volume.empty_dir.is_some()
        || volume.secret.is_some()
        || volume.config_map.is_some()
        || volume.projected.is_some()
        || volume.downward_api.is_some();
    is_supported.then(|| folder.pod(namespace, name).join(&volume.name))
}

/// Returns the path of the file with a container's termination message.
pub(crate) fn termination_log(folder: &StateFolder, pod: &Pod, container: &str) -> PathBuf {
    let (namespace, name) = pod_key(pod);
    folder.pod(namespace, name).join(format!("{container}.termination-log"))
}

/// Returns the path of the kubeconfig of a pod's pilot.
pub(crate) fn kubeconfig_path(folder: &StateFolder, pod: &Pod) -> PathBuf {
    let (namespace, name) = pod_key(pod);
    folder.pod(namespace, name).join("pod.kubeconfig")
}

/// Returns the namespace and name of a pod.
pub(crate) fn pod_key(pod: &Pod) -> (&str, &str) {
    let meta = &pod.metadata;
    (meta.namespace.as_deref().unwrap_or_default(), meta.name.as_deref().unwrap_or_default())
}

/// Returns how to start the container's installer.
pub(crate) fn build_installer_launch(
    context: &LaunchContext<'_>,
    pod: &Pod,
    container: &Container,
) -> Option<LaunchSpec> {
    let (namespace, name) = pod_key(pod);
    let target_dir = container.command.iter().flatten().nth(2)?;
    let log = termination_log(context.folder, pod, &container.name);
    Some(LaunchSpec {
        program: context.program.to_owned(),
        args: vec![
            "install".to_owned(),
            translate_path(context.folder, pod, container, target_dir)?.display().to_string(),
            "--termination-log".to_owned(),
            log.display().to_string(),
        ],
        env: context.environment.to_vec(),
        directory: context.folder.pod(namespace, name),
        log: context.folder.log(namespace, name, &container.name, false),
    })
}

/// Returns how to start the container's pilot, with the distribution in `home` and the container's
/// own variables `told`.
pub(crate) fn build_pilot_launch(
    context: &LaunchContext<'_>,
    pod: &Pod,
    container: &Container,
    database: &DrivenDatabase,
    home: &Path,
    mut variables: BTreeMap<String, String>,
) -> Option<LaunchSpec> {
    let (namespace, name) = pod_key(pod);
    let folder = context.folder;
    let program_path = container.command.iter().flatten().next()?;
    let host_path = |path: &str| translate_path(folder, pod, container, path);
    let mut env: BTreeMap<OsString, OsString> = context.environment.iter().cloned().collect();
    if let Some((variable, java)) = java_variable(context, database, home, &env) {
        env.insert(variable.into(), java);
    }
    let mut set_variable = |name: &str, value: String| {
        variables.insert(name.to_owned(), value);
    };
    let path_text = |path: PathBuf| path.display().to_string();
    set_variable("NAVIGATOR_KUBECONFIG", path_text(kubeconfig_path(folder, pod)));
    set_variable("NAVIGATOR_DATA_DIR", path_text(host_path(database.names.data_dir)?));
    set_variable("NAVIGATOR_CONFIG_DIR", path_text(host_path(CONFIG_DIR)?));
    set_variable("NAVIGATOR_SHARED_DIR", path_text(host_path(names::SHARED_DIR)?));
    // Only where the database asks for passwords.
    if let Some(users) = host_path(names::USERS_DIR) {
        set_variable("NAVIGATOR_USERS_DIR", path_text(users));
    }
    set_variable("NAVIGATOR_DATABASE_HOME", path_text(home.to_owned()));
    set_variable(
        "NAVIGATOR_TERMINATION_LOG",
        path_text(termination_log(folder, pod, &container.name)),
    );
    set_variable("NAVIGATOR_BIND_ADDRESS", context.address.to_string());
    // The data folder is no mount on this host, and its limits are the host's: the pilot must not
    // refuse either.
    set_variable("NAVIGATOR_ALLOW_UNMOUNTED_DATA", "true".to_owned());
    set_variable("NAVIGATOR_ALLOW_LOW_LIMITS", "true".to_owned());
    if let Some(limit) = memory_limit(container) {
        set_variable("NAVIGATOR_MEMORY_LIMIT", limit.to_string());
    }
    if let Some(user) = container_user(pod, container).filter(|_| context.root) {
        set_variable("NAVIGATOR_PILOT_USER", user);
    }
    env.extend(variables.into_iter().map(|(name, value)| (name.into(), value.into())));
    Some(LaunchSpec {
        program: host_path(program_path)?,
        args: vec!["pilot".to_owned(), database.names.word.to_owned()],
        env: env.into_iter().collect(),
        directory: folder.pod(namespace, name),
        log: folder.log(namespace, name, &container.name, false),
    })
}

/// Returns the variable that tells the launcher where Java is, if it would find none by itself.
fn java_variable(
    context: &LaunchContext<'_>,
    database: &DrivenDatabase,
    home: &Path,
    env: &BTreeMap<OsString, OsString>,
) -> Option<(&'static str, OsString)> {
    let JavaLocation { variables, bundled } = database.java.as_ref()?;
    let (first_variable, other_variables) = variables.split_first()?;
    let is_bundled =
        bundled.is_some_and(|subdirectory| home.join(subdirectory).join("bin/java").is_file());
    if is_bundled || env.contains_key(OsStr::new(first_variable)) {
        return None;
    }
    let configured_home =
        other_variables.iter().find_map(|name| env.get(OsStr::new(name)).cloned());
    Some((first_variable, configured_home.or_else(|| context.java.map(Into::into))?))
}

/// Returns the path on this host for a path in a container.
fn translate_path(
    folder: &StateFolder,
    pod: &Pod,
    container: &Container,
    path: &str,
) -> Option<PathBuf> {
    let volumes = pod.spec.as_ref()?.volumes.as_deref().unwrap_or_default();
    let mounts = container.volume_mounts.iter().flatten();
    let (mount, rest) = mounts
        .filter_map(|mount| Some((mount, Path::new(path).strip_prefix(&mount.mount_path).ok()?)))
        .max_by_key(|(mount, _)| mount.mount_path.len())?;
    let volume = volumes.iter().find(|volume| volume.name == mount.name)?;
    let mut host_path = volume_folder(folder, pod, volume)?;
    host_path.extend(mount.sub_path.as_deref());
    host_path.extend((!rest.as_os_str().is_empty()).then_some(rest));
    Some(host_path)
}

/// Returns the container's memory limit in bytes.
pub(crate) fn memory_limit(container: &Container) -> Option<u64> {
    let limit = container.resources.as_ref()?.limits.as_ref()?.get("memory")?;
    quantity::parse_units(&limit.0).and_then(|bytes| u64::try_from(bytes).ok())
}

/// Returns the user of a container's program, as `UID:GID`.
fn container_user(pod: &Pod, container: &Container) -> Option<String> {
    let pod_context = pod.spec.as_ref().and_then(|spec| spec.security_context.as_ref());
    let container_context = container.security_context.as_ref();
    let user = container_context
        .and_then(|context| context.run_as_user)
        .or_else(|| pod_context?.run_as_user)?;
    let group = container_context
        .and_then(|context| context.run_as_group)
        .or_else(|| pod_context?.run_as_group);
    Some(format!("{user}:{}", group.unwrap_or(user)))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::controller::testing::example;

    const EXAMPLE: DrivenDatabase = DrivenDatabase {
        home_variable: "EXAMPLE_HOME",
        home: "/opt/example",
        program: "bin/example",
        ..DrivenDatabase::new(
            example::EXAMPLE.names,
            |_| false,
            |_, _, _| unreachable!("no test runs a database"),
        )
    };
    const ALL: &[&DrivenDatabase] = &[&EXAMPLE];

    fn pod(database: &DrivenDatabase) -> Pod {
        serde_json::from_value(json!({
            "metadata": {"name": "demo-0", "namespace": "shop", "uid": "u1"},
            "spec": {
                "serviceAccountName": "pilots",
                "securityContext": {"runAsUser": 999, "runAsGroup": 998},
                "initContainers": [{
                    "name": "install-pilot", "image": "navigator:1",
                    "command": ["/navigator", "install", "/shared"],
                    "volumeMounts": [{"name": "shared", "mountPath": "/shared"}],
                }],
                "containers": [{
                    "name": "database", "image": "database:5.0.6",
                    "command": ["/shared/navigator", "pilot", database.names.word],
                    "resources": {"limits": {"memory": "1Gi"}},
                    "volumeMounts": [
                        {"name": "shared", "mountPath": "/shared"},
                        {"name": "config", "mountPath": "/etc/navigator"},
                        {"name": "data", "mountPath": database.names.data_dir},
                    ],
                }],
                "volumes": [
                    {"name": "shared", "emptyDir": {}},
                    {"name": "config", "emptyDir": {}},
                    {"name": "data", "persistentVolumeClaim": {"claimName": "data-demo-0"}},
                ],
            },
        }))
        .unwrap()
    }

    #[test]
    fn a_pod_becomes_the_installer_and_a_pilot_of_its_own_folders() {
        for database in ALL {
            let pod = pod(database);
            let spec = pod.spec.as_ref().unwrap();
            let (init, main) = (&spec.init_containers.as_ref().unwrap()[0], &spec.containers[0]);
            let folder = StateFolder::new("/state");
            let environment = [("PATH".into(), "/bin".into()), ("BOTH".into(), "old".into())];
            let place = LaunchContext {
                folder: &folder,
                program: Path::new("/usr/bin/navigator"),
                machine: "host",
                address: Ipv4Addr::new(127, 30, 1, 1),
                environment: &environment,
                java: Some(Path::new("/usr/lib/jvm/17")),
                root: true,
            };
            assert!(matches!(container_role(ALL, init), Some(ContainerRole::Installer)));
            let install = build_installer_launch(&place, &pod, init).unwrap();
            assert_eq!(install.program, Path::new("/usr/bin/navigator"));
            assert_eq!(install.args[..2], ["install", "/state/pods/shop/demo-0/shared"]);

            let Some(ContainerRole::Pilot(driven)) = container_role(ALL, main) else {
                panic!("it is a pilot")
            };
            let home = Path::new("/homes/one");
            let said = [("BOTH", "demo-0-x"), ("NAVIGATOR_BIND_ADDRESS", "0.0.0.0")];
            let said = said.map(|(name, value)| (name.to_owned(), value.to_owned()));
            let launch = build_pilot_launch(&place, &pod, main, driven, home, said.into()).unwrap();
            assert_eq!(launch.program, Path::new("/state/pods/shop/demo-0/shared/navigator"));
            assert_eq!(launch.args, ["pilot", driven.names.word]);
            assert_eq!(launch.log, Path::new("/state/logs/shop/demo-0/database.log"));
            let env: BTreeMap<_, _> = launch.env.into_iter().collect();
            for (name, value) in [
                ("PATH", "/bin"),
                ("BOTH", "demo-0-x"),
                ("NAVIGATOR_BIND_ADDRESS", "127.30.1.1"),
                ("NAVIGATOR_DATA_DIR", "/state/claims/shop/data-demo-0"),
                ("NAVIGATOR_CONFIG_DIR", "/state/pods/shop/demo-0/config"),
                ("NAVIGATOR_DATABASE_HOME", "/homes/one"),
                ("NAVIGATOR_MEMORY_LIMIT", "1073741824"),
                ("NAVIGATOR_PILOT_USER", "999:998"),
            ] {
                assert_eq!(env[&OsString::from(name)], value, "{name}");
            }
            let ordinary = LaunchContext { root: false, ..place };
            let launch =
                build_pilot_launch(&ordinary, &pod, main, driven, home, BTreeMap::new()).unwrap();
            assert!(launch.env.iter().all(|(name, _)| name != "NAVIGATOR_PILOT_USER"));
        }
    }

    #[test]
    fn a_launcher_that_looks_for_java_nowhere_else_is_told() {
        const JAVA: DrivenDatabase = DrivenDatabase {
            java: Some(JavaLocation {
                variables: &["OWN_JAVA", "JAVA_HOME"],
                bundled: Some("jdk"),
            }),
            ..EXAMPLE
        };
        let (folder, home) = (StateFolder::new("/state"), tempfile::tempdir().unwrap());
        let place = LaunchContext {
            folder: &folder,
            program: Path::new("/usr/bin/navigator"),
            machine: "host",
            address: Ipv4Addr::LOCALHOST,
            environment: &[],
            java: Some(Path::new("/jvm")),
            root: false,
        };
        let told = |env: &[(&str, &str)]| {
            let env = env.iter().map(|(name, value)| (name.into(), value.into())).collect();
            let (name, value) = java_variable(&place, &JAVA, home.path(), &env)?;
            Some((name, value.into_string().unwrap()))
        };
        assert_eq!(told(&[]), Some(("OWN_JAVA", "/jvm".to_owned())));
        assert_eq!(told(&[("JAVA_HOME", "/eight")]), Some(("OWN_JAVA", "/eight".to_owned())));
        assert_eq!(told(&[("OWN_JAVA", "/mine")]), None);
        std::fs::create_dir_all(home.path().join("jdk/bin")).unwrap();
        std::fs::write(home.path().join("jdk/bin/java"), "").unwrap();
        assert_eq!(told(&[]), None, "it comes with the database");
        assert!(java_variable(&place, &EXAMPLE, home.path(), &BTreeMap::new()).is_none());
    }

    #[test]
    fn what_is_in_an_image_has_no_role() {
        let container = |command: &[&str]| Container {
            command: Some(command.iter().map(|&word| word.to_owned()).collect()),
            ..Container::default()
        };
        assert!(container_role(ALL, &Container::default()).is_none());
        assert!(container_role(ALL, &container(&["sh", "-c", "sleep 1"])).is_none());
        assert!(
            container_role(ALL, &container(&["/shared/navigator", "pilot", "nobody"])).is_none()
        );
    }
}
