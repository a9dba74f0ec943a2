//! Runs one task for each pod of this machine, and never two for one name.

use std::{collections::HashMap, ffi::OsString, fs, path::Path, sync::Arc};

use k8s_openapi::api::core::v1::Pod;
use kube::runtime::reflector::Store;
use tokio::sync::watch;
use tracing::warn;

use super::{
    NodeContext,
    pod::{PodRecord, PodUpdate, run_pod},
    watch::ChangeNotifier,
};
use crate::runtime::{Shutdown, TaskGroup};

pub(crate) struct PodWorkers {
    pub(crate) host: Arc<NodeContext>,
    pub(crate) store: Store<Pod>,
    pub(crate) bell: ChangeNotifier,
    /// The tasks that look after pods.
    pub(crate) tasks: TaskGroup,
}

struct PodWorkerHandle {
    uid: Option<String>,
    news: watch::Sender<PodUpdate>,
}

impl PodWorkers {
    /// Starts and informs the tasks of pods until shutdown. The pods' processes keep running after
    /// it.
    pub(crate) async fn run(self, shutdown: Shutdown) {
        // An error means that the watch ended, which ends the process.
        drop(self.store.wait_until_ready().await);
        let mut workers: HashMap<(String, String), PodWorkerHandle> = HashMap::new();
        self.stop_orphans(&mut workers, &shutdown);
        loop {
            self.update_workers(&mut workers);
            tokio::select! {
                () = self.bell.wait_for_change() => {}
                () = shutdown.triggered() => break,
            }
        }
        // Each task sees the shutdown by itself; its channel must stay open until the task ends.
        self.tasks.join().await;
    }

    fn update_workers(&self, workers: &mut HashMap<(String, String), PodWorkerHandle>) {
        let pods_by_key: HashMap<_, _> = self
            .store
            .state()
            .into_iter()
            .filter(|pod| {
                let machine = pod.spec.as_ref().and_then(|spec| spec.node_name.as_ref());
                machine == Some(&self.host.machine)
            })
            .map(|pod| {
                let meta = &pod.metadata;
                let key = (
                    meta.namespace.clone().unwrap_or_default(),
                    meta.name.clone().unwrap_or_default(),
                );
                (key, pod)
            })
            .collect();
        for (key, worker) in workers.iter() {
            let pod = pods_by_key.get(key).filter(|pod| pod.metadata.uid == worker.uid);
            worker.news.send_if_modified(|update| {
                let is_changed = update.as_ref().map(|pod| &pod.metadata.resource_version)
                    != pod.map(|pod| &pod.metadata.resource_version);
                *update = pod.cloned();
                is_changed
            });
        }
        // Forgets a pod that was deleted or replaced, once its task has ended.
        workers.retain(|key, worker| {
            !worker.news.is_closed()
                || pods_by_key.get(key).is_some_and(|pod| pod.metadata.uid == worker.uid)
        });
        for (key, pod) in pods_by_key {
            if workers.contains_key(&key) {
                continue;
            }
            let (news, receiver) = watch::channel(Some(Arc::clone(&pod)));
            let (host, bell) = (Arc::clone(&self.host), self.bell.clone());
            self.tasks.spawn("pod", async move {
                run_pod(host, receiver).await;
                // Wakes the loop: a new pod of this name may wait for the end of this one.
                bell.notify();
            });
            workers.insert(key, PodWorkerHandle { uid: pod.metadata.uid.clone(), news });
        }
    }

    /// Ends the processes of pods that were deleted while no daemon ran.
    fn stop_orphans(
        &self,
        workers: &mut HashMap<(String, String), PodWorkerHandle>,
        shutdown: &Shutdown,
    ) {
        let pods = self.store.state();
        let folders = |path| fs::read_dir(path).into_iter().flatten().flatten();
        for namespace in folders(self.host.folder.pods()) {
            for pod in folders(namespace.path()) {
                let key = (namespace.file_name(), pod.file_name());
                let has_pod = pods.iter().any(|pod| {
                    let name = |name: &Option<String>| name.clone().unwrap_or_default().into();
                    (name(&pod.metadata.namespace), name(&pod.metadata.name)) == key
                });
                if has_pod {
                    continue;
                }
                let record = PodRecord::read(&pod.path());
                let running_process =
                    record.and_then(|record| Some((record.process()?, record.grace_period())));
                let Some((process, grace)) = running_process else {
                    remove_pod_dir(&pod.path());
                    continue;
                };
                warn!(pod = %pod.path().display(), pid = process.pid, "Ending a pilot without a pod");
                let (news, receiver) = watch::channel(None);
                let (folder, shutdown, bell) = (pod.path(), shutdown.clone(), self.bell.clone());
                self.tasks.spawn("pod", async move {
                    tokio::select! {
                        () = process.terminate(grace) => remove_pod_dir(&folder),
                        // The next daemon ends the process.
                        () = shutdown.triggered() => {}
                    }
                    drop(receiver);
                    bell.notify();
                });
                let (namespace, name) = key;
                let text = |name: OsString| name.to_string_lossy().into_owned();
                workers.insert((text(namespace), text(name)), PodWorkerHandle { uid: None, news });
            }
        }
    }
}

fn remove_pod_dir(folder: &Path) {
    if let Err(error) = fs::remove_dir_all(folder) {
        warn!(pod = %folder.display(), %error, "A folder without a pod stays");
    }
}
