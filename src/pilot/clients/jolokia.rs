//! JMX over HTTP: the Jolokia agent inside a database's JVM, and a client of it.
//!
//! Owns the agent's settings, the form of requests and answers, and what of an answer counts as
//! heard. The pilot starts no JVM to ask a question; the agent answers over HTTP on loopback.

mod answers;
mod client;

pub use self::{
    answers::{BeanAttributes, OperationOutcome, parse_address, parse_addresses},
    client::{JolokiaClient, PATIENCE},
};
use crate::pilot::{database::AgentFile, driver::DatabaseNode};

/// The agent, for `navigator install`.
pub const AGENT: AgentFile = AgentFile {
    name: "jolokia.jar",
    // `build.rs` names the file.
    packed: include_bytes!(env!("NAVIGATOR_JOLOKIA_AGENT")),
};
/// File name of the agent's settings, in the configuration folder. The file holds a password that
/// is new at each start.
pub const SETTINGS: &str = "jolokia.properties";
/// Port of the agent, on loopback only.
pub const PORT: u16 = 8778;

/// Returns the option by which a JVM loads the agent with its settings.
pub fn java_option(node: &DatabaseNode) -> String {
    let (agent, settings) = (node.shared.join(AGENT.name), node.config.join(SETTINGS));
    format!("-javaagent:{}=config={}", agent.display(), settings.display())
}
