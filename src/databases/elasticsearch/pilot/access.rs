//! How the pilot gets into its own node: as a user of that node alone, with a password for each start.

use std::fmt;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use http::HeaderValue;
use serde::{Deserialize, Serialize};

use crate::{
    databases::elasticsearch::facts::OWN_USER,
    engine::password::{self, PasswordRefusal},
    pilot::{clients::search_engine::SearchLogin, driver::Error, tls::PinnedLeaves},
};

/// How to get into a node that is secured.
#[derive(Clone, Serialize, Deserialize)]
pub(super) struct NodeAccess {
    /// The port for clients speaks TLS.
    pub(super) https: bool,
    password: String,
    /// Hash of the password, as the node has it.
    pub(super) hash: String,
}

impl fmt::Debug for NodeAccess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { https, password: _, hash: _ } = self;
        f.debug_struct("NodeAccess").field("https", https).finish_non_exhaustive()
    }
}

impl NodeAccess {
    /// Makes a password for a start.
    pub(super) fn generate(https: bool) -> Result<Self, Error> {
        let generate_error = |refusal: PasswordRefusal| Error::Unprepared(refusal.to_string());
        let password = password::generate_password().map_err(generate_error)?;
        let hash = password::hash_bcrypt(&password).map_err(generate_error)?;
        Ok(Self { https, password, hash })
    }

    /// Returns the login of the pilot's own user, for a client that accepts `pins`.
    pub(super) fn login(&self, pins: &PinnedLeaves) -> Result<SearchLogin, Error> {
        self.login_as(OWN_USER, pins)
    }

    /// Returns the login of a user that has the pilot's password.
    pub(super) fn login_as(&self, user: &str, pins: &PinnedLeaves) -> Result<SearchLogin, Error> {
        let unusable_error =
            |error: Box<dyn std::error::Error + Send + Sync>| Error::Unreachable { source: error };
        let secret = STANDARD.encode(format!("{user}:{}", self.password));
        let mut authorization = HeaderValue::try_from(format!("Basic {secret}"))
            .map_err(|error| unusable_error(error.into()))?;
        authorization.set_sensitive(true);
        let tls = self.https.then(|| pins.client_config()).transpose();
        let tls = tls.map_err(|error| unusable_error(error.into()))?;
        Ok(SearchLogin { authorization: Some(authorization), tls })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_start_has_its_own_password_which_nobody_sees() {
        let first = NodeAccess::generate(true).unwrap();
        let access = NodeAccess::generate(true).unwrap();
        assert_ne!(first.password, access.password);
        assert!(password::verify_bcrypt(&access.password, &access.hash));
        let login = access.login(&PinnedLeaves::default()).unwrap();
        let shown = format!("{access:?} {:?}", login.authorization);
        assert!(!shown.contains(&access.password) && !shown.contains("2a$"), "{shown}");
        let secret = STANDARD.encode(format!("{OWN_USER}:{}", access.password));
        assert!(!shown.contains(&secret), "{shown}");
    }
}
