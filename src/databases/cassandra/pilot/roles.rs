//! What differs between the roles of a ring and the users that it is to have, and the statements that
//! mend it. Pure.
//!
//! Users of the spec are members of a role without rights that holds the cluster's mark, and its roles
//! of another one. So what is Navigator's is known by the rows alone, and clusters that share a ring
//! leave each other's users and roles alone. Roles that other people made are left alone, too.

use std::collections::BTreeSet;

use serde::Deserialize;

use super::{
    cql::{Consistency, CqlRows, CqlStatement, quote_name, quote_text},
    grants::RingGrants,
};
use crate::{
    api::validation::releases::MinorVersion,
    databases::cassandra::v1beta1::CassandraRights,
    engine::{
        password,
        users::{DocumentedRole, DocumentedUser, OwnLogin, UsersDocument},
    },
};

/// The role that Cassandra makes in a ring without roles, with its own name for a password.
pub(super) const DEFAULT: &str = "cassandra";
/// What the names of the roles begin with that no person made.
const OWN: &str = "navigator_";
/// What the names of the roles begin with that hold together the users of one cluster.
const GROUPS: &str = "navigator_users_";
/// What the names of the roles begin with that hold together the roles of one cluster.
const ROLE_GROUPS: &str = "navigator_roles_";
/// Tables of roles, and of who is a member of what.
const ROLES: &str = "system_auth.roles";
const MEMBERS: &str = "system_auth.role_members";

/// Name of the role with which the pilots of a cluster log in.
pub(super) fn own_name(own_login: &OwnLogin) -> String {
    format!("{OWN}{}", own_login.mark)
}

/// Returns the statement that takes the login of the role away with which the pilots log in. It runs
/// with that very login, which may not take its own other rights.
pub(super) fn close_own(own_login: &OwnLogin) -> String {
    format!("ALTER ROLE {} WITH LOGIN = false", quote_name(&own_name(own_login)))
}

/// Name of the role that all users of a cluster are members of.
fn user_group(own_login: &OwnLogin) -> String {
    format!("{GROUPS}{}", own_login.mark)
}

/// Name of the role that all roles of a cluster are members of.
fn role_group(own_login: &OwnLogin) -> String {
    format!("{ROLE_GROUPS}{}", own_login.mark)
}

/// A row of `system_auth.roles`.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct RoleRow {
    pub(super) name: String,
    pub(super) can_login: bool,
    pub(super) superuser: bool,
    pub(super) hash: Option<String>,
    pub(super) member_of: BTreeSet<String>,
}

/// Asks for all roles.
pub(super) fn roles_statement() -> CqlStatement {
    CqlStatement::new(
        "SELECT role, can_login, is_superuser, salted_hash, member_of FROM system_auth.roles",
        Consistency::LocalQuorum,
    )
}

/// Reads the answer to [`roles_statement`].
pub(super) fn parse_rows(answer: &CqlRows) -> Vec<RoleRow> {
    let row = |row: super::cql::CqlRow<'_>| {
        Some(RoleRow {
            name: row.text("role")?.to_owned(),
            can_login: row.boolean("can_login").unwrap_or_default(),
            superuser: row.boolean("is_superuser").unwrap_or_default(),
            hash: row.text("salted_hash").map(str::to_owned),
            member_of: row.text_list("member_of").into_iter().map(str::to_owned).collect(),
        })
    };
    answer.iter().filter_map(row).collect()
}

/// One thing to do for one role.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct RoleChange {
    /// The role that is changed.
    pub(super) role: String,
    /// The statement, which may hold a hash; `None` where rows say it in any ring.
    pub(super) text: Option<String>,
    /// The same as rows. A ring that asks nobody for a password refuses statements about passwords,
    /// and has the tables all the same.
    pub(super) rows: Vec<String>,
}

impl RoleChange {
    /// Returns what to run. `asks`: the ring asks for passwords.
    pub(super) fn statements(self, requires_password: bool) -> Vec<String> {
        match self.text.filter(|_| requires_password) {
            Some(text) => vec![text],
            None => self.rows,
        }
    }
}

/// What is to be done, and what cannot be.
#[derive(Default)]
pub(super) struct RolePlan {
    pub(super) changes: Vec<RoleChange>,
    /// What a person has to mend, each in a sentence.
    pub(super) troubles: Vec<String>,
}

impl RolePlan {
    fn add_change(&mut self, role: &str, text: String, rows: Vec<String>) {
        self.changes.push(RoleChange { role: role.to_owned(), text: Some(text), rows });
    }

