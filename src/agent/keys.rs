//! Keeps the key file as the Users specify it.
//!
//! - The agent writes a change of Users after a quiet moment, and within five seconds at most.
//! - The agent undoes changes of another program at once, but not for ever: see `mending_pace`.
//! - While the API is unavailable, the file stays as it is, and the agent restores it to the last
//!   known state. Until Users are read, that is what the last agent wrote.
//! - The agent trusts a list that removes all keys only after three reads. It trusts a deletion
//!   under the watch at once.
//! - While the coordinator reports an uninstall of the cluster manager, our keys are removed from
//!   the file and stay out.

use std::{collections::BTreeMap, future::pending, io, time::Duration};

use kube::{Api, api::ListParams};
use tokio::{
    sync::watch,
    task::spawn_blocking,
    time::{Instant, sleep_until},
};
use tracing::{info, warn};

use super::{
    folder_watch::FolderWatch, key_file::KeyFile, mending_pace::MendingPace, metrics::Metrics,
    report::Standing,
};
use crate::{
    api::containership::{User, UserSpec},
    engine::keys::{KeyBlock, KeySet},
    error::chain,
    runtime::Shutdown,
};

/// How long Users must be quiet before the agent writes a change, and how long it waits at most.
const QUIET: Duration = Duration::from_millis(250);
const PATIENCE: Duration = Duration::from_secs(5);
/// Interval at which the agent checks the file even if no change is reported.
const LOOK: Duration = Duration::from_secs(30);
/// Pause after a write that failed.
const RETRY: Duration = Duration::from_secs(5);
/// Pause between two readings of a list that takes all keys away, and how many must agree.
const DOUBT: Duration = Duration::from_secs(10);
const READINGS: u8 = 3;

/// The Users as they are known.
#[derive(Clone, Debug)]
pub(crate) struct UserView {
    pub(crate) users: BTreeMap<String, UserSpec>,
    /// Whether the Users come from a list, and not from single events.
    pub(crate) listed: bool,
}

/// What should be in the file.
#[derive(Clone, Debug)]
struct WantedKeys {
    block: KeyBlock,
    /// Digests of the Users; empty for what an earlier agent wrote.
    users: String,
}

/// A list that takes all keys away.
struct DoubtedList {
    wanted: WantedKeys,
    readings: u8,
    next: Instant,
}

/// Keeps the key file of this machine.
pub(crate) struct KeyKeeper {
    file: KeyFile,
    users: Api<User>,
    standing: watch::Sender<Standing>,
    pace: MendingPace,
    metrics: Metrics,
    /// `None` until it is known.
    wanted: Option<WantedKeys>,
    doubt: Option<DoubtedList>,
    /// Id of the cluster from which the cluster manager is being taken away.
    ending: Option<String>,
    /// When a change is written, and since when it waits.
    due: Option<(Instant, Instant)>,
    /// When the file is looked at next.
    look: Instant,
}

impl KeyKeeper {
    pub(crate) fn new(
        file: KeyFile,
        users: Api<User>,
        standing: watch::Sender<Standing>,
        mending_period: Duration,
        metrics: Metrics,
    ) -> Self {
        let pace = MendingPace::new(mending_period);
        let look = Instant::now();
        let (wanted, doubt, ending, due) = (None, None, None, None);
        Self { file, users, standing, pace, metrics, wanted, doubt, ending, due, look }
    }

