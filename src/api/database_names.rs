//! The names of one database that are a contract: [`DatabaseNames`].

use std::fmt;

use sha2::{Digest, Sha256};

use super::{
    names,
    predicate::{self, Predicate},
};

/// Names by which roles know a database, and users its objects. Changing one is a breaking change.
#[derive(Debug)]
pub struct DatabaseNames {
    /// Kind of the database's clusters: `ExampleCluster`.
    pub kind: &'static str,
    /// Plural of the kind, as in URLs: `exampleclusters`.
    pub plural: &'static str,
    /// Singular of the kind, as in `kubectl get`: `examplecluster`.
    pub singular: &'static str,
    pub short_names: &'static [&'static str],
    /// The database's word in commands, labels and metrics, and the name of its part of a Pilot:
    /// `example`.
    pub word: &'static str,
    /// The database's name as people write it: `Example`.
    pub title: &'static str,
    /// Prefix of the names of a cluster's objects: `ex`.
    pub prefix: &'static str,
    /// Name of the database's container in a pod.
    pub container: &'static str,
    /// The volume that holds a node's data; its claim is named `<volume>-<pod>`.
    pub data_volume: &'static str,
    /// Directory in which the vendor's image keeps data.
    pub data_dir: &'static str,
    /// Key of the label that names the cluster on its objects.
    pub cluster_label: &'static str,
    /// Key of the label that names the node pool.
    pub pool_label: &'static str,
    /// The predicates of this database alone.
    pub predicates: &'static [Predicate],
    /// Names of predicates that `skipPredicates` accepts beside them, and that no step waits for.
    pub without_effect: &'static [&'static str],
    /// Names and numbers of the TCP ports that the database's container lists.
    pub ports: &'static [(&'static str, u16)],
    /// Those of the ports that the nodes of a cluster use among themselves, by name. Clients use the
    /// others.
    pub node_ports: &'static [&'static str],
    /// Returns the name of the LeaderLease that the pilots of a cluster share, from the cluster's
    /// name.
    pub leader_lease: fn(&str) -> String,
    /// What follows prefix and cluster in the name of the Role of a cluster's pilots.
    pub role: &'static str,
    /// What follows prefix and cluster in the names of Services, beside those of pools.
    pub services: &'static [&'static str],
}

/// Kind and name of an object that is made for a cluster.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectName {
    pub kind: &'static str,
    pub name: String,
}

impl fmt::Display for ObjectName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {:?}", self.kind, self.name)
    }
}

impl DatabaseNames {
    /// May `skipPredicates` name this predicate in clusters of the database?
    pub fn is_skippable(&self, predicate: &str) -> bool {
        self.find_predicate(predicate).is_some_and(Predicate::is_skippable)
            || self.without_effect.contains(&predicate)
            || predicate::WITHOUT_EFFECT.contains(&predicate)
    }

