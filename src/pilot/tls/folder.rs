//! The files with which the database encrypts, in the configuration folder.
//!
//! `tls` is a symbolic link to one of two folders. Files are written into the other one, and one
//! rename has the link lead there: the database finds all old files or all new ones, and the old
//! ones can be put back.

use std::{
    io,
    path::{Path, PathBuf},
};

use rustls::pki_types::{CertificateDer, pem::PemObject};
use serde::{Deserialize, Serialize};

use crate::{
    api::v1beta1::NodeCertificate,
    engine::pki::{CertificateUse, TrustBundle},
    machinery::x509::CertificateDetails,
    pilot::{
        process::supervisor::ProcessUser,
        volume::folder::{FolderHandle, chown_entry},
    },
};

/// Name of the link, in the configuration folder.
pub const TLS_FOLDER: &str = "tls";
const SLOTS: [&str; 2] = ["tls.0", "tls.1"];
/// The certificates from which the files of a folder were made.
const RECORD: &str = "certificates.json";

/// A file with which a database encrypts. Its text may be a private key.
pub struct TlsFile {
    /// Path below the folder of these files, of at most two parts.
    pub path: &'static str,
    pub text: String,
}

/// The private keys of a node's certificates, as PEM. They cannot be printed.
pub struct TlsKeys {
    /// The node's own, which other nodes are shown the certificate of.
    pub node: String,
    /// That of the certificate for clients: the same, or one that was given for all nodes.
    pub client: String,
}

impl TlsFile {
    /// Returns the files of each use, below the folders `internode` and `client`: the key, the
    /// certificate, and in `ca.crt` the CAs whose certificates the port accepts. `client/server-ca.crt`
    /// holds the CAs by which a client knows the node.
    pub fn for_each_use(keys: &TlsKeys, certificates: &NodeCertificates) -> Vec<Self> {
        let NodeCertificates { internode, client } = certificates;
        let TlsKeys { node, client: client_key } = keys;
        let uses = [
            (["internode/node.key", "internode/node.crt", "internode/ca.crt"], internode, node),
            (["client/node.key", "client/node.crt", "client/ca.crt"], client, client_key),
        ];
        let files = uses.into_iter().filter_map(|(paths, certificate, key)| {
            let certificate = certificate.as_ref()?;
            let texts = [key, &certificate.chain, certificate.client_trust_bundle()];
            let files = paths.into_iter().zip(texts);
            Some(files.map(|(path, text)| Self { path, text: text.to_owned() }))
        });
        let server_ca = client.as_ref().map(|one| Self::server_ca("client/server-ca.crt", one));
        files.flatten().chain(server_ca).collect()
    }

    /// Returns the file of the CAs by which a client knows a node.
    pub fn server_ca(path: &'static str, certificate: &NodeCertificate) -> Self {
        Self { path, text: certificate.trust.clone() }
    }
}

/// A node's certificates, for each use that is encrypted. All of it is public.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeCertificates {
    pub internode: Option<NodeCertificate>,
    pub client: Option<NodeCertificate>,
}

impl NodeCertificates {
    pub fn certificate_for(&self, usage: CertificateUse) -> Option<&NodeCertificate> {
        match usage {
            CertificateUse::Internode => self.internode.as_ref(),
            CertificateUse::Client => self.client.as_ref(),
        }
    }

    /// Is the certificate for this use one that was given, with its key?
    pub fn is_mounted(&self, usage: CertificateUse) -> bool {
        self.certificate_for(usage).is_some_and(|certificate| certificate.mounted_key.is_some())
    }

    /// Returns what a port of this use shows, or is to show.
    pub fn leaf(&self, usage: CertificateUse) -> Option<CertificateDetails> {
        CertificateDetails::from_pem(&self.certificate_for(usage)?.chain)
    }

    /// The CAs that nodes trust on ports of this use; none where they cannot be read.
    pub fn trust(&self, usage: CertificateUse) -> TrustBundle {
        let bundle = self
            .certificate_for(usage)
            .map(|certificate| TrustBundle::from_pem(certificate.trust.as_bytes()));
        bundle.and_then(Result::ok).unwrap_or_default()
    }

    /// The certificates themselves, without what leads to their CAs.
    pub fn leaves(&self) -> impl Iterator<Item = CertificateDer<'static>> {
        let certificates = [&self.internode, &self.client].into_iter().flatten();
        certificates.filter_map(|certificate| {
            CertificateDer::from_pem_slice(certificate.chain.as_bytes()).ok()
        })
    }
}

/// The files of one node. Cheap to clone.
#[derive(Clone, Debug)]
pub struct TlsFolder(PathBuf);

impl TlsFolder {
    /// Names the files in a configuration folder. Nothing is created yet.
    pub fn new(config: &Path) -> Self {
        Self(config.to_owned())
    }

    /// Returns the certificates whose files the database finds.
    pub fn read_current(&self) -> io::Result<Option<NodeCertificates>> {
        let folder = FolderHandle::open(&self.0)?;
        linked_slot(&folder)?.map(|slot| read_record(&folder, slot)).transpose()
    }

    /// Returns the certificates whose files the database finds, and behind them those that were there
    /// before, as far as they can be read.
    pub fn read_installed(&self) -> Vec<NodeCertificates> {
        let Ok(folder) = FolderHandle::open(&self.0) else { return Vec::new() };
        let current_slot_name = linked_slot(&folder).ok().flatten();
        let [first, second] = SLOTS;
        let order =
            if current_slot_name == Some(second) { [second, first] } else { [first, second] };
        order.into_iter().filter_map(|slot| read_record(&folder, slot).ok()).collect()
    }