    /// Makes a role without a login and without rights.
    fn create_role(&mut self, role: &str) {
        let row = format!(
            "INSERT INTO {ROLES} (role, can_login, is_superuser) VALUES ({}, false, false)",
            quote_text(role)
        );
        self.add_change(role, format!("CREATE ROLE {}", quote_name(role)), vec![row]);
    }

    /// Gives a role these rights on data, and takes others.
    fn set_rights(
        &mut self,
        role: &str,
        desired: &CassandraRights,
        RingRoles { grants, version, .. }: &RingRoles,
    ) {
        let rows = grants.change_statements(role, desired, *version);
        if !rows.is_empty() {
            self.changes.push(RoleChange { role: role.to_owned(), text: None, rows });
        }
    }

    /// Makes a role, or makes it as it should be.
    fn set_login(&mut self, name: &str, hash: &str, superuser: bool, existing: Option<&RoleRow>) {
        let role = quote_name(name);
        let hashed = format!("HASHED PASSWORD = {}", quote_text(hash));
        let row = format!(
            "INSERT INTO {ROLES} (role, can_login, is_superuser, salted_hash) VALUES ({}, true, \
             {superuser}, {})",
            quote_text(name),
            quote_text(hash)
        );
        let Some(existing) = existing else {
            let text = format!(
                "CREATE ROLE {role} WITH {hashed} AND LOGIN = true AND SUPERUSER = {superuser}"
            );
            return self.add_change(name, text, vec![row]);
        };
        let mut differences = Vec::new();
        if existing.hash.as_deref() != Some(hash) {
            differences.push(hashed);
        }
        if !existing.can_login {
            differences.push("LOGIN = true".to_owned());
        }
        if existing.superuser != superuser {
            differences.push(format!("SUPERUSER = {superuser}"));
        }
        if !differences.is_empty() {
            let text = format!("ALTER ROLE {role} WITH {}", differences.join(" AND "));
            self.add_change(name, text, vec![row]);
        }
    }

    /// Takes the login of a role away, and that it may do everything.
    fn close_role(&mut self, name: &str) {
        let (role, value) = (quote_name(name), quote_text(name));
        self.add_change(
            name,
            format!("ALTER ROLE {role} WITH LOGIN = false AND SUPERUSER = false"),
            vec![format!(
                "UPDATE {ROLES} SET can_login = false, is_superuser = false WHERE role = {value}"
            )],
        );
    }

    /// Takes login, memberships and rights of a user that left the spec: a connection that it holds open
    /// may do nothing any more. It stays, or becomes, a member of the group by which it is known as ours.
    fn remove_user(&mut self, user: &RoleRow, group: &str, grants: &RingGrants) {
        if user.can_login || user.superuser {
            self.close_role(&user.name);
        }
        if !user.member_of.contains(group) {
            self.set_membership(&user.name, group, true);
        }
        for other_group in user.member_of.iter().filter(|other| *other != group) {
            self.set_membership(&user.name, other_group, false);
        }
        let rows = grants.revoke_statements(&user.name);
        if !rows.is_empty() {
            self.changes.push(RoleChange { role: user.name.clone(), text: None, rows });
        }
    }

    /// Makes a role a member of another, or takes it out.
    fn set_membership(&mut self, name: &str, group_name: &str, is_member: bool) {
        let [role, group] = [name, group_name].map(quote_name);
        let [role_value, group_value] = [name, group_name].map(quote_text);
        let update = |sign: &str| {
            format!(
                "UPDATE {ROLES} SET member_of = member_of {sign} {{{group_value}}} WHERE role = {role_value}"
            )
        };
        if is_member {
            let row = format!(
                "INSERT INTO {MEMBERS} (role, member) VALUES ({group_value}, {role_value})"
            );
            self.add_change(name, format!("GRANT {group} TO {role}"), vec![update("+"), row]);
        } else {
            let row = format!(
                "DELETE FROM {MEMBERS} WHERE role = {group_value} AND member = {role_value}"
            );
            self.add_change(name, format!("REVOKE {group} FROM {role}"), vec![update("-"), row]);
        }
    }
}

/// What a ring has.
pub(super) struct RingRoles {
    pub(super) roles: Vec<RoleRow>,
    /// Empty, where [`needs_grants`] says that nothing is to be known of them.
    pub(super) grants: RingGrants,
    /// The lowest version that a node of it runs.
    pub(super) version: MinorVersion,
}

