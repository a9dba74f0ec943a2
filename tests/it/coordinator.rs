//! The coordinator as a process, on a real kube-apiserver: it is killed after each of its writes, each
//! of its writes meets a person's edit, machines do not come back, runs are deleted in the middle. It gives
//! people rights, and applies plugins; a hub answers wrongly, and the cluster manager is taken away.

mod databases;
mod ends;
mod fleet;
mod hub;
mod hub_plugins;
mod killed;
mod lead;
mod others;
mod plugins;
mod process;
mod rights;
mod roles;
mod terminate;
mod wire;