    /// Puts files in place of those that the database finds now, and gives them to `user`. Returns
    /// what puts the former ones back, where there were any.
    pub fn install_files(
        &self,
        files: &[TlsFile],
        certificates: &NodeCertificates,
        user: Option<ProcessUser>,
    ) -> io::Result<Option<FormerFiles>> {
        let folder = FolderHandle::open(&self.0)?;
        let former_slot = linked_slot(&folder)?;
        let [first, second] = SLOTS;
        let next_slot = if former_slot == Some(first) { second } else { first };
        let slot_directory = folder.create_folder(next_slot, 0o700)?;
        for file in files {
            let text = file.text.as_bytes();
            match file.path.split_once('/') {
                Some((part, name)) => {
                    slot_directory.create_folder(part, 0o700)?.write_file(name, text, 0o600)?;
                }
                None => slot_directory.write_file(file.path, text, 0o600)?,
            }
        }
        slot_directory.write_file(RECORD, &serde_json::to_vec(certificates)?, 0o600)?;
        if let Some(user) = user {
            chown_entry(&folder, next_slot.as_ref(), user)?;
        }
        folder.replace_link(TLS_FOLDER, next_slot)?;
        Ok(former_slot.map(FormerFiles))
    }

    /// Puts files back that another installation took the place of.
    pub fn put_back(&self, FormerFiles(slot): FormerFiles) -> io::Result<()> {
        FolderHandle::open(&self.0)?.replace_link(TLS_FOLDER, slot)
    }
}

/// The files that were in use before an installation.
#[derive(Clone, Copy, Debug)]
pub struct FormerFiles(&'static str);

/// Returns the folder to which the link leads.
fn linked_slot(folder: &FolderHandle) -> io::Result<Option<&'static str>> {
    let target = match folder.read_link(TLS_FOLDER) {
        Ok(target) => target,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    // A link that leads elsewhere is nobody's: it is replaced by the next installation.
    Ok(SLOTS.into_iter().find(|slot| target == *slot))
}

fn read_record(folder: &FolderHandle, slot: &str) -> io::Result<NodeCertificates> {
    Ok(serde_json::from_slice(&folder.open_folder(slot)?.read_file(RECORD)?)?)
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::PermissionsExt};

    use super::*;

    fn file(path: &'static str, text: &str) -> TlsFile {
        TlsFile { path, text: text.to_owned() }
    }

    fn certificates(name: &str) -> NodeCertificates {
        let chain = name.to_owned();
        let internode =
            Some(NodeCertificate { chain, trust: "ca".to_owned(), ..NodeCertificate::default() });
        NodeCertificates { internode, client: None }
    }

    #[test]
    fn whom_a_node_accepts_and_by_whom_it_is_known_are_two_files() {
        let keys = TlsKeys { node: "key".to_owned(), client: "key".to_owned() };
        let client = Some(NodeCertificate {
            trust: "CA of the node".to_owned(),
            clients: Some("CA of clients".to_owned()),
            ..NodeCertificate::default()
        });
        let certificates = NodeCertificates { internode: None, client };
        let files = TlsFile::for_each_use(&keys, &certificates);
        let text = |path: &str| &files.iter().find(|file| file.path == path).unwrap().text;
        assert_eq!(text("client/ca.crt"), "CA of clients");
        assert_eq!(text("client/server-ca.crt"), "CA of the node");
    }

    #[test]
    fn all_files_change_at_once_and_the_former_ones_come_back() {
        let place = tempfile::tempdir().unwrap();
        let tls = TlsFolder::new(place.path());
        assert_eq!(tls.read_current().unwrap(), None);
        let install = |name: &str| {
            let files = [file("internode/node.key", &format!("key of {name}")), file("ca", name)];
            tls.install_files(&files, &certificates(name), None).unwrap()
        };
        let read = |path: &str| fs::read_to_string(place.path().join("tls").join(path)).unwrap();
        assert!(install("one").is_none());
        let former = install("two").unwrap();
        assert_eq!((read("internode/node.key"), read("ca")), ("key of two".into(), "two".into()));
        assert_eq!(tls.read_current().unwrap(), Some(certificates("two")));
        assert_eq!(tls.read_installed(), [certificates("two"), certificates("one")]);
        let mode = |path: &str| {
            let about = fs::metadata(place.path().join("tls").join(path)).unwrap();
            about.permissions().mode() & 0o777
        };
        assert_eq!((mode("internode"), mode("internode/node.key")), (0o700, 0o600));
        tls.put_back(former).unwrap();
        assert_eq!(read("internode/node.key"), "key of one");
        assert_eq!(tls.read_current().unwrap(), Some(certificates("one")));
        // What comes next takes the place of what was refused, and not of what is in use.
        let former = install("three").unwrap();
        assert_eq!(read("ca"), "three");
        tls.put_back(former).unwrap();
        assert_eq!(read("ca"), "one");
    }

    #[test]
    fn a_link_that_leads_elsewhere_is_not_written_through() {
        let (place, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        for name in ["tls", "tls.0"] {
            std::os::unix::fs::symlink(elsewhere.path(), place.path().join(name)).unwrap();
        }
        let tls = TlsFolder::new(place.path());
        assert!(tls.install_files(&[file("ca", "one")], &certificates("one"), None).is_err());
        assert_eq!(fs::read_dir(elsewhere.path()).unwrap().count(), 0);
    }
}
