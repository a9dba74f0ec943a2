//! Keeps the key file as the Users want it.
//!
//! - A change of Users is written once it was quiet for a moment, and within five seconds at last.
//! - What another program does to the file is undone at once, but not for ever: see `mending_pace`.
//! - While the API is away the file stays as it is, and is mended as it was known last; what is known is
//!   what the last agent wrote, until Users were read.
//! - A list that takes all keys away is believed only when it was read three times; an object that is
//!   deleted under the watch is believed at once.
//! - While the cluster manager is being taken away, by the coordinator's own word, our keys are taken out
//!   of the file and stay out.

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

/// How long Users must be quiet before a change of theirs is written, and how long it waits at most.
const QUIET: Duration = Duration::from_millis(250);
const PATIENCE: Duration = Duration::from_secs(5);
/// Interval at which the file is looked at though no change was told.
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
    /// They were listed, and not told one by one.
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
    pub(crate) async fn work(
        mut self,
        mut view: watch::Receiver<Option<UserView>>,
        mut ending: watch::Receiver<Option<String>>,
        stirs: FolderWatch,
        shutdown: Shutdown,
    ) {
        match self.file.find() {
            Ok(found) => {
                self.wanted = found.map(|block| WantedKeys { block, users: String::new() });
            }
            Err(error) => warn!(%error, "The key file cannot be read"),
        }
        self.ending.clone_from(&ending.borrow_and_update());
        let mut deaf = false;
        loop {
            // What is dropped in a select is begun anew by the next round.
            tokio::select! {
                () = shutdown.triggered() => return,
                changed = view.changed() => {
                    if changed.is_err() { return }
                    let now = Instant::now();
                    let since = self.due.map_or(now, |(_, since)| since);
                    self.due = Some(((now + QUIET).min(since + PATIENCE), since));
                }
                changed = ending.changed() => {
                    if changed.is_err() { return }
                    let ending = ending.borrow_and_update().clone();
                    self.end(ending).await;
                }
                () = at(self.due.map(|(due, _)| due)) => {
                    self.due = None;
                    let view = view.borrow_and_update().clone();
                    if let Some(view) = view {
                        self.take(view).await;
                    }
                }
                () = at(self.doubt.as_ref().map(|doubt| doubt.next)) => self.read_again().await,
                changed = stirs.changed(), if !deaf => {
                    if let Err(error) = changed {
                        warn!(%error, "Changes of the key file are not told, it is looked at instead");
                        deaf = true;
                    }
                    self.mend().await;
                }
                () = sleep_until(self.look) => self.mend().await,
            }
        }
    }

    /// Takes our keys away while the cluster manager is being taken away, and back where it stays after all.
    async fn end(&mut self, ending: Option<String>) {
        self.ending = ending;
        if self.ending.is_some() {
            return self.mend().await;
        }
        self.standing.send_modify(|standing| standing.cleaned = None);
        if let Some(wanted) = self.wanted.clone() {
            info!("The cluster manager stays, writing the key file");
            self.write(wanted).await;
        }
    }

    /// Takes our keys out of the file, and says that they are gone once they are.
    async fn clean(&mut self, cluster: String) {
        self.look = Instant::now() + LOOK;
        let file = self.file.clone();
        match done(spawn_blocking(move || file.clean()).await) {
            Ok(were_there) => {
                if were_there {
                    info!(cluster, "The cluster manager is being taken away, and our keys with it");
                }
                self.metrics.stands.set(0);
                self.standing.send_if_modified(|standing| {
                    let next = Standing {
                        hash: Some(String::new()),
                        users: String::new(),
                        trouble: None,
                        cleaned: Some(cluster),
                        drifts: standing.drifts,
                    };
                    std::mem::replace(standing, next.clone()) != next
                });
            }
            Err(error) => self.fail("clean", &error),
        }
    }

    /// Takes Users as they are now.
    async fn take(&mut self, view: UserView) {
        let set = KeySet::new(view.users.iter().map(|(name, spec)| (name.as_str(), spec)));
        let wanted = WantedKeys { block: set.block(), users: set.digests() };
        let loses_all = set.is_empty()
            && self.wanted.as_ref().is_some_and(|wanted| !wanted.block.keys().is_empty());
        if loses_all && view.listed && view.users.is_empty() {
            warn!("A list of no users would take all keys away; it is read again first");
            self.doubt = Some(DoubtedList { wanted, readings: 1, next: Instant::now() + DOUBT });
        } else {
            self.doubt = None;
            self.adopt(wanted).await;
        }
    }

    /// Reads a list again that takes all keys away.
    async fn read_again(&mut self) {
        let Some(mut doubt) = self.doubt.take() else { return };
        // No resourceVersion: the answer is as new as the request.
        let list = self.users.list_metadata(&ListParams::default().limit(1)).await;
        match list {
            Ok(list) if list.items.is_empty() => doubt.readings += 1,
            // The watch tells of them.
            Ok(_) => doubt.readings = 0,
            Err(error) => {
                warn!(error = %chain(&error), "Users cannot be read; the keys stay as they are");
                doubt.readings = 0;
            }
        }
        if doubt.readings >= READINGS {
            self.adopt(doubt.wanted).await;
        } else {
            doubt.next = Instant::now() + DOUBT;
            self.doubt = Some(doubt);
        }
    }

    /// Brings the file to what is wanted from now on.
    async fn adopt(&mut self, wanted: WantedKeys) {
        let changed = self.wanted.as_ref().is_none_or(|old| old.block != wanted.block);
        self.wanted = Some(wanted.clone());
        if changed && self.ending.is_none() {
            info!(keys = wanted.block.hash(), "Users changed, writing the key file");
            self.write(wanted).await;
        } else {
            self.mend().await;
        }
    }

    /// Looks at the file, and undoes what another program did to it.
    async fn mend(&mut self) {
        self.look = Instant::now() + LOOK;
        if let Some(cluster) = self.ending.clone() {
            return self.clean(cluster).await;
        }
        let Some(wanted) = self.wanted.clone() else { return };
        let (file, block) = (self.file.clone(), wanted.block.clone());
        match done(spawn_blocking(move || file.stands(&block)).await) {
            Ok(true) => self.say(Some(&wanted), None),
            Ok(false) => {
                let now = Instant::now();
                let next = self.pace.next(now);
                if next > now {
                    self.look = next;
                    return self.say(None, None);
                }
                warn!("Another program changed the key file, mending it");
                self.pace.mended(now);
                self.metrics.drift.inc();
                self.standing.send_modify(|standing| standing.drifts += 1);
                self.write(wanted).await;
            }
            Err(error) => self.fail("read", &error),
        }
    }

    async fn write(&mut self, wanted: WantedKeys) {
        self.look = Instant::now() + LOOK;
        let (file, block) = (self.file.clone(), wanted.block.clone());
        let written =
            spawn_blocking(move || file.write(&block).and_then(|()| file.stands(&block))).await;
        match done(written) {
            Ok(stands) => {
                self.metrics.written.inc();
                // Otherwise word of the change that came in between is on its way.
                if stands {
                    self.say(Some(&wanted), None);
                }
            }
            Err(error) => self.fail("write", &error),
        }
    }

    fn fail(&mut self, verb: &str, error: &io::Error) {
        warn!(%error, "Failed to {verb} the key file");
        self.look = Instant::now() + RETRY;
        self.say(None, Some(format!("failed to {verb} the key file: {error}")));
    }

    /// Says how the file stands: as wanted, or not.
    fn say(&self, stands: Option<&WantedKeys>, trouble: Option<String>) {
        self.metrics.stands.set(i64::from(stands.is_some()));
        let slow = || {
            let text =
                "another program changes the key file again and again; it is mended once a minute";
            self.pace.is_slow().then(|| text.to_owned())
        };
        self.standing.send_if_modified(|standing| {
            let trouble = trouble.or_else(slow);
            let mut next = Standing { trouble, cleaned: None, ..standing.clone() };
            if let Some(wanted) = stands {
                next.hash = Some(wanted.block.hash().to_owned());
                next.users.clone_from(&wanted.users);
            }
            std::mem::replace(standing, next.clone()) != next
        });
    }
}

