//! Elasticsearch: three nodes started at once become one cluster; one gives its shards away.

use std::{os::unix::fs::PermissionsExt, path::Path, time::Duration};

use http::Method;
use navigator::{
    api::v1beta1::{Identity, Jvm, Pilot, PilotElasticsearchSpec, PilotIntent},
    pilot::{
        database::{Database, Error, Node, Observation, Retirement},
        elasticsearch::Elasticsearch,
        http::Client,
    },
};
use serde_json::{Value, json};

use crate::{
    host::{Running, home},
    support::{
        seat::{USER, give},
        wait::until,
    },
};

const VERSION: &str = "7.17.29";
/// Measured at 8 to 24 s on a loaded machine of two cores.
const START: Duration = Duration::from_secs(180);

struct Member {
    database: Elasticsearch,
    node: Node,
    running: Option<Running>,
}

impl Member {
    fn new(place: &Path, number: u8) -> Self {
        let place = place.join(number.to_string());
        for folder in ["data", "config"] {
            std::fs::create_dir_all(place.join(folder)).unwrap();
        }
        let mut pilot = Pilot::default();
        pilot.metadata.name = Some(format!("es-test-a-{number}"));
        pilot.spec.version = Some(VERSION.to_owned());
        let heap = serde_json::from_value(json!("384Mi")).unwrap();
        pilot.spec.jvm = Some(Jvm { heap: Some(heap), options: Vec::new() });
        pilot.spec.elasticsearch = Some(PilotElasticsearchSpec {
            roles: vec!["master".to_owned(), "data".to_owned()],
            ..PilotElasticsearchSpec::default()
        });
        // A machine whose disk is nearly full would otherwise refuse shards.
        pilot.spec.config.insert(
            "cluster.routing.allocation.disk.threshold_enabled".to_owned(),
            Value::Bool(false),
        );
        let data = place.join("data");
        Self {
            database: Elasticsearch::new(data.clone()),
            node: Node {
                pilot,
                peers: Vec::new(),
                cluster_uid: None,
                address: [127, 0, 2, number].into(),
                home: home("elasticsearch", VERSION),
                data,
                config: place.join("config"),
                shared: place.clone(),
                memory_limit: None,
                may_found: number == 1,
            },
            running: None,
        }
    }

    /// Starts the node if it may start; `false` while it waits for the founder.
    async fn start(&mut self) -> bool {
        let failed = self.database.preflight(&self.node).await;
        assert!(failed.is_empty(), "{failed:?}");
        let process = match self.database.configure(&self.node).await {
            Ok(process) => process,
            Err(Error::NotYet(_)) => return false,
            Err(error) => panic!("{error}"),
        };
        let place = self.node.data.parent().unwrap();
        if nix::unistd::geteuid().is_root() {
            give(place, USER);
        }
        self.running = Some(Running::start_as_user(&process, &place.join("log")));
        true
    }

    async fn observe(&mut self) -> Result<Observation, String> {
        let running = self.running.as_mut().unwrap();
        assert!(running.ended().is_none(), "it ended: {:#?}", running.tail());
        let seen = self.database.observe().await.map_err(|error| error.to_string())?;
        self.node.pilot.status.endpoints.clone_from(&seen.endpoints);
        if let Some(node_id) = &seen.node_id {
            self.node.pilot.status.identity = Some(Identity {
                cluster_id: seen.cluster_id.clone(),
                node_id: Some(node_id.clone()),
                since: None,
            });
        }
        Ok(seen)
    }

    async fn ask(&self, method: Method, path: &str, body: Option<&Value>) -> Value {
        let client = Client::new(format!("http://{}:9200", self.node.address), None);
        let answer = client.send(method, path, body, Duration::from_secs(60)).await.unwrap();
        assert!(answer.status.is_success(), "{path}: {}", answer.body);
        answer.body
    }
}

