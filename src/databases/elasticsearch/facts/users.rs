//! The files of Elasticsearch's file realm: who may log in, with which roles, and what these allow. Pure.
//!
//! Every node has its own. Beside the users of the cluster there is the pilot's own, whose password
//! only its own node knows, while its role stands on every node: a node that is asked something in
//! the pilot's name by another node goes by its own roles.
//!
//! Elasticsearch reads the three files one by one, and at different times. So each of them carries the
//! revision of the users it was written for: `users` has a marker user, `users_roles` gives it a role of
//! the same name, and `roles.yml` gives that role a privilege. Who logs in as the marker user, sees the
//! role and has the privilege knows that the node has read all three.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

use serde::Deserialize;
use serde_json::{Value, json};

use crate::{
    databases::elasticsearch::v1beta1::{ApplicationRights, ElasticsearchRights, IndexRights},
    engine::users::{DocumentedRole, UsersDocument},
};

/// Name of the realm that these files make.
pub const FILE_REALM: &str = "file1";
/// Name of the pilot's own user, and of its role.
pub const OWN_USER: &str = "navigator";
/// Names of the files, in the configuration folder.
pub const USERS_FILE: &str = "users";
pub const USER_ROLES_FILE: &str = "users_roles";
pub const ROLES_FILE: &str = "roles.yml";
/// Role of a user who may do everything.
const SUPERUSER: &str = "superuser";

/// The pilot's own role, which can see every index and keep it, and neither read nor write a document.
/// It can end API keys and tokens of others, and makes none.
const OWN_ROLE: &str = r#"# Written by Navigator; changes are lost.
navigator:
  cluster: [ "manage", "manage_api_key", "manage_token" ]
  indices:
    - names: [ "*" ]
      privileges: [ "monitor", "maintenance", "indices:admin/settings/update" ]
      allow_restricted_indices: true
"#;

/// What the names of indices begin with that no cluster has. A right on one of them says with which
/// users the file of roles was read.
const REVISION_INDEX: &str = "navigator-users-";

/// Texts of the files that change with the users.
#[derive(Clone, PartialEq, Eq)]
pub struct UserFiles {
    pub users: String,
    pub members: String,
    pub roles: String,
}

impl fmt::Debug for UserFiles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { users: _, members, roles: _ } = self;
        f.debug_struct("UserFiles").field("members", members).finish_non_exhaustive()
    }
}

/// Why users cannot be written to the files.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UserFilesError {
    #[error("the user {0:?} cannot be written to the file of users")]
    Name(String),
    #[error("the role {role:?} of user {user:?} cannot be written to the file of roles")]
    Role { user: String, role: String },
    #[error("the role {0:?} cannot be written to the file of roles: {1}")]
    Rights(String, String),
}

impl UserFiles {
    /// Renders the files: the pilot's own user with the hash of its password, and those of the
    /// document.
    ///
    /// # Errors
    /// When a name would end a line or a field of them, or is the pilot's.
    pub fn render(
        own_hash: &str,
        document: Option<&UsersDocument>,
    ) -> Result<Self, UserFilesError> {
        let marker = marker_user(document);
        let mut users = format!("{OWN_USER}:{own_hash}\n{marker}:{own_hash}\n");
        let mut members = BTreeMap::<&str, Vec<&str>>::new();
        for name in [OWN_USER, marker.as_str()] {
            members.entry(name).or_default().push(name);
        }
        for user in document.iter().flat_map(|document| document.users()) {
            let name = user.name.as_str();
            if !is_writable(name) || name.starts_with(OWN_USER) {
                return Err(UserFilesError::Name(name.to_owned()));
            }
            users.extend([name, ":", &user.hash, "\n"]);
            let superuser = user.superuser.then_some(SUPERUSER);
            for role in user.roles.iter().map(String::as_str).chain(superuser) {
                if !is_writable(role) || role.starts_with(OWN_USER) {
                    let (user, role) = (name.to_owned(), role.to_owned());
                    return Err(UserFilesError::Role { user, role });
                }
                members.entry(role).or_default().push(name);
            }
        }
        let line = |(role, names): (&str, Vec<&str>)| {
            let mut names = names;
            names.dedup();
            format!("{role}:{}\n", names.join(","))
        };
        let members = members.into_iter().map(line).collect();
        Ok(Self { users, members, roles: role_definitions(document)? })
    }
}

/// Renders the file of roles. Each begins a line, by which Elasticsearch parts them; JSON is YAML.
fn role_definitions(document: Option<&UsersDocument>) -> Result<String, UserFilesError> {
    let mut text = OWN_ROLE.to_owned();
    let marker_role =
        json!({"indices": [{"names": [revision_index(document)], "privileges": ["read"]}]});
    text.extend([marker_user(document).as_str(), ": ", &marker_role.to_string(), "\n"]);
    for role in document.iter().flat_map(|document| document.roles()) {
        let DocumentedRole { name, rights: _ } = role;
        let rights_error = |message: String| UserFilesError::Rights(name.clone(), message);
        if !is_writable(name) || name.starts_with(OWN_USER) {
            return Err(rights_error("its name is none".to_owned()));
        }
        let role_rights = parse_rights(role).map_err(|error| rights_error(error.to_string()))?;
        let definition = role_definition(&role_rights);
        text.extend([name.as_str(), ": ", &definition.to_string(), "\n"]);
    }
    Ok(text)
}

