//! The kinds that are served: those of the databases that were handed in, Pilot and LeaderLease.

use super::{
    hub::Hub,
    kind::Kind,
    pilot_part::Part,
    schema::{KindSchema, Rows, Schemas},
    v1beta1::{LeaderLease, Pilot},
};

mod served;

use served::Served;

/// A database, as the API knows it.
#[derive(Debug)]
pub struct ServedDatabase {
    /// Its kind of cluster.
    pub cluster: Entry,
    /// Its part of a Pilot.
    pub part: Part,
    /// What its schemas say beyond its types.
    pub rows: Rows,
}

/// A kind that can be served.
#[derive(Debug)]
pub struct Entry {
    schema: KindSchema,
    serve: fn(&'static Schemas) -> &'static dyn Kind,
}

impl Entry {
    pub const fn new<T: Hub>() -> Self {
        let names = T::NAMES;
        let schema = KindSchema::new(names.kind, names.versions, names.selectable, T::schema);
        Self { schema, serve: Served::<T>::leaked }
    }

    /// The name of the kind.
    pub fn kind(&self) -> &'static str {
        self.schema.kind
    }
}

const PILOT: Entry = Entry::new::<Pilot>();
const LEASE: Entry = Entry::new::<LeaderLease>();

/// What a server serves. Made once, for as long as the process lives.
pub struct Scheme {
    /// Those of the databases first.
    kinds: Vec<&'static dyn Kind>,
    clusters: usize,
    schemas: &'static Schemas,
}

impl std::fmt::Debug for Scheme {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.kinds.iter().map(|kind| kind.kind())).finish()
    }
}

impl Scheme {
    /// The kinds of these databases, in their order, and those that belong to none.
    pub fn new(databases: &[&'static ServedDatabase]) -> &'static Self {
        let entries: Vec<&'static Entry> =
            databases.iter().map(|database| &database.cluster).chain([&PILOT, &LEASE]).collect();
        let schemas = Schemas::new(
            entries.iter().map(|entry| entry.schema).collect(),
            databases.len(),
            databases.iter().map(|database| &database.part).collect(),
            databases.iter().map(|database| &database.rows).collect(),
        );
        let schemas: &'static Schemas = Box::leak(Box::new(schemas));
        let kinds = entries.iter().map(|entry| (entry.serve)(schemas)).collect();
        Box::leak(Box::new(Self { kinds, clusters: databases.len(), schemas }))
    }

    /// Every kind that is served.
    pub fn kinds(&self) -> &[&'static dyn Kind] {
        &self.kinds
    }

    /// The kind whose plural, as it stands in URLs, is this.
    pub fn by_plural(&self, plural: &str) -> Option<&'static dyn Kind> {
        self.kinds.iter().copied().find(|kind| kind.plural() == plural)
    }

    /// The kind of this name: `Pilot`.
    pub fn by_kind(&self, name: &str) -> Option<&'static dyn Kind> {
        self.kinds.iter().copied().find(|kind| kind.kind() == name)
    }

    /// Kinds of clusters: those of the databases.
    pub fn clusters(&self) -> impl Iterator<Item = &'static dyn Kind> {
        self.kinds[..self.clusters].iter().copied()
    }

    pub fn schemas(&self) -> &'static Schemas {
        self.schemas
    }
}