/// Waits until a time; for ever without one.
async fn at(time: Option<Instant>) {
    match time {
        Some(time) => sleep_until(time).await,
        None => pending().await,
    }
}

/// Returns what blocking work ended with.
fn done<T>(ended: Result<io::Result<T>, tokio::task::JoinError>) -> io::Result<T> {
    ended.unwrap_or_else(|panic| Err(io::Error::other(panic)))
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
            file.prepare().unwrap();
            let stirs = FolderWatch::new(file.folders()).unwrap();
            let keeper =
                KeyKeeper::new(file, users, standing, Duration::from_secs(60), metrics.clone());
            let tasks = TaskGroup::new(shutdown.clone());
            tasks.spawn("keys", keeper.work(seen, ended, stirs, shutdown.clone()));
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
        assert_eq!(hash.as_deref(), Some(KeySet::default().block().hash()));
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
        fs::write(&file, set.block().file(b"theirs\n", true)).unwrap();
        ends(Some("c1"));
        assert!(!scene.has_key(1).await);
        assert_eq!(
            (fs::read(&file).unwrap(), cleaned().as_deref()),
            (b"theirs\n".to_vec(), Some("c1"))
        );
        scene.see(&[("anne", &[KEY])], true);
        assert!(!scene.has_key(60).await, "Users that come late are not written");
        fs::write(&file, set.block().file(b"", false)).unwrap();
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
