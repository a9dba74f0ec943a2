//! Users of a cluster: passwords from Secrets, hashes of them in one Secret that pods mount, and for
//! each user a Secret that an application can mount as it is.
//!
//! A hash is made anew only when its Secret changed and the hash is not of the password in it, so
//! nothing is written without cause. A password that cannot be used leaves the hash before it in
//! force.

use std::{
    collections::{BTreeMap, HashSet},
    sync::Arc,
};

use k8s_openapi::{
    ByteString, api::core::v1::Secret, apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use serde::{Deserialize, Serialize};
use serde_json::json;
use tracing::info;

use super::{
    origin, record_refusal,
    secrets::{self, FoundSecret, SecretSource},
};
use crate::{
    api::{
        names::annotation,
        v1beta1::{Authentication, ClientTls, ClusterSecurity, DatabaseUser, Pilot, SecretKey},
        validation::{OWN_USERS, format::check_login_name},
    },
    controller::{
        context::{ControllerContext, Error},
        desired_state::{ClusterService, DesiredCluster, LoginNames},
        ensure::ensure_object,
        observe::owner_uid,
        resources::{self, PreparedObject},
        security_findings::{DeclaredLogin, SecurityFindings, SecurityProblem},
        write::{apply_object, create_object, delete_object, exact_preconditions},
    },
    engine::{
        password::{self, PasswordHashing},
        users::{
            CLIENT_KEY, DocumentedUser, FILE, OwnLogin, SuperuserLogin, UsersDocument, UsersRefusal,
        },
    },
};

/// Keys of a user's Secret.
const USERNAME: &str = "username";
const PASSWORD: &str = "password";
/// Key of the mounted Secret with the versions of the Secrets that the hashes were made from.
const SOURCES: &str = "sources.json";
/// What is sealed of a user's Secret, and of the mounted one.
const SEALED_OF_USER: [&str; 2] = [USERNAME, PASSWORD];
const SEALED_OF_PILOTS: [&str; 2] = [FILE, SOURCES];
/// Characters of a cluster's uid by which its roles are known.
const MARK_DIGITS: usize = 8;

/// A hash, and what it was made from.
#[derive(Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct KnownSource {
    user: String,
    source: SecretSource,
    /// Is it the administrator, whose Secret says the name?
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    administrator: bool,
}

/// A user that the spec declares.
struct DeclaredUser<'a> {
    /// What the spec calls the user, or `None` for the administrator, whose Secret says the name.
    name: Option<&'a str>,
    given: Option<SecretKey>,
    /// Name of the Secret that is made where none is given.
    made: String,
    superuser: bool,
    roles: &'a [String],
}

/// The private key of a certificate that is given for all nodes, which is mounted beside their users.
pub(super) enum ClientKey<'a> {
    Given(&'a str),
    /// The one that is mounted is in use.
    AsBefore,
    None,
}

