//! Flags of the audit trail that were removed in 0.3: accepted with a warning, and refused by the
//! next release.

use clap::{Arg, ArgMatches, Command, FromArgMatches};
use tracing::warn;

const LOG_WAITS: &str = "requests wait for the log, and do not fail when it cannot be written";
const WEBHOOK_DOES_NOT: &str = "no request waits for the webhook";
const ONE_BATCH: &str = "a batch has up to 400 events, which wait up to 30 s, of 10000 that wait";
const NO_THROTTLE: &str = "at most 16 batches are under way at one time";
const FIXED_CUT: &str = "an object above 3 MiB is left out";

struct RemovedFlag {
    name: &'static str,
    env: &'static str,
    /// What holds without the flag.
    instead: &'static str,
}

const fn removed_flag(name: &'static str, env: &'static str, instead: &'static str) -> RemovedFlag {
    RemovedFlag { name, env, instead }
}

#[rustfmt::skip]
const REMOVED: [RemovedFlag; 20] = [
    removed_flag("audit-log-mode", "NAVIGATOR_AUDIT_LOG_MODE", LOG_WAITS),
    removed_flag("audit-log-batch-buffer-size", "NAVIGATOR_AUDIT_LOG_BATCH_BUFFER_SIZE", LOG_WAITS),
    removed_flag("audit-log-batch-max-size", "NAVIGATOR_AUDIT_LOG_BATCH_MAX_SIZE", LOG_WAITS),
    removed_flag("audit-log-batch-max-wait", "NAVIGATOR_AUDIT_LOG_BATCH_MAX_WAIT", LOG_WAITS),
    removed_flag("audit-log-batch-throttle-enable", "NAVIGATOR_AUDIT_LOG_BATCH_THROTTLE_ENABLE", LOG_WAITS),
    removed_flag("audit-log-batch-throttle-qps", "NAVIGATOR_AUDIT_LOG_BATCH_THROTTLE_QPS", LOG_WAITS),
    removed_flag("audit-log-batch-throttle-burst", "NAVIGATOR_AUDIT_LOG_BATCH_THROTTLE_BURST", LOG_WAITS),
    removed_flag("audit-log-truncate-enabled", "NAVIGATOR_AUDIT_LOG_TRUNCATE_ENABLED", FIXED_CUT),
    removed_flag("audit-log-truncate-max-batch-size", "NAVIGATOR_AUDIT_LOG_TRUNCATE_MAX_BATCH_SIZE", FIXED_CUT),
    removed_flag("audit-log-truncate-max-event-size", "NAVIGATOR_AUDIT_LOG_TRUNCATE_MAX_EVENT_SIZE", FIXED_CUT),
    removed_flag("audit-webhook-mode", "NAVIGATOR_AUDIT_WEBHOOK_MODE", WEBHOOK_DOES_NOT),
    removed_flag("audit-webhook-batch-buffer-size", "NAVIGATOR_AUDIT_WEBHOOK_BATCH_BUFFER_SIZE", ONE_BATCH),
    removed_flag("audit-webhook-batch-max-size", "NAVIGATOR_AUDIT_WEBHOOK_BATCH_MAX_SIZE", ONE_BATCH),
    removed_flag("audit-webhook-batch-max-wait", "NAVIGATOR_AUDIT_WEBHOOK_BATCH_MAX_WAIT", ONE_BATCH),
    removed_flag("audit-webhook-batch-throttle-enable", "NAVIGATOR_AUDIT_WEBHOOK_BATCH_THROTTLE_ENABLE", NO_THROTTLE),
    removed_flag("audit-webhook-batch-throttle-qps", "NAVIGATOR_AUDIT_WEBHOOK_BATCH_THROTTLE_QPS", NO_THROTTLE),
    removed_flag("audit-webhook-batch-throttle-burst", "NAVIGATOR_AUDIT_WEBHOOK_BATCH_THROTTLE_BURST", NO_THROTTLE),
    removed_flag("audit-webhook-truncate-enabled", "NAVIGATOR_AUDIT_WEBHOOK_TRUNCATE_ENABLED", FIXED_CUT),
    removed_flag("audit-webhook-truncate-max-batch-size", "NAVIGATOR_AUDIT_WEBHOOK_TRUNCATE_MAX_BATCH_SIZE", FIXED_CUT),
    removed_flag("audit-webhook-truncate-max-event-size", "NAVIGATOR_AUDIT_WEBHOOK_TRUNCATE_MAX_EVENT_SIZE", FIXED_CUT),
];

/// The removed flags that were given, on the command line or in the environment.
#[derive(Clone, Debug)]
pub(super) struct Args {
    given: Vec<usize>,
}

impl Args {
    /// Logs a warning for each flag that was given.
    pub(super) fn log_warnings(&self) {
        for &flag in &self.given {
            let RemovedFlag { name, env: _, instead } = REMOVED[flag];
            warn!(
                see = "docs/audit.md",
                "--{name} is no longer read, and the next release refuses it: {instead}"
            );
        }
    }
}

impl clap::Args for Args {
    fn augment_args(command: Command) -> Command {
        REMOVED.iter().fold(command, |command, &RemovedFlag { name, env, instead: _ }| {
            command.arg(Arg::new(name).long(name).env(env).num_args(0..=1).hide(true))
        })
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for Args {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let is_given = |&flag: &usize| matches.contains_id(REMOVED[flag].name);
        Ok(Self { given: (0..REMOVED.len()).filter(is_given).collect() })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_removed_flag_is_accepted_in_every_form_and_shown_in_none() {
        let mut command =
            <Args as clap::Args>::augment_args(Command::new("x").no_binary_name(true));
        for RemovedFlag { name, env, .. } in REMOVED {
            let flag = format!("--{name}");
            for typed in [&[flag.clone()][..], &[format!("{flag}=1")], &[flag.clone(), "1".into()]]
            {
                let matches = command.try_get_matches_from_mut(typed).unwrap();
                let given = Args::from_arg_matches(&matches).unwrap().given;
                assert_eq!(
                    given.iter().map(|&flag| REMOVED[flag].name).collect::<Vec<_>>(),
                    [name]
                );
            }
            assert_eq!(*env, format!("NAVIGATOR_{}", name.replace('-', "_").to_uppercase()));
        }
        assert!(!command.render_long_help().to_string().contains("audit"));
    }
}
