//! A serving certificate from files (`--tls-cert-file`, `--tls-private-key-file`), read again every
//! minute, since the program that renews the files does not tell us.

use std::{path::PathBuf, sync::Arc, time::Duration};

use tracing::{info, warn};

use super::{CertificatePairError, ServingCertificate};
use crate::{error::chain, runtime::Shutdown};

const POLL: Duration = Duration::from_secs(60);

/// Paths of the serving certificate and its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertificateFiles {
    pub certificate: PathBuf,
    pub key: PathBuf,
}

/// Why the files cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum CertificateFilesError {
    #[error("failed to read {path:?}")]
    Read { path: PathBuf, source: std::io::Error },
    #[error("{certificate:?} and {key:?} cannot be served")]
    Pair { certificate: PathBuf, key: PathBuf, source: CertificatePairError },
}

/// Contents of the certificate file and of the key file.
pub type CertificateContents = (Vec<u8>, Vec<u8>);

impl CertificateFiles {
    async fn read(&self) -> Result<CertificateContents, CertificateFilesError> {
        let read = async |path: &PathBuf| {
            tokio::fs::read(path)
                .await
                .map_err(|source| CertificateFilesError::Read { path: path.clone(), source })
        };
        Ok((read(&self.certificate).await?, read(&self.key).await?))
    }

    /// Reads the files, and serves what they hold.
    pub async fn load(
        &self,
        serving: &ServingCertificate,
    ) -> Result<CertificateContents, CertificateFilesError> {
        let contents = self.read().await?;
        self.swap(serving, &contents)?;
        Ok(contents)
    }

    fn swap(
        &self,
        serving: &ServingCertificate,
        (certificate, key): &CertificateContents,
    ) -> Result<(), CertificateFilesError> {
        serving.swap(certificate, key).map_err(|source| CertificateFilesError::Pair {
            certificate: self.certificate.clone(),
            key: self.key.clone(),
            source,
        })
    }

    /// Reads the files again every minute. A pair that cannot be served leaves the one in use.
    pub async fn follow(
        self,
        serving: Arc<ServingCertificate>,
        mut last: CertificateContents,
        shutdown: Shutdown,
    ) {
        loop {
            tokio::select! {
                () = tokio::time::sleep(POLL) => {}
                () = shutdown.triggered() => return,
            }
            let swapped = match self.read().await {
                Ok(contents) if contents == last => continue,
                Ok(contents) => {
                    let swapped = self.swap(&serving, &contents);
                    last = contents;
                    swapped
                }
                Err(error) => Err(error),
            };
            match swapped {
                Ok(()) => info!("Serving a new certificate"),
                Err(error) => {
                    warn!(error = %chain(&error), "Keeping the certificate in use");
                }
            }
        }
    }
}
