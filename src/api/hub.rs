//! The four kinds in hub form and what tells them apart, for the table in [`super::scheme`].

use k8s_openapi::{Metadata, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use schemars::JsonSchema;
use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;

use super::{
    conversion::{self, surplus},
    defaults, printer,
    scheme::{Column, DecodeError, Part, Verdict, Version},
    v1alpha1,
    v1beta1::{CassandraCluster, ElasticsearchCluster, LeaderLease, Pilot},
    validation,
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
pub(super) trait Hub:
    Clone + Serialize + DeserializeOwned + Metadata<Ty = ObjectMeta> + 'static
{
    const NAMES: Names;

    /// Lifts a normalised body of v1alpha1. The surplus is that of `stored`; a new object brings
    /// its own in the annotation.
    fn from_older(body: &Value, stored: Option<Self>) -> Result<Self, DecodeError>;
    /// The object as v1alpha1 shows it, surplus in the annotation; without apiVersion and kind.
    fn into_older(self) -> Value;
    /// Writes defaults and the canonical form. `stored` is the object that is being updated.
    fn default(&mut self, stored: Option<&Self>);
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

    fn from_older(body: &Value, stored: Option<Self>) -> Result<Self, DecodeError> {
        from_older(
            body,
            stored,
            conversion::elasticsearch::project,
            conversion::elasticsearch::lift,
        )
    }

    fn into_older(self) -> Value {
        into_older(self, conversion::elasticsearch::project)
    }

    fn default(&mut self, stored: Option<&Self>) {
        defaults::elasticsearch(self, stored);
    }

    fn validate_create(&self, version: Version) -> Verdict {
        validation::elasticsearch::validate_create(version, self)
    }

    fn validate_update(&self, version: Version, part: Part, old: &Self) -> Verdict {
        validation::elasticsearch::validate_update(version, part, self, old)
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

    fn from_older(body: &Value, stored: Option<Self>) -> Result<Self, DecodeError> {
        from_older(body, stored, conversion::cassandra::project, conversion::cassandra::lift)
    }

    fn into_older(self) -> Value {
        into_older(self, conversion::cassandra::project)
    }

    fn default(&mut self, stored: Option<&Self>) {
        defaults::cassandra(self, stored);
    }

    fn validate_create(&self, version: Version) -> Verdict {
        validation::cassandra::validate_create(version, self)
    }

    fn validate_update(&self, version: Version, part: Part, old: &Self) -> Verdict {
        validation::cassandra::validate_update(version, part, self, old)
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

    fn from_older(body: &Value, stored: Option<Self>) -> Result<Self, DecodeError> {
        from_older(body, stored, conversion::pilot::project, conversion::pilot::lift)
    }

    fn into_older(self) -> Value {
        into_older(self, conversion::pilot::project)
    }

    fn default(&mut self, _stored: Option<&Self>) {
        defaults::pilot(self);
    }

    fn validate_create(&self, version: Version) -> Verdict {
        validation::pilot::validate_create(version, self)
    }

    fn validate_update(&self, version: Version, part: Part, old: &Self) -> Verdict {
        validation::pilot::validate_update(version, part, self, old)
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

    /// Never asked for: `versions` does not name v1alpha1.
    fn from_older(body: &Value, _stored: Option<Self>) -> Result<Self, DecodeError> {
        typed("LeaderLease", Version::V1alpha1, body)
    }

    /// Never asked for: `versions` does not name v1alpha1.
    fn into_older(self) -> Value {
        serde_json::to_value(self).expect("wire types have string keys")
    }

    fn default(&mut self, _stored: Option<&Self>) {
        defaults::metadata(&mut self.metadata);
    }

    fn validate_create(&self, version: Version) -> Verdict {
        validation::lease::validate_create(version, self)
    }

    fn validate_update(&self, version: Version, part: Part, old: &Self) -> Verdict {
        validation::lease::validate_update(version, part, self, old)
    }
}

fn from_older<H, A, S>(
    body: &Value,
    stored: Option<H>,
    project: fn(H) -> (A, S),
    lift: fn(A, S) -> H,
) -> Result<H, DecodeError>
where
    H: Hub,
    A: DeserializeOwned + OlderMetadata,
    S: Default + DeserializeOwned + JsonSchema,
{
    let mut older: A = typed(H::NAMES.kind, Version::V1alpha1, body)?;
    let surplus = match stored {
        Some(stored) => project(stored).1,
        None => {
            surplus::read(older.metadata()).map_err(|error| DecodeError::Invalid(vec![error]))?
        }
    };
    conversion::drop_annotation(older.metadata());
    Ok(lift(older, surplus))
}

fn into_older<H, A, S>(hub: H, project: fn(H) -> (A, S)) -> Value
where
    A: Serialize + OlderMetadata,
    S: Serialize + Default + PartialEq,
{
    let (mut older, surplus) = project(hub);
    surplus::show(older.metadata(), &surplus);
    serde_json::to_value(older).expect("wire types have string keys and no failing fields")
}

/// The typed object, or why the body is none.
pub(super) fn typed<T: DeserializeOwned>(
    kind: &str,
    version: Version,
    value: &Value,
) -> Result<T, DecodeError> {
    T::deserialize(value).map_err(|error| {
        DecodeError::Malformed(format!(
            "{kind} in version {:?} cannot be handled as a {kind}: {error}",
            version.as_str()
        ))
    })
}

/// Metadata of an object of the older version.
trait OlderMetadata {
    fn metadata(&mut self) -> &mut ObjectMeta;
}

impl OlderMetadata for v1alpha1::ElasticsearchCluster {
    fn metadata(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

impl OlderMetadata for v1alpha1::CassandraCluster {
    fn metadata(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

impl OlderMetadata for v1alpha1::Pilot {
    fn metadata(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}