/// Keeps the Secrets of users and the one with their hashes.
pub(super) async fn ensure_users(
    ctx: &ControllerContext,
    desired: &DesiredCluster,
    security: &ClusterSecurity,
    pilots: &[Arc<Pilot>],
    trust: Option<String>,
    key: ClientKey<'_>,
    findings: &mut SecurityFindings,
) -> Result<(), Error> {
    let Some(login) = desired.database.login else { return Ok(()) };
    let secret_name = desired.database.names.pilot_secret(&desired.name);
    let users_secret = secrets::read_managed_secret(ctx, desired, &secret_name).await?;
    if let Some(secret) = &users_secret
        && let Some(problem) = origin::origin_problem(
            ctx,
            desired,
            secret,
            &SEALED_OF_PILOTS,
            named_to_nodes(secret, pilots),
        )
    {
        findings.users.push(problem);
        return Ok(());
    }
    let stored_users = match Known::from_secret(users_secret.as_ref()) {
        Ok(stored_users) => stored_users,
        // Taken for nothing, it would give everybody another password.
        Err(refusal) => {
            let message = format!(
                "Secret {secret_name}, key {FILE}: {refusal}: put back what was there; users stay as they \
                 are. Deleted, the Secret is made anew, with another login for pilots"
            );
            findings.users.push(SecurityProblem { reason: "SecretInvalid", message });
            return Ok(());
        }
    };
    let (mut users, mut sources, mut superuser) = (Vec::new(), Vec::new(), None);
    let mut used_names = HashSet::new();
    for declared_user in declared_users(desired, security) {
        let binding = Binding { desired, login, trust: trust.as_deref() };
        let (user_secret, key) = if let Some(SecretKey { name, key }) = &declared_user.given {
            let key = key.as_deref().unwrap_or(PASSWORD).to_owned();
            (secrets::read_secret(ctx, desired, name).await?, key)
        } else {
            let name = declared_user
                .name
                .map_or_else(|| administrator_name(desired, login), str::to_owned);
            let kept_secret = match binding
                .ensure_secret(ctx, &declared_user.made, &name, &stored_users, findings)
                .await?
            {
                KeptSecret::Found(secret) => Some(*secret),
                KeptSecret::Refused => None,
                KeptSecret::Doubtful(problem) => {
                    let name = declared_user
                        .name
                        .or(stored_users.administrator.as_deref())
                        .unwrap_or(&name);
                    findings.declared.push(DeclaredLogin {
                        name: name.to_owned(),
                        secret: declared_user.made.clone(),
                        problem: Some(problem.message.clone()),
                    });
                    findings.users.push(problem);
                    // Who could log in before goes on.
                    if let Some((user, source)) = stored_users.as_before(name, &declared_user)
                        && used_names.insert(user.name.clone())
                    {
                        users.push(user);
                        sources.push(source);
                    }
                    continue;
                }
            };
            (kept_secret, PASSWORD.to_owned())
        };
        let secret =
            declared_user.given.as_ref().map_or(&declared_user.made, |source| &source.name);
        let name = match declared_user.name {
            Some(name) => Ok(name.to_owned()),
            None => stored_users.name_of_administrator(user_secret.as_ref(), login),
        };
        let name = match name {
            Ok(name) => name,
            Err(unusable_name) => {
                let UnusableName { why, former } = *unusable_name;
                let consequence = match &former {
                    Some(former) => format!("{} stays the administrator", former.0.name),
                    None => "there is no administrator".to_owned(),
                };
                let message = format!(
                    "the administrator's name, Secret {secret}, key {USERNAME}: {why}: put another one \
                     there; {consequence}"
                );
                findings.declared.push(DeclaredLogin {
                    name: former.as_ref().map_or(login.admin, |former| &former.0.name).to_owned(),
                    secret: secret.clone(),
                    problem: Some(message.clone()),
                });
                findings.users.push(SecurityProblem { reason: "UserNameUnusable", message });
                if let Some((user, source)) = former {
                    used_names.insert(user.name.clone());
                    users.push(user);
                    sources.push(source);
                }
                continue;
            }
        };
        if declared_user.name.is_none() && declared_user.given.is_some() && takes_over(desired) {
            let password = user_secret.as_ref().and_then(|secret| secret.text(&key));
            superuser = password.map(|password| SuperuserLogin {
                name: name.clone(),
                password: password.to_owned(),
            });
        }
        let (hash, source, problem) =
            hash_password(login.hashing, &stored_users, &name, secret, user_secret.as_ref(), &key)
                .await;
        findings.declared.push(DeclaredLogin {
            name: name.clone(),
            secret: secret.clone(),
            problem: problem.as_ref().map(|problem| problem.message.clone()),
        });
        findings.users.extend(problem);
        if !used_names.insert(name.clone()) {
            let message = format!("two users are named {name}: rename one, or the administrator");
            findings.users.push(SecurityProblem { reason: "UserNameTaken", message });
            continue;
        }
        let Some(hash) = hash else {
            // Another name, with a password that cannot be used: who administered goes on.
            let former_name =
                stored_users.administrator.as_deref().filter(|_| declared_user.name.is_none());
            if let Some((user, source)) =
                former_name.and_then(|name| stored_users.stored_administrator(name))
            {
                used_names.insert(user.name.clone());
                users.push(user);
                sources.push(source);
            }
            continue;
        };
        let roles = declared_user.roles.to_vec();
        users.push(DocumentedUser {
            name: name.clone(),
            hash,
            superuser: declared_user.superuser,
            roles,
        });
        sources.push(KnownSource {
            user: name,
            source,
            administrator: declared_user.name.is_none(),
        });
    }
    let pilot_user = if login.shared_by_pilots {
        Some(own_login(desired, login.hashing, stored_users.own.clone()).await?)
    } else {
        None
    };
    let mut roles = desired.roles.clone();
    roles.retain(|role| {
        let is_free = !used_names.contains(&role.name);
        if !is_free {
            let message = format!("a role and a user are named {}: rename one", role.name);
            findings.users.push(SecurityProblem { reason: "UserNameTaken", message });
        }
        is_free
    });
    let document =
        UsersDocument::new(users, pilot_user).with_roles(roles).with_superuser(superuser);
    let sources = serde_json::to_vec(&sources).expect("our own types have string keys only");
    let mut values = BTreeMap::from([
        (FILE.to_owned(), ByteString(document.to_json())),
        (SOURCES.to_owned(), ByteString(sources)),
    ]);
    let mounted_key = users_secret.as_ref().and_then(|secret| secret.value(CLIENT_KEY));
    let key = match key {
        ClientKey::Given(pem) => Some(pem.as_bytes()),
        ClientKey::AsBefore => mounted_key,
        ClientKey::None => None,
    };
    let has_other_key = mounted_key != key;
    values.extend(key.map(|pem| (CLIENT_KEY.to_owned(), ByteString(pem.to_vec()))));
    let write_result = if document.pilot_user().is_none() {
        let mut object = PreparedObject::from_object(&Secret {
            metadata: resources::cluster_metadata(desired, &ctx.settings, &secret_name),
            data: Some(values.clone()),
            ..Secret::default()
        });
        origin::seal_secret(ctx, desired, &mut object, sealed_values(&values));
        match &users_secret {
            // Its seal proves that it lost the annotation with the cluster's uid.
            Some(secret)
                if owner_uid(&secret.meta).is_none()
                    && origin::is_proven(ctx, desired, secret, &SEALED_OF_PILOTS) =>
            {
                apply_object(ctx, desired, &object, secret.meta.resource_version.clone()).await
            }
            _ => ensure_object(ctx, desired, &object).await,
        }
    } else {
        let is_stored = |secret: &FoundSecret| {
            values.iter().all(|(key, value)| secret.value(key) == Some(value.0.as_slice()))
        };
        let is_sealed = |secret| origin::is_sealed(ctx, desired, secret, &SEALED_OF_PILOTS);
        let is_stored =
            users_secret.as_ref().is_some_and(|secret| is_stored(secret) && is_sealed(secret));
        let is_unchanged = !has_other_key && is_stored;
        let mut object = left_behind(ctx, desired, &secret_name, values.clone());
        origin::seal_secret(ctx, desired, &mut object, sealed_values(&values));
        match users_secret {
            Some(_) if is_unchanged => Ok(()),
            Some(secret) => apply_object(ctx, desired, &object, secret.meta.resource_version).await,
            None => create_object(ctx, desired, &object, &object.body).await.map(drop),
        }
    };
    // What does not stand in the Secret is nothing for a node to wait for.
    findings.revision = if write_result.is_ok() {
        Some(document.revision().to_owned())
    } else {
        stored_users.revision
    };
    write_result
}

