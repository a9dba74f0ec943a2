//! Runs one task for each pod of this machine, and never two for one name.

use std::{collections::HashMap, ffi::OsString, fs, path::Path, sync::Arc};

use k8s_openapi::api::core::v1::Pod;
use kube::runtime::reflector::Store;
use tokio::sync::watch;
use tracing::warn;

use super::{
    NodeContext,
    pod::{PodRecord, PodUpdate, live},
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
        let mut kept: HashMap<(String, String), PodWorkerHandle> = HashMap::new();
        self.clear(&mut kept, &shutdown);
        loop {
            self.look(&mut kept);
            tokio::select! {
                () = self.bell.rung() => {}
                () = shutdown.triggered() => break,
            }
        }
        // Each task sees the shutdown by itself; its channel must stay open until the task ends.
        self.tasks.join().await;
    }

    fn look(&self, kept: &mut HashMap<(String, String), PodWorkerHandle>) {
        let there: HashMap<_, _> = self
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
        for (key, known) in kept.iter() {
            let pod = there.get(key).filter(|pod| pod.metadata.uid == known.uid);
            known.news.send_if_modified(|now| {
                let other = now.as_ref().map(|pod| &pod.metadata.resource_version)
                    != pod.map(|pod| &pod.metadata.resource_version);
                *now = pod.cloned();
                other
            });
        }
        // Forgets a pod that was deleted or replaced, once its task has ended.
        kept.retain(|key, known| {
            !known.news.is_closed()
                || there.get(key).is_some_and(|pod| pod.metadata.uid == known.uid)
        });
        for (key, pod) in there {
            if kept.contains_key(&key) {
                continue;
            }
            let (news, hears) = watch::channel(Some(Arc::clone(&pod)));
            let (host, bell) = (Arc::clone(&self.host), self.bell.clone());
            self.tasks.spawn("pod", async move {
                live(host, hears).await;
                // Wakes the loop: a new pod of this name may wait for the end of this one.
                bell.ring();
            });
            kept.insert(key, PodWorkerHandle { uid: pod.metadata.uid.clone(), news });
        }
    }

    /// Ends the processes of pods that were deleted while no daemon ran.
    fn clear(&self, kept: &mut HashMap<(String, String), PodWorkerHandle>, shutdown: &Shutdown) {
        let there = self.store.state();
        let folders = |path| fs::read_dir(path).into_iter().flatten().flatten();
        for namespace in folders(self.host.folder.pods()) {
            for pod in folders(namespace.path()) {
                let key = (namespace.file_name(), pod.file_name());
                let known = there.iter().any(|pod| {
                    let name = |name: &Option<String>| name.clone().unwrap_or_default().into();
                    (name(&pod.metadata.namespace), name(&pod.metadata.name)) == key
                });
                if known {
                    continue;
                }
                let record = PodRecord::read(&pod.path());
                let runs = record.and_then(|record| Some((record.process()?, record.grace())));
                let Some((process, grace)) = runs else {
                    remove(&pod.path());
                    continue;
                };
                warn!(pod = %pod.path().display(), pid = process.pid, "Ending a pilot without a pod");
                let (news, hears) = watch::channel(None);
                let (folder, shutdown, bell) = (pod.path(), shutdown.clone(), self.bell.clone());
                self.tasks.spawn("pod", async move {
                    tokio::select! {
                        () = process.end(grace) => remove(&folder),
                        // The next daemon ends the process.
                        () = shutdown.triggered() => {}
                    }
                    drop(hears);
                    bell.ring();
                });
                let (namespace, name) = key;
                let text = |name: OsString| name.to_string_lossy().into_owned();
                kept.insert((text(namespace), text(name)), PodWorkerHandle { uid: None, news });
            }
        }
    }
}

fn remove(folder: &Path) {
    if let Err(error) = fs::remove_dir_all(folder) {
        warn!(pod = %folder.display(), %error, "A folder without a pod stays");
    }
}
