//! The four kinds in hub form and what tells them apart, for the table in [`super::scheme`].

use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;

use super::{
    printer,
    scheme::{Column, Part, Verdict, Version},
    v1beta1::{CassandraCluster, ElasticsearchCluster, LeaderLease, Pilot},
};

/// Names by which a kind is addressed.
pub(super) struct Names {
    pub(super) kind: &'static str,
    pub(super) plural: &'static str,
    pub(super) singular: &'static str,
    pub(super) short: &'static [&'static str],
    pub(super) categories: &'static [&'static str],
    pub(super) versions: &'static [Version],
    pub(super) has_status: bool,
    /// Field selectors beside metadata's.
    pub(super) selectable: &'static [&'static str],
    pub(super) columns: &'static [Column],
    pub(super) cells: fn(&Value, i64) -> Vec<Value>,
}

/// A kind in hub form.
pub(super) trait Hub: Serialize + DeserializeOwned + 'static {
    const NAMES: Names;

    fn validate_create(&self, version: Version) -> Verdict;
    fn validate_update(&self, version: Version, part: Part, old: &Self) -> Verdict;
}

const BOTH: &[Version] = &[Version::V1beta1, Version::V1alpha1];

impl Hub for ElasticsearchCluster {
    const NAMES: Names = Names {
        kind: "ElasticsearchCluster",
        plural: "elasticsearchclusters",
        singular: "elasticsearchcluster",
        short: &["esc", "elasticsearch"],
        categories: &["navigator", "databases"],
        versions: BOTH,
        has_status: true,
        selectable: &["status.phase", "spec.version"],
        columns: printer::ELASTICSEARCH,
        cells: printer::elasticsearch,
    };

    fn validate_create(&self, _version: Version) -> Verdict {
        Verdict::default()
    }

    fn validate_update(&self, _version: Version, _part: Part, _old: &Self) -> Verdict {
        Verdict::default()
    }
}

impl Hub for CassandraCluster {
    const NAMES: Names = Names {
        kind: "CassandraCluster",
        plural: "cassandraclusters",
        singular: "cassandracluster",
        short: &["cassandra", "cassc"],
        categories: &["navigator", "databases"],
        versions: BOTH,
        has_status: true,
        selectable: &["status.phase", "spec.version"],
        columns: printer::CASSANDRA,
        cells: printer::cassandra,
    };

    fn validate_create(&self, _version: Version) -> Verdict {
        Verdict::default()
    }

    fn validate_update(&self, _version: Version, _part: Part, _old: &Self) -> Verdict {
        Verdict::default()
    }
}

impl Hub for Pilot {
    const NAMES: Names = Names {
        kind: "Pilot",
        plural: "pilots",
        singular: "pilot",
        short: &["pil"],
        categories: &["navigator"],
        versions: BOTH,
        has_status: true,
        selectable: &[
            "spec.clusterRef.kind",
            "spec.clusterRef.name",
            "spec.nodePool",
            "spec.phase",
            "status.phase",
        ],
        columns: printer::PILOT,
        cells: printer::pilot,
    };

    fn validate_create(&self, _version: Version) -> Verdict {
        Verdict::default()
    }

    fn validate_update(&self, _version: Version, _part: Part, _old: &Self) -> Verdict {
        Verdict::default()
    }
}

impl Hub for LeaderLease {
    const NAMES: Names = Names {
        kind: "LeaderLease",
        plural: "leaderleases",
        singular: "leaderlease",
        short: &["ll"],
        categories: &["navigator"],
        versions: &[Version::V1beta1],
        has_status: false,
        selectable: &["spec.holderIdentity"],
        columns: printer::LEASE,
        cells: printer::lease,
    };

    fn validate_create(&self, _version: Version) -> Verdict {
        Verdict::default()
    }

    fn validate_update(&self, _version: Version, _part: Part, _old: &Self) -> Verdict {
        Verdict::default()
    }
}
