//! What one program of a pilot leaves to the next: a contract between releases.
//!
//! JSON in a memfd whose number stands in [`HANDOFF_VARIABLE`](crate::pilot::process::HANDOFF_VARIABLE). Within one [`FORMAT`] fields are only
//! added, and a reader fills in absent fields and passes over unknown ones; a change of a field's
//! meaning raises the number. A program that does not know the number says so when it is checked,
//! and never becomes the pilot: so a downgrade is as safe.

use std::{
    ffi::CString,
    fs::File,
    io::{self, Read, Seek, Write},
    os::fd::RawFd,
    path::PathBuf,
};

use nix::sys::memfd::{MFdFlags, memfd_create};
use serde::{Deserialize, Serialize};

use crate::{
    api::v1beta1::Pilot,
    pilot::process::supervisor::{HandedChild, inherit_descriptor},
    runtime::build_info,
};

/// The number of the format; the only one so far.
pub const FORMAT: u32 = 1;

/// What an exec would lose and the next program needs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ProgramHandoff {
    pub format: u32,
    /// Version of the program that leaves.
    pub version: String,
    /// Id of the process that is to go on: a process that inherited [`HANDOFF_VARIABLE`](crate::pilot::process::HANDOFF_VARIABLE) by accident has
    /// another id.
    pub process: u32,
    /// What a candidate must print when it is checked; empty at the exec.
    pub token: String,
    /// Path of the file at which a next program is looked for.
    pub program: PathBuf,
    /// The command line, for the check.
    pub arguments: Vec<String>,
    /// How often in a row the same program began anew because of a panic.
    #[serde(skip_serializing_if = "is_none_yet")]
    pub panics: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub child: Option<HandedChild>,
    /// What the pilot of a database hands over; absent when any other command runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<HandedNode>,
}

/// What the pilot of a database knows beyond its disk and its API.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct HandedNode {
    /// The database's name on the command line.
    #[serde(rename = "flavour")]
    pub database: String,
    /// The Pilot as last seen, with the status as last told to the reporter.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pilot: Option<Pilot>,
    /// The Pilot is from the disk: the API did not answer.
    pub remembered: bool,
    /// The running database has answered; in `serving` it serves, and in `decommissioning` it moves
    /// its data away.
    pub answered: bool,
    pub serving: bool,
    #[serde(rename = "retiring")]
    pub decommissioning: bool,
    /// A restart was asked for and waits for the validation of the configuration.
    pub restart: bool,
    pub may_found: bool,
    /// Crashes, failed spawns and failed preparations in a row. `restarts` counts starts beyond the
    /// first; -1 before the first.
    pub failures: u32,
    pub restarts: i32,
    /// The kernel's count of OOM kills when the database was started.
    pub oom_kills: u64,
    /// Why the wanted configuration does not run; `refused` is why a decommission does not go on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rejected: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refused: Option<String>,
    /// The checks of the volume passed once.
    pub ours: bool,
    /// Descriptor of the data directory's lock; in `listeners`, those of the sockets that listen,
    /// by name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lock: Option<RawFd>,
    pub listeners: std::collections::BTreeMap<String, RawFd>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde hands over a reference")]
fn is_none_yet(count: &u32) -> bool {
    *count == 0
}

