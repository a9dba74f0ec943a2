//! The document by which the controller tells a cluster's pilots which users their database has. It
//! lies in a Secret that is mounted into every pod of the cluster, and holds hashes of passwords. Of
//! passwords it holds that of the login which all pilots of a cluster share, where they do, and, until
//! their database knows that one, the login of a superuser. `Debug` shows none of it.

use std::{collections::BTreeSet, fmt};

use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest, Sha256};

use super::password::is_sha256;

/// Name of the file that holds the document, in the folder where the Secret is mounted.
pub const FILE: &str = "users.json";
/// Name of the file beside it with the private key of a certificate that was given for all nodes.
pub const CLIENT_KEY: &str = "client.key";
/// Most bytes that are read: a Secret holds no more.
pub const MAX_BYTES: u64 = 1 << 20;
/// Hexadecimal digits of a revision.
const REVISION_DIGITS: usize = 16;
/// Characters of a bcrypt hash, from its mark to its end.
const HASH_CHARS: usize = 60;

/// All users of a cluster that Navigator keeps.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct UsersDocument {
    /// Tells these users from any others: 16 hexadecimal digits.
    revision: String,
    users: Vec<DocumentedUser>,
    /// Roles that Navigator keeps.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    roles: Vec<DocumentedRole>,
    /// The login that all pilots of the cluster share, where they do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    own: Option<OwnLogin>,
    /// With it pilots make that login, in a database that asks for logins which others made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    superuser: Option<SuperuserLogin>,
}

/// The login of a superuser that the database knows already.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SuperuserLogin {
    pub name: String,
    pub password: String,
}

impl fmt::Debug for SuperuserLogin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, password: _ } = self;
        f.debug_struct("SuperuserLogin").field("name", name).finish_non_exhaustive()
    }
}

/// The login that all pilots of a cluster share: their database keeps its users in tables, or they ask
/// each other's nodes.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct OwnLogin {
    /// Tells what is of this cluster from what is of another one in the same database cluster: up to
    /// 16 letters and digits, which names of roles hold.
    pub mark: String,
    pub password: String,
    /// Of the password, as the database checks it; see [`DocumentedUser::hash`].
    pub hash: String,
}

impl fmt::Debug for OwnLogin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { mark, password: _, hash: _ } = self;
        f.debug_struct("OwnLogin").field("mark", mark).finish_non_exhaustive()
    }
}

/// A role, with what it allows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DocumentedRole {
    /// Name by which users have the role.
    pub name: String,
    /// Fields of the role in the spec but its name, which the database's own part reads.
    #[serde(flatten)]
    pub rights: Value,
}

/// A user, with the hash of its password.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DocumentedUser {
    /// Name with which the user logs in.
    pub name: String,
    /// One of [`PasswordHashing`](super::password::PasswordHashing).
    pub hash: String,
    /// May do everything.
    #[serde(default)]
    pub superuser: bool,
    /// Roles by the database's own names.
    #[serde(default)]
    pub roles: Vec<String>,
}

impl fmt::Debug for DocumentedUser {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, hash: _, superuser, roles } = self;
        f.debug_struct("DocumentedUser")
            .field("name", name)
            .field("superuser", superuser)
            .field("roles", roles)
            .finish_non_exhaustive()
    }
}

