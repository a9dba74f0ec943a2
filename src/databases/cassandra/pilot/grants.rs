//! Rights on data that the roles of the spec have, as rows of `system_auth`. Pure.
//!
//! Rows are written also where a statement could say the same: a statement is refused by a ring that
//! asks nobody for a password, and for a keyspace that is not there yet. The tables are those of
//! `CassandraAuthorizer` in 4.1 and 5.0.

use std::collections::{BTreeMap, BTreeSet};

use super::cql::{Consistency, CqlRows, CqlStatement, quote_text};
use crate::{
    api::validation::releases::MinorVersion,
    databases::cassandra::{
        permissions::{self, is_data},
        v1beta1::CassandraRights,
    },
};

const GRANTS: &str = "system_auth.role_permissions";
/// Which roles have rights on something. The name is Cassandra's.
const INDEX: &str = "system_auth.resource_role_permissons_index";

/// Rights by what they are on.
type Rights = BTreeMap<String, BTreeSet<String>>;

/// Rights of roles, by the names of the roles.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct RingGrants(BTreeMap<String, Rights>);

/// Asks for the rights of all roles.
pub(super) fn grants_statement() -> CqlStatement {
    let text = format!("SELECT role, resource, permissions FROM {GRANTS}");
    CqlStatement::new(text, Consistency::LocalQuorum)
}

impl RingGrants {
    /// Reads the answer to [`grants_statement`].
    pub(super) fn from_rows(answer: &CqlRows) -> Self {
        let mut grants = Self::default();
        for row in answer.iter() {
            if let (Some(role), Some(resource)) = (row.text("role"), row.text("resource")) {
                grants.add(role, resource, row.text_list("permissions"));
            }
        }
        grants
    }

    fn add<'a>(&mut self, role: &str, resource: &str, rights: impl IntoIterator<Item = &'a str>) {
        let of_role = self.0.entry(role.to_owned()).or_default();
        let resource_rights = of_role.entry(resource.to_owned()).or_default();
        resource_rights.extend(rights.into_iter().map(str::to_owned));
    }

    /// Returns the rows to delete, so that `role` has no rights of its own, whatever they are on.
    pub(super) fn revoke_statements(&self, role: &str) -> Vec<String> {
        let resources = self.0.get(role).into_iter().flat_map(Rights::keys);
        resources.flat_map(|resource| row_statements(role, resource, &BTreeSet::new())).collect()
    }

    /// Returns the rows to write, so that `role` has these rights on data and no others. `version`: the
    /// lowest that a node of the ring runs, which must know each word.
    pub(super) fn change_statements(
        &self,
        role: &str,
        desired: &CassandraRights,
        version: MinorVersion,
    ) -> Vec<String> {
        let mut target = Self::default();
        for grant in &desired.grants {
            let rights = permissions::granted_rights(grant, version);
            target.add(role, &permissions::resource_name(grant), rights);
        }
        let no_rights = Rights::new();
        let (current, target) =
            (self.0.get(role).unwrap_or(&no_rights), target.0.get(role).unwrap_or(&no_rights));
        let resources = current.keys().chain(target.keys()).filter(|resource| is_data(resource));
        let resources: BTreeSet<&String> = resources.collect();
        let rights =
            |source: &Rights, resource: &String| source.get(resource).cloned().unwrap_or_default();
        let change = |resource: &String| {
            let desired_rights = rights(target, resource);
            (desired_rights != rights(current, resource))
                .then(|| row_statements(role, resource, &desired_rights))
        };
        resources.into_iter().filter_map(change).flatten().collect()
    }
}

/// Returns the rows by which a role has these rights on something.
fn row_statements(role: &str, resource: &str, rights: &BTreeSet<String>) -> [String; 2] {
    let [role, resource] = [role, resource].map(quote_text);
    if rights.is_empty() {
        let place = format!("role = {role} AND resource = {resource}");
        return [GRANTS, INDEX].map(|table| format!("DELETE FROM {table} WHERE {place}"));
    }
    let words = rights.iter().map(|right| quote_text(right)).collect::<Vec<_>>().join(", ");
    [
        format!(
            "INSERT INTO {GRANTS} (role, resource, permissions) VALUES ({role}, {resource}, {{{words}}})"
        ),
        format!("INSERT INTO {INDEX} (resource, role) VALUES ({resource}, {role})"),
    ]
}

