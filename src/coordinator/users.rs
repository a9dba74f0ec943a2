//! The status of Users: on how many machines their keys stand, by what the agents say on their Nodes.

use std::collections::BTreeMap;

use k8s_openapi::{
    api::core::v1::Node, apimachinery::pkg::apis::meta::v1::ObjectMeta, jiff::Timestamp,
};
use kube::{core::PartialObjectMeta, runtime::watcher::Event};

use super::{
    look_error::LookError,
    stirring::{LookEnd, StatusWriter, StirredWork, WatchedLedger},
};
use crate::{
    api::containership::{User, UserStatus, name},
    engine::keys::{KeySet, MachineWord, build_user_status},
    runtime::watch::WatchedReplica,
};

/// What the watches told of Users and machines.
#[derive(Default)]
pub(crate) struct UserLedger {
    users: WatchedReplica<User>,
    /// `None` for machines that no agent runs on.
    machines: WatchedReplica<Option<MachineWord>>,
}

impl UserLedger {
    pub(crate) fn record_user(&mut self, event: &Event<User>) -> bool {
        self.users.apply_event(event, strip_managed_fields)
    }

    pub(crate) fn record_node(&mut self, event: &Event<PartialObjectMeta<Node>>) -> bool {
        self.machines.apply_event(event, |node| machine_report(&node.metadata))
    }

    /// Returns the Users whose status is to be written, each with the status before. `now` is of whole
    /// seconds.
    fn changed_statuses(&self, now: Timestamp) -> Vec<(User, UserStatus)> {
        let (Some(users), Some(machines)) = (self.users.objects(), self.machines.objects()) else {
            return Vec::new();
        };
        let key_set = KeySet::new(users.iter().map(|(name, user)| (name.as_str(), &user.spec)));
        let block = key_set.build_block();
        let machines: Vec<MachineWord> = machines.values().flatten().cloned().collect();
        let live_users = users.values().filter(|user| user.metadata.deletion_timestamp.is_none());
        live_users
            .filter_map(|user| {
                let status = Some(build_user_status(user, block.hash(), &machines, now));
                let old_status = || user.status.clone().unwrap_or_default();
                (status != user.status).then(|| (User { status, ..user.clone() }, old_status()))
            })
            .collect()
    }
}

fn strip_managed_fields(user: &User) -> User {
    let mut user = user.clone();
    user.metadata.managed_fields = None;
    user
}

/// Returns what the agent of a Node says; `None` where no agent of ours can run.
fn machine_report(node: &ObjectMeta) -> Option<MachineWord> {
    let read_value = |map: &Option<BTreeMap<String, String>>, key: &str| {
        map.as_ref().and_then(|entries| entries.get(key)).cloned()
    };
    if read_value(&node.labels, "kubernetes.io/os").is_some_and(|os| os != "linux") {
        return None;
    }
    // What cannot be read is no word.
    let report = read_value(&node.annotations, name::AGENT);
    Some(MachineWord {
        name: node.name.clone().unwrap_or_default(),
        created: node.creation_timestamp.as_ref().map_or(Timestamp::MIN, |time| time.0),
        report: report.and_then(|text| serde_json::from_str(&text).ok()),
    })
}

/// Writes the status of Users, while this process leads.
pub(crate) struct UserCoordinator {
    pub(super) seen: WatchedLedger<UserLedger>,
    pub(super) status: StatusWriter,
}

impl StirredWork for UserCoordinator {
    const WORK: &'static str = "users";

    async fn wait_for_change(&self) {
        self.seen.wait_for_change().await;
    }

    async fn reconcile(&self) -> Result<LookEnd, LookError> {
        let now = Timestamp::now();
        self.write_statuses(Timestamp::from_second(now.as_second()).unwrap_or(now)).await
    }
}

impl UserCoordinator {
    /// Writes each status that says something new.
    async fn write_statuses(&self, now: Timestamp) -> Result<LookEnd, LookError> {
        let changed_users = self.seen.lock().changed_statuses(now);
        let mut failure = None;
        for (user, old_status) in changed_users {
            let new_conditions = user.status.as_ref().map_or(&[][..], |status| &status.conditions);
            match self.status.write_status(&user, &old_status.conditions, new_conditions).await {
                Ok(Some(user)) => {
                    self.seen.lock().users.record_write(user, strip_managed_fields);
                }
                Ok(None) => {}
                Err(error) => failure = failure.or(Some(error)),
            }
        }
        failure.map_or(Ok(LookEnd::Done), Err)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::coordinator::testing::{FakeServer, status_writer};

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
        let seen = WatchedLedger::<UserLedger>::default();
        let coordinator =
            UserCoordinator { seen: seen.clone(), status: status_writer(server.client()) };
        let see_node = |event| seen.lock().record_node(&event);
        let see_user = |event| seen.lock().record_user(&event);
        let look = async |time: &str| {
            coordinator
                .write_statuses(format!("2026-01-01T{time}Z").parse().unwrap())
                .await
                .unwrap();
            let writes = std::mem::take(&mut server.lock().writes).len();
            let status = read().status;
            see_user(Event::Apply(read()));
            (writes, status.and_then(|status| status.progress))
        };
        see_node(Event::Init);
        see_node(Event::InitApply(node("m1", &json!({}))));
        let windows = json!({"metadata": {"labels": {"kubernetes.io/os": "windows"}}});
        see_node(Event::InitApply(node("w1", &windows)));
        see_node(Event::InitDone);
        see_user(Event::Init);
        see_user(Event::InitApply(read()));
        assert_eq!(look("00:00:01").await, (0, None), "the watch is not filled yet");
        see_user(Event::InitDone);
        let progress = |text: &str| Some(text.to_owned());
        assert_eq!(look("00:00:02").await, (1, progress("0/1")));
        assert_eq!(look("00:01:00").await, (0, progress("0/1")));
        let set = KeySet::new([("anne", &read().spec)]);
        let report = json!({
            "at": "2026-01-01T00:01:01Z", "keys": "of a file with others", "users": set.joined_digests(),
            "of": "a newer agent",
        });
        let says =
            json!({"metadata": {"annotations": {"containership.io/agent": report.to_string()}}});
        see_node(Event::Apply(node("m1", &says)));
        assert_eq!(look("00:01:02").await, (1, progress("1/1")));
        assert_eq!(look("00:15:00").await, (0, progress("1/1")));
        // Fifteen minutes without a word.
        assert_eq!(look("00:16:01").await, (1, progress("1/1")));
        assert_eq!(read().status.unwrap().silent_text.as_deref(), Some("m1"));
        let broken = json!({"metadata": {"annotations": {"containership.io/agent": "{"}}});
        see_node(Event::Apply(node("m1", &broken)));
        assert_eq!(look("00:17:00").await, (1, progress("0/1")));
        server.lock().refuses.insert(format!("PUT {ANNE}"), 409);
        see_node(Event::Apply(node("m1", &says)));
        let time = "2026-01-01T00:18:00Z".parse().unwrap();
        let error = coordinator.write_statuses(time).await.unwrap_err();
        assert!(matches!(error, LookError::Stale(_)), "{error}");
    }
}