/// Why a document cannot be used. Nothing of its content is told but names of users.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UsersRefusal {
    #[error("the users are no JSON of the expected form (line {line}, column {column})")]
    Unreadable { line: usize, column: usize },
    #[error("the revision of the users is not made of {REVISION_DIGITS} hexadecimal digits")]
    Revision,
    #[error("{0} number {1} has no name that can be written to a file")]
    Name(&'static str, usize),
    #[error("the {0} {1:?} is there twice")]
    Twice(&'static str, String),
    #[error("the password of user {0:?} is no hash: neither bcrypt nor SHA-256")]
    Hash(String),
    #[error("the login of pilots cannot be used")]
    Own,
}

impl UsersDocument {
    /// Makes the document of these users, and of the login of pilots where they need one; its
    /// revision follows from them.
    pub fn new(users: Vec<DocumentedUser>, own: Option<OwnLogin>) -> Self {
        Self { revision: String::new(), users, roles: Vec::new(), own, superuser: None }
            .with_revision()
    }

    /// Sets with what pilots make their login. The revision stays: who is let in with its own login has
    /// no use for another.
    #[must_use]
    pub fn with_superuser(self, superuser: Option<SuperuserLogin>) -> Self {
        Self { superuser, ..self }
    }

    /// Sets the roles, and the revision that follows from all.
    #[must_use]
    pub fn with_roles(self, roles: Vec<DocumentedRole>) -> Self {
        Self { roles, ..self }.with_revision()
    }

    fn with_revision(mut self) -> Self {
        // With what pilots log in for the first time is no part of what they then write.
        let Self { revision: _, users, roles, own, superuser: _ } = &self;
        // A document without roles has the revision that it had before there were any.
        let json = match (own, roles.as_slice()) {
            (None, []) => serde_json::to_vec(users),
            (Some(own), []) => serde_json::to_vec(&(users, own)),
            (own, roles) => serde_json::to_vec(&(users, own, roles)),
        };
        self.revision = Sha256::digest(json.expect("wire types have string keys"))
            .iter()
            .take(REVISION_DIGITS / 2)
            .fold(String::new(), |hex, byte| format!("{hex}{byte:02x}"));
        self
    }

    /// Reads a document as it was mounted. Its revision is taken as it stands: a later release may
    /// make it of more than is read here.
    ///
    /// # Errors
    /// When it cannot be used as a whole, see [`UsersRefusal`].
    pub fn from_json(json: &[u8]) -> Result<Self, UsersRefusal> {
        let document = Self::parse(json)?;
        let Self { revision, users, roles, own, superuser: _ } = &document;
        let is_digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
        if revision.len() != REVISION_DIGITS || !revision.bytes().all(is_digit) {
            return Err(UsersRefusal::Revision);
        }
        check_names("user", users.iter().map(|user| user.name.as_str()))?;
        check_names("role", roles.iter().map(|role| role.name.as_str()))?;
        if let Some(user) = users.iter().find(|user| !is_hash(&user.hash)) {
            return Err(UsersRefusal::Hash(user.name.clone()));
        }
        if own.as_ref().is_some_and(|own| !own.is_usable()) {
            return Err(UsersRefusal::Own);
        }
        Ok(document)
    }

    /// Reads what a document held, also one that no node takes for a name or a hash in it: for whom it
    /// was made anew, every password would be another.
    ///
    /// # Errors
    /// When it is no document, or its login of pilots cannot be used.
    pub fn recover_from_json(json: &[u8]) -> Result<Self, UsersRefusal> {
        let mut document = Self::parse(json)?;
        document.users.retain(|user| is_hash(&user.hash));
        if document.own.as_ref().is_some_and(|own| !own.is_usable()) {
            return Err(UsersRefusal::Own);
        }
        Ok(document)
    }

    fn parse(json: &[u8]) -> Result<Self, UsersRefusal> {
        serde_json::from_slice(json).map_err(|error| {
            // The text of the error may show a part of a hash.
            UsersRefusal::Unreadable { line: error.line(), column: error.column() }
        })
    }

    /// The login with which pilots make their own.
    pub fn superuser(&self) -> Option<&SuperuserLogin> {
        self.superuser.as_ref()
    }

    /// The document as it is mounted.
    pub fn to_json(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("wire types have string keys")
    }

    pub fn revision(&self) -> &str {
        &self.revision
    }

    pub fn users(&self) -> &[DocumentedUser] {
        &self.users
    }

    pub fn roles(&self) -> &[DocumentedRole] {
        &self.roles
    }

    pub fn pilot_user(&self) -> Option<&OwnLogin> {
        self.own.as_ref()
    }
}

impl OwnLogin {
    fn is_usable(&self) -> bool {
        let Self { mark, password, hash } = self;
        (1..=16).contains(&mark.len())
            && mark.bytes().all(|byte| byte.is_ascii_alphanumeric())
            && !password.is_empty()
            // It may stand in a file of lines.
            && !password.contains(char::is_control)
            && is_hash(hash)
    }
}

/// Fails where a name cannot be written to a file of lines, or stands twice.
fn check_names<'a>(
    kind: &'static str,
    entries: impl Iterator<Item = &'a str>,
) -> Result<(), UsersRefusal> {
    let mut names = BTreeSet::new();
    for (index, name) in entries.enumerate() {
        if name.is_empty() || name.chars().any(char::is_control) {
            return Err(UsersRefusal::Name(kind, index + 1));
        }
        if !names.insert(name) {
            return Err(UsersRefusal::Twice(kind, name.to_owned()));
        }
    }
    Ok(())
}

