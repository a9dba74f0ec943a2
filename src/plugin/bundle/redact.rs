//! Removes secrets from what leaves the cluster: values under telling names, and in texts what
//! follows such a name.
//!
//! Removes too much rather than too little. A marker replaces each value; its name stays.

use serde_json::Value;

pub const REDACTED: &str = "REDACTED";

/// Parts of the names of fields and variables that hold secrets.
const SECRET: &[&str] = &[
    "password",
    "passwd",
    "passphrase",
    "passwort",
    "secret",
    "token",
    "credential",
    "apikey",
    "api_key",
    "api-key",
    "accesskey",
    "access_key",
    "access-key",
    "privatekey",
    "private_key",
    "private-key",
    "authorization",
    "bearer",
];
/// Ends of such names that only say where a secret is, or count something.
const HARMLESS: &[&str] = &["name", "names", "ref", "tokens", "path", "file", "type"];

/// Does a field or variable of this name hold a secret?
fn is_secret(name: &str) -> bool {
    let name = name.to_lowercase();
    SECRET.iter().any(|part| name.contains(part)) && !HARMLESS.iter().any(|end| name.ends_with(end))
}

/// Removes secrets from an object.
pub fn redact_value(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            // Field managers and their times are long, and of no use to a reader.
            fields.remove("managedFields");
            // Environment variables are written as `{name: PASSWORD, value: x}`.
            let has_secret_name = fields.get("name").and_then(Value::as_str).is_some_and(is_secret);
            for (name, inner) in fields.iter_mut() {
                let is_secret_field = is_secret(name) || (has_secret_name && name == "value");
                match inner {
                    inner if is_secret_field => redact_all(inner),
                    // The annotation holds the whole object again, as text.
                    Value::String(words) if name.ends_with("last-applied-configuration") => {
                        *words = redact_applied(words);
                    }
                    inner => self::redact_value(inner),
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(self::redact_value),
        Value::String(words) => *words = redact_text(words),
        _ => {}
    }
}

/// Fields of an object under a telling name that only say where a secret is.
const PLACES: &[&str] = &["key", "kind", "namespace", "optional", "items", "mode", "defaultMode"];

/// Removes every value under a telling name, but those that only say where it is.
fn redact_all(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            for (name, inner) in fields.iter_mut() {
                let lower_name = name.to_lowercase();
                let is_place = PLACES.contains(&name.as_str())
                    || HARMLESS.iter().any(|harmless| lower_name.ends_with(harmless));
                if is_place { self::redact_value(inner) } else { redact_all(inner) }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(redact_all),
        Value::String(_) | Value::Number(_) => *value = REDACTED.into(),
        Value::Null | Value::Bool(_) => {}
    }
}

fn redact_applied(words: &str) -> String {
    match serde_json::from_str::<Value>(words) {
        Ok(mut object) => {
            redact_value(&mut object);
            object.to_string()
        }
        Err(_) => REDACTED.to_owned(),
    }
}

/// Removes secrets from a text: what follows a telling name and `=` or `:`, the credentials in URLs
/// and Authorization headers, and private keys in PEM form.
pub fn redact_text(words: &str) -> String {
    let mut out = String::with_capacity(words.len());
    let mut in_key = false;
    for line in words.split_inclusive('\n') {
        if line.contains("-----BEGIN") && line.contains("PRIVATE KEY") {
            in_key = true;
            out.push_str(REDACTED);
            out.push('\n');
        }
        if in_key {
            in_key = !line.contains("-----END");
            continue;
        }
        out.push_str(&redact_urls(&redact_assignments(line)));
    }
    out
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || matches!(c, '_' | '-' | '.')
}

/// Removes values such as in `password=x`, `"password": "x"`, `-Dkey.password=x`, `Authorization:
/// Basic x`.
fn redact_assignments(line: &str) -> String {
    let mut out = String::with_capacity(line.len());
    let mut rest = line;
    while let Some(position) = rest.find(['=', ':']) {
        let (prefix, suffix) = rest.split_at(position);
        let sign = &suffix[..1];
        let remainder = &suffix[1..];
        out.push_str(prefix);
        out.push_str(sign);
        let name: String = prefix
            .trim_end_matches(['"', '\'', '\\', ' '])
            .chars()
            .rev()
            .take_while(|c| is_word(*c))
            .collect();
        let name: String = name.chars().rev().collect();
        rest = remainder;
        if !is_secret(&name) {
            continue;
        }
        let start = remainder.len() - remainder.trim_start_matches(['"', '\'', '\\', ' ']).len();
        let (quote, value) = remainder.split_at(start);
        // The scheme in `Authorization: Basic …` may stay.
        let scheme = ["Basic ", "Bearer ", "basic ", "bearer "];
        let scheme =
            scheme.into_iter().find(|scheme| value.starts_with(scheme)).unwrap_or_default();
        let value = &value[scheme.len()..];
        let is_quoted = quote.contains(['"', '\'']);
        let end = value.find(|c: char| {
            matches!(c, '"' | '\'' | '\\' | '\n')
                || (!is_quoted && matches!(c, ' ' | ',' | ';' | '&' | '}' | ')' | '\t'))
        });
        let end = end.unwrap_or(value.len());
        out.push_str(quote);
        out.push_str(scheme);
        if end > 0 {
            out.push_str(REDACTED);
        }
        rest = &value[end..];
    }
    out.push_str(rest);
    out
}

/// Removes the credentials of URLs such as `https://user:password@host`.
fn redact_urls(line: &str) -> String {
    let mut out = String::with_capacity(line.len());
    let mut rest = line;
    while let Some(position) = rest.find("://") {
        let (prefix, suffix) = rest.split_at(position + 3);
        out.push_str(prefix);
        let end = suffix
            .find(|c: char| c == '/' || c.is_whitespace() || c == '"')
            .unwrap_or(suffix.len());
        rest = match suffix[..end].rfind('@') {
            Some(user) => {
                out.push_str(REDACTED);
                &suffix[user..]
            }
            None => suffix,
        };
    }
    out.push_str(rest);
    out
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn values_under_telling_names_go_and_the_rest_stays() {
        let applied = json!({"spec": {"config": {"password": "hunter2"}, "replicas": 3}});
        let mut object = json!({
            "metadata": {
                "managedFields": [{"manager": "x"}],
                "annotations": {"kubectl.kubernetes.io/last-applied-configuration": applied.to_string()},
            },
            "spec": {
                "numTokens": 16,
                "config": {
                    "xpack.security.transport.ssl.keystore.secure_password": "hunter2",
                    "client_encryption_options": {"keystore_password": "hunter2", "enabled": true},
                    "api_key": 42,
                    "passwords": ["hunter2", {"value": "hunter2"}],
                    "token": {"value": "hunter2", "name": "kept-name"},
                    "cluster.name": "demo",
                },
                "jvm": {"options": ["-Djavax.net.ssl.keyStorePassword=hunter2", "-Xss512k"]},
                "podTemplate": {"spec": {
                    "imagePullSecrets": [{"name": "registry"}],
                    "automountServiceAccountToken": false,
                    "volumes": [{"name": "tls", "secret": {"secretName": "demo-tls"}}],
                    "containers": [{"name": "c", "env": [
                        {"name": "DB_PASSWORD", "value": "hunter2"},
                        {"name": "HOME", "value": "/root"},
                        {"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}},
                    ]}],
                }},
            },
        });
        redact_value(&mut object);
        let text = object.to_string();
        assert!(!text.contains("hunter2") && !text.contains("42"), "{text}");
        assert!(!text.contains("managedFields"), "{text}");
        for kept in [
            r#""numTokens":16"#,
            r#""cluster.name":"demo""#,
            r#""secretName":"demo-tls""#,
            r#""name":"kept-name""#,
            r#""value":"/root""#,
            r#"{"key":"k","name":"s"}"#,
            r#""name":"registry""#,
            "-Xss512k",
            "-Djavax.net.ssl.keyStorePassword=REDACTED",
            r#"\"replicas\":3"#,
        ] {
            assert!(text.contains(kept), "{kept} is not in {text}");
        }
    }

    #[test]
    fn texts_lose_what_follows_a_telling_name() {
        for (given, wanted) in [
            ("a password=hunter2, b=1", "a password=REDACTED, b=1"),
            (r#"{"password": "hunter 2", "b": 1}"#, r#"{"password": "REDACTED", "b": 1}"#),
            (r#"{\"password\":\"hunter2\"}"#, r#"{\"password\":\"REDACTED\"}"#),
            (r#"{"record":"a password=hunter2"}"#, r#"{"record":"a password=REDACTED"}"#),
            (
                r#"{"record":"a \"password\": \"hunter2\" b"}"#,
                r#"{"record":"a \"password\": \"REDACTED\" b"}"#,
            ),
            ("Authorization: Basic aHVudGVyMg==\n", "Authorization: Basic REDACTED\n"),
            ("GET http://u:hunter2@es:9200/_cat?a=b", "GET http://REDACTED@es:9200/_cat?a=b"),
            ("INFO 12:00:01 started: all is well", "INFO 12:00:01 started: all is well"),
            ("num_tokens: 16", "num_tokens: 16"),
            ("password=", "password="),
            (
                "x\n-----BEGIN RSA PRIVATE KEY-----\nabc\n-----END RSA PRIVATE KEY-----\ny",
                "x\nREDACTED\ny",
            ),
        ] {
            assert_eq!(redact_text(given), wanted);
        }
    }
}
