//! The kinds that an API server serves: those of the group that it is made for, and others beside
//! them.

use serde_json::{Map, Value};

use super::served_kind::{ServedKind, ServedVersion};

/// The group that a server is made for: what its kinds have in common.
#[derive(Debug)]
pub struct ServedGroup {
    pub name: &'static str,
    /// The group's versions, in the order of preference. Objects are stored in the first.
    pub versions: &'static [ServedVersion],
    /// Title of the OpenAPI documents.
    pub title: &'static str,
    /// Prefix of the names of the group's definitions in OpenAPI: the reversed domain of who owns
    /// the types.
    pub definitions: &'static str,
}

impl ServedGroup {
    /// Returns the group with a version, as in `apiVersion`.
    pub fn api_version(&self, version: ServedVersion) -> String {
        format!("{}/{version}", self.name)
    }

    /// Returns the name of the definition of one of the group's types in OpenAPI.
    pub fn definition_name(&self, version: ServedVersion, type_name: &str) -> String {
        format!("{}.{version}.{type_name}", self.definitions)
    }
}

/// The schemas of the group's kinds.
pub trait GroupDefinitions: Send + Sync {
    /// Returns the definitions of `version` by name: the group's own types and what they refer to.
    fn definitions(&self, version: ServedVersion) -> &Map<String, Value>;
}

/// The kinds that a server serves.
pub struct ServedKinds {
    group: &'static ServedGroup,
    definitions: &'static dyn GroupDefinitions,
    kinds: Vec<&'static dyn ServedKind>,
}

impl std::fmt::Debug for ServedKinds {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.kinds.iter().map(|kind| kind.kind())).finish()
    }
}

impl ServedKinds {
    /// Returns the kinds of `group`. The value is leaked on purpose: it lives as long as the process.
    pub fn new(
        group: &'static ServedGroup,
        definitions: &'static dyn GroupDefinitions,
        kinds: Vec<&'static dyn ServedKind>,
    ) -> &'static Self {
        Box::leak(Box::new(Self { group, definitions, kinds }))
    }

    /// Returns these kinds with further ones, which belong to other groups.
    pub fn with_kinds(
        &self,
        other_kinds: impl IntoIterator<Item = &'static dyn ServedKind>,
    ) -> &'static Self {
        let kinds = self.kinds.iter().copied().chain(other_kinds).collect();
        Self::new(self.group, self.definitions, kinds)
    }

    /// Returns the group that the server is made for.
    pub fn group(&self) -> &'static ServedGroup {
        self.group
    }

    /// Returns the definitions of a version of the group.
    pub fn definitions(&self, version: ServedVersion) -> &'static Map<String, Value> {
        self.definitions.definitions(version)
    }

    /// Returns all kinds that are served.
    pub fn kinds(&self) -> &[&'static dyn ServedKind] {
        &self.kinds
    }

    /// Returns the groups, each with its versions in the order of preference; the server's own comes
    /// first.
    pub fn groups(&self) -> Vec<(&'static str, Vec<ServedVersion>)> {
        let mut groups = vec![(self.group.name, self.group.versions.to_vec())];
        for kind in self.kinds.iter().filter(|kind| kind.group() != self.group.name) {
            match groups.iter_mut().find(|(group, _)| *group == kind.group()) {
                Some((_, versions)) => {
                    let new_versions =
                        kind.versions().iter().filter(|version| !versions.contains(version));
                    let new_versions: Vec<_> = new_versions.copied().collect();
                    versions.extend(new_versions);
                }
                None => groups.push((kind.group(), kind.versions().to_vec())),
            }
        }
        groups
    }

    /// Returns the kinds of a version of a group.
    pub fn group_kinds(
        &self,
        group: &str,
        version: ServedVersion,
    ) -> impl Iterator<Item = &'static dyn ServedKind> {
        let kinds = self.kinds.iter().copied();
        kinds.filter(move |kind| kind.group() == group && kind.versions().contains(&version))
    }

    /// Returns the kinds of the server's own group.
    pub fn own_kinds(&self) -> impl Iterator<Item = &'static dyn ServedKind> {
        self.kinds.iter().copied().filter(|kind| kind.group() == self.group.name)
    }

    /// Returns the kind with this group and plural, as they stand in URLs.
    pub fn by_resource(&self, group: &str, plural: &str) -> Option<&'static dyn ServedKind> {
        let mut kinds = self.kinds.iter().copied();
        kinds.find(|kind| kind.group() == group && kind.plural() == plural)
    }

    /// Returns the kind of the server's own group with this plural, as it stands in URLs.
    pub fn by_plural(&self, plural: &str) -> Option<&'static dyn ServedKind> {
        self.own_kinds().find(|kind| kind.plural() == plural)
    }

    /// Returns the kind of the server's own group with this name, as it stands in `kind`.
    pub fn by_kind(&self, name: &str) -> Option<&'static dyn ServedKind> {
        self.own_kinds().find(|kind| kind.kind() == name)
    }
}
