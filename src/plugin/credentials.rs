//! `get-credentials`: what an application needs to connect to a secured cluster, from its Secret.
//!
//! The rights of the person who asks decide: the Secret is read as `kubectl get secret` would.

use std::{collections::BTreeMap, fmt};

use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::Api;
use serde::{Deserialize as _, de::DeserializeOwned};
use serde_json::{Map, Value};

use super::{
    ClientEndpoint, ShownDatabase,
    error::Error,
    lookup::{ClusterObject, PluginSession},
};
use crate::{
    api::{
        object_picture::text_at,
        v1beta1::{Authentication, ClientTls, ClusterSecurity, SecretKey},
    },
    engine::password,
};

/// Keys of a user's Secret.
const USERNAME: &str = "username";
const PASSWORD: &str = "password";
const HOST: &str = "host";
const PORT: &str = "port";
const URI: &str = "uri";
/// Key of the CAs that clients are to trust, in Secrets and in the ConfigMap.
pub const CA: &str = "ca.crt";
/// The keys that a person or a program needs, in the order in which they are shown.
const SHOWN: [&str; 8] = ["type", USERNAME, PASSWORD, HOST, PORT, URI, "datacenter", CA];

/// The Secret in which the password of a user lies.
#[derive(Clone, Debug, PartialEq, Eq)]
struct UserSecret {
    /// What the spec calls the user; `None` for the administrator, whose Secret says the name.
    user: Option<String>,
    name: String,
    key: String,
}

/// What an application needs to connect as a user.
#[derive(Clone, PartialEq, Eq)]
pub struct ClientCredentials {
    pub username: String,
    pub password: String,
    /// Name of the Secret that they are from.
    pub secret: String,
    /// What the Secret's other keys say, or would say.
    values: BTreeMap<&'static str, String>,
}

impl fmt::Debug for ClientCredentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { username, password: _, secret, values: _ } = self;
        f.debug_struct("ClientCredentials")
            .field("username", username)
            .field("secret", secret)
            .finish_non_exhaustive()
    }
}

impl ClusterObject {
    /// Returns what the spec says of encryption and logins.
    pub fn security(&self) -> ClusterSecurity {
        let spec_security = self.object.pointer("/spec/security");
        spec_security.and_then(|value| ClusterSecurity::deserialize(value).ok()).unwrap_or_default()
    }
}

impl PluginSession {
    /// Reads the credentials of a declared user, or of the administrator.
    ///
    /// # Errors
    /// When the cluster asks nobody for a password, the user is not declared, or the Secret may not
    /// be read, is not there or cannot be used.
    pub async fn read_credentials(
        &self,
        cluster: &ClusterObject,
        user: Option<&str>,
    ) -> Result<ClientCredentials, Error> {
        let security = cluster.security();
        let database = self.database(cluster.kind);
        let (Authentication::Password, Some(database)) =
            (security.desired_modes().authentication, database)
        else {
            return Err(Error::NoLogin(cluster.reference()));
        };
        let user_secret = find_user_secret(cluster, &security, database, user)?;
        let secret: Secret = self.read_object(cluster, "Secret", &user_secret.name).await?;
        build_credentials(cluster, &security, &database.client, user_secret, &secret)
    }

    /// Returns the CAs that clients of the cluster are to trust, as PEM.
    ///
    /// # Errors
    /// When clients are served without TLS, or the ConfigMap that has them cannot be read.
    pub async fn client_trust(
        &self,
        cluster: &ClusterObject,
        credentials: &ClientCredentials,
    ) -> Result<String, Error> {
        if cluster.security().desired_modes().client == ClientTls::Off {
            return Err(Error::NoClientTls(cluster.reference()));
        }
        if let Some(trust) = credentials.values.get(CA) {
            return Ok(trust.clone());
        }
        let status_name = text_at(&cluster.object, "/status/security/caConfigMap");
        let default_name =
            cluster.names.map(|names| names.ca_bundle(cluster.name())).unwrap_or_default();
        let name = if status_name.is_empty() { default_name.as_str() } else { status_name };
        let map: ConfigMap = self.read_object(cluster, "ConfigMap", name).await?;
        let trust = map.data.and_then(|mut data| data.remove(CA));
        trust.ok_or_else(|| {
            Error::Unusable(format!("ConfigMap {name} has no key {CA}: the controller adds it"))
        })
    }