impl Default for ProgramHandoff {
    fn default() -> Self {
        Self {
            format: FORMAT,
            version: build_info::VERSION.to_owned(),
            process: std::process::id(),
            token: String::new(),
            program: PathBuf::new(),
            arguments: Vec::new(),
            panics: 0,
            child: None,
            node: None,
        }
    }
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("failed to read the handoff")]
    Read(#[from] io::Error),
    #[error("handoff is damaged")]
    Damaged(#[from] serde_json::Error),
    #[error("handoff is of format {0}; this program reads {FORMAT}")]
    Format(u32),
    #[error("handoff is for process {0}")]
    Process(u32),
}

impl ProgramHandoff {
    /// # Errors
    /// When the text is no handoff that this program understands.
    pub fn parse(text: &[u8]) -> Result<Self, Error> {
        #[derive(Deserialize)]
        struct HandoffHeader {
            format: u32,
        }
        // The number is read first: a later format may not look like this one at all.
        let HandoffHeader { format } = serde_json::from_slice(text)?;
        if format != FORMAT {
            return Err(Error::Format(format));
        }
        Ok(serde_json::from_slice(text)?)
    }

    /// Writes the handoff into an open file in memory, to be read from its start.
    pub(super) fn to_file(&self) -> io::Result<File> {
        let name = CString::new("navigator-handoff")?;
        let mut file = File::from(memfd_create(name.as_c_str(), MFdFlags::MFD_CLOEXEC)?);
        file.write_all(&serde_json::to_vec(self)?)?;
        file.rewind()?;
        Ok(file)
    }
}

/// Reads what the earlier program of this process left; `number` is what [`HANDOFF_VARIABLE`](crate::pilot::process::HANDOFF_VARIABLE) says. Call
/// once and first: this takes charge of descriptors by their number.
///
/// # Errors
/// When there is no handoff, or it is for another process, or it cannot be understood. A program
/// that passed its check never sees the last one.
pub fn receive_handoff(number: &str) -> Result<ProgramHandoff, Error> {
    let number = number.parse().map_err(io::Error::other)?;
    let mut file = File::from(inherit_descriptor(number)?);
    let mut text = Vec::new();
    file.rewind()?;
    file.read_to_end(&mut text)?;
    let handoff = ProgramHandoff::parse(&text)?;
    if handoff.process != std::process::id() {
        return Err(Error::Process(handoff.process));
    }
    // An exec by descriptor leaves its number as the process' name.
    if let Some(name) = handoff.program.file_name()
        && let Ok(name) = CString::new(name.as_encoded_bytes())
    {
        // The name is only for people, who may do without it.
        nix::sys::prctl::set_name(&name).ok();
    }
    Ok(handoff)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A handoff of v0.2.0. Never change it: a running pilot may leave such a one to this program.
    const FIRST: &str = r#"{"format":1,"version":"0.2.0","process":1,"token":"t",
        "program":"/shared/navigator","arguments":["/shared/navigator","pilot","cassandra"],
        "child":{"pid":7,"stdout":9,"stderr":10,"tail":{"whole":["a"],"part":[98]},"terminal":false},
        "node":{"flavour":"cassandra","pilot":{"metadata":{"name":"p"},"spec":{"phase":"Running"}},
            "remembered":false,"answered":true,"serving":true,"retiring":false,"restart":false,
            "mayFound":true,"failures":0,"restarts":2,"oomKills":3,"ours":true,"lock":11,"listeners":{"liveness":12}},
        "added":"later"}"#;

    #[test]
    fn what_the_first_release_left_is_understood_and_additions_are_passed_over() {
        let handoff = ProgramHandoff::parse(FIRST.as_bytes()).unwrap();
        let child = handoff.child.as_ref().unwrap();
        assert_eq!((child.pid, child.stdout, child.stderr), (7, Some(9), Some(10)));
        let node = handoff.node.as_ref().unwrap();
        assert_eq!((node.restarts, node.oom_kills, node.lock), (2, 3, Some(11)));
        assert!(node.serving && node.answered && node.may_found && !node.decommissioning);
        assert_eq!(node.listeners["liveness"], 12);
        let again = serde_json::to_vec(&handoff).unwrap();
        assert_eq!(ProgramHandoff::parse(&again).unwrap(), handoff);
    }

    #[test]
    fn another_format_and_no_handoff_are_refused() {
        assert!(matches!(
            ProgramHandoff::parse(br#"{"format":2,"child":7}"#),
            Err(Error::Format(2))
        ));
        assert!(matches!(ProgramHandoff::parse(b"{}"), Err(Error::Damaged(_))));
        assert!(matches!(ProgramHandoff::parse(b""), Err(Error::Damaged(_))));
    }
}
