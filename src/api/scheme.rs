//! The kinds that are served: those of the databases that were handed in, Pilot and LeaderLease.

use super::{
    GROUP,
    hub::HubKind,
    pilot_part::ErasedPilotPart,
    schema::{KindSchema, SchemaMarkers, SchemaSet},
    v1beta1::{LeaderLease, Pilot},
};
use crate::machinery::served_kind::{ServedKind, ServedVersion};

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
}

impl KindEntry {
    pub const fn new<T: HubKind>() -> Self {
        let names = T::NAMES;
        let schema = KindSchema::new(names.kind, names.versions, names.selectable, T::schema);
        Self { schema, serve: TypedKind::<T>::leaked }
    }

    /// Returns the name of the kind.
    pub fn kind(&self) -> &'static str {
        self.schema.kind
    }
}

const PILOT: KindEntry = KindEntry::new::<Pilot>();
const LEASE: KindEntry = KindEntry::new::<LeaderLease>();

/// The kinds that a server serves. A scheme is leaked on purpose: it lives as long as the process.
pub struct Scheme {
    /// The served kinds; the clusters of the databases come first.
    kinds: Vec<&'static dyn ServedKind>,
    clusters: usize,
    schemas: &'static SchemaSet,
}

impl std::fmt::Debug for Scheme {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.kinds.iter().map(|kind| kind.kind())).finish()
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
        Box::leak(Box::new(Self { kinds, clusters: databases.len(), schemas }))
    }

    /// Returns this scheme with further kinds, which do not belong to Navigator's group.
    pub fn with(&self, others: impl IntoIterator<Item = &'static dyn ServedKind>) -> &'static Self {
        let kinds = self.kinds.iter().copied().chain(others).collect();
        Box::leak(Box::new(Self { kinds, clusters: self.clusters, schemas: self.schemas }))
    }

    /// Returns the served kinds.
    pub fn kinds(&self) -> &[&'static dyn ServedKind] {
        &self.kinds
    }

    /// Returns the groups, each with its versions in the order of preference; Navigator's comes
    /// first.
    pub fn groups(&self) -> Vec<(&'static str, Vec<ServedVersion>)> {
        let mut groups = vec![(GROUP, ServedVersion::ALL.to_vec())];
        for kind in self.kinds.iter().filter(|kind| kind.group() != GROUP) {
            match groups.iter_mut().find(|(group, _)| *group == kind.group()) {
                Some((_, versions)) => {
                    let new = kind.versions().iter().filter(|version| !versions.contains(version));
                    let new: Vec<_> = new.copied().collect();
                    versions.extend(new);
                }
                None => groups.push((kind.group(), kind.versions().to_vec())),
            }
        }
        groups
    }

    /// Returns the kinds of a version of a group.
    pub fn served(
        &self,
        group: &str,
        version: ServedVersion,
    ) -> impl Iterator<Item = &'static dyn ServedKind> {
        let kinds = self.kinds.iter().copied();
        kinds.filter(move |kind| kind.group() == group && kind.versions().contains(&version))
    }

    /// Returns the kinds of Navigator's group.
    pub fn ours(&self) -> impl Iterator<Item = &'static dyn ServedKind> {
        self.kinds.iter().copied().filter(|kind| kind.group() == GROUP)
    }

    /// Returns the kind with this group and plural, as they stand in URLs.
    pub fn by_resource(&self, group: &str, plural: &str) -> Option<&'static dyn ServedKind> {
        let mut kinds = self.kinds.iter().copied();
        kinds.find(|kind| kind.group() == group && kind.plural() == plural)
    }

    /// Returns the kind of Navigator's group with this plural, as it stands in URLs.
    pub fn by_plural(&self, plural: &str) -> Option<&'static dyn ServedKind> {
        self.ours().find(|kind| kind.plural() == plural)
    }

    /// Returns the kind of Navigator's group with this name, such as `Pilot`.
    pub fn by_kind(&self, name: &str) -> Option<&'static dyn ServedKind> {
        self.ours().find(|kind| kind.kind() == name)
    }

    /// Returns the kinds of clusters, one for each database.
    pub fn clusters(&self) -> impl Iterator<Item = &'static dyn ServedKind> {
        self.kinds[..self.clusters].iter().copied()
    }

    pub fn schemas(&self) -> &'static SchemaSet {
        self.schemas
    }
}
