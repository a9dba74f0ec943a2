//! Programs that a test makes and runs.

use std::{
    io::Write as _,
    path::Path,
    process::{Command, Stdio},
};

/// Makes a file that can be executed at once. Another process writes it: a child that a test beside
/// this one forks would for a moment hold the file open for writing, and the kernel executes no such
/// file (`ETXTBSY`).
#[expect(clippy::disallowed_methods, reason = "a test starts processes")]
pub(crate) fn write(path: &Path, content: impl AsRef<[u8]>) {
    let mut install = Command::new("install");
    install.args(["-m", "755", "/dev/stdin"]).arg(path).stdin(Stdio::piped());
    let mut install = install.spawn().unwrap();
    install.stdin.take().unwrap().write_all(content.as_ref()).unwrap();
    assert!(install.wait().unwrap().success(), "{}", path.display());
}