/// Deletes the Secrets that were made for users who are not in the spec any more, or who have a Secret
/// of a person's now: a user that is added again gets another password. Secrets that only an earlier
/// cluster of this name used stay: a cluster that is made again may name its users later.
pub(super) async fn remove_unused(
    ctx: &ControllerContext,
    desired: &DesiredCluster,
    security: &ClusterSecurity,
) -> Result<(), Error> {
    let used_names: HashSet<_> = declared_users(desired, security)
        .filter(|user| user.given.is_none())
        .map(|user| user.made)
        .collect();
    let resource = secrets::secret_resource();
    for secret_meta in ctx.stores.other_objects(&resource, desired) {
        let name = secret_meta.name.as_deref().unwrap_or_default();
        if !is_used_by(&secret_meta, desired) || used_names.contains(name) {
            continue;
        }
        // Labels and annotations of other Secrets may be written by somebody who may not delete them.
        let secret = secrets::read_managed_secret(ctx, desired, name).await?;
        let is_made = |secret| origin::is_sealed(ctx, desired, secret, &SEALED_OF_USER);
        if secret.as_ref().is_some_and(is_made) {
            delete_object(ctx, desired, &resource, name, exact_preconditions(&secret_meta)).await?;
            let namespace = &desired.namespace;
            info!(namespace, name, "Deleted the Secret of a user that needs it no more");
        }
    }
    Ok(())
}

