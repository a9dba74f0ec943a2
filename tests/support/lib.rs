//! What several test binaries share: the real API server beside a scripted kube-apiserver, and
//! whole pilots on loopback addresses. Each binary includes it by path.

#![allow(dead_code, reason = "no binary uses all of it")]

pub(crate) mod bed;
pub(crate) mod bootstraps;
pub(crate) mod cgroup;
pub(crate) mod client;
pub(crate) mod clock;
pub(crate) mod executable;
pub(crate) mod fleet;
pub(crate) mod gateway;
pub(crate) mod hooks;
pub(crate) mod kube;
pub(crate) mod kube_apiserver;
pub(crate) mod loopback;
pub(crate) mod nodes;
pub(crate) mod pki;
pub(crate) mod port;
pub(crate) mod ring;
pub(crate) mod seat;
pub(crate) mod seed;
pub(crate) mod server;
pub(crate) mod stand_in;
pub(crate) mod told;
pub(crate) mod wait;