    /// Returns the predicate of this name that holds steps up in clusters of the database.
    pub fn find_predicate(&self, name: &str) -> Option<&'static Predicate> {
        self.predicates.iter().chain(predicate::SHARED).find(|predicate| predicate.name == name)
    }

    /// Returns the name of a pool's StatefulSet; pods and Pilots are named `<set>-<ordinal>`.
    pub fn stateful_set(&self, cluster: &str, pool: &str) -> String {
        format!("{}-{cluster}-{pool}", self.prefix)
    }

    /// Returns the name of a cluster's PodDisruptionBudget.
    pub fn disruption_budget(&self, cluster: &str) -> String {
        format!("{}-{cluster}", self.prefix)
    }

    /// Returns the name of a cluster's NetworkPolicy.
    pub fn network_policy(&self, cluster: &str) -> String {
        format!("{}-{cluster}", self.prefix)
    }

    /// Returns the name of the ServiceAccount of a cluster's pods.
    pub fn service_account(&self, cluster: &str) -> String {
        format!("{}-{cluster}", self.prefix)
    }

    /// Returns the name of the Role of a cluster's pilots, and of its binding.
    pub fn pilot_role(&self, cluster: &str) -> String {
        format!("{}-{cluster}{}", self.prefix, self.role)
    }

    /// Returns the name of the Secret with the CA that signs nodes to each other.
    pub fn internode_ca(&self, cluster: &str) -> String {
        format!("{}-{cluster}-internode-ca", self.prefix)
    }

    /// Returns the name of the Secret with the CA that signs nodes to clients.
    pub fn client_ca(&self, cluster: &str) -> String {
        format!("{}-{cluster}-client-ca", self.prefix)
    }

    /// Returns the name of the ConfigMap with the CAs that clients are to trust.
    pub fn ca_bundle(&self, cluster: &str) -> String {
        format!("{}-{cluster}-ca", self.prefix)
    }

    /// Returns the name of the Secret that the pods of a cluster mount.
    pub fn pilot_secret(&self, cluster: &str) -> String {
        format!("{}-{cluster}-pilot", self.prefix)
    }

    /// Returns the name of the Secret of a cluster's administrator, where the spec names none.
    pub fn admin_secret(&self, cluster: &str) -> String {
        format!("{}-{cluster}-admin", self.prefix)
    }

    /// Returns the name of the Secret of a user, where the spec names none. A name that no object of
    /// Kubernetes can have is written otherwise, with digits that tell it from others.
    pub fn user_secret(&self, cluster: &str, user: &str) -> String {
        let is_allowed = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        let mut name: String = user
            .chars()
            .map(|c| c.to_ascii_lowercase())
            .map(|c| if is_allowed(c) { c } else { '-' })
            .collect();
        if name != user || name.ends_with('-') {
            let digest = Sha256::digest(user);
            name.extend(["-".to_owned()]);
            name.extend(digest.iter().take(4).map(|byte| format!("{byte:02x}")));
        }
        format!("{}-{cluster}-user-{name}", self.prefix)
    }

    /// Returns the names of the objects that may be made for a cluster, beside those of its pools and
    /// users.
    pub fn cluster_objects(&self, cluster: &str) -> Vec<ObjectName> {
        let role = self.pilot_role(cluster);
        let mut objects = vec![
            ObjectName { kind: "PodDisruptionBudget", name: self.disruption_budget(cluster) },
            ObjectName { kind: "NetworkPolicy", name: self.network_policy(cluster) },
            ObjectName { kind: "ServiceAccount", name: self.service_account(cluster) },
            ObjectName { kind: "Role", name: role.clone() },
            ObjectName { kind: "RoleBinding", name: role },
            ObjectName { kind: "LeaderLease", name: (self.leader_lease)(cluster) },
            ObjectName { kind: "ConfigMap", name: self.ca_bundle(cluster) },
        ];
        let secrets = [
            self.internode_ca(cluster),
            self.client_ca(cluster),
            self.pilot_secret(cluster),
            self.admin_secret(cluster),
        ];
        objects.extend(secrets.map(|name| ObjectName { kind: "Secret", name }));
        let service = |end: &&str| format!("{}-{cluster}{end}", self.prefix);
        let services = self.services.iter().map(service);
        objects.extend(services.map(|name| ObjectName { kind: "Service", name }));
        objects
    }

    /// Returns the names of the objects that are made for a pool. Those of its pods, Pilots and
    /// claims follow from the StatefulSet's, and no two sets have one of them in common: a number is
    /// what comes last.
    pub fn pool_objects(&self, cluster: &str, pool: &str) -> [ObjectName; 2] {
        let set = self.stateful_set(cluster, pool);
        let service = names::pods_service(&set);
        [
            ObjectName { kind: "StatefulSet", name: set },
            ObjectName { kind: "Service", name: service },
        ]
    }

    /// Returns the name of the object that is made for a user, where the spec names no Secret.
    pub fn user_object(&self, cluster: &str, user: &str) -> ObjectName {
        ObjectName { kind: "Secret", name: self.user_secret(cluster, user) }
    }

    /// Returns the name of the LeaderLease of the cluster whose pods run as ServiceAccount
    /// `account`; `None` for an account that is not of this database.
    pub fn lease_of(&self, account: &str) -> Option<String> {
        let cluster = account.strip_prefix(self.prefix)?.strip_prefix('-')?;
        Some((self.leader_lease)(cluster))
    }
}
