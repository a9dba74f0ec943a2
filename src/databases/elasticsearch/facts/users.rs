//! The files of Elasticsearch's file realm: who may log in, and with which roles. Pure.
//!
//! Every node has its own. Beside the users of the cluster there is the pilot's own, whose password
//! only its own node knows, while its role stands on every node: a node that is asked something in
//! the pilot's name by another node goes by its own roles.

use std::{collections::BTreeMap, fmt};

use crate::engine::users::UsersDocument;

/// Name of the pilot's own user, and of its role.
pub const OWN_USER: &str = "navigator";
/// Names of the files, in the configuration folder.
pub const USERS_FILE: &str = "users";
pub const USER_ROLES_FILE: &str = "users_roles";
pub const ROLES_FILE: &str = "roles.yml";
/// Role of a user who may do everything.
const SUPERUSER: &str = "superuser";

/// Text of the file of roles. The pilot's own can see every index and keep it, and neither read nor
/// write a document. The two others allow nothing: the pilot has one of them, and the other one after
/// the next change, by which it learns that the change is in force.
pub const ROLES: &str = r#"# Written by Navigator at every start of the database; changes are lost.
navigator:
  cluster: [ "manage" ]
  indices:
    - names: [ "*" ]
      privileges: [ "monitor", "maintenance", "indices:admin/settings/update" ]
      allow_restricted_indices: true
navigator_even:
  cluster: [ ]
navigator_odd:
  cluster: [ ]
"#;

/// Tells one change of the users from the next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum UsersMarker {
    #[default]
    Even,
    Odd,
}

impl UsersMarker {
    /// Name of the role by which the pilot sees it.
    pub fn role(self) -> &'static str {
        match self {
            Self::Even => "navigator_even",
            Self::Odd => "navigator_odd",
        }
    }

    #[must_use]
    pub fn other(self) -> Self {
        match self {
            Self::Even => Self::Odd,
            Self::Odd => Self::Even,
        }
    }
}

/// Texts of the files that change with the users.
#[derive(Clone, PartialEq, Eq)]
pub struct UserFiles {
    pub users: String,
    pub roles: String,
}

impl fmt::Debug for UserFiles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { users: _, roles } = self;
        f.debug_struct("UserFiles").field("roles", roles).finish_non_exhaustive()
    }
}

/// Why users cannot be written to the files.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UserFilesError {
    #[error("the user {0:?} cannot be written to the file of users")]
    Name(String),
    #[error("the role {role:?} of user {user:?} cannot be written to the file of roles")]
    Role { user: String, role: String },
}

impl UserFiles {
    /// Renders the files: the pilot's own user with the hash of its password, and those of the
    /// document.
    ///
    /// # Errors
    /// When a name would end a line or a field of them, or is the pilot's.
    pub fn render(
        own_hash: &str,
        marker: UsersMarker,
        document: Option<&UsersDocument>,
    ) -> Result<Self, UserFilesError> {
        let mut users = format!("{OWN_USER}:{own_hash}\n");
        let mut members = BTreeMap::<&str, Vec<&str>>::new();
        for role in [OWN_USER, marker.role()] {
            members.entry(role).or_default().push(OWN_USER);
        }
        for user in document.iter().flat_map(|document| document.users()) {
            let name = user.name.as_str();
            if !is_writable(name) || name == OWN_USER {
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
        Ok(Self { users, roles: members.into_iter().map(line).collect() })
    }

    /// The marker with which these files were rendered.
    pub fn marker(&self) -> UsersMarker {
        let odd = format!("{}:", UsersMarker::Odd.role());
        let is_odd = self.roles.lines().any(|line| line.starts_with(&odd));
        if is_odd { UsersMarker::Odd } else { UsersMarker::Even }
    }
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
        UserFiles::render("own", UsersMarker::Odd, Some(&UsersDocument::new(users, None)))
    }

    #[test]
    fn each_user_is_a_line_and_each_role_another() {
        let app = user("app", true, &["viewer", "superuser", "viewer"]);
        let files = render(vec![user("elastic", true, &[]), app]).unwrap();
        assert_eq!(files.users, format!("navigator:own\nelastic:{HASH}\napp:{HASH}\n"));
        assert_eq!(
            files.roles,
            "navigator:navigator\nnavigator_odd:navigator\nsuperuser:elastic,app\nviewer:app\n"
        );
        assert_eq!(files.marker(), UsersMarker::Odd);
        assert!(!format!("{files:?}").contains("2a$"));
        let alone = UserFiles::render("own", UsersMarker::Even, None).unwrap();
        assert_eq!(alone.users, "navigator:own\n");
        assert_eq!(alone.marker(), UsersMarker::Even);
        assert_ne!(alone.marker(), alone.marker().other());
    }

    #[test]
    fn a_name_that_would_be_two_is_refused() {
        for name in ["", "a:b", "a,b", "#a", "a b", "navigator", "ä"] {
            let refused = Err(UserFilesError::Name(name.to_owned()));
            assert_eq!(render(vec![user(name, false, &[])]), refused, "{name:?}");
        }
        for role in ["", "a:b", "a,b", "#a", "a\nb", "navigator", "navigator_even"] {
            let (user_name, role) = ("app".to_owned(), role.to_owned());
            let found = render(vec![user("app", false, &[&role])]);
            assert_eq!(found, Err(UserFilesError::Role { user: user_name, role }));
        }
    }

    #[test]
    fn every_role_of_the_pilot_is_defined() {
        for role in [OWN_USER, UsersMarker::Even.role(), UsersMarker::Odd.role()] {
            assert!(ROLES.lines().any(|line| line == format!("{role}:")), "{role}");
        }
        let parsed: serde_json::Value = serde_yaml::from_str(ROLES).unwrap();
        for privilege in parsed["navigator"]["indices"][0]["privileges"].as_array().unwrap() {
            let privilege = privilege.as_str().unwrap();
            assert!(!["all", "read", "write", "index", "manage"].contains(&privilege));
        }
    }
}
