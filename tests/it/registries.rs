//! The coordinator as a process, on a real kube-apiserver, as far as it copies the credentials of
//! Registries and labels Nodes; with exactly the rights that these need.

pub(crate) mod cluster;
mod copies;
mod kinds;
mod labels;
mod scale;