    /// Works until shutdown. The file stays then.
    pub(crate) async fn run(
        mut self,
        mut view: watch::Receiver<Option<UserView>>,
        mut terminating_cluster: watch::Receiver<Option<String>>,
        file_watch: FolderWatch,
        shutdown: Shutdown,
    ) {
        match self.file.find_block() {
            Ok(last_block) => {
                self.wanted = last_block.map(|block| WantedKeys { block, users: String::new() });
            }
            Err(error) => warn!(%error, "The key file cannot be read"),
        }
        self.ending.clone_from(&terminating_cluster.borrow_and_update());
        let mut has_watch_failed = false;
        loop {
            // The next iteration starts again what the select drops.
            tokio::select! {
                () = shutdown.triggered() => return,
                change = view.changed() => {
                    if change.is_err() { return }
                    let now = Instant::now();
                    let first_change = self.due.map_or(now, |(_, start)| start);
                    self.due = Some(((now + QUIET).min(first_change + PATIENCE), first_change));
                }
                change = terminating_cluster.changed() => {
                    if change.is_err() { return }
                    let cluster = terminating_cluster.borrow_and_update().clone();
                    self.set_terminating(cluster).await;
                }
                () = wait_until(self.due.map(|(deadline, _)| deadline)) => {
                    self.due = None;
                    let view = view.borrow_and_update().clone();
                    if let Some(view) = view {
                        self.apply_users(view).await;
                    }
                }
                () = wait_until(self.doubt.as_ref().map(|doubt| doubt.next)) => self.read_again().await,
                change = file_watch.wait_for_change(), if !has_watch_failed => {
                    if let Err(error) = change {
                        warn!(%error, "Changes of the key file are not told, it is looked at instead");
                        has_watch_failed = true;
                    }
                    self.restore_file().await;
                }
                () = sleep_until(self.look) => self.restore_file().await,
            }
        }
    }

    /// Takes our keys away while the cluster manager is being taken away, and back where it stays after all.
    async fn set_terminating(&mut self, cluster: Option<String>) {
        self.ending = cluster;
        if self.ending.is_some() {
            return self.restore_file().await;
        }
        self.standing.send_modify(|status| status.cleaned = None);
        if let Some(desired_keys) = self.wanted.clone() {
            info!("The cluster manager stays, writing the key file");
            self.write_file(desired_keys).await;
        }
    }

    /// Takes our keys out of the file, and says that they are gone once they are.
    async fn remove_keys(&mut self, cluster: String) {
        self.look = Instant::now() + LOOK;
        let file = self.file.clone();
        match flatten_result(spawn_blocking(move || file.remove_block()).await) {
            Ok(had_keys) => {
                if had_keys {
                    info!(cluster, "The cluster manager is being taken away, and our keys with it");
                }
                self.metrics.stands.set(0);
                self.standing.send_if_modified(|status| {
                    let new_status = Standing {
                        hash: Some(String::new()),
                        users: String::new(),
                        trouble: None,
                        cleaned: Some(cluster),
                        drifts: status.drifts,
                    };
                    std::mem::replace(status, new_status.clone()) != new_status
                });
            }
            Err(error) => self.report_failure("clean", &error),
        }
    }

    /// Takes Users as they are now.
    async fn apply_users(&mut self, view: UserView) {
        let set = KeySet::new(view.users.iter().map(|(name, spec)| (name.as_str(), spec)));
        let desired_keys = WantedKeys { block: set.build_block(), users: set.joined_digests() };
        let loses_all = set.is_empty()
            && self
                .wanted
                .as_ref()
                .is_some_and(|current_keys| !current_keys.block.keys().is_empty());
        if loses_all && view.listed && view.users.is_empty() {
            warn!("A list of no users would take all keys away; it is read again first");
            self.doubt = Some(DoubtedList {
                wanted: desired_keys,
                readings: 1,
                next: Instant::now() + DOUBT,
            });
        } else {
            self.doubt = None;
            self.set_desired_keys(desired_keys).await;
        }
    }

    /// Reads a list again that takes all keys away.
    async fn read_again(&mut self) {
        let Some(mut doubt) = self.doubt.take() else { return };
        // No resourceVersion: the answer is as new as the request.
        let list = self.users.list_metadata(&ListParams::default().limit(1)).await;
        match list {
            Ok(list) if list.items.is_empty() => doubt.readings += 1,
            // The watch reports them.
            Ok(_) => doubt.readings = 0,
            Err(error) => {
                warn!(error = %chain(&error), "Users cannot be read; the keys stay as they are");
                doubt.readings = 0;
            }
        }
        if doubt.readings >= READINGS {
            self.set_desired_keys(doubt.wanted).await;
        } else {
            doubt.next = Instant::now() + DOUBT;
            self.doubt = Some(doubt);
        }
    }

