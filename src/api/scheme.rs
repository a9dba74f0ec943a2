//! The kinds that are served: those of the databases that were handed in, Pilot and LeaderLease.

use super::{
    NAVIGATOR,
    hub::HubKind,
    pilot_part::ErasedPilotPart,
    schema::{KindSchema, SchemaMarkers, SchemaSet},
    v1beta1::{LeaderLease, Pilot},
};
use std::ops::Deref;

use crate::machinery::{served_kind::ServedKind, served_kinds::ServedKinds};

mod typed_kind;

use typed_kind::TypedKind;

/// A database, as the API knows it: its kind of cluster, its part of a Pilot, its schema facts.
#[derive(Debug)]
pub struct ServedDatabase {
    /// The database's kind of cluster.
    pub cluster: KindEntry,
    /// The database's part of a Pilot.
    pub part: ErasedPilotPart,
    /// Facts for the database's schemas that its Rust types cannot express.
    pub rows: SchemaMarkers,
}

/// A kind that a [`Scheme`] can serve.
#[derive(Debug)]
pub struct KindEntry {
    schema: KindSchema,
    serve: fn(&'static SchemaSet) -> &'static dyn ServedKind,
    lease_of: fn(&str) -> Option<String>,
}

impl KindEntry {
    pub const fn new<T: HubKind>() -> Self {
        let names = T::NAMES;
        let schema =
            KindSchema::new(names.kind, names.versions, names.selectable, T::register_schema);
        Self { schema, serve: TypedKind::<T>::new_static, lease_of: names.lease_of }
    }

    /// Returns the name of the kind.
    pub fn kind(&self) -> &'static str {
        self.schema.kind
    }
}

const PILOT: KindEntry = KindEntry::new::<Pilot>();
const LEASE: KindEntry = KindEntry::new::<LeaderLease>();

/// The kinds of Navigator's group, as every role knows them: what is served, and which of it are
/// clusters. A scheme is leaked on purpose: it lives as long as the process.
#[derive(Debug)]
pub struct Scheme {
    /// The served kinds; the clusters of the databases come first.
    served: &'static ServedKinds,
    clusters: usize,
    leases: Vec<fn(&str) -> Option<String>>,
    schemas: &'static SchemaSet,
}

impl Deref for Scheme {
    type Target = ServedKinds;

    fn deref(&self) -> &ServedKinds {
        self.served
    }
}

impl Scheme {
    /// Returns a scheme of the cluster kinds of `databases`, in their order, then Pilot and
    /// LeaderLease.
    pub fn new(databases: &[&'static ServedDatabase]) -> &'static Self {
        let entries: Vec<&'static KindEntry> =
            databases.iter().map(|database| &database.cluster).chain([&PILOT, &LEASE]).collect();
        let schemas = SchemaSet::new(
            entries.iter().map(|entry| entry.schema).collect(),
            databases.len(),
            databases.iter().map(|database| &database.part).collect(),
            databases.iter().map(|database| &database.rows).collect(),
        );
        let schemas: &'static SchemaSet = Box::leak(Box::new(schemas));
        let kinds = entries.iter().map(|entry| (entry.serve)(schemas)).collect();
        let served = ServedKinds::new(&NAVIGATOR, schemas, kinds);
        let leases = databases.iter().map(|database| database.cluster.lease_of).collect();
        Box::leak(Box::new(Self { served, clusters: databases.len(), leases, schemas }))
    }

    /// Returns what a server serves.
    pub fn served_kinds(&self) -> &'static ServedKinds {
        self.served
    }

    /// Returns the kinds of clusters, one for each database.
    pub fn cluster_kinds(&self) -> impl Iterator<Item = &'static dyn ServedKind> {
        self.served.kinds()[..self.clusters].iter().copied()
    }

    /// Returns the names that the LeaderLease may have of a cluster whose pods run as ServiceAccount
    /// `account`: one for each database that would call an account so.
    pub fn leases_of(&self, account: &str) -> impl Iterator<Item = String> {
        self.leases.iter().filter_map(move |lease_of| lease_of(account))
    }

    pub fn schemas(&self) -> &'static SchemaSet {
        self.schemas
    }
}
