//! Everything on one host, with the real kubectl: the API, and pods with a program that stands for
//! ours.

mod apply;
mod dying;
mod garbage;
mod host;
mod kubectl;
mod pods;
