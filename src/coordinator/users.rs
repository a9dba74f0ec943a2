//! The status of Users: on how many machines their keys stand, by what the agents say on their Nodes.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use k8s_openapi::{
    api::core::v1::Node, apimachinery::pkg::apis::meta::v1::ObjectMeta, jiff::Timestamp,
};
use kube::{Api, Client, api::PostParams, core::PartialObjectMeta, runtime::watcher};
use tokio::{sync::Notify, time::sleep};
use tracing::warn;

use super::look_error::LookError;
use crate::{
    api::{
        containership::{User, name},
        names,
    },
    engine::keys::{KeySet, MachineWord, standing},
    error::chain,
    runtime::watch::WatchedReplica,
};

/// Pause between two looks, at least.
const BREATH: Duration = Duration::from_secs(1);
/// Interval of looks while nothing stirs: that a machine is silent, time alone says.
const SELDOM: Duration = Duration::from_secs(60);
/// Pause after a look that failed.
const RETRY: Duration = Duration::from_secs(5);

/// What the watches told of Users and machines, and word of it.
#[derive(Clone, Default)]
pub(crate) struct WatchedUsers(Arc<LedgerCell>);

#[derive(Default)]
struct LedgerCell {
    ledger: Mutex<UserLedger>,
    stirred: Notify,
}

#[derive(Default)]
struct UserLedger {
    users: WatchedReplica<User>,
    /// `None` for machines that no agent runs on.
    machines: WatchedReplica<Option<MachineWord>>,
}

impl WatchedUsers {
    pub(crate) fn see_user(&self, event: &watcher::Event<User>) {
        let kept = |user: &User| {
            let mut user = user.clone();
            user.metadata.managed_fields = None;
            user
        };
        if self.lock().users.take(event, kept) {
            self.0.stirred.notify_one();
        }
    }

    pub(crate) fn see_node(&self, event: &watcher::Event<PartialObjectMeta<Node>>) {
        if self.lock().machines.take(event, |node| word(&node.metadata)) {
            self.0.stirred.notify_one();
        }
    }

    /// Returns the Users whose status is to be written, with the new status.
    fn news(&self, now: Timestamp) -> Vec<User> {
        let ledger = self.lock();
        let (Some(users), Some(machines)) = (ledger.users.held(), ledger.machines.held()) else {
            return Vec::new();
        };
        let set = KeySet::new(users.iter().map(|(name, user)| (name.as_str(), &user.spec)));
        let block = set.block();
        let machines: Vec<MachineWord> = machines.values().flatten().cloned().collect();
        let news = users.values().filter(|user| user.metadata.deletion_timestamp.is_none());
        news.filter_map(|user| {
            let status = Some(standing(user, block.hash(), &machines, now));
            (status != user.status).then(|| User { status, ..user.clone() })
        })
        .collect()
    }

    fn lock(&self) -> MutexGuard<'_, UserLedger> {
        self.0.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns what the agent of a Node says; `None` where no agent of ours can run.
fn word(node: &ObjectMeta) -> Option<MachineWord> {
    let of = |all: &Option<std::collections::BTreeMap<String, String>>, key: &str| {
        all.as_ref().and_then(|all| all.get(key)).cloned()
    };
    if of(&node.labels, "kubernetes.io/os").is_some_and(|os| os != "linux") {
        return None;
    }
    // What cannot be read is no word.
    let report = of(&node.annotations, name::AGENT);
    Some(MachineWord {
        name: node.name.clone().unwrap_or_default(),
        created: node.creation_timestamp.as_ref().map_or(Timestamp::MIN, |time| time.0),
        report: report.and_then(|text| serde_json::from_str(&text).ok()),
    })
}

/// Writes the status of Users, while this process leads.
pub(crate) struct UserCoordinator {
    /// Client whose writes fail once this process no longer leads.
    pub(crate) writer: Client,
    pub(crate) namespace: String,
    pub(crate) users: WatchedUsers,
}

impl UserCoordinator {
    /// Looks whenever a watch stirs, and from time to time. May be dropped anywhere.
    pub(crate) async fn work(self) {
        let mut rest = BREATH;
        loop {
            tokio::select! {
                () = self.users.0.stirred.notified() => {}
                () = sleep(rest) => {}
            }
            rest = match self.look(Timestamp::now()).await {
                Ok(()) => SELDOM,
                // The watch tells of the change that came in between.
                Err(LookError::Stale(_)) => RETRY,
                Err(error) => {
                    warn!(error = %chain(&error), "The status of a user was not written");
                    RETRY
                }
            };
            sleep(BREATH).await;
        }
    }