/// Did this very cluster use the Secret that was made for a user?
fn is_used_by(meta: &ObjectMeta, desired: &DesiredCluster) -> bool {
    let used_by = meta.annotations.as_ref().and_then(|values| values.get(annotation::USED_BY));
    used_by.is_some_and(|uid| *uid == desired.uid)
}

/// Returns what is sealed of the mounted Secret.
fn sealed_values(values: &BTreeMap<String, ByteString>) -> impl Iterator<Item = (&str, &[u8])> {
    SEALED_OF_PILOTS.iter().filter_map(|key| Some((*key, values.get(*key)?.0.as_slice())))
}

/// Was a node told to have the users in this Secret?
fn named_to_nodes(secret: &FoundSecret, pilots: &[Arc<Pilot>]) -> bool {
    let document = secret.value(FILE).and_then(|json| UsersDocument::recover_from_json(json).ok());
    let Some(document) = document else { return false };
    let is_named = |pilot: &Arc<Pilot>| {
        let revision = pilot.spec.security.as_ref().and_then(|security| security.users.as_deref());
        revision == Some(document.revision())
    };
    pilots.iter().any(is_named)
}

/// Name of the administrator that is made. Clusters of one ring may not both have the same.
fn administrator_name(desired: &DesiredCluster, login: &LoginNames) -> String {
    if desired.nodes_elsewhere {
        format!("{}-{}", login.admin, desired.name)
    } else {
        login.admin.to_owned()
    }
}

/// Do nodes ask for logins that people made, until they ask for Navigator's? With one of those, the
/// administrator's, pilots make their own.
fn takes_over(desired: &DesiredCluster) -> bool {
    desired.desired_modes().authentication == Authentication::Password
        && desired.round.rungs.authentication == Authentication::Off
        && desired.database.login.is_some_and(|login| login.shared_by_pilots)
        && desired.asks_by_itself()
}

/// Prepares a Secret that nobody owns, so that it stays when its cluster is deleted.
fn left_behind(
    ctx: &ControllerContext,
    desired: &DesiredCluster,
    name: &str,
    values: BTreeMap<String, ByteString>,
) -> PreparedObject {
    let mut metadata = resources::cluster_metadata(desired, &ctx.settings, name);
    (metadata.annotations, metadata.owner_references) = (None, None);
    let secret = Secret { metadata, data: Some(values), ..Secret::default() };
    let mut object = PreparedObject::from_object(&secret);
    // It is compared by its values, and a hash of a password is for nobody to see.
    if let Some(metadata) = object.body["metadata"].as_object_mut() {
        metadata.remove("annotations");
    }
    object
}