    /// Brings the file to a new desired state.
    async fn set_desired_keys(&mut self, desired_keys: WantedKeys) {
        let has_changed =
            self.wanted.as_ref().is_none_or(|old_keys| old_keys.block != desired_keys.block);
        self.wanted = Some(desired_keys.clone());
        if has_changed && self.ending.is_none() {
            info!(keys = desired_keys.block.hash(), "Users changed, writing the key file");
            self.write_file(desired_keys).await;
        } else {
            self.restore_file().await;
        }
    }

    /// Looks at the file, and undoes what another program did to it.
    async fn restore_file(&mut self) {
        self.look = Instant::now() + LOOK;
        if let Some(cluster) = self.ending.clone() {
            return self.remove_keys(cluster).await;
        }
        let Some(desired_keys) = self.wanted.clone() else { return };
        let (file, block) = (self.file.clone(), desired_keys.block.clone());
        match flatten_result(spawn_blocking(move || file.is_current(&block)).await) {
            Ok(true) => self.report_status(Some(&desired_keys), None),
            Ok(false) => {
                let now = Instant::now();
                let next_write = self.pace.next_write_time(now);
                if next_write > now {
                    self.look = next_write;
                    return self.report_status(None, None);
                }
                warn!("Another program changed the key file, mending it");
                self.pace.record_write(now);
                self.metrics.drift.inc();
                self.standing.send_modify(|standing| standing.drifts += 1);
                self.write_file(desired_keys).await;
            }
            Err(error) => self.report_failure("read", &error),
        }
    }

    async fn write_file(&mut self, desired_keys: WantedKeys) {
        self.look = Instant::now() + LOOK;
        let (file, block) = (self.file.clone(), desired_keys.block.clone());
        let write_result =
            spawn_blocking(move || file.write_block(&block).and_then(|()| file.is_current(&block)))
                .await;
        match flatten_result(write_result) {
            Ok(is_current) => {
                self.metrics.written.inc();
                // Otherwise, the watch is about to report the change that came in between.
                if is_current {
                    self.report_status(Some(&desired_keys), None);
                }
            }
            Err(error) => self.report_failure("write", &error),
        }
    }

    fn report_failure(&mut self, verb: &str, error: &io::Error) {
        warn!(%error, "Failed to {verb} the key file");
        self.look = Instant::now() + RETRY;
        self.report_status(None, Some(format!("failed to {verb} the key file: {error}")));
    }

    /// Reports the state of the file: as desired, or not.
    fn report_status(&self, installed_keys: Option<&WantedKeys>, trouble: Option<String>) {
        self.metrics.stands.set(i64::from(installed_keys.is_some()));
        let slow_trouble = || {
            let text =
                "another program changes the key file again and again; it is mended once a minute";
            self.pace.is_slow().then(|| text.to_owned())
        };
        self.standing.send_if_modified(|status| {
            let trouble = trouble.or_else(slow_trouble);
            let mut new_status = Standing { trouble, cleaned: None, ..status.clone() };
            if let Some(desired_keys) = installed_keys {
                new_status.hash = Some(desired_keys.block.hash().to_owned());
                new_status.users.clone_from(&desired_keys.users);
            }
            std::mem::replace(status, new_status.clone()) != new_status
        });
    }
}

/// Waits until a time; for ever without one.
async fn wait_until(time: Option<Instant>) {
    match time {
        Some(time) => sleep_until(time).await,
        None => pending().await,
    }
}

/// Returns what blocking work ended with.
fn flatten_result<T>(join_result: Result<io::Result<T>, tokio::task::JoinError>) -> io::Result<T> {
    join_result.unwrap_or_else(|panic| Err(io::Error::other(panic)))
}

#[cfg(test)]
mod tests {
    use std::{
        convert::Infallible,
        fs,
        path::Path,
        sync::{Arc, Mutex},
    };

    use http::{Request, Response};
    use kube::{Client, client::Body};
    use serde_json::{Value, json};
    use tokio::time::sleep;

    use super::*;
    use crate::runtime::TaskGroup;