fn parse_rights(role: &DocumentedRole) -> Result<ElasticsearchRights, serde_json::Error> {
    ElasticsearchRights::deserialize(&role.rights)
}

/// Returns a role by Elasticsearch's own names of fields.
fn role_definition(rights: &ElasticsearchRights) -> Value {
    let ElasticsearchRights { cluster, indices, applications, run_as } = rights;
    let index = |rights: &IndexRights| {
        let IndexRights { names, privileges, allow_restricted_indices } = rights;
        json!({
            "names": names,
            "privileges": privileges,
            "allow_restricted_indices": allow_restricted_indices.unwrap_or_default(),
        })
    };
    let application = |rights: &ApplicationRights| {
        let ApplicationRights { application, privileges, resources } = rights;
        json!({"application": application, "privileges": privileges, "resources": resources})
    };
    json!({
        "cluster": cluster,
        "indices": indices.iter().map(index).collect::<Vec<_>>(),
        "applications": applications.iter().map(application).collect::<Vec<_>>(),
        "run_as": run_as,
    })
}

/// Returns the name of the marker user of a document, and of its role. It has the password of the
/// pilot's own user.
pub fn marker_user(document: Option<&UsersDocument>) -> String {
    format!("{OWN_USER}_{}", document_revision(document))
}

fn document_revision(document: Option<&UsersDocument>) -> &str {
    document.map_or("none", UsersDocument::revision)
}

/// Name of the index on which the marker user has a right once a node has read the roles of a document.
fn revision_index(document: Option<&UsersDocument>) -> String {
    format!("{REVISION_INDEX}{}", document_revision(document))
}

/// Asks whether the roles of a document are in force, as a question about privileges.
pub fn are_in_force(document: &UsersDocument) -> Value {
    json!({"index": [{"names": [revision_index(Some(document))], "privileges": ["read"]}]})
}

/// Asks about every privilege that the roles of a document name, so that the version says which it
/// does not know: a file may name any, and requests of its users fail then. `None` where there are
/// none.
pub fn are_known(document: &UsersDocument) -> Option<Value> {
    let (mut cluster, mut index) = (BTreeSet::new(), BTreeSet::new());
    for rights in document.roles().iter().filter_map(|role| parse_rights(role).ok()) {
        cluster.extend(rights.cluster);
        index.extend(rights.indices.into_iter().flat_map(|rights| rights.privileges));
    }
    let on_index = (!index.is_empty())
        .then(|| json!({"names": [REVISION_INDEX], "privileges": index}))
        .into_iter()
        .collect::<Vec<_>>();
    (!cluster.is_empty() || !on_index.is_empty())
        .then(|| json!({"cluster": cluster, "index": on_index}))
}

/// Returns those of `names` that are neither users of the document nor of Navigator's own.
pub fn removed_users(names: &BTreeSet<String>, document: &UsersDocument) -> BTreeSet<String> {
    let is_known = |name: &str| document.users().iter().any(|user| user.name == name);
    let removed_names = names.iter().filter(|name| !is_known(name) && !name.starts_with(OWN_USER));
    removed_names.cloned().collect()
}

