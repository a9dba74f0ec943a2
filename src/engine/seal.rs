//! Seals: by them the controller knows a Secret that it wrote, also one that was deleted and put back.
//!
//! A seal is an HMAC-SHA256 over the namespace, the name and the values of a Secret, with a key that
//! only the controller has. Whoever may create Secrets, and not read them, cannot make one.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use ring::hmac::{HMAC_SHA256, Key, sign, verify};

/// Bytes of a key.
pub const KEY_BYTES: usize = 32;

/// The key of seals. It cannot be printed.
#[derive(Clone)]
pub struct SealKey(Key);

impl SealKey {
    pub fn new(bytes: &[u8; KEY_BYTES]) -> Self {
        Self(Key::new(HMAC_SHA256, bytes))
    }

    /// Seals the values of a Secret, each with its key.
    pub fn seal<'a>(
        &self,
        namespace: &str,
        name: &str,
        values: impl IntoIterator<Item = (&'a str, &'a [u8])>,
    ) -> String {
        STANDARD.encode(sign(&self.0, &sealed_message(namespace, name, values)))
    }

    /// Is it the seal of these values?
    pub fn is_valid_seal<'a>(
        &self,
        seal: &str,
        namespace: &str,
        name: &str,
        values: impl IntoIterator<Item = (&'a str, &'a [u8])>,
    ) -> bool {
        let Ok(seal) = STANDARD.decode(seal) else { return false };
        verify(&self.0, &sealed_message(namespace, name, values), &seal).is_ok()
    }
}

/// Returns what is sealed: each part with its length before it, so that no two Secrets have the same.
fn sealed_message<'a>(
    namespace: &str,
    name: &str,
    values: impl IntoIterator<Item = (&'a str, &'a [u8])>,
) -> Vec<u8> {
    let mut text = Vec::new();
    let mut add = |part: &[u8]| {
        text.extend((part.len() as u64).to_be_bytes());
        text.extend(part);
    };
    add(namespace.as_bytes());
    add(name.as_bytes());
    for (key, value) in values {
        add(key.as_bytes());
        add(value);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seal_holds_for_what_was_sealed_and_for_nothing_else() {
        let key = SealKey::new(&[7; KEY_BYTES]);
        let values = |password: &'static str| [("username", "app"), ("password", password)];
        let bytes = |all: [(&'static str, &'static str); 2]| all.map(|(k, v)| (k, v.as_bytes()));
        let seal = key.seal("n", "s", bytes(values("secret")));
        let holds = |seal: &str, namespace: &str, name: &str, all| {
            key.is_valid_seal(seal, namespace, name, bytes(all))
        };
        assert!(holds(&seal, "n", "s", values("secret")));
        assert!(!holds(&seal, "m", "s", values("secret")), "of another namespace");
        assert!(!holds(&seal, "n", "t", values("secret")), "under another name");
        assert!(!holds(&seal, "n", "s", values("other")));
        assert!(!holds(&seal, "n", "s", [("username", "app"), ("passwor", "dsecret")]));
        let other = SealKey::new(&[8; KEY_BYTES]);
        assert!(!other.is_valid_seal(&seal, "n", "s", bytes(values("secret"))), "by another key");
        for seal in ["", "?", &seal[4..]] {
            assert!(!holds(seal, "n", "s", values("secret")), "{seal}");
        }
    }
}
