//! The scripted kube-apiserver and the certificates that tests have.

#![allow(dead_code, reason = "the tests use all of it")]

#[path = "../../tests/support/cgroup.rs"]
pub(crate) mod cgroup;
#[path = "../../tests/support/client.rs"]
pub(crate) mod client;
#[path = "../../tests/support/clock.rs"]
pub(crate) mod clock;
#[path = "../../tests/support/kube.rs"]
pub(crate) mod kube;
#[path = "../../tests/support/kube_apiserver.rs"]
pub(crate) mod kube_apiserver;
#[path = "../../tests/support/pki.rs"]
pub(crate) mod pki;
#[path = "../../tests/support/port.rs"]
pub(crate) mod port;
#[path = "../../tests/support/server.rs"]
pub(crate) mod server;
#[path = "../../tests/support/wait.rs"]
pub(crate) mod wait;