    /// Reads an object of the cluster's namespace; an error says which one, in one sentence.
    async fn read_object<K>(
        &self,
        cluster: &ClusterObject,
        kind: &str,
        name: &str,
    ) -> Result<K, Error>
    where
        K: kube::Resource<Scope = k8s_openapi::NamespaceResourceScope>,
        K: Clone + fmt::Debug + DeserializeOwned,
        K::DynamicType: Default,
    {
        let namespace = cluster.namespace();
        let api: Api<K> = Api::namespaced(self.client.clone(), namespace);
        let object = format!("{kind} {name} in namespace {namespace}");
        api.get(name).await.map_err(|error| match error {
            kube::Error::Api(status) if status.code == 403 => Error::NotAllowed { object },
            kube::Error::Api(status) if status.code == 404 => Error::NotThere { object },
            error => Error::Server(error),
        })
    }
}

/// Returns where the password of a user lies.
fn find_user_secret(
    cluster: &ClusterObject,
    security: &ClusterSecurity,
    database: &ShownDatabase,
    user: Option<&str>,
) -> Result<UserSecret, Error> {
    let Some(user) = user else {
        let spec_name = security.admin_secret.as_ref().map(|secret| secret.name.clone());
        let status_name = text_at(&cluster.object, "/status/security/adminSecret");
        let default_name = || database.names.admin_secret(cluster.name());
        let status_name = (!status_name.is_empty()).then(|| status_name.to_owned());
        let name = spec_name.or(status_name).unwrap_or_else(default_name);
        return Ok(UserSecret { user: None, name, key: PASSWORD.to_owned() });
    };
    let Some(declared_user) = security.users.iter().find(|candidate| candidate.name == user) else {
        return Err(Error::NoUser {
            cluster: cluster.name().to_owned(),
            user: user.to_owned(),
            users: security.users.iter().map(|declared_user| declared_user.name.clone()).collect(),
        });
    };
    let (name, key) = match declared_user.password_secret.clone() {
        Some(SecretKey { name, key }) => (name, key),
        None => (database.names.user_secret(cluster.name(), user), None),
    };
    let key = key.unwrap_or_else(|| PASSWORD.to_owned());
    Ok(UserSecret { user: Some(user.to_owned()), name, key })
}

/// Takes out of a Secret what it holds, and adds what one that a person made does not say.
fn build_credentials(
    cluster: &ClusterObject,
    security: &ClusterSecurity,
    client: &ClientEndpoint,
    user_secret: UserSecret,
    secret: &Secret,
) -> Result<ClientCredentials, Error> {
    let UserSecret { user, name: secret_name, key } = user_secret;
    let bytes = |key: &str| secret.data.as_ref()?.get(key).map(|value| value.0.as_slice());
    let text_value = |key: &str| {
        let value = std::str::from_utf8(bytes(key)?).ok()?;
        (!value.is_empty()).then(|| value.to_owned())
    };
    let Some(value) = bytes(&key) else {
        let message = format!("Secret {secret_name} has no key {key}: put a password there");
        return Err(Error::Unusable(message));
    };
    let password = password::check_password(value).map_err(|refusal| {
        Error::Unusable(format!(
            "Secret {secret_name}, key {key}: {refusal}: put another one there"
        ))
    })?;
    let host = text_value(HOST).unwrap_or_else(|| {
        format!("{}.{}.svc", (client.service)(cluster.name()), cluster.namespace())
    });
    let port = text_value(PORT).unwrap_or_else(|| client.port.to_string());
    let tls = security.desired_modes().client != ClientTls::Off;
    let uri = text_value(URI).or_else(|| {
        let [secure, plain] = client.schemes?;
        Some(format!("{}://{host}:{port}", if tls { secure } else { plain }))
    });
    let word = || cluster.names.map_or_else(String::new, |names| names.word.to_owned());
    let mut values = BTreeMap::from([
        ("type", text_value("type").unwrap_or_else(word)),
        (HOST, host),
        (PORT, port),
    ]);
    values.extend(uri.map(|uri| (URI, uri)));
    for key in ["datacenter", CA] {
        values.extend(text_value(key).map(|value| (key, value)));
    }
    Ok(ClientCredentials {
        username: user.or_else(|| text_value(USERNAME)).unwrap_or_else(|| client.admin.to_owned()),
        password: password.to_owned(),
        secret: secret_name,
        values,
    })
}

