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
    async fn read_contents(&self) -> Result<CertificateContents, CertificateFilesError> {
        let read_file = async |path: &PathBuf| {
            tokio::fs::read(path)
                .await
                .map_err(|source| CertificateFilesError::Read { path: path.clone(), source })
        };
        Ok((read_file(&self.certificate).await?, read_file(&self.key).await?))
    }

    /// Reads the files, and serves what they hold.
    pub async fn load(
        &self,
        serving: &ServingCertificate,
    ) -> Result<CertificateContents, CertificateFilesError> {
        let contents = self.read_contents().await?;
        self.serve_contents(serving, &contents)?;
        Ok(contents)
    }

    fn serve_contents(
        &self,
        serving: &ServingCertificate,
        (certificate, key): &CertificateContents,
    ) -> Result<(), CertificateFilesError> {
        serving.set_certificate(certificate, key).map_err(|source| CertificateFilesError::Pair {
            certificate: self.certificate.clone(),
            key: self.key.clone(),
            source,
        })
    }

    /// Reads the files again every minute. A pair that cannot be served leaves the one in use.
    pub async fn watch_files(
        self,
        serving: Arc<ServingCertificate>,
        mut last_contents: CertificateContents,
        shutdown: Shutdown,
    ) {
        loop {
            tokio::select! {
                () = tokio::time::sleep(POLL) => {}
                () = shutdown.triggered() => return,
            }
            let outcome = match self.read_contents().await {
                Ok(contents) if contents == last_contents => continue,
                Ok(contents) => {
                    let result = self.serve_contents(&serving, &contents);
                    last_contents = contents;
                    result
                }
                Err(error) => Err(error),
            };
            match outcome {
                Ok(()) => info!("Serving a new certificate"),
                Err(error) => {
                    warn!(error = %chain(&error), "Keeping the certificate in use");
                }
            }
        }
    }
}