/// Shows every member what the others' Pilots say now.
async fn publish(members: &mut [Member]) {
    let pilots: Vec<Pilot> = members.iter().map(|member| member.node.pilot.clone()).collect();
    for (own, member) in members.iter_mut().enumerate() {
        member.node.peers = pilots
            .iter()
            .enumerate()
            .filter(|(index, _)| *index != own)
            .map(|(_, pilot)| pilot.clone())
            .collect();
        if member.running.is_some() {
            // Refused while it starts; the next change brings it again.
            drop(member.database.refresh(&member.node).await);
        }
    }
}

pub(crate) async fn three_nodes_form_one_cluster_and_one_leaves() {
    let place = tempfile::tempdir().unwrap();
    std::fs::set_permissions(place.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let mut members: Vec<Member> =
        (1..=3).map(|number| Member::new(place.path(), number)).collect();

    let clusters = until("three nodes form a cluster", START, async || {
        let mut seen = Vec::new();
        for member in &mut members {
            if member.running.is_none() && !member.start().await {
                continue;
            }
            seen.push(member.observe().await);
        }
        publish(&mut members).await;
        let serving: Vec<_> = seen
            .iter()
            .flatten()
            .filter(|seen| seen.serving)
            .filter_map(|seen| seen.cluster_id.clone())
            .collect();
        if serving.len() == 3 { Ok(serving) } else { Err(format!("{seen:?}")) }
    })
    .await;
    assert!(clusters.iter().all(|cluster| *cluster == clusters[0]), "{clusters:?}");

    let index = json!({"settings": {"number_of_shards": 3, "number_of_replicas": 2}});
    members[0].ask(Method::PUT, "/orders", Some(&index)).await;
    for id in 0..100 {
        let path = format!("/orders/_doc/{id}");
        members[0].ask(Method::PUT, &path, Some(&json!({"id": id}))).await;
    }
    members[0].ask(Method::POST, "/orders/_refresh", None).await;

    // Three copies cannot live on two nodes.
    members[2].node.pilot.spec.phase = Some(PilotIntent::Decommissioned);
    publish(&mut members).await;
    let refused = members[2].database.retire(&members[2].node).await.unwrap();
    assert!(
        matches!(&refused, Retirement::Refused(reason) if reason.contains("copies")),
        "{refused:?}"
    );
    let two = json!({"index": {"number_of_replicas": 1}});
    members[0].ask(Method::PUT, "/orders/_settings", Some(&two)).await;

    // Taken back, and then meant.
    let moving = members[2].database.retire(&members[2].node).await.unwrap();
    assert!(!matches!(moving, Retirement::Refused(_)), "{moving:?}");
    members[2].database.cancel_retirement(&members[2].node).await.unwrap();
    let key = "/_cluster/settings?flat_settings=true";
    let settings = members[0].ask(Method::GET, key, None).await;
    assert_eq!(settings["persistent"]["cluster.routing.allocation.exclude._id"], "", "{settings}");
    until("the third node gives everything away", START, async || {
        match members[2].database.retire(&members[2].node).await.unwrap() {
            Retirement::Left => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await;
    let mut running = members[2].running.take().unwrap();
    running.terminate();
    assert_eq!(running.wait(Duration::from_secs(60)).await, 143, "{:#?}", running.tail());

    // Afterwards the pilot beside the master tidies the lists.
    members.truncate(2);
    until("the lists are tidied", START, async || {
        publish(&mut members).await;
        let settings = members[0].ask(Method::GET, key, None).await;
        let state = "/_cluster/state/metadata?filter_path=metadata.cluster_coordination";
        let state = members[0].ask(Method::GET, state, None).await;
        let list = &settings["persistent"]["cluster.routing.allocation.exclude._id"];
        let votes = &state["metadata"]["cluster_coordination"]["voting_config_exclusions"];
        let tidy = *list == json!("") && votes.as_array().is_none_or(Vec::is_empty);
        if tidy { Ok(()) } else { Err(format!("{list} {votes}")) }
    })
    .await;
    let count = members[1].ask(Method::GET, "/orders/_count", None).await;
    assert_eq!(count["count"], 100, "{count}");
    for member in &mut members {
        member.database.drain().await.unwrap();
    }
}