fn is_hash(hash: &str) -> bool {
    is_bcrypt(hash) || is_sha256(hash)
}

/// Tells whether a text has the form of a bcrypt hash: mark, cost, salt and hash.
fn is_bcrypt(hash: &str) -> bool {
    let is_digit = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'.' || byte == b'/';
    let Some(rest) = hash.strip_prefix("$2a$") else { return false };
    let Some((cost, digits)) = rest.split_once('$') else { return false };
    hash.len() == HASH_CHARS
        && cost.len() == 2
        && cost.bytes().all(|byte| byte.is_ascii_digit())
        && digits.bytes().all(is_digit)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const HASH: &str = "$2a$10$N9qo8uLOickgx2ZMRZoMyeIjZAgcfl7p92ldGxad68LJZdL17lhWy";

    fn user(name: &str) -> DocumentedUser {
        let (name, hash) = (name.to_owned(), HASH.to_owned());
        DocumentedUser { name, hash, superuser: false, roles: vec!["viewer".to_owned()] }
    }

    fn own(password: &str) -> OwnLogin {
        let (mark, password, hash) = ("1a2b3c4d".into(), password.to_owned(), HASH.to_owned());
        OwnLogin { mark, password, hash }
    }

    #[test]
    fn the_login_of_pilots_is_a_part_of_the_revision_and_must_be_usable() {
        let without = UsersDocument::new(vec![user("app")], None);
        let document = UsersDocument::new(vec![user("app")], Some(own("a")));
        assert_ne!(document.revision(), without.revision());
        assert_eq!(UsersDocument::from_json(&document.to_json()), Ok(document.clone()));
        let other = UsersDocument::new(vec![user("app")], Some(own("b")));
        assert_ne!(document.revision(), other.revision());
        for wrong in [
            own(""),
            own("a\0b"),
            own("a\nb"),
            OwnLogin { mark: "a-b".into(), ..own("a") },
            OwnLogin { mark: String::new(), ..own("a") },
            OwnLogin { hash: "a".into(), ..own("a") },
        ] {
            let json = UsersDocument::new(Vec::new(), Some(wrong)).to_json();
            assert_eq!(UsersDocument::from_json(&json), Err(UsersRefusal::Own));
        }
    }

    #[test]
    fn a_document_reads_back_and_its_revision_follows_from_the_users() {
        let document = UsersDocument::new(vec![user("elastic"), user("app")], None);
        assert_eq!(UsersDocument::from_json(&document.to_json()), Ok(document.clone()));
        assert_eq!(UsersDocument::new(document.users().to_vec(), None), document);
        let other = UsersDocument::new(vec![user("app"), user("elastic")], None);
        assert_ne!(other.revision(), document.revision());
        // Written down: another revision for the same users would have every node write them anew.
        assert_eq!(UsersDocument::new(Vec::new(), None).revision(), "4f53cda18c2baa0c");
        let json: Value = serde_json::from_slice(&document.to_json()).unwrap();
        let first =
            json!({"name": "elastic", "hash": HASH, "superuser": false, "roles": ["viewer"]});
        assert_eq!(json["users"][0], first);
    }

    #[test]
    fn roles_are_a_part_of_the_revision_and_read_back_with_all_their_fields() {
        let role = |name: &str| {
            let rights = json!({"cluster": ["monitor"], "later": {"a": 1}});
            DocumentedRole { name: name.to_owned(), rights }
        };
        let without = UsersDocument::new(vec![user("app")], None);
        let document = without.clone().with_roles(vec![role("reader")]);
        assert_ne!(document.revision(), without.revision());
        assert_eq!(UsersDocument::from_json(&document.to_json()), Ok(document.clone()));
        assert_eq!(document.with_roles(Vec::new()), without);
        for (roles, refusal) in [
            (vec![role("a"), role("a")], UsersRefusal::Twice("role", "a".to_owned())),
            (vec![role("a\nb")], UsersRefusal::Name("role", 1)),
        ] {
            let json = without.clone().with_roles(roles).to_json();
            assert_eq!(UsersDocument::from_json(&json), Err(refusal));
        }
    }

    #[test]
    fn a_superuser_comes_and_goes_without_another_revision() {
        let without = UsersDocument::new(vec![user("app")], Some(own("a")));
        let superuser = SuperuserLogin { name: "dba".to_owned(), password: "p".to_owned() };
        let document = without.clone().with_superuser(Some(superuser));
        assert_eq!(document.revision(), without.revision());
        assert_eq!(UsersDocument::from_json(&document.to_json()), Ok(document.clone()));
        assert_eq!(document.with_superuser(None), without);
    }

    #[test]
    fn no_hash_is_shown() {
        let superuser = SuperuserLogin { name: "dba".to_owned(), password: "secret".to_owned() };
        let document = UsersDocument::new(vec![user("elastic")], Some(own("secret")))
            .with_superuser(Some(superuser));
        let shown = format!("{document:?}");
        assert!(shown.contains("elastic") && !shown.contains("2a$"), "{shown}");
        assert!(shown.contains("1a2b3c4d") && !shown.contains("secret"), "{shown}");
        let damaged = String::from_utf8(document.to_json()).unwrap().replace("\"roles\"", "roles");
        let refusal = UsersDocument::from_json(damaged.as_bytes()).unwrap_err();
        let told = format!("{refusal} {refusal:?}");
        assert!(matches!(refusal, UsersRefusal::Unreadable { line: 1, .. }), "{told}");
        assert!(!told.contains("2a$"), "{told}");
    }

    #[test]
    fn what_is_not_whole_is_refused() {
        let sha256 = "ab".repeat(32);
        let other = DocumentedUser { hash: sha256, ..user("app") };
        assert!(UsersDocument::from_json(&UsersDocument::new(vec![other], None).to_json()).is_ok());
        let long = format!("{HASH}.");
        let rows: [(&str, Value, UsersRefusal); 8] = [
            ("4F53cda18c2baa0c", json!([]), UsersRefusal::Revision),
            ("4f53", json!([]), UsersRefusal::Revision),
            (
                "4f53cda18c2baa0c",
                json!([{"name": "", "hash": HASH}]),
                UsersRefusal::Name("user", 1),
            ),
            (
                "4f53cda18c2baa0c",
                json!([{"name": "a", "hash": HASH}, {"name": "b\nroot:x", "hash": HASH}]),
                UsersRefusal::Name("user", 2),
            ),
            (
                "4f53cda18c2baa0c",
                json!([{"name": "a", "hash": HASH}, {"name": "a", "hash": HASH}]),
                UsersRefusal::Twice("user", "a".to_owned()),
            ),
            (
                "4f53cda18c2baa0c",
                json!([{"name": "a", "hash": ""}]),
                UsersRefusal::Hash("a".into()),
            ),
            (
                "4f53cda18c2baa0c",
                json!([{"name": "a", "hash": long}]),
                UsersRefusal::Hash("a".into()),
            ),
            (
                "4f53cda18c2baa0c",
                json!([{"name": "a", "hash": HASH.replace('q', "\n")}]),
                UsersRefusal::Hash("a".into()),
            ),
        ];
        for (revision, users, refusal) in rows {
            let json = json!({"revision": revision, "users": users}).to_string();
            assert_eq!(UsersDocument::from_json(json.as_bytes()), Err(refusal), "{json}");
        }
        assert!(UsersDocument::from_json(b"").is_err());
    }
}
