//! Tokens of pods: signed JSON (JWT, HS256) that names the pod it was made for.
//!
//! Nothing about a token is stored, so it stays valid over a restart of the API server. As on
//! Kubernetes a token ends with its pod: the token of a pod that is gone, or was replaced under its
//! name, is rejected.

use std::sync::Arc;

use base64::{Engine, prelude::BASE64_URL_SAFE_NO_PAD};
use futures::future::BoxFuture;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest, Sha256};

use super::kinds;
use crate::apiserver::{
    authn::{TokenReviewError, TokenReviewer, User, well_known},
    delegate::ReviewCallError,
    storage::{self, Key, Storage},
};

/// Block size of SHA-256 in bytes.
const BLOCK: usize = 64;

/// The claims in a token.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct TokenClaims {
    pub(super) namespace: String,
    pub(super) service_account: String,
    pub(super) pod_name: String,
    pub(super) pod_uid: String,
}

/// Makes tokens and checks them.
#[derive(Clone)]
pub(super) struct TokenAuthority {
    key: Arc<[u8]>,
    store: Arc<dyn Storage>,
}

impl TokenAuthority {
    pub(super) fn new(key: &[u8], store: Arc<dyn Storage>) -> Self {
        Self { key: key.into(), store }
    }

    pub(super) fn issue_token(&self, claims: &TokenClaims) -> String {
        let encode = |bytes: &[u8]| BASE64_URL_SAFE_NO_PAD.encode(bytes);
        let head = encode(br#"{"alg":"HS256","typ":"JWT"}"#);
        let claims = encode(&serde_json::to_vec(claims).expect("claims are strings"));
        let signed_part = format!("{head}.{claims}");
        let signature = encode(&self.sign(signed_part.as_bytes()));
        format!("{signed_part}.{signature}")
    }

    /// Returns the claims of a token, if this server signed it.
    fn verify_token(&self, token: &str) -> Option<TokenClaims> {
        let (signed_part, signature) = token.rsplit_once('.')?;
        let signature = BASE64_URL_SAFE_NO_PAD.decode(signature).ok()?;
        // Digests are compared: the time of a comparison says nothing about the signature.
        let expected_signature = self.sign(signed_part.as_bytes());
        if Sha256::digest(signature) != Sha256::digest(expected_signature) {
            return None;
        }
        let (_, claims) = signed_part.split_once('.')?;
        serde_json::from_slice(&BASE64_URL_SAFE_NO_PAD.decode(claims).ok()?).ok()
    }

    /// Signs `text` with HMAC-SHA-256 (RFC 2104).
    fn sign(&self, text: &[u8]) -> [u8; 32] {
        let pad = |pad_byte: u8| {
            let mut block = [pad_byte; BLOCK];
            block.iter_mut().zip(self.key.iter()).for_each(|(byte, key)| *byte ^= key);
            block
        };
        let inner = Sha256::new().chain_update(pad(0x36)).chain_update(text).finalize();
        Sha256::new().chain_update(pad(0x5c)).chain_update(inner).finalize().into()
    }

    async fn find_user(&self, token: &str) -> Result<Option<User>, storage::Error> {
        let Some(claims) = self.verify_token(token) else { return Ok(None) };
        let TokenClaims { namespace, service_account, pod_name, pod_uid } = claims;
        let pod = Key::new(kinds::CORE, "pods", &namespace, &pod_name);
        let Ok(pod) = pod else { return Ok(None) };
        let Some(entry) = self.store.get(&pod).await? else { return Ok(None) };
        let pod: Value = serde_json::from_slice(&entry.value).unwrap_or_default();
        if pod["metadata"]["uid"] != pod_uid.as_str() {
            return Ok(None);
        }
        let extra = [(well_known::POD_NAME, pod_name), (POD_UID, pod_uid)];
        Ok(Some(User {
            name: format!("system:serviceaccount:{namespace}:{service_account}"),
            uid: None,
            groups: vec![
                "system:serviceaccounts".to_owned(),
                format!("system:serviceaccounts:{namespace}"),
            ],
            extra: extra.into_iter().map(|(key, value)| (key.to_owned(), vec![value])).collect(),
        }))
    }
}

/// Key in the user's extra fields for the uid of the pod that a ServiceAccount token was issued to.
const POD_UID: &str = "authentication.kubernetes.io/pod-uid";

impl TokenReviewer for TokenAuthority {
    fn review<'a>(
        &'a self,
        token: &'a str,
    ) -> BoxFuture<'a, Result<Option<User>, Arc<TokenReviewError>>> {
        Box::pin(async move {
            let user = self.find_user(token).await;
            user.map_err(|error| Arc::new(ReviewCallError::from(error).into()))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::apiserver::storage::embedded::{EmbeddedStore, HistoryLimits};

    fn claims(uid: &str) -> TokenClaims {
        TokenClaims {
            namespace: "db".into(),
            service_account: "demo".into(),
            pod_name: "demo-0".into(),
            pod_uid: uid.into(),
        }
    }

    #[tokio::test]
    async fn a_token_is_good_for_its_pod_and_no_other() {
        let backend = redb::backends::InMemoryBackend::new();
        let store: Arc<dyn Storage> =
            Arc::new(EmbeddedStore::open_backend(backend, HistoryLimits::default()).unwrap());
        let tokens = TokenAuthority::new(b"key", Arc::clone(&store));
        let token = tokens.issue_token(&claims("a"));
        assert_eq!(tokens.find_user(&token).await.unwrap(), None, "there is no such pod");
        let key = Key::new(kinds::CORE, "pods", "db", "demo-0").unwrap();
        let pod = br#"{"metadata":{"uid":"a"}}"#;
        store.create(&key, pod.as_slice().into()).await.unwrap();
        let user = tokens.find_user(&token).await.unwrap().unwrap();
        assert_eq!(user.name, "system:serviceaccount:db:demo");
        assert_eq!(user.extra(well_known::POD_NAME), Some("demo-0"));
        let other = tokens.issue_token(&claims("b"));
        assert_eq!(tokens.find_user(&other).await.unwrap(), None, "another pod of this name");
    }

    #[tokio::test]
    async fn what_somebody_else_signed_or_changed_is_nobodys() {
        let backend = redb::backends::InMemoryBackend::new();
        let store: Arc<dyn Storage> =
            Arc::new(EmbeddedStore::open_backend(backend, HistoryLimits::default()).unwrap());
        let tokens = TokenAuthority::new(b"key", Arc::clone(&store));
        let token = tokens.issue_token(&claims("a"));
        assert_eq!(tokens.verify_token(&token), Some(claims("a")));
        assert_eq!(TokenAuthority::new(b"yek", store).verify_token(&token), None);
        let (head, rest) = token.split_once('.').unwrap();
        let (_, signature) = rest.split_once('.').unwrap();
        let forged = serde_json::to_vec(&claims("b")).unwrap();
        let forged = BASE64_URL_SAFE_NO_PAD.encode(forged);
        assert_eq!(tokens.verify_token(&format!("{head}.{forged}.{signature}")), None);
        for nonsense in ["", ".", "..", "a.b.c", &token[..token.len() - 2]] {
            assert_eq!(tokens.verify_token(nonsense), None, "{nonsense}");
        }
    }
}