    /// Writes each status that says something new.
    async fn look(&self, now: Timestamp) -> Result<(), LookError> {
        let api: Api<User> = Api::namespaced(self.writer.clone(), &self.namespace);
        let params = PostParams {
            field_manager: Some(names::COORDINATOR.to_owned()),
            ..PostParams::default()
        };
        let now = Timestamp::from_second(now.as_second()).unwrap_or(now);
        let mut failure = None;
        for user in self.users.news(now) {
            let name = user.metadata.name.clone().unwrap_or_default();
            match api.replace_status(&name, &params, &user).await {
                Ok(_) => {}
                Err(kube::Error::Api(answer)) if answer.code == 404 => {}
                Err(error) => {
                    let what = format!("user {name:?}");
                    failure = Some(LookError::request("write the status of", &what, error));
                }
            }
        }
        failure.map_or(Ok(()), Err)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};
    use watcher::Event;

    use super::*;
    use crate::{api::names::CORE_NAMESPACE, coordinator::testing::FakeServer};

    const ANNE: &str = "/apis/containership.io/v3/namespaces/containership-core/users/anne";

    fn node(name: &str, more: &Value) -> PartialObjectMeta<Node> {
        let mut node = json!({"metadata": {
            "name": name, "creationTimestamp": "2026-01-01T00:00:00Z",
        }});
        json_patch::merge(&mut node, more);
        serde_json::from_value(node).unwrap()
    }

    #[tokio::test]
    async fn a_status_is_written_when_it_says_something_new_and_only_then() {
        let server = FakeServer::default();
        let user = json!({
            "apiVersion": "containership.io/v3", "kind": "User",
            "metadata": {"generation": 1}, "spec": {"ssh_keys": []},
        });
        let read =
            || -> User { serde_json::from_value(server.lock().objects[ANNE].clone()).unwrap() };
        server.lock().put(ANNE, user);
        let users = WatchedUsers::default();
        let coordinator = UserCoordinator {
            writer: server.client(),
            namespace: CORE_NAMESPACE.to_owned(),
            users: users.clone(),
        };
        let look = async |time: &str| {
            coordinator.look(format!("2026-01-01T{time}Z").parse().unwrap()).await.unwrap();
            let writes = std::mem::take(&mut server.lock().writes).len();
            let status = read().status;
            users.see_user(&Event::Apply(read()));
            (writes, status.and_then(|status| status.progress))
        };
        users.see_node(&Event::Init);
        users.see_node(&Event::InitApply(node("m1", &json!({}))));
        let windows = json!({"metadata": {"labels": {"kubernetes.io/os": "windows"}}});
        users.see_node(&Event::InitApply(node("w1", &windows)));
        users.see_node(&Event::InitDone);
        users.see_user(&Event::Init);
        users.see_user(&Event::InitApply(read()));
        assert_eq!(look("00:00:01").await, (0, None), "the watch is not filled yet");
        users.see_user(&Event::InitDone);
        let progress = |text: &str| Some(text.to_owned());
        assert_eq!(look("00:00:02").await, (1, progress("0/1")));
        assert_eq!(look("00:01:00").await, (0, progress("0/1")));
        let set = KeySet::new([("anne", &read().spec)]);
        let report = json!({
            "at": "2026-01-01T00:01:01Z", "keys": "of a file with others", "users": set.digests(),
            "of": "a newer agent",
        });
        let says =
            json!({"metadata": {"annotations": {"containership.io/agent": report.to_string()}}});
        users.see_node(&Event::Apply(node("m1", &says)));
        assert_eq!(look("00:01:02").await, (1, progress("1/1")));
        assert_eq!(look("00:15:00").await, (0, progress("1/1")));
        // Fifteen minutes without a word.
        assert_eq!(look("00:16:01").await, (1, progress("1/1")));
        assert_eq!(read().status.unwrap().silent_text.as_deref(), Some("m1"));
        let broken = json!({"metadata": {"annotations": {"containership.io/agent": "{"}}});
        users.see_node(&Event::Apply(node("m1", &broken)));
        assert_eq!(look("00:17:00").await, (1, progress("0/1")));
        server.lock().refuses.insert(format!("PUT {ANNE}"), 409);
        users.see_node(&Event::Apply(node("m1", &says)));
        let time = "2026-01-01T00:18:00Z".parse().unwrap();
        let error = coordinator.look(time).await.unwrap_err();
        assert!(matches!(error, LookError::Stale(_)), "{error}");
    }
}