/// Does a name stay one in a file whose lines are fields with colons and lists with commas?
fn is_writable(name: &str) -> bool {
    !name.is_empty()
        && !name.starts_with('#')
        && name.chars().all(|c| c.is_ascii_graphic() && c != ':' && c != ',')
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::users::DocumentedUser;

    const HASH: &str = "$2a$10$N9qo8uLOickgx2ZMRZoMyeIjZAgcfl7p92ldGxad68LJZdL17lhWy";

    fn user(name: &str, superuser: bool, roles: &[&str]) -> DocumentedUser {
        let roles = roles.iter().map(|role| (*role).to_owned()).collect();
        DocumentedUser { name: name.to_owned(), hash: HASH.to_owned(), superuser, roles }
    }

    fn render(users: Vec<DocumentedUser>) -> Result<UserFiles, UserFilesError> {
        UserFiles::render("own", Some(&UsersDocument::new(users, None)))
    }

    #[test]
    fn each_user_is_a_line_and_each_role_another() {
        let app = user("app", true, &["viewer", "superuser", "viewer"]);
        let document = UsersDocument::new(vec![user("elastic", true, &[]), app], None);
        let files = UserFiles::render("own", Some(&document)).unwrap();
        let marker = marker_user(Some(&document));
        assert_eq!(marker, format!("navigator_{}", document.revision()));
        assert_eq!(
            files.users,
            format!("navigator:own\n{marker}:own\nelastic:{HASH}\napp:{HASH}\n")
        );
        assert_eq!(
            files.members,
            format!("navigator:navigator\n{marker}:{marker}\nsuperuser:elastic,app\nviewer:app\n")
        );
        assert!(!format!("{files:?}").contains("2a$"));
        let alone = UserFiles::render("own", None).unwrap();
        assert_eq!(alone.users, "navigator:own\nnavigator_none:own\n");
    }

    #[test]
    fn a_name_that_would_be_two_is_refused() {
        for name in ["", "a:b", "a,b", "#a", "a b", "navigator", "navigator_none", "ä"] {
            let refused = Err(UserFilesError::Name(name.to_owned()));
            assert_eq!(render(vec![user(name, false, &[])]), refused, "{name:?}");
        }
        for role in ["", "a:b", "a,b", "#a", "a\nb", "navigator", "navigator_none"] {
            let (user_name, role) = ("app".to_owned(), role.to_owned());
            let found = render(vec![user("app", false, &[&role])]);
            assert_eq!(found, Err(UserFilesError::Role { user: user_name, role }));
        }
    }

    #[test]
    fn roles_of_the_document_stand_below_those_of_the_pilot() {
        let rights = json!({
            "cluster": ["monitor"],
            "indices": [{"names": ["shop-*", "a\nb: {}"], "privileges": ["read"]}],
            "applications": [{"application": "kibana-.kibana", "privileges": ["all"], "resources": ["*"]}],
            "runAs": ["app"],
        });
        let role = |name: &str, rights: &Value| DocumentedRole {
            name: name.to_owned(),
            rights: rights.clone(),
        };
        let with = |roles| UsersDocument::new(Vec::new(), None).with_roles(roles);
        let render = |document: &UsersDocument| {
            UserFiles::render("own", Some(document)).map(|files| files.roles)
        };
        let document = with(vec![role("reader", &rights), role("none", &json!({}))]);
        let text = render(&document).unwrap();
        let parsed: Value = serde_yaml::from_str(&text).unwrap();
        let expected = json!({
            "cluster": ["monitor"],
            "indices": [{
                "names": ["shop-*", "a\nb: {}"],
                "privileges": ["read"],
                "allow_restricted_indices": false,
            }],
            "applications": rights["applications"],
            "run_as": ["app"],
        });
        assert_eq!(parsed["reader"], expected);
        assert_eq!(parsed.as_object().unwrap().len(), 4);
        // Elasticsearch parts roles by lines that begin without a space, and skips comments.
        let starts = text.lines().filter(|line| !line.starts_with([' ', '#']));
        assert_eq!(starts.count(), 4, "{text}");
        let asked = are_known(&document).unwrap();
        assert_eq!(
            (&asked["cluster"], &asked["index"][0]["privileges"]),
            (&json!(["monitor"]), &json!(["read"]))
        );
        assert_eq!(are_known(&with(vec![role("none", &json!({}))])), None);
        for (name, rights) in [("navigator_none", json!({})), ("a", json!({"cluster": 1}))] {
            let refused = render(&with(vec![role(name, &rights)]));
            assert!(matches!(refused, Err(UserFilesError::Rights(..))), "{name} {refused:?}");
        }
    }

    #[test]
    fn each_file_carries_the_revision_of_its_users() {
        let first = UsersDocument::new(vec![user("a", false, &[])], None);
        let other = UsersDocument::new(vec![user("b", false, &[])], None);
        let UserFiles { users, members, roles } = UserFiles::render("own", Some(&first)).unwrap();
        for text in [users, members, roles] {
            assert!(text.contains(first.revision()), "{text}");
            assert!(!text.contains(other.revision()), "{text}");
        }
        let question = are_in_force(&first).to_string();
        assert!(question.contains(&revision_index(Some(&first))), "{question}");
    }

    #[test]
    fn users_that_the_document_does_not_have_are_gone_and_no_pilot_is() {
        let document = UsersDocument::new(vec![user("app", false, &[])], None);
        let names = ["app", "former", "navigator", "navigator_none"].map(str::to_owned);
        let gone = removed_users(&BTreeSet::from(names), &document);
        assert_eq!(gone, BTreeSet::from(["former".to_owned()]));
    }

    #[test]
    fn every_role_of_the_pilot_is_defined() {
        let roles = UserFiles::render("own", None).unwrap().roles;
        for role in [OWN_USER, marker_user(None).as_str()] {
            assert!(roles.lines().any(|line| line.starts_with(&format!("{role}:"))), "{role}");
        }
        let parsed: Value = serde_yaml::from_str(&roles).unwrap();
        for privilege in parsed["navigator"]["indices"][0]["privileges"].as_array().unwrap() {
            let privilege = privilege.as_str().unwrap();
            assert!(!["all", "read", "write", "index", "manage"].contains(&privilege));
        }
    }
}
