//! The keys of one installation: a CA, the server's certificate, those of the administrator and
//! of the controller, and the key that pods' tokens are signed with.
//!
//! Owns the key files, which only their owner may read. A certificate that is due is renewed at the
//! next start. The CA lives for ten years, and is replaced when it has expired.

use std::{
    fs::{self, File, Permissions},
    io::{self, Write},
    net::IpAddr,
    os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt},
    path::{Path, PathBuf},
};

use base64::{Engine, prelude::BASE64_STANDARD};
use jiff::Timestamp;
use rand::RngCore;

use super::Error;
use crate::{
    api::names,
    apiserver::{
        authn::well_known,
        certs::issuer::{self, CertificateDetails, CertificateIssueError, CertificatePair},
    },
};

/// User name in the administrator's certificate.
const ADMIN: &str = "navigator-admin";

/// Length of the key that signs tokens, in bytes.
const TOKEN_KEY: usize = 32;

/// Returns the user name in the controller's certificate: that of its ServiceAccount on Kubernetes.
pub(super) fn controller_user_name() -> String {
    format!("system:serviceaccount:{}:{}", names::NAMESPACE, names::CONTROLLER)
}

/// The keys and certificates of an installation, from its folder.
pub(super) struct Pki {
    folder: PathBuf,
    pub(super) ca: CertificatePair,
    pub(super) server: CertificatePair,
    pub(super) admin: CertificatePair,
    pub(super) controller: CertificatePair,
    pub(super) token_key: Vec<u8>,
}

impl Pki {
    /// Reads the keys and certificates, and makes those that are missing or due.
    pub(super) fn open(folder: &Path, address: IpAddr) -> Result<Self, Error> {
        let folder_error = |source| Error::Folder { path: folder.to_owned(), source };
        let issue_error = |source: CertificateIssueError| pki_error(folder, source);
        create_private_dir(folder).map_err(folder_error)?;
        let now = Timestamp::now().as_second();
        let mut ca = read_pair(folder, "ca").map_err(folder_error)?;
        ca.take_if(|ca| {
            CertificateDetails::from_pem(&ca.certificate).is_none_or(|facts| facts.is_expired(now))
        });
        // A certificate of an older CA is not trusted, so it is replaced, too.
        let is_new_ca = ca.is_none();
        let ca = if let Some(ca) = ca {
            ca
        } else {
            let new_ca = issuer::issue_ca().map_err(issue_error)?;
            write_pair(folder, "ca", &new_ca).map_err(folder_error)?;
            new_ca
        };
        let ensure_pair =
            |name: &str,
             names: &[String],
             issue_pair: &dyn Fn() -> Result<CertificatePair, CertificateIssueError>| {
                let existing_pair = read_pair(folder, name).map_err(folder_error)?.filter(|pair| {
                    let facts = CertificateDetails::from_pem(&pair.certificate);
                    !is_new_ca
                        && facts
                            .is_some_and(|facts| !facts.is_due(now) && facts.has_all_names(names))
                });
                if let Some(pair) = existing_pair {
                    return Ok(pair);
                }
                let new_pair = issue_pair().map_err(issue_error)?;
                write_pair(folder, name, &new_pair).map_err(folder_error)?;
                Ok::<_, Error>(new_pair)
            };
        let names = [address.to_string(), "127.0.0.1".to_owned(), "localhost".to_owned()];
        let server =
            ensure_pair("server", &names, &|| issuer::issue_serving_certificate(&ca, &names))?;
        let masters = Some(well_known::MASTERS);
        let admin =
            ensure_pair("admin", &[], &|| issuer::issue_client_certificate(&ca, ADMIN, masters))?;
        let user_name = controller_user_name();
        let controller = ensure_pair("controller", &[], &|| {
            issuer::issue_client_certificate(&ca, &user_name, None)
        })?;
        let token_key = token_key(&folder.join("token.key")).map_err(folder_error)?;
        Ok(Self { folder: folder.to_owned(), ca, server, admin, controller, token_key })
    }

    pub(super) fn unusable_error(
        &self,
        source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> Error {
        pki_error(&self.folder, source)
    }
}

fn pki_error(path: &Path, source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Error {
    Error::Pki { path: path.to_owned(), source: source.into() }
}

fn token_key(path: &Path) -> io::Result<Vec<u8>> {
    if let Some(text) = read_if_exists(path)?
        && let Ok(key) = BASE64_STANDARD.decode(text.trim())
        && key.len() == TOKEN_KEY
    {
        return Ok(key);
    }
    let mut key = vec![0; TOKEN_KEY];
    rand::rng().fill_bytes(&mut key);
    write_private(path, &BASE64_STANDARD.encode(&key))?;
    Ok(key)
}

fn read_pair(folder: &Path, name: &str) -> io::Result<Option<CertificatePair>> {
    let certificate = read_if_exists(&folder.join(format!("{name}.crt")))?;
    let key = read_if_exists(&folder.join(format!("{name}.key")))?;
    Ok(certificate.zip(key).map(|(certificate, key)| CertificatePair { certificate, key }))
}

/// Writes a certificate and its key, the key first: a certificate without a key is replaced at the
/// next start.
fn write_pair(folder: &Path, name: &str, pair: &CertificatePair) -> io::Result<()> {
    write_private(&folder.join(format!("{name}.key")), &pair.key)?;
    write_private(&folder.join(format!("{name}.crt")), &pair.certificate)
}

fn read_if_exists(path: &Path) -> io::Result<Option<String>> {
    match fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Makes a folder that only its owner may enter, unless it exists.
pub(super) fn create_private_dir(folder: &Path) -> io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)
}

/// Writes a file that only its owner may read. A crash leaves the old file or the whole new one.
pub(super) fn write_private(path: &Path, text: &str) -> io::Result<()> {
    let temporary_path = path.with_extension("new");
    let options = File::options().write(true).create(true).truncate(true).mode(0o600).clone();
    let mut file = options.open(&temporary_path)?;
    file.set_permissions(Permissions::from_mode(0o600))?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    fs::rename(&temporary_path, path)
}