impl ClientCredentials {
    fn entries(&self) -> impl Iterator<Item = (&'static str, &str)> {
        SHOWN.into_iter().filter_map(|key| {
            let value = match key {
                USERNAME => &self.username,
                PASSWORD => &self.password,
                key => self.values.get(key)?,
            };
            Some((key, value.as_str()))
        })
    }

    /// Returns them under the keys of the Secret, for programs.
    pub fn json(&self) -> Value {
        let entries = self.entries().map(|(key, value)| (key.to_owned(), Value::from(value)));
        Value::Object(entries.collect::<Map<_, _>>())
    }

    /// Returns assignments for a shell, in variables that begin with `word`, a line each; `ca_file`
    /// is a file with the CAs.
    ///
    /// # Errors
    /// When a value holds control characters: a line cannot hold some of them, and a terminal would
    /// obey others.
    pub fn format_env(&self, word: &str, ca_file: Option<&str>) -> Result<String, Error> {
        let entries = self.entries().filter(|(key, _)| !["type", CA].contains(key));
        let entries = entries.chain(ca_file.map(|file| ("ca_file", file)));
        let mut lines = String::new();
        for (key, value) in entries {
            if value.chars().any(char::is_control) {
                return Err(Error::Unusable(format!(
                    "Secret {}: {key} holds control characters, which no line can: take -o json",
                    self.secret
                )));
            }
            let name = format!("{word}_{key}").to_uppercase();
            lines.extend([name.as_str(), "=", &quote_word(value), "\n"]);
        }
        Ok(lines)
    }
}

/// Writes a text so that a shell reads it as one word.
fn quote_word(text: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "_-./:@%+=,".contains(c);
    if !text.is_empty() && text.chars().all(is_plain) {
        text.to_owned()
    } else {
        format!("'{}'", text.replace('\'', r"'\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn made(password: &str) -> ClientCredentials {
        ClientCredentials {
            username: "app@example.org".to_owned(),
            password: password.to_owned(),
            secret: "es-demo-user-app".to_owned(),
            values: BTreeMap::from([
                ("type", "example".to_owned()),
                (HOST, "es-demo.shop.svc".to_owned()),
                (CA, "-----BEGIN".to_owned()),
            ]),
        }
    }

    #[test]
    fn a_line_is_one_word_for_a_shell_and_what_no_line_holds_is_told() {
        let lines = made("it's; $(rm) \\ \"x\"").format_env("example", Some("/tmp/my ca")).unwrap();
        assert_eq!(
            lines,
            "EXAMPLE_USERNAME=app@example.org\n\
             EXAMPLE_PASSWORD='it'\\''s; $(rm) \\ \"x\"'\n\
             EXAMPLE_HOST=es-demo.shop.svc\n\
             EXAMPLE_CA_FILE='/tmp/my ca'\n"
        );
        for hostile in ["a\nb", "a\u{1b}[2Jb"] {
            let refused = made(hostile).format_env("example", None).unwrap_err().to_string();
            assert!(refused.contains("es-demo-user-app: password holds"), "{refused}");
            assert!(!refused.contains('\u{1b}'));
            assert_eq!(made(hostile).json()["password"], hostile);
        }
    }

    #[test]
    fn what_is_for_nobody_to_see_is_not_printed_by_debug() {
        let shown = format!("{:?}", made("hunter2"));
        assert!(shown.contains("app@example.org") && !shown.contains("hunter2"), "{shown}");
    }
}