/// Returns with what pilots log in: as before, or made now.
async fn own_login(
    desired: &DesiredCluster,
    hashing: PasswordHashing,
    existing_login: Option<OwnLogin>,
) -> Result<OwnLogin, Error> {
    if let Some(existing_login) = existing_login {
        return Ok(existing_login);
    }
    let creation_error = |source: Box<dyn std::error::Error + Send + Sync>| Error::Unmade {
        what: "a login for pilots".to_owned(),
        source,
    };
    let password = password::generate_password().map_err(|error| creation_error(error.into()))?;
    let text = password.clone();
    let hash = tokio::task::spawn_blocking(move || hashing.hash(&text)).await;
    let hash = hash
        .map_err(|error| creation_error(error.into()))?
        .map_err(|error| creation_error(error.into()))?;
    let mark = desired.uid.chars().filter(char::is_ascii_alphanumeric).take(MARK_DIGITS).collect();
    Ok(OwnLogin { mark, password, hash })
}

/// The administrator, then the users of the spec.
fn declared_users<'a>(
    desired: &DesiredCluster,
    security: &'a ClusterSecurity,
) -> impl Iterator<Item = DeclaredUser<'a>> {
    let (names, cluster) = (desired.database.names, desired.name.clone());
    let admin = DeclaredUser {
        name: None,
        given: security
            .admin_secret
            .as_ref()
            .map(|secret| SecretKey { name: secret.name.clone(), key: None }),
        made: names.admin_secret(&cluster),
        superuser: true,
        roles: &[],
    };
    let users = security.users.iter().map(move |user| {
        let DatabaseUser { name, password_secret, superuser, roles } = user;
        DeclaredUser {
            name: Some(name),
            given: password_secret.clone(),
            made: names.user_secret(&cluster, name),
            superuser: *superuser == Some(true),
            roles,
        }
    });
    [admin].into_iter().chain(users)
}

/// Hashes that are mounted already.
#[derive(Default)]
struct Known {
    hashes: BTreeMap<String, String>,
    sources: BTreeMap<String, SecretSource>,
    own: Option<OwnLogin>,
    administrator: Option<String>,
    revision: Option<String>,
}

/// Why the administrator cannot have the name that the Secret says, and who was it before.
struct UnusableName {
    why: String,
    former: Option<(DocumentedUser, KnownSource)>,
}

impl Known {
    fn from_secret(secret: Option<&FoundSecret>) -> Result<Self, UsersRefusal> {
        let value = |key: &str| secret.and_then(|secret| secret.value(key));
        let document = value(FILE).map(UsersDocument::recover_from_json).transpose()?;
        let users = document.iter().flat_map(UsersDocument::users);
        let sources = value(SOURCES).and_then(|json| serde_json::from_slice(json).ok());
        let sources: Vec<KnownSource> = sources.unwrap_or_default();
        let administrator = sources.iter().find(|source| source.administrator);
        Ok(Self {
            hashes: users.map(|user| (user.name.clone(), user.hash.clone())).collect(),
            administrator: administrator.map(|source| source.user.clone()),
            sources: sources.into_iter().map(|source| (source.user, source.source)).collect(),
            own: document.as_ref().and_then(UsersDocument::pilot_user).cloned(),
            revision: document.map(|document| document.revision().to_owned()),
        })
    }

    /// Returns the administrator's name: what its Secret says, or as before where the Secret is gone or
    /// lost that key, or else the default. A name that nodes would refuse is an error: they would refuse
    /// all users with it.
    fn name_of_administrator(
        &self,
        secret: Option<&FoundSecret>,
        login: &LoginNames,
    ) -> Result<String, Box<UnusableName>> {
        let value = secret.and_then(|secret| secret.value(USERNAME));
        let old_name = self.administrator.as_ref();
        let Some(value) = value else {
            let is_same = |name: &&String| {
                secret.is_none_or(|secret| {
                    self.sources.get(*name).is_some_and(|source| source.is_of(&secret.source()))
                })
            };
            return Ok(old_name.filter(is_same).map_or(login.admin, String::as_str).to_owned());
        };
        let requested_name = std::str::from_utf8(value).ok();
        let reason = match requested_name {
            None => "it is no UTF-8".to_owned(),
            Some(name) if name.starts_with(OWN_USERS) => {
                format!("names that begin with {OWN_USERS} are Navigator's own")
            }
            Some(name) if login.reserved.contains(&name) => {
                format!("{name} is a role that Navigator closes, since everybody knows it")
            }
            Some(name) => match check_login_name(name).pop() {
                Some(problem) => format!("it {problem}"),
                None => return Ok(name.to_owned()),
            },
        };
        // An earlier release did not write down who is the administrator.
        let name = old_name.map(String::as_str).or(requested_name);
        let former_user = name.and_then(|name| self.stored_administrator(name));
        Err(Box::new(UnusableName { why: reason, former: former_user }))
    }

