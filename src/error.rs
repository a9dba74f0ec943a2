//! Prints errors with their causes, and defines the exit codes of the process.

use std::{error::Error, fmt};

/// Exit codes of the applets. The pilot ends with its database's exit code, and the plugin's
/// `shell` with that of the database's client.
pub mod exit {
    /// The applet did what was asked.
    pub const OK: u8 = 0;
    /// The applet failed.
    pub const FAILURE: u8 = 1;
    /// The object of the command is not ready, or does not allow the change now.
    pub const NOT_READY: u8 = 3;
    /// Unusable arguments or settings; nothing was touched (EX_USAGE of sysexits.h).
    pub const USAGE: u8 = 64;
    /// A task panicked (EX_SOFTWARE).
    pub const SOFTWARE: u8 = 70;
}

/// Returns a text of an error with all its causes: `failed to bind: address in use`.
///
/// A cause whose text already ends the last part is left out: some libraries repeat their
/// source in their own text.
pub fn chain<'a>(error: &'a (dyn Error + 'static)) -> impl fmt::Display + 'a {
    Chain(error)
}

struct Chain<'a>(&'a (dyn Error + 'static));

impl fmt::Display for Chain<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut last_text = self.0.to_string();
        f.write_str(&last_text)?;
        let mut cause = self.0.source();
        while let Some(error) = cause {
            let text = error.to_string();
            if !last_text.ends_with(&text) {
                write!(f, ": {text}")?;
                last_text = text;
            }
            cause = error.source();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("failed to read {path:?}")]
    struct Read {
        path: &'static str,
        source: std::io::Error,
    }

    #[test]
    fn chain_names_every_cause_once() {
        let error = Read { path: "/cfg", source: std::io::Error::other("permission denied") };
        assert_eq!(chain(&error).to_string(), "failed to read \"/cfg\": permission denied");
        let repeated =
            Read { path: "/cfg", source: std::io::Error::other("failed to read \"/cfg\"") };
        assert_eq!(chain(&repeated).to_string(), "failed to read \"/cfg\"");
    }
}
