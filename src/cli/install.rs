//! `navigator install DIR`: puts the pilot beside a database, from an image that has no `cp`.

use std::{
    fs::{self, File, Permissions},
    io::{self, Write},
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

use crate::{
    database::DatabaseList,
    error::exit,
    pilot::{
        database::AgentFile,
        process::{supervisor::write_termination_log, takeover::installation_id},
    },
};

/// Puts this binary and the agents that pilots need into a folder.
///
/// Each file appears whole or not at all. A pilot that runs from there is not disturbed, and
/// lets the new binary take over when it may. What was installed is said in the termination log;
/// the pilot that runs it says the same in its Pilot's `status.pilotProgram`.
///
/// Exit codes: 0 installed, 1 the folder cannot be written, 64 unusable arguments.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  navigator install /shared")]
pub(crate) struct Args {
    /// Folder to put `navigator` and the agents of all databases into; it must exist.
    dir: PathBuf,
    /// File to say in which installation this is; nothing is said where there is no such file.
    #[arg(long, value_name = "FILE", default_value = "/dev/termination-log")]
    termination_log: PathBuf,
}

pub(crate) fn run_install(args: &Args, databases: DatabaseList) -> u8 {
    let Args { dir, termination_log } = args;
    let agents: Vec<&AgentFile> =
        databases.iter().flat_map(|database| database.pilot.agents).collect();
    match install_files(dir, &agents) {
        Ok(installation) => {
            // The files are installed even if the termination log cannot be written.
            if let Err(error) = write_termination_log(termination_log, &installation) {
                super::print_error(&format!(
                    "failed to write {}: {error}",
                    termination_log.display()
                ));
            }
            exit::OK
        }
        Err(error) => {
            super::print_error(&format!("failed to install into {}: {error}", dir.display()));
            exit::FAILURE
        }
    }
}

/// Installs the binary and the agents. Returns the id of the installation.
fn install_files(dir: &Path, agents: &[&AgentFile]) -> io::Result<String> {
    for agent in agents {
        let Some(content) = agent.content()? else {
            let message = format!(
                "this binary was built without {}: run `make deps`, build again",
                agent.name
            );
            return Err(io::Error::other(message));
        };
        write_file(dir, agent.name, 0o644, &mut io::Cursor::new(content))?;
    }
    // The binary comes last: a pilot that sees a new one may rely on its agents.
    write_file(dir, "navigator", 0o755, &mut File::open("/proc/self/exe")?)?;
    Ok(installation_id(&fs::metadata(dir.join("navigator"))?))
}

/// Size of a write, in bytes: one page. The page cache holds a file in pieces as large as the
/// writes that brought it there, and a process that runs the file has whole pieces mapped. So an
/// idle pilot is smallest when its copy was written page by page; with writes of 256 KiB it is half
/// as large again (docs/pilot.md).
const CHUNK: usize = 4 << 10;

/// Copies like [`io::copy`], in writes of at most [`CHUNK`] and never by the kernel's own copy.
fn copy_in_chunks(reader: &mut dyn io::Read, writer: &mut dyn Write) -> io::Result<()> {
    let mut chunk = vec![0; CHUNK];
    loop {
        match reader.read(&mut chunk) {
            Ok(0) => return writer.flush(),
            Ok(length) => writer.write_all(&chunk[..length])?,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

fn write_file(dir: &Path, name: &str, mode: u32, source: &mut dyn io::Read) -> io::Result<()> {
    let temporary = dir.join(format!(".{name}.{}", std::process::id()));
    let write_result = File::create(&temporary).and_then(|mut file| {
        copy_in_chunks(source, &mut file)?;
        // The umask must not decide which users may run the file.
        file.set_permissions(Permissions::from_mode(mode))?;
        file.sync_all()
    });
    write_result.and_then(|()| fs::rename(&temporary, dir.join(name))).inspect_err(|_| {
        // The error that matters is the one that is returned.
        drop(fs::remove_file(&temporary));
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_binary_without_its_agent_installs_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let stand_in = AgentFile { name: "agent.jar", packed: b"" };
        let refused = install_files(folder.path(), &[&stand_in]).unwrap_err().to_string();
        assert!(refused.contains("agent.jar") && refused.contains("make deps"), "{refused}");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_copy_is_complete_and_made_of_small_writes() {
        #[derive(Default)]
        struct Record(Vec<u8>, Vec<usize>);
        impl Write for Record {
            fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
                self.0.extend(bytes);
                self.1.push(bytes.len());
                Ok(bytes.len())
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let content: Vec<u8> = (0..=250).cycle().take(3 * CHUNK + 7).collect();
        let mut written = Record::default();
        copy_in_chunks(&mut io::Cursor::new(&content), &mut written).unwrap();
        assert_eq!(written.0, content);
        assert_eq!(written.1, [CHUNK, CHUNK, CHUNK, 7]);
        // Each write is at most a page, so no piece of the page cache is larger than that.
        const { assert!(CHUNK <= 4 << 10) };
    }

    #[test]
    fn installing_twice_leaves_two_files_with_their_modes() {
        let dir = tempfile::tempdir().unwrap();
        // Packed into one block that is not compressed.
        let agent = AgentFile { name: "agent.jar", packed: b"\x01\x05\x00\xfa\xffagent" };
        let first = install_files(dir.path(), &[&agent]).unwrap();
        let second = install_files(dir.path(), &[&agent]).unwrap();
        assert_ne!(first, second, "each installation is told from the one before");
        let mut found: Vec<_> = fs::read_dir(dir.path())
            .unwrap()
            .map(|entry| {
                let entry = entry.unwrap();
                let mode = entry.metadata().unwrap().permissions().mode() & 0o777;
                (entry.file_name().into_string().unwrap(), mode)
            })
            .collect();
        found.sort();
        assert_eq!(found, [("agent.jar".into(), 0o644), ("navigator".into(), 0o755)]);
        assert_eq!(fs::read(dir.path().join("agent.jar")).unwrap(), b"agent");
    }
}