    /// Returns a user as it is mounted already.
    fn as_before(
        &self,
        name: &str,
        user: &DeclaredUser<'_>,
    ) -> Option<(DocumentedUser, KnownSource)> {
        let (stored_user, mut source) = self.stored_administrator(name)?;
        source.administrator = user.name.is_none();
        let (superuser, roles) = (user.superuser, user.roles.to_vec());
        Some((DocumentedUser { superuser, roles, ..stored_user }, source))
    }

    /// Returns the administrator of this name as it is mounted already.
    fn stored_administrator(&self, name: &str) -> Option<(DocumentedUser, KnownSource)> {
        let (name, hash) = (name.to_owned(), self.hashes.get(name)?.clone());
        let source = self.sources.get(&name).cloned().unwrap_or_default();
        let source = KnownSource { user: name.clone(), source, administrator: true };
        Some((DocumentedUser { name, hash, superuser: true, roles: Vec::new() }, source))
    }
}

/// Returns the hash of a user's password, what it was made from, and what is wrong.
async fn hash_password(
    hashing: PasswordHashing,
    stored_users: &Known,
    user: &str,
    secret: &str,
    user_secret: Option<&FoundSecret>,
    key: &str,
) -> (Option<String>, SecretSource, Option<SecurityProblem>) {
    let old_hash = stored_users.hashes.get(user).cloned();
    let source = stored_users.sources.get(user).cloned().unwrap_or_default();
    let consequence = if old_hash.is_some() {
        "the password before it stays in force"
    } else {
        "nobody can log in with it"
    };
    let build_problem = |reason, detail: String| {
        let message = format!("user {user}: {detail}; {consequence}");
        Some(SecurityProblem { reason, message })
    };
    let Some(user_secret) = user_secret else {
        let problem =
            build_problem("SecretMissing", format!("Secret {secret} is not there: create it"));
        return (old_hash, source, problem);
    };
    let new_source = user_secret.source();
    if old_hash.is_some() && source == new_source {
        return (old_hash, source, None);
    }
    let Some(value) = user_secret.value(key) else {
        let problem =
            build_problem("SecretMissing", format!("Secret {secret} has no key {key}: add it"));
        return (old_hash, source, problem);
    };
    let text = match password::check_password(value) {
        Ok(text) => text.to_owned(),
        Err(refusal) => {
            let detail = format!("Secret {secret}, key {key}: {refusal}: put another one there");
            return (old_hash, source, build_problem("PasswordUnusable", detail));
        }
    };
    let known_hash = old_hash.clone();
    // Tens of milliseconds of a processor, by intent.
    let hash_task = tokio::task::spawn_blocking(move || match known_hash {
        Some(hash) if hashing.verify(&text, &hash) => Ok(hash),
        _ => hashing.hash(&text),
    });
    match hash_task.await {
        Ok(Ok(hash)) => (Some(hash), new_source, None),
        Ok(Err(refusal)) => {
            (old_hash, source, build_problem("PasswordUnusable", refusal.to_string()))
        }
        Err(_) => (
            old_hash,
            source,
            build_problem("PasswordUnusable", "it could not be hashed".to_owned()),
        ),
    }
}

/// What an application needs to connect as a user.
struct Binding<'a> {
    desired: &'a DesiredCluster,
    login: &'static LoginNames,
    trust: Option<&'a str>,
}

