//! How clusters of Redis are run on Kubernetes. Pure.

use navigator::{
    api::v1beta1::{Pilot, PilotStatus},
    controller::{
        ClusterService, DesiredCluster, LoginNames, ManagedClusterKind, ManagedDatabase, NodeLabel,
        NodeReport, SecuredCondition, ServiceExposure,
    },
    engine::password::PasswordHashing,
};

use super::kind::{Redis, RedisNode, unsupported};

/// `primary` or `replica`, as a node's pilot reports it.
const ROLE: &str = "navigator.jetstack.io/redis-role";

/// Redis, as the controller knows it.
pub(crate) const DATABASE: ManagedDatabase = ManagedDatabase {
    node_labels,
    gauges: &["offset"],
    login: Some(&LoginNames {
        admin: "admin",
        binding: "redis",
        client_port: "redis",
        schemes: Some(["rediss", "redis"]),
        more: |_| Vec::new(),
        reserved: &["default"],
        shared_by_pilots: true,
        hashing: PasswordHashing::Sha256,
    }),
    ..ManagedDatabase::new::<Redis>(services, reports, secured)
};

impl ManagedClusterKind for Redis {
    const DATABASE: &'static ManagedDatabase = &DATABASE;
    const DEFAULT_UID: i64 = 999;

    fn default_image(version: &str) -> String {
        format!("docker.io/redis:{version}")
    }

    fn unsupported_version_message(version: &str) -> Option<String> {
        unsupported(version)
    }
}

fn services(desired: &DesiredCluster) -> Vec<ClusterService> {
    let service = |part: &str, reach, marks| {
        let name = format!("redis-{}-{part}", desired.name);
        ClusterService { name, ports: &["redis"], reach, marks, wanted: true }
    };
    vec![
        service("nodes", ServiceExposure::Pods, &[]),
        service("client", ServiceExposure::Client, &[(ROLE, "primary")]),
    ]
}

fn reports(status: &PilotStatus) -> NodeReport {
    let role = role(status);
    let elected = role == Some("primary");
    NodeReport { elected, answered: role.is_some(), ..NodeReport::default() }
}

fn secured(_desired: &DesiredCluster) -> SecuredCondition {
    let message = "no password and no TLS: whoever reaches port 6379 may read, change and delete \
                   all data; keep others out with a NetworkPolicy";
    ("False", "SecurityDisabled", message)
}

fn role(status: &PilotStatus) -> Option<&'static str> {
    let role = status.part::<RedisNode>()?.role;
    ["primary", "replica"].into_iter().find(|known| *known == role)
}

fn node_labels(_ordinal: u32, pilot: Option<&Pilot>) -> Vec<NodeLabel> {
    vec![(ROLE.into(), pilot.and_then(|pilot| role(&pilot.status)))]
}

#[cfg(test)]
mod tests {
    use navigator::controller::ObjectSettings;
    use serde_json::json;

    use super::{super::kind::PilotRedisStatus, *};

    #[test]
    fn clients_are_led_to_the_primary() {
        let object = serde_json::from_value(json!({
            "apiVersion": "navigator.jetstack.io/v1beta1", "kind": "RedisCluster",
            "metadata": {"name": "shop", "namespace": "db"},
            "spec": {"version": "7.0.15", "nodePools": [{"name": "a", "replicas": 3}]},
        }));
        let settings = ObjectSettings {
            pilot_image: "navigator:1".into(),
            store_id: "s".into(),
            owner_references: false,
        };
        let desired = (DATABASE.desired)(&object.unwrap(), &settings, None).unwrap();
        assert_eq!(desired.image.reference, "docker.io/redis:7.0.15");
        assert_eq!((&*desired.pools[0].set, desired.pools[0].replicas), ("redis-shop-a", 3));
        let client = services(&desired).pop().unwrap();
        assert_eq!(client.name, "redis-shop-client");
        let mut pilot = Pilot::default();
        assert_eq!(node_labels(0, Some(&pilot)), [(ROLE.into(), None)]);
        let role = "primary".to_owned();
        let status = PilotRedisStatus { role, ..PilotRedisStatus::default() };
        pilot.status.set_part::<RedisNode>(&status);
        let labels = node_labels(0, Some(&pilot));
        assert_eq!(labels[0].1.map(|value| (&*labels[0].0, value)).as_slice(), client.marks);
    }
}