/// Are the rights of roles to be known, to tell what differs?
pub(super) fn needs_grants(
    users: &UsersDocument,
    own_login: &OwnLogin,
    former_login: Option<&OwnLogin>,
    rows: &[RoleRow],
) -> bool {
    let (role_groups, user_groups) = (
        group_names(own_login, former_login, role_group),
        group_names(own_login, former_login, self::user_group),
    );
    let is_declared = |row: &RoleRow| users.users().iter().any(|user| user.name == row.name);
    !users.roles().is_empty()
        || rows.iter().any(|row| {
            !row.member_of.is_disjoint(&role_groups)
                || (!row.member_of.is_disjoint(&user_groups) && !is_declared(row))
        })
}

fn group_names(
    own_login: &OwnLogin,
    former_login: Option<&OwnLogin>,
    group: fn(&OwnLogin) -> String,
) -> BTreeSet<String> {
    [Some(own_login), former_login].into_iter().flatten().map(group).collect()
}

/// Compares what a ring has with what it is to have. `former`: a login that pilots of this cluster
/// had before, which is to be closed, and whose users and roles are ours as well.
pub(super) fn plan_roles(
    users: &UsersDocument,
    own_login: &OwnLogin,
    former_login: Option<&OwnLogin>,
    ring: &RingRoles,
) -> RolePlan {
    let mut plan = RolePlan::default();
    let rows = &ring.roles;
    let find = |name: &str| rows.iter().find(|row| row.name == name);
    let own_role = own_name(own_login);
    plan.set_login(&own_role, &own_login.hash, true, find(&own_role));
    let group = user_group(own_login);
    if find(&group).is_none() {
        plan.create_role(&group);
    }
    let role_group = role_group(own_login);
    if !users.roles().is_empty() && find(&role_group).is_none() {
        plan.create_role(&role_group);
    }
    let role_groups = group_names(own_login, former_login, self::role_group);
    for role in users.roles() {
        self::plan_role(&mut plan, role, &role_group, &role_groups, ring);
    }
    let declared_roles: BTreeSet<&str> =
        users.roles().iter().map(|role| role.name.as_str()).collect();
    for row in rows {
        if !declared_roles.contains(row.name.as_str()) && !row.member_of.is_disjoint(&role_groups) {
            plan.set_rights(&row.name, &CassandraRights::default(), ring);
        }
    }
    let user_groups = group_names(own_login, former_login, self::user_group);
    for user in users.users() {
        self::plan_user(&mut plan, user, &group, &user_groups, &declared_roles, find);
    }
    let declared_users: BTreeSet<&str> =
        users.users().iter().map(|user| user.name.as_str()).collect();
    for row in rows {
        if !row.member_of.is_disjoint(&user_groups) && !declared_users.contains(row.name.as_str()) {
            plan.remove_user(row, &group, &ring.grants);
        }
    }
    // Pilots come in with the present login first, so the former one is closed once that is there.
    let former_role = former_login.map(own_name).filter(|name| *name != own_role);
    let former_role =
        former_role.and_then(|name| find(&name)).filter(|row| row.can_login || row.superuser);
    if let Some(former_role) = former_role.filter(|_| has_own(own_login, rows)) {
        plan.close_role(&former_role.name);
    }
    if find(DEFAULT).is_some_and(|row| row.can_login && has_default_password(row)) {
        plan.close_role(DEFAULT);
    }
    plan
}

/// Keeps a role as the spec has it: without a login, unless somebody gave it one, and with these rights
/// on data. Other rights and memberships of it are people's.
fn plan_role(
    plan: &mut RolePlan,
    role: &DocumentedRole,
    group: &str,
    role_groups: &BTreeSet<String>,
    ring: &RingRoles,
) {
    let DocumentedRole { name, rights } = role;
    let existing = ring.roles.iter().find(|row| row.name == *name);
    let mut member_of = existing.iter().flat_map(|row| &row.member_of);
    let other_group =
        member_of.find(|role| role.starts_with(ROLE_GROUPS) && !role_groups.contains(*role));
    if let Some(other_group) = other_group {
        plan.troubles.push(format!(
            "role {name} is kept by another cluster of this ring ({other_group}): give it another name here"
        ));
        return;
    }
    let rights = match CassandraRights::deserialize(rights) {
        Ok(rights) => rights,
        Err(error) => {
            plan.troubles.push(format!("role {name} cannot be read: {error}"));
            return;
        }
    };
    match existing {
        None => plan.create_role(name),
        Some(existing) if existing.superuser => plan.add_change(
            name,
            format!("ALTER ROLE {} WITH SUPERUSER = false", quote_name(name)),
            vec![format!(
                "UPDATE {ROLES} SET is_superuser = false WHERE role = {}",
                quote_text(name)
            )],
        ),
        Some(_) => {}
    }
    if existing.is_none_or(|row| !row.member_of.contains(group)) {
        plan.set_membership(name, group, true);
    }
    plan.set_rights(name, &rights, ring);
}