/// The Secret of a user.
enum KeptSecret {
    Found(Box<FoundSecret>),
    /// The server will not take it, as the findings say.
    Refused,
    /// It may be a stranger's.
    Doubtful(SecurityProblem),
}

impl Binding<'_> {
    /// Makes the Secret of a user, where there is none, and keeps true in it where and how clients
    /// connect. Name and password in it are a person's to change.
    async fn ensure_secret(
        &self,
        ctx: &ControllerContext,
        name: &str,
        user: &str,
        stored_users: &Known,
        findings: &mut SecurityFindings,
    ) -> Result<KeptSecret, Error> {
        let secret = if let Some(secret) =
            secrets::read_managed_secret(ctx, self.desired, name).await?
        {
            let is_in_use =
                stored_users.sources.values().any(|source| source.is_of(&secret.source()));
            if let Some(problem) =
                origin::origin_problem(ctx, self.desired, &secret, &SEALED_OF_USER, is_in_use)
            {
                return Ok(KeptSecret::Doubtful(problem));
            }
            secret
        } else {
            let password = password::generate_password().map_err(|error| Error::Unmade {
                what: format!("a password for Secret {name:?}"),
                source: Box::new(error),
            })?;
            let credentials = [(USERNAME, user.to_owned()), (PASSWORD, password)];
            let sealed_credentials: Vec<_> =
                credentials.iter().map(|(key, text)| (*key, text.as_bytes())).collect();
            let values = self.connection_values().into_iter().chain(credentials.clone()).collect();
            let mut object = self.build_object(ctx, name, values);
            origin::seal_secret(ctx, self.desired, &mut object, sealed_credentials);
            if let Err(error) = create_object(ctx, self.desired, &object, &object.body).await {
                record_refusal(findings, error)?;
                return Ok(KeptSecret::Refused);
            }
            let new_secret = secrets::read_secret(ctx, self.desired, name).await?;
            let conflict_error =
                || Error::Conflict { kind: "Secret".to_owned(), name: name.to_owned() };
            new_secret.ok_or_else(conflict_error)?
        };
        let is_stored = |(key, value): (&str, String)| secret.text(key) == Some(value.as_str());
        let is_marked = origin::is_sealed(ctx, self.desired, &secret, &SEALED_OF_USER)
            && is_used_by(&secret.meta, self.desired);
        // A Secret that a person made under this name is read, and not written.
        if secret.is_of(self.desired)
            && !(is_marked && self.connection_values().into_iter().all(is_stored))
        {
            let mut object = self.build_object(ctx, name, self.connection_values());
            let sealed_fields =
                SEALED_OF_USER.iter().filter_map(|key| Some((*key, secret.value(key)?)));
            origin::seal_secret(ctx, self.desired, &mut object, sealed_fields);
            let version = secret.meta.resource_version.clone();
            if let Err(error) = apply_object(ctx, self.desired, &object, version).await {
                record_refusal(findings, error)?;
            }
        }
        Ok(KeptSecret::Found(Box::new(secret)))
    }

    /// People copy the Secret, and a cluster that is made again on its volumes needs it.
    fn build_object(
        &self,
        ctx: &ControllerContext,
        name: &str,
        values: Vec<(&str, String)>,
    ) -> PreparedObject {
        let bytes = |(key, text): (&str, String)| (key.to_owned(), ByteString(text.into_bytes()));
        let values = values.into_iter().map(bytes).collect();
        let mut object = left_behind(ctx, self.desired, name, values);
        object.body["metadata"]["annotations"][annotation::USED_BY] = json!(self.desired.uid);
        object
    }

    fn connection_values(&self) -> Vec<(&'static str, String)> {
        let names = self.desired.database.names;
        let services = (self.desired.database.services)(self.desired);
        let service = services.into_iter().find(ClusterService::is_for_clients);
        let service = service.map(|service| service.name).unwrap_or_default();
        let host = format!("{service}.{}.svc", self.desired.namespace);
        let port = names.ports.iter().find(|(name, _)| *name == self.login.client_port);
        let port = port.map_or(0, |(_, port)| *port);
        let mut values = vec![
            ("type", self.login.binding.to_owned()),
            ("host", host.clone()),
            ("port", port.to_string()),
        ];
        let is_encrypted = self.desired.round.rungs.client != ClientTls::Off;
        if let Some([secure, plain]) = self.login.schemes {
            let scheme = if is_encrypted { secure } else { plain };
            values.push(("uri", format!("{scheme}://{host}:{port}")));
        }
        values.extend((self.login.more)(self.desired));
        values.extend(self.trust.map(|trust| ("ca.crt", trust.to_owned())));
        values
    }
}