    const KEY: &str =
        "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEB";

    /// A keeper at work, and an API that answers lists of Users in one way.
    struct Scene {
        home: tempfile::TempDir,
        view: watch::Sender<Option<UserView>>,
        ending: watch::Sender<Option<String>>,
        answer: Arc<Mutex<(u16, Value)>>,
        metrics: Metrics,
        standing: watch::Receiver<Standing>,
        shutdown: Shutdown,
        tasks: TaskGroup,
    }

    impl Scene {
        fn new() -> Self {
            let home = tempfile::tempdir().unwrap();
            let (view, seen) = watch::channel(None);
            let (ending, ended) = watch::channel(None);
            let (standing, told) = watch::channel(Standing::default());
            let answer = Arc::new(Mutex::new((500, json!({}))));
            let (metrics, shutdown) = (Metrics::new(), Shutdown::new());
            let given = Arc::clone(&answer);
            let service = tower::service_fn(move |_: Request<Body>| {
                let (code, body) = given.lock().unwrap().clone();
                let body = Body::from(body.to_string().into_bytes());
                async move { Ok::<_, Infallible>(Response::builder().status(code).body(body).unwrap()) }
            });
            let users = Api::namespaced(Client::new(service, "default"), "core");
            let file = KeyFile::new(home.path(), false);
            file.create_folder().unwrap();
            let stirs = FolderWatch::new(file.watched_folders()).unwrap();
            let keeper =
                KeyKeeper::new(file, users, standing, Duration::from_secs(60), metrics.clone());
            let tasks = TaskGroup::new(shutdown.clone());
            tasks.spawn("keys", keeper.run(seen, ended, stirs, shutdown.clone()));
            Self { home, view, ending, answer, metrics, standing: told, shutdown, tasks }
        }

        fn see(&self, users: &[(&str, &[&str])], listed: bool) {
            let spec = |keys: &[&str]| {
                let keys: Vec<Value> = keys.iter().map(|key| json!({"key": key})).collect();
                serde_json::from_value(json!({"ssh_keys": keys})).unwrap()
            };
            let users = users.iter().map(|(name, keys)| ((*name).to_owned(), spec(keys)));
            self.view.send_replace(Some(UserView { users: users.collect(), listed }));
        }

        fn answers(&self, code: u16, items: usize) {
            let item = json!({"metadata": {"name": "anne"}});
            *self.answer.lock().unwrap() =
                (code, json!({"metadata": {}, "items": vec![item; items]}));
        }

        /// Is the key in the file after these seconds?
        async fn has_key(&self, seconds: u64) -> bool {
            sleep(Duration::from_secs(seconds)).await;
            has_key(self.home.path())
        }

        async fn end(self) {
            self.shutdown.trigger();
            self.tasks.join().await;
        }
    }

    fn has_key(home: &Path) -> bool {
        fs::read_to_string(home.join(".ssh/authorized_keys")).is_ok_and(|text| text.contains(KEY))
    }

    #[tokio::test(start_paused = true)]
    async fn a_list_that_takes_all_keys_away_is_believed_when_it_was_read_three_times() {
        let scene = Scene::new();
        scene.see(&[("anne", &[KEY])], true);
        assert!(scene.has_key(1).await);
        // As after an error: the watch lists anew, and the list is empty.
        scene.see(&[], true);
        assert!(scene.has_key(60).await, "the API does not answer");
        scene.answers(200, 1);
        assert!(scene.has_key(60).await, "there are Users after all");
        scene.answers(200, 0);
        assert!(scene.has_key(12).await, "it was not read often enough");
        scene.answers(500, 0);
        assert!(scene.has_key(20).await);
        scene.answers(200, 0);
        assert!(!scene.has_key(35).await);
        let hash = scene.standing.borrow().hash.clone();
        assert_eq!(hash.as_deref(), Some(KeySet::default().build_block().hash()));
        // Somebody is there again before the list was read again.
        scene.see(&[("anne", &[KEY])], false);
        assert!(scene.has_key(1).await);
        scene.see(&[], true);
        assert!(scene.has_key(9).await);
        scene.see(&[("anne", &[KEY])], true);
        assert!(scene.has_key(60).await);
        // A User that is deleted under the watch, or has no keys, is believed.
        scene.see(&[], false);
        assert!(!scene.has_key(1).await);
        scene.see(&[("anne", &[KEY])], false);
        assert!(scene.has_key(1).await);
        scene.see(&[("anne", &[])], true);
        assert!(!scene.has_key(1).await);
        scene.end().await;
    }

