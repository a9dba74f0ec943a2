//! Writes the Node object of this host, for users who look at nodes.

use std::{path::Path, time::Duration};

use k8s_openapi::{
    api::core::v1::{Node, NodeSpec},
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use kube::{
    Api, Client,
    api::{Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};
use tokio::time::sleep;
use tracing::info;

use super::{MANAGER, pod_status::now};
use crate::{
    error::chain,
    local::state_folder::StateFolder,
    runtime::{Shutdown, build_info},
};

const RETRY: Duration = Duration::from_secs(1);

/// Makes the Node and writes its status once: the host does not change while the daemon runs.
pub(crate) async fn maintain_node(
    client: Client,
    name: String,
    folder: StateFolder,
    shutdown: Shutdown,
) {
    let api: Api<Node> = Api::all(client);
    let mut last_error = String::new();
    loop {
        match write_node(&api, &name, folder.path()).await {
            Ok(()) => break,
            Err(error) => {
                let text = chain(&error).to_string();
                if text != last_error {
                    info!(error = text, "Waiting for the API");
                    last_error = text;
                }
            }
        }
        tokio::select! {
            () = sleep(RETRY) => {}
            () = shutdown.triggered() => return,
        }
    }
    shutdown.triggered().await;
}

async fn write_node(api: &Api<Node>, name: &str, folder: &Path) -> Result<(), kube::Error> {
    if api.get_opt(name).await?.is_none() {
        let labels = [
            ("kubernetes.io/hostname", name),
            ("kubernetes.io/os", "linux"),
            ("kubernetes.io/arch", architecture()),
        ];
        let node = Node {
            metadata: ObjectMeta {
                name: Some(name.to_owned()),
                labels: Some(labels.map(|(key, value)| (key.to_owned(), value.to_owned())).into()),
                ..ObjectMeta::default()
            },
            spec: Some(NodeSpec::default()),
            status: None,
        };
        api.create(&PostParams::default(), &node).await?;
    }
    let params = PatchParams { field_manager: Some(MANAGER.to_owned()), ..PatchParams::default() };
    api.patch_status(name, &params, &Patch::Merge(json!({"status": node_status(name, folder)})))
        .await?;
    Ok(())
}

fn node_status(name: &str, folder: &Path) -> Value {
    let cpus = std::thread::available_parallelism().map_or(1, std::num::NonZero::get).to_string();
    let memory = read_memory("MemTotal")
        .map_or_else(|| "0".to_owned(), |bytes| format!("{}Ki", bytes >> 10));
    let capacity = |storage| json!({"cpu": cpus, "memory": memory, "pods": "110", "ephemeral-storage": storage});
    let disk = nix::sys::statvfs::statvfs(folder).map_or_else(
        |_| "0".to_owned(),
        |stat| format!("{}", stat.blocks() * stat.fragment_size()),
    );
    let (time, kernel) = (now(), nix::sys::utsname::uname().ok());
    let kernel =
        kernel.map(|info| info.release().to_string_lossy().into_owned()).unwrap_or_default();
    json!({
        "addresses": [
            {"type": "InternalIP", "address": "127.0.0.1"},
            {"type": "Hostname", "address": name},
        ],
        "capacity": capacity(disk.clone()),
        "allocatable": capacity(disk),
        "conditions": [{
            "type": "Ready", "status": "True", "reason": "DaemonRuns",
            "message": "navigator local runs on this host",
            "lastHeartbeatTime": time, "lastTransitionTime": time,
        }],
        "nodeInfo": {
            "architecture": architecture(), "operatingSystem": "linux", "osImage": "", "machineID": "",
            "systemUUID": "", "bootID": "", "kernelVersion": kernel, "kubeProxyVersion": "",
            "containerRuntimeVersion": "process://", "kubeletVersion": build_info::VERSION,
        },
    })
}

fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

/// Reads an amount of memory in bytes by its name in `/proc/meminfo`: `MemTotal`, `MemAvailable`.
pub fn read_memory(name: &str) -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    parse_memory(&text, name)
}

fn parse_memory(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib << 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_says_its_memory_in_kibibytes() {
        let text = "MemTotal:       24684032 kB\nMemAvailable:   2048 kB\n";
        assert_eq!(parse_memory(text, "MemAvailable"), Some(2 << 20));
        assert_eq!(parse_memory(text, "Mem"), None);
    }
}
