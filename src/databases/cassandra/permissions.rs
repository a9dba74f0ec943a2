//! Rights on data by Cassandra's names, and the texts by which its tables name what they are on.

use std::collections::BTreeSet;

use super::v1beta1::CassandraGrant;
use crate::api::validation::releases::MinorVersion;

/// Stands for all keyspaces in a grant.
pub(super) const EVERYWHERE: &str = "*";
/// The right that no table has.
pub(super) const CREATE: &str = "CREATE";
/// Stands for all rights on something.
const ALL: &str = "ALL";
/// Rights that every version knows.
const BASIC: [&str; 6] = ["ALTER", "AUTHORIZE", CREATE, "DROP", "MODIFY", "SELECT"];
/// Rights to see what columns mask, and the first version with them.
const MASKING: [&str; 2] = ["SELECT_MASKED", "UNMASK"];
pub(super) const MASKING_SINCE: MinorVersion = (5, 0);

/// Returns the words that a grant may have in a version.
pub(super) fn valid_permissions(version: MinorVersion) -> Vec<&'static str> {
    [ALL].into_iter().chain(version_rights(version)).collect()
}

fn version_rights(version: MinorVersion) -> impl Iterator<Item = &'static str> {
    let masking = (version >= MASKING_SINCE).then_some(MASKING);
    BASIC.into_iter().chain(masking.into_iter().flatten())
}

/// Returns what a grant is on, as `system_auth` names it.
pub(super) fn resource_name(grant: &CassandraGrant) -> String {
    let CassandraGrant { permissions: _, keyspace, table } = grant;
    match table {
        _ if keyspace == EVERYWHERE => DATA.to_owned(),
        None => format!("{DATA}/{keyspace}"),
        Some(table) => format!("{DATA}/{keyspace}/{table}"),
    }
}

/// What the names of data begin with, in `system_auth`: those of functions and of roles do not.
const DATA: &str = "data";

/// Is that the name of all data, of a keyspace or of a table?
pub(super) fn is_data(resource: &str) -> bool {
    resource == DATA || resource.strip_prefix(DATA).is_some_and(|rest| rest.starts_with('/'))
}

/// Returns the rights of a grant in a version; those that the version has not are left out.
pub(super) fn granted_rights(
    grant: &CassandraGrant,
    version: MinorVersion,
) -> BTreeSet<&'static str> {
    let CassandraGrant { permissions, keyspace: _, table } = grant;
    let has_permission = |word: &str| permissions.iter().any(|permission| permission == word);
    version_rights(version)
        .filter(|right| *right != CREATE || table.is_none())
        .filter(|right| has_permission(ALL) || has_permission(right))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grant(permissions: &[&str], keyspace: &str, table: Option<&str>) -> CassandraGrant {
        CassandraGrant {
            permissions: permissions.iter().map(|word| (*word).to_owned()).collect(),
            keyspace: keyspace.to_owned(),
            table: table.map(str::to_owned),
        }
    }

    #[test]
    fn data_are_named_as_cassandra_names_them() {
        for (keyspace, table, name) in [
            ("*", None, "data"),
            ("shop", None, "data/shop"),
            ("shop", Some("orders"), "data/shop/orders"),
        ] {
            let name_of = resource_name(&grant(&["ALL"], keyspace, table));
            assert!(name_of == name && is_data(name), "{name_of}");
        }
        for other in ["roles", "roles/app", "functions/shop", "mbean", "database"] {
            assert!(!is_data(other), "{other}");
        }
    }

    #[test]
    fn all_are_those_that_there_are_on_that_in_that_version() {
        let granted = |words: &[&str], table, version| {
            granted_rights(&grant(words, "shop", table), version)
                .into_iter()
                .collect::<Vec<_>>()
                .join(" ")
        };
        let basic = "ALTER AUTHORIZE CREATE DROP MODIFY SELECT";
        assert_eq!(granted(&["ALL"], None, (4, 1)), basic);
        assert_eq!(
            granted(&["ALL", "SELECT"], None, (5, 0)),
            format!("{basic} SELECT_MASKED UNMASK")
        );
        assert_eq!(granted(&["ALL"], Some("t"), (4, 1)), "ALTER AUTHORIZE DROP MODIFY SELECT");
        assert_eq!(granted(&["SELECT", "MODIFY"], Some("t"), (5, 0)), "MODIFY SELECT");
        assert_eq!(granted(&["UNMASK"], None, (4, 1)), "");
    }
}