    #[tokio::test(start_paused = true)]
    async fn changes_are_gathered_for_a_moment_and_for_five_seconds_at_most() {
        let scene = Scene::new();
        for round in 0..80 {
            scene.see(&[(&format!("u{round}"), &[KEY])], false);
            sleep(Duration::from_millis(100)).await;
            let written = scene.metrics.written.get();
            // Where exactly the first five seconds end does not matter.
            assert!(written <= 1 && (round < 55 || written == 1), "{round}: {written}");
        }
        sleep(Duration::from_secs(1)).await;
        assert_eq!(scene.metrics.written.get(), 2);
        assert_eq!(scene.metrics.drift.get(), 0);
        scene.end().await;
    }

    #[tokio::test(start_paused = true)]
    async fn an_agent_that_knows_no_users_yet_goes_by_what_the_last_one_wrote() {
        let scene = Scene::new();
        scene.see(&[("anne", &[KEY])], true);
        assert!(scene.has_key(1).await);
        let written = fs::read(scene.home.path().join(".ssh/authorized_keys")).unwrap();
        scene.end().await;
        for (found, stays) in [(written.as_slice(), false), (b"theirs\n", true)] {
            // The keeper has not begun yet: nothing was waited for.
            let next = Scene::new();
            let file = next.home.path().join(".ssh/authorized_keys");
            fs::write(&file, found).unwrap();
            sleep(Duration::from_secs(60)).await;
            assert_eq!(fs::read(&file).unwrap(), found);
            fs::write(&file, "edited\n").unwrap();
            sleep(Duration::from_secs(60)).await;
            assert_eq!(fs::read(&file).unwrap() == b"edited\n", stays);
            assert_eq!(next.standing.borrow().hash.is_none(), stays);
            next.end().await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn while_the_cluster_manager_is_taken_away_our_keys_stay_out_and_are_said_to_be_gone() {
        let scene = Scene::new();
        let file = scene.home.path().join(".ssh/authorized_keys");
        let cleaned = || scene.standing.borrow().cleaned.clone();
        let ends = |cluster: Option<&str>| {
            scene.ending.send_replace(cluster.map(str::to_owned));
        };
        // An agent that does not know the Users yet finds keys of the last one.
        let set = KeySet::new([(
            "anne",
            &serde_json::from_value(json!({"ssh_keys": [{"key": KEY}]})).unwrap(),
        )]);
        fs::write(&file, set.build_block().render_file(b"theirs\n", true)).unwrap();
        ends(Some("c1"));
        assert!(!scene.has_key(1).await);
        assert_eq!(
            (fs::read(&file).unwrap(), cleaned().as_deref()),
            (b"theirs\n".to_vec(), Some("c1"))
        );
        scene.see(&[("anne", &[KEY])], true);
        assert!(!scene.has_key(60).await, "Users that come late are not written");
        fs::write(&file, set.build_block().render_file(b"", false)).unwrap();
        assert!(!scene.has_key(60).await, "and what is put back is taken away");
        assert!(!file.exists(), "nothing else was in it");
        // A file that cannot be cleaned is not said to be clean.
        ends(None);
        assert!(scene.has_key(1).await, "it stays after all");
        assert_eq!(cleaned(), None);
        fs::remove_file(&file).unwrap();
        fs::create_dir(&file).unwrap();
        ends(Some("c1"));
        sleep(Duration::from_secs(60)).await;
        let trouble = scene.standing.borrow().trouble.clone().unwrap_or_default();
        assert!(trouble.contains("failed to clean"), "{trouble}");
        assert_eq!(cleaned(), None);
        scene.end().await;
    }
}