fn plan_user<'a>(
    plan: &mut RolePlan,
    user: &DocumentedUser,
    group: &str,
    user_groups: &BTreeSet<String>,
    declared_roles: &BTreeSet<&str>,
    find: impl Fn(&str) -> Option<&'a RoleRow>,
) {
    let DocumentedUser { name, hash, superuser, roles } = user;
    let existing = find(name);
    let member_of = existing.map(|row| row.member_of.clone()).unwrap_or_default();
    if let Some(other_group) =
        member_of.iter().find(|role| role.starts_with(GROUPS) && !user_groups.contains(*role))
    {
        plan.troubles.push(format!(
            "user {name} is kept by another cluster of this ring ({other_group}): give it another name here"
        ));
        return;
    }
    plan.set_login(name, hash, *superuser, existing);
    let desired_roles: BTreeSet<&str> = roles.iter().map(String::as_str).chain([group]).collect();
    for &role in desired_roles.iter().filter(|role| !member_of.contains(**role)) {
        if role != group && !declared_roles.contains(role) && find(role).is_none() {
            plan.troubles.push(format!(
                "user {name} is to have the role {role}, which the ring does not know: create it, \
                 or take it out of the user's roles"
            ));
        } else {
            plan.set_membership(name, role, true);
        }
    }
    for role in member_of.iter().filter(|role| !desired_roles.contains(role.as_str())) {
        plan.set_membership(name, role, false);
    }
}

/// The rows by which a ring begins that nobody can log in to yet, or that are missing in one that others
/// have made (not `begins`) and which has the roles `before`: the role of the pilots, and Cassandra's own
/// role without a login. They hold whatever row Cassandra makes itself, since that one counts as the oldest there
/// can be.
pub(super) fn first_rows(
    own_login: &OwnLogin,
    old_rows: &[RoleRow],
    is_new_ring: bool,
) -> Vec<CqlStatement> {
    let insert = |columns: &str, places: &str| {
        let text = format!("INSERT INTO {ROLES} ({columns}) VALUES ({places})");
        CqlStatement::new(text, Consistency::One)
    };
    let own_row = insert("role, can_login, is_superuser, salted_hash", "?, ?, ?, ?")
        .bind_text(&own_name(own_login))
        .bind_boolean(true)
        .bind_boolean(true)
        .bind_text(&own_login.hash);
    let default_row = insert("role, can_login, is_superuser", "?, ?, ?")
        .bind_text(DEFAULT)
        .bind_boolean(false)
        .bind_boolean(false);
    let default_row = is_default_open(old_rows, is_new_ring).then_some(default_row);
    default_row.into_iter().chain([own_row]).collect()
}

/// May anybody log in as Cassandra's own role, or will it be made? Where it has another password, people
/// use it, and where it is missing in a ring that does not begin, they dropped it.
fn is_default_open(roles: &[RoleRow], is_new_ring: bool) -> bool {
    match roles.iter().find(|row| row.name == DEFAULT) {
        Some(row) if is_new_ring => row.can_login || row.superuser,
        Some(row) => row.can_login && has_default_password(row),
        None => is_new_ring,
    }
}

fn has_default_password(row: &RoleRow) -> bool {
    row.hash.as_deref().is_some_and(|hash| password::verify_bcrypt(DEFAULT, hash))
}

/// Are the rows there of [`first_rows`]?
pub(super) fn are_first_rows_there(
    own_login: &OwnLogin,
    rows: &[RoleRow],
    is_new_ring: bool,
) -> bool {
    has_own(own_login, rows) && !is_default_open(rows, is_new_ring)
}

/// Does the ring know the login of the pilots as it is to?
fn has_own(own_login: &OwnLogin, rows: &[RoleRow]) -> bool {
    let name = own_name(own_login);
    rows.iter().find(|row| row.name == name).is_some_and(|row| {
        row.can_login && row.superuser && row.hash.as_ref() == Some(&own_login.hash)
    })
}

