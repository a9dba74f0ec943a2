//! How a real kube-apiserver is started without the rest of Kubernetes.

use std::{fs, path::Path};

use super::{pki::Ca, port::Port};

/// Writes the CA that kube-apiserver trusts, and its own certificate, into a folder.
pub(crate) fn write_certificates(folder: &Path, ca: &Ca) {
    let names = ["localhost".to_owned(), "127.0.0.1".to_owned()];
    let serving = ca.serving(&names);
    fs::write(folder.join("tls.crt"), &serving.certificate).unwrap();
    fs::write(folder.join("tls.key"), &serving.key).unwrap();
    fs::write(folder.join("ca.crt"), &ca.pem).unwrap();
}

/// Arguments of kube-apiserver: its etcd, and the folder that [`write_certificates`] filled.
pub(crate) fn arguments(etcd: &str, folder: &Path) -> Vec<String> {
    // Keys for tokens of service accounts; no client here has such a token.
    let file = |name: &str| folder.join(name).display().to_string();
    let (key, public) = (file("tls.key"), file("tls.crt"));
    vec![
        format!("--etcd-servers={etcd}"),
        format!("--client-ca-file={}", file("ca.crt")),
        format!("--service-account-key-file={public}"),
        format!("--service-account-signing-key-file={key}"),
        "--service-account-issuer=https://kubernetes.default.svc".to_owned(),
        "--service-cluster-ip-range=10.96.0.0/16".to_owned(),
        "--authorization-mode=RBAC".to_owned(),
        "--endpoint-reconciler-type=none".to_owned(),
    ]
}

/// Arguments to listen on loopback, with the certificate of that folder.
pub(crate) fn serving(folder: &Path) -> Vec<String> {
    vec![
        format!("--tls-cert-file={}", folder.join("tls.crt").display()),
        format!("--tls-private-key-file={}", folder.join("tls.key").display()),
        "--bind-address=127.0.0.1".to_owned(),
    ]
}

/// Arguments to listen on a port that is held for kube-apiserver.
pub(crate) fn at(port: &Port) -> Vec<String> {
    vec![format!("--secure-port={}", port.address.port()), "--permit-port-sharing".to_owned()]
}