#[cfg(test)]
impl RingGrants {
    /// Rights of a ring, as rows of role, name of data, and rights.
    pub(super) fn of(rows: &[(&str, &str, &[&str])]) -> Self {
        let mut grants = Self::default();
        for (role, resource, rights) in rows {
            grants.add(role, resource, rights.iter().copied());
        }
        grants
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn mend(has: &[(&str, &str, &[&str])], grants: &Value, version: MinorVersion) -> Vec<String> {
        let wanted = serde_json::from_value(json!({ "grants": grants })).unwrap();
        RingGrants::of(has).change_statements("shop", &wanted, version)
    }

    fn both(resource: &str, words: &str) -> Vec<String> {
        vec![
            format!(
                "INSERT INTO system_auth.role_permissions (role, resource, permissions) VALUES \
                 ('shop', '{resource}', {{{words}}})"
            ),
            format!(
                "INSERT INTO system_auth.resource_role_permissons_index (resource, role) VALUES \
                 ('{resource}', 'shop')"
            ),
        ]
    }

    #[test]
    fn rights_are_what_the_spec_says_and_no_others_on_data() {
        let grants = json!([
            {"permissions": ["SELECT"], "keyspace": "shop"},
            {"permissions": ["MODIFY"], "keyspace": "shop"},
            {"permissions": ["SELECT"], "keyspace": "stock", "table": "items"},
        ]);
        let all = [both("data/shop", "'MODIFY', 'SELECT'"), both("data/stock/items", "'SELECT'")];
        assert_eq!(mend(&[], &grants, (5, 0)), all.concat());
        let has: &[(&str, &str, &[&str])] = &[
            ("shop", "data/shop", &["MODIFY", "SELECT"]),
            ("shop", "data/stock/items", &["DROP", "SELECT"]),
            ("shop", "data", &["SELECT"]),
            ("shop", "functions/shop", &["EXECUTE"]),
            ("other", "data/shop", &["DROP"]),
        ];
        let gone = ["role_permissions", "resource_role_permissons_index"].map(|table| {
            format!("DELETE FROM system_auth.{table} WHERE role = 'shop' AND resource = 'data'")
        });
        let expected = [gone.to_vec(), both("data/stock/items", "'SELECT'")].concat();
        assert_eq!(mend(has, &grants, (5, 0)), expected);
        assert_eq!(mend(&has[..1], &json!([grants[0], grants[1]]), (5, 0)), [""; 0]);
        // Of one that is to have none, all are taken.
        let on = ["data", "data/shop", "data/stock/items", "functions/shop"];
        let removed = on.map(|on| {
            ["role_permissions", "resource_role_permissons_index"].map(|table| {
                format!("DELETE FROM system_auth.{table} WHERE role = 'shop' AND resource = '{on}'")
            })
        });
        assert_eq!(RingGrants::of(has).revoke_statements("shop"), removed.concat());
        assert_eq!(RingGrants::of(has).revoke_statements("nobody"), [""; 0]);
    }

    #[test]
    fn a_word_that_some_node_does_not_know_is_not_written() {
        let grants = json!([{"permissions": ["UNMASK", "SELECT"], "keyspace": "*"}]);
        assert_eq!(mend(&[], &grants, (4, 1)), both("data", "'SELECT'"));
        assert_eq!(mend(&[], &grants, (5, 0)), both("data", "'SELECT', 'UNMASK'"));
        // A row without a right that the version knows is none.
        let grants = json!([{"permissions": ["UNMASK"], "keyspace": "*"}]);
        assert_eq!(mend(&[], &grants, (4, 1)), [""; 0]);
    }
}