#[cfg(test)]
mod tests {
    use kube::api::DynamicObject;

    use super::*;
    use crate::controller::{
        ManagedDatabase,
        testing::{example, sample},
    };

    fn secret(version: &str) -> FoundSecret {
        let object = json!({
            "metadata": {"name": "s", "uid": "u", "resourceVersion": version},
            "data": {"password": "YWJj"},
        });
        FoundSecret::new(&serde_json::from_value::<DynamicObject>(object).unwrap())
    }

    #[test]
    fn a_superuser_is_lent_while_nodes_ask_for_logins_of_people_alone() {
        static ASKING: ManagedDatabase = ManagedDatabase {
            secured: |_| ("False", "NotEncrypted", "it has logins of its own"),
            ..example::EXAMPLE
        };
        let lent =
            |database: &'static ManagedDatabase, wanted: Authentication, on: Authentication| {
                let mut desired = sample::desired(&[("a", 1)], "x");
                desired.database = database;
                let authentication = Some(wanted);
                desired.security =
                    Some(ClusterSecurity { authentication, ..ClusterSecurity::default() });
                desired.round.rungs.authentication = on;
                takes_over(&desired)
            };
        let (asks, off) = (Authentication::Password, Authentication::Off);
        assert!(lent(&ASKING, asks.clone(), off.clone()));
        assert!(!lent(&ASKING, asks.clone(), asks.clone()), "nodes ask for Navigator's");
        assert!(!lent(&ASKING, off.clone(), off.clone()), "not asked for");
        assert!(!lent(&example::EXAMPLE, asks, off), "nobody is asked yet");
    }

    #[test]
    fn administrators_of_clusters_that_share_a_ring_have_names_of_their_own() {
        let mut desired = sample::desired(&[("a", 1)], "x");
        let login = example::EXAMPLE.login.unwrap();
        assert_eq!(administrator_name(&desired, login), "admin");
        desired.nodes_elsewhere = true;
        assert_eq!(administrator_name(&desired, login), format!("admin-{}", desired.name));
    }

    #[tokio::test]
    async fn a_database_gets_the_hash_that_it_reads_and_no_other_for_the_same_password() {
        let sha256 = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        let bcrypt = PasswordHashing::Bcrypt.hash("abc").unwrap();
        for (hashing, before, expected) in [
            (PasswordHashing::Sha256, None, Some(sha256)),
            (PasswordHashing::Sha256, Some(bcrypt.as_str()), Some(sha256)),
            (PasswordHashing::Bcrypt, Some(bcrypt.as_str()), Some(bcrypt.as_str())),
            (PasswordHashing::Bcrypt, Some(sha256), None),
        ] {
            let hashes = before.map(|hash| ("app".to_owned(), hash.to_owned()));
            let known = Known { hashes: hashes.into_iter().collect(), ..Known::default() };
            let (hash, source, problem) =
                super::hash_password(hashing, &known, "app", "s", Some(&secret("2")), "password")
                    .await;
            let hash = hash.unwrap();
            assert!(hashing.verify("abc", &hash) && problem.is_none(), "{hashing:?} {before:?}");
            assert!(expected.is_none_or(|expected| hash == expected), "{hashing:?} {before:?}");
            assert_eq!(source, secret("2").source());
        }
    }
}
