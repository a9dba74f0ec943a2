//! The names of one database that are a contract: [`DatabaseNames`].

/// Names by which every role knows a database, and people its objects. Changing one is a breaking
/// change.
#[derive(Debug)]
pub struct DatabaseNames {
    /// Kind of its clusters: `ExampleCluster`.
    pub kind: &'static str,
    /// Plural of the kind, as in URLs: `exampleclusters`.
    pub plural: &'static str,
    /// `examplecluster`
    pub singular: &'static str,
    pub short_names: &'static [&'static str],
    /// The word in commands, labels and metrics, and the name of its part of a Pilot: `example`.
    pub word: &'static str,
    /// As people write it: `Example`.
    pub title: &'static str,
    /// Begins the names of a cluster's objects: `ex`.
    pub prefix: &'static str,
    /// Name of the database's container in a pod.
    pub container: &'static str,
    /// The volume that holds a node's data; its claim is named `<volume>-<pod>`.
    pub data_volume: &'static str,
    /// Where the vendor's image keeps data.
    pub data_dir: &'static str,
    /// Label that names the cluster on its objects.
    pub cluster_label: &'static str,
    /// Label that names the node pool.
    pub pool_label: &'static str,
    /// Name and number of the TCP ports that the container shows.
    pub ports: &'static [(&'static str, u16)],
    /// Name of the LeaderLease of a cluster's pilots.
    pub leader_lease: fn(&str) -> String,
}

impl DatabaseNames {
    /// StatefulSet of a pool; pods and Pilots are `<set>-<ordinal>`.
    pub fn stateful_set(&self, cluster: &str, pool: &str) -> String {
        format!("{}-{cluster}-{pool}", self.prefix)
    }

    /// PodDisruptionBudget of a cluster.
    pub fn disruption_budget(&self, cluster: &str) -> String {
        format!("{}-{cluster}", self.prefix)
    }

    /// ServiceAccount of a cluster's pods.
    pub fn service_account(&self, cluster: &str) -> String {
        format!("{}-{cluster}", self.prefix)
    }

    /// The LeaderLease of the cluster whose pods run as this ServiceAccount.
    pub fn lease_of(&self, account: &str) -> Option<String> {
        let cluster = account.strip_prefix(self.prefix)?.strip_prefix('-')?;
        Some((self.leader_lease)(cluster))
    }
}