/// Is the role one that Navigator keeps, for this cluster or for another one of its ring: a user or
/// the login of pilots?
pub(super) fn is_kept(row: &RoleRow) -> bool {
    row.name.starts_with(OWN) || row.member_of.iter().any(|group| group.starts_with(GROUPS))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const HASH: &str = "$2a$10$N9qo8uLOickgx2ZMRZoMyeIjZAgcfl7p92ldGxad68LJZdL17lhWy";

    fn own(mark: &str) -> OwnLogin {
        OwnLogin { mark: mark.into(), password: "p".into(), hash: HASH.into() }
    }

    fn user(name: &str, roles: &[&str]) -> DocumentedUser {
        DocumentedUser {
            name: name.into(),
            hash: HASH.into(),
            superuser: false,
            roles: roles.iter().map(|role| (*role).to_owned()).collect(),
        }
    }

    fn row(name: &str, member_of: &[&str]) -> RoleRow {
        RoleRow {
            name: name.into(),
            can_login: true,
            superuser: false,
            hash: Some(HASH.into()),
            member_of: member_of.iter().map(|role| (*role).to_owned()).collect(),
        }
    }

    fn group_row(mark: &str) -> RoleRow {
        let name = user_group(&own(mark));
        RoleRow { name, can_login: false, hash: None, ..row("", &[]) }
    }

    /// A ring as it should be, with the user `app`.
    fn settled() -> Vec<RoleRow> {
        vec![
            RoleRow { superuser: true, ..row("navigator_a", &[]) },
            group_row("a"),
            row("app", &["navigator_users_a"]),
            RoleRow { can_login: false, hash: None, ..row(DEFAULT, &[]) },
        ]
    }

    fn ring(rows: &[RoleRow], grants: &[(&str, &str, &[&str])]) -> RingRoles {
        let roles = rows.to_vec();
        RingRoles { roles, grants: RingGrants::of(grants), version: (5, 0) }
    }

    fn planned(users: Vec<DocumentedUser>, rows: &[RoleRow]) -> (Vec<String>, usize) {
        let document = UsersDocument::new(users, Some(own("a")));
        let RolePlan { changes, troubles } =
            plan_roles(&document, &own("a"), None, &ring(rows, &[]));
        (changes.into_iter().filter_map(|change| change.text).collect(), troubles.len())
    }

    #[test]
    fn a_ring_begins_with_the_role_closed_that_everybody_knows() {
        let text = "INSERT INTO system_auth.roles (role, can_login, is_superuser) VALUES (?, ?, ?)";
        let closed = CqlStatement::new(text, Consistency::One);
        let closed = closed.bind_text("cassandra").bind_boolean(false).bind_boolean(false);
        assert!(first_rows(&own("a"), &[], true)[0] == closed);
    }

    #[test]
    fn only_a_default_role_that_everybody_could_log_in_to_is_closed_in_a_ring_of_others() {
        let default = |hash: &str, can_login| RoleRow {
            can_login,
            hash: Some(hash.to_owned()),
            ..row(DEFAULT, &[])
        };
        let known = password::hash_bcrypt(DEFAULT).unwrap();
        let begins = |rows: &[RoleRow], begins| first_rows(&own("a"), rows, begins).len() == 2;
        for (what, before, is_open) in [
            ("as Cassandra makes it", vec![row("dba", &[]), default(&known, true)], true),
            ("closed", vec![row("dba", &[]), default(&known, false)], false),
            ("with a password of people's", vec![default(HASH, true)], false),
            ("dropped", vec![row("dba", &[])], false),
        ] {
            assert_eq!(begins(&before, false), is_open, "{what}");
        }
        assert!(begins(&[], true) && begins(&[row("navigator_a", &[])], true), "it will be made");
    }

    #[test]
    fn rows_say_what_statements_say_that_a_ring_without_passwords_refuses() {
        let known = RoleRow {
            hash: Some(password::hash_bcrypt(DEFAULT).unwrap()),
            superuser: true,
            ..row(DEFAULT, &[])
        };
        let admin = DocumentedUser { superuser: true, ..user("o'neil", &[]) };
        let document = UsersDocument::new(vec![admin], Some(own("a")));
        let RolePlan { changes, troubles } =
            plan_roles(&document, &own("a"), None, &ring(&[known], &[]));
        assert_eq!(troubles, [""; 0]);
        let rows: Vec<_> = changes.into_iter().flat_map(|change| change.rows).collect();
        let login = |name: &str| {
            format!(
                "INSERT INTO system_auth.roles (role, can_login, is_superuser, salted_hash) VALUES \
                 ('{name}', true, true, '{HASH}')"
            )
        };
        let expected = [
            login("navigator_a"),
            "INSERT INTO system_auth.roles (role, can_login, is_superuser) VALUES \
             ('navigator_users_a', false, false)"
                .to_owned(),
            login("o''neil"),
            "UPDATE system_auth.roles SET member_of = member_of + {'navigator_users_a'} WHERE role \
             = 'o''neil'"
                .to_owned(),
            "INSERT INTO system_auth.role_members (role, member) VALUES ('navigator_users_a', \
             'o''neil')"
                .to_owned(),
            "UPDATE system_auth.roles SET can_login = false, is_superuser = false WHERE role = \
             'cassandra'"
                .to_owned(),
        ];
        assert_eq!(rows, expected);
    }

    #[test]
    fn what_is_as_it_should_be_is_left_alone() {
        assert_eq!(planned(vec![user("app", &[])], &settled()), (vec![], 0));
        // Roles of other people, whatever they may.
        let mut rows = settled();
        rows.push(RoleRow { superuser: true, ..row("dba", &["navigator_users_b"]) });
        rows.push(row("analysts", &[]));
        assert_eq!(planned(vec![user("app", &[])], &rows), (vec![], 0));
    }

    #[test]
    fn a_ring_with_nothing_but_the_pilots_role_gets_its_users() {
        let rows = [settled()[0].clone(), settled()[3].clone()];
        let admin = DocumentedUser { superuser: true, ..user("admin", &[]) };
        let expected = [
            "CREATE ROLE \"navigator_users_a\"".to_owned(),
            format!(
                "CREATE ROLE \"admin\" WITH HASHED PASSWORD = '{HASH}' AND LOGIN = true AND \
                 SUPERUSER = true"
            ),
            "GRANT \"navigator_users_a\" TO \"admin\"".to_owned(),
        ];
        assert_eq!(planned(vec![admin], &rows), (expected.to_vec(), 0));
    }

    #[test]
    fn drift_is_mended() {
        let other = HASH.replace("lhWy", "lhWz");
        for (changed, expected) in [
            (
                RoleRow { hash: Some(other), ..settled()[2].clone() },
                format!("HASHED PASSWORD = '{HASH}'"),
            ),
            (RoleRow { can_login: false, ..settled()[2].clone() }, "LOGIN = true".to_owned()),
            (RoleRow { superuser: true, ..settled()[2].clone() }, "SUPERUSER = false".to_owned()),
        ] {
            let mut rows = settled();
            rows[2] = changed;
            let texts = planned(vec![user("app", &[])], &rows).0;
            assert_eq!(texts, [format!("ALTER ROLE \"app\" WITH {expected}")]);
        }
        // The pilots' own role: its password, and that it may do everything.
        let mut rows = settled();
        rows[0].superuser = false;
        let texts = planned(vec![user("app", &[])], &rows).0;
        assert_eq!(texts, ["ALTER ROLE \"navigator_a\" WITH SUPERUSER = true"]);
    }

    #[test]
    fn roles_of_a_user_are_those_of_the_spec() {
        let mut rows = settled();
        rows.push(row("readers", &[]));
        rows.push(row("writers", &[]));
        rows[2].member_of.insert("writers".to_owned());
        let (texts, troubles) = planned(vec![user("app", &["readers", "nobody"])], &rows);
        assert_eq!(texts, ["GRANT \"readers\" TO \"app\"", "REVOKE \"writers\" FROM \"app\""]);
        assert_eq!(troubles, 1, "a role that is not there is told");
    }

    /// What is run so that a ring has the role `shop` with a right, and none other.
    fn planned_roles(
        declared: &[&str],
        rows: &[RoleRow],
        grants: &[(&str, &str, &[&str])],
        asks: bool,
    ) -> (Vec<String>, Vec<String>) {
        let rights = json!({"grants": [{"permissions": ["SELECT"], "keyspace": "shop"}]});
        let role = |name: &&str| DocumentedRole { name: (*name).into(), rights: rights.clone() };
        let document = UsersDocument::new(vec![user("app", declared)], Some(own("a")))
            .with_roles(declared.iter().map(role).collect());
        let mut ring = ring(rows, grants);
        if !needs_grants(&document, &own("a"), None, rows) {
            ring.grants = RingGrants::default();
        }
        let RolePlan { changes, troubles } = plan_roles(&document, &own("a"), None, &ring);
        (changes.into_iter().flat_map(|change| change.statements(asks)).collect(), troubles)
    }

    #[test]
    fn roles_of_the_spec_are_made_with_their_rights_and_lose_them_when_they_are_taken_out() {
        let rights = [
            "INSERT INTO system_auth.role_permissions (role, resource, permissions) VALUES \
             ('shop', 'data/shop', {'SELECT'})",
            "INSERT INTO system_auth.resource_role_permissons_index (resource, role) VALUES \
             ('data/shop', 'shop')",
        ];
        let asked = [
            "CREATE ROLE \"navigator_roles_a\"",
            "CREATE ROLE \"shop\"",
            "GRANT \"navigator_roles_a\" TO \"shop\"",
            rights[0],
            rights[1],
            "GRANT \"shop\" TO \"app\"",
        ];
        assert_eq!(planned_roles(&["shop"], &settled(), &[], true).0, asked);
        let unasked = planned_roles(&["shop"], &settled(), &[], false).0;
        assert!(unasked.iter().all(|text| !text.starts_with("CREATE")), "{unasked:?}");
        assert!(unasked.iter().all(|text| !text.starts_with("GRANT")), "{unasked:?}");
        assert!(unasked.contains(&rights[0].to_owned()), "{unasked:?}");

        let no_login = |row: RoleRow| RoleRow { can_login: false, hash: None, ..row };
        let mut rows = settled();
        rows[2].member_of.insert("shop".to_owned());
        rows.push(no_login(row("navigator_roles_a", &[])));
        rows.push(no_login(row("shop", &["navigator_roles_a"])));
        let grants: &[(&str, &str, &[&str])] =
            &[("shop", "data/shop", &["SELECT"]), ("dba", "data", &["DROP"])];
        assert_eq!(planned_roles(&["shop"], &rows, grants, true), (vec![], vec![]));
        let gone = planned_roles(&[], &rows, grants, true).0;
        let deleted: Vec<_> = gone.iter().filter(|text| text.starts_with("DELETE")).collect();
        assert_eq!(deleted.len(), 2, "{gone:?}");
        assert_eq!(gone[2], "REVOKE \"shop\" FROM \"app\"");
        // A role that may do everything would have other rights than those.
        rows.last_mut().unwrap().superuser = true;
        let mended = planned_roles(&["shop"], &rows, grants, true).0;
        assert_eq!(mended, ["ALTER ROLE \"shop\" WITH SUPERUSER = false"]);
    }

    #[test]
    fn a_role_of_another_cluster_is_left_alone() {
        let mut rows = settled();
        rows[2].member_of.insert("shop".to_owned());
        rows.push(row("navigator_roles_a", &[]));
        rows.push(row("shop", &["navigator_roles_b"]));
        let (texts, troubles) = planned_roles(&["shop"], &rows, &[], true);
        assert_eq!((texts, troubles.len()), (vec![], 1));
    }

    #[test]
    fn a_user_that_is_taken_out_logs_in_no_more() {
        let (texts, _) = planned(vec![], &settled());
        assert_eq!(texts, ["ALTER ROLE \"app\" WITH LOGIN = false AND SUPERUSER = false"]);
        let mut rows = settled();
        rows[2].can_login = false;
        assert_eq!(planned(vec![], &rows), (vec![], 0));
    }

    #[test]
    fn a_user_of_another_cluster_is_left_alone() {
        let mut rows = settled();
        rows[2].member_of = ["navigator_users_b".to_owned()].into();
        assert_eq!(planned(vec![user("app", &[])], &rows), (vec![], 1));
        // A former login of this cluster is no other cluster.
        let document = UsersDocument::new(vec![user("app", &[])], Some(own("a")));
        let RolePlan { changes, troubles } =
            plan_roles(&document, &own("a"), Some(&own("b")), &ring(&rows, &[]));
        let texts: Vec<_> = changes.iter().filter_map(|change| change.text.as_deref()).collect();
        assert_eq!(
            texts,
            ["GRANT \"navigator_users_a\" TO \"app\"", "REVOKE \"navigator_users_b\" FROM \"app\""]
        );
        assert!(troubles.is_empty());
    }

    #[test]
    fn a_user_that_left_the_spec_may_do_nothing_on_a_connection_that_it_holds_open() {
        let mut rows = settled();
        rows[2].member_of.insert("readers".to_owned());
        let grants: &[(&str, &str, &[&str])] = &[
            ("app", "data", &["MODIFY"]),
            ("app", "roles/dba", &["ALTER"]),
            ("readers", "data/shop", &["SELECT"]),
        ];
        let document = UsersDocument::new(Vec::new(), Some(own("a")));
        assert!(needs_grants(&document, &own("a"), None, &rows));
        let statements = |rows: &[RoleRow], grants| {
            let RolePlan { changes, .. } =
                plan_roles(&document, &own("a"), None, &ring(rows, grants));
            changes.into_iter().flat_map(|change| change.statements(true)).collect::<Vec<_>>()
        };
        let gone = ["data", "roles/dba"].map(|on| {
            ["role_permissions", "resource_role_permissons_index"].map(|table| {
                format!("DELETE FROM system_auth.{table} WHERE role = 'app' AND resource = '{on}'")
            })
        });
        let closed = [
            "ALTER ROLE \"app\" WITH LOGIN = false AND SUPERUSER = false".to_owned(),
            "REVOKE \"readers\" FROM \"app\"".to_owned(),
        ];
        assert_eq!(statements(&rows, grants), [closed.to_vec(), gone.concat()].concat());
        // What somebody grants it later is taken, too.
        rows[2] = RoleRow { can_login: false, ..row("app", &["navigator_users_a"]) };
        assert_eq!(statements(&rows, &grants[..1]), gone[0]);
        assert_eq!(statements(&rows, &grants[2..]), [""; 0]);
    }

    #[test]
    fn a_former_login_of_pilots_is_closed_once_the_present_one_is_there_with_its_users() {
        let document = UsersDocument::new(vec![user("app", &[])], Some(own("a")));
        let texts = |rows: &[RoleRow], former: &OwnLogin| {
            let RolePlan { changes, troubles } =
                plan_roles(&document, &own("a"), Some(former), &ring(rows, &[]));
            assert_eq!(troubles, [""; 0]);
            changes.into_iter().filter_map(|change| change.text).collect::<Vec<_>>()
        };
        let mut rows = settled();
        rows.push(RoleRow { superuser: true, ..row("navigator_b", &[]) });
        rows.push(group_row("b"));
        rows.push(RoleRow { superuser: true, ..row("admin-old", &["navigator_users_b"]) });
        rows.push(RoleRow { superuser: true, ..row("navigator_c", &[]) });
        let close =
            |name: &str| format!("ALTER ROLE \"{name}\" WITH LOGIN = false AND SUPERUSER = false");
        let removed = [
            close("admin-old"),
            "GRANT \"navigator_users_a\" TO \"admin-old\"".to_owned(),
            "REVOKE \"navigator_users_b\" FROM \"admin-old\"".to_owned(),
        ];
        assert_eq!(texts(&rows, &own("b")), [&removed[..], &[close("navigator_b")]].concat());
        let mut before = rows.clone();
        before[0].hash = Some(HASH.replace("lhWy", "lhWz"));
        let texts_before = texts(&before, &own("b"));
        assert!(!texts_before.contains(&close("navigator_b")), "pilots come in with it");
        before.remove(0);
        assert!(!texts(&before, &own("b")).contains(&close("navigator_b")));
        // Once all is done nothing is left to do: another cluster's login stays.
        (rows[4].can_login, rows[4].superuser) = (false, false);
        rows[6] = RoleRow { can_login: false, ..row("admin-old", &["navigator_users_a"]) };
        assert_eq!(texts(&rows, &own("b")), [""; 0]);
        // The Secret was lost, and the same cluster made another password.
        let lost = OwnLogin { password: "q".into(), hash: "other".into(), ..own("a") };
        assert_eq!(texts(&rows, &lost), [""; 0]);
    }

    #[test]
    fn cassandras_own_role_is_closed_only_with_the_password_that_everybody_knows() {
        let open = |password: &str| {
            let hash = Some(password::hash_bcrypt(password).unwrap());
            let mut rows = settled();
            rows[3] = RoleRow { superuser: true, hash, ..row(DEFAULT, &[]) };
            planned(vec![user("app", &[])], &rows).0
        };
        let closed = ["ALTER ROLE \"cassandra\" WITH LOGIN = false AND SUPERUSER = false"];
        assert_eq!(open("cassandra"), closed);
        assert!(open("a person's own").is_empty());
    }

    #[test]
    fn a_ring_begins_with_a_login_of_pilots_and_none_that_everybody_knows() {
        let there = |rows: &[RoleRow]| are_first_rows_there(&own("a"), rows, true);
        assert!(there(&settled()) && !there(&settled()[1..]) && !there(&settled()[..3]));
        let mut rows = settled();
        rows[3].can_login = true;
        assert!(!there(&rows));
        rows = settled();
        rows[0].hash = None;
        assert!(!there(&rows));
    }
}
