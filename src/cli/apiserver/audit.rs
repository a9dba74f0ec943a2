//! Flags of the audit trail: names and defaults are kube-apiserver's.

use std::{path::PathBuf, time::Duration};

use clap::{ArgAction, ValueEnum};

use super::{removed_flags, seconds};
use crate::apiserver::audit::{
    AuditLogConfig, AuditLogTarget, AuditWebhookConfig, Config, FileRotation,
};

const MEBIBYTE: u64 = 1 << 20;
const DAY: u64 = 24 * 3600;

#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Audit trail")]
#[group(skip)]
pub(super) struct Args {
    /// File with a Policy of audit.k8s.io/v1, which says what is recorded. Requests that change
    /// something, at level Metadata, when absent.
    #[arg(long, value_name = "FILE", env = "NAVIGATOR_AUDIT_POLICY_FILE")]
    audit_policy_file: Option<PathBuf>,
    #[command(flatten)]
    log: AuditLogArgs,
    #[command(flatten)]
    webhook: AuditWebhookArgs,
    #[command(flatten)]
    removed: removed_flags::Args,
}

/// How an event is written.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum AuditLogFormat {
    Json,
}

#[derive(Clone, Debug, clap::Args)]
#[group(skip)]
#[expect(clippy::struct_field_names, reason = "the flags are named so")]
struct AuditLogArgs {
    /// File for the audit trail, one line for each event; `-` is standard output. No log when
    /// absent.
    #[arg(long, value_name = "FILE", env = "NAVIGATOR_AUDIT_LOG_PATH")]
    audit_log_path: Option<PathBuf>,
    /// Days after which rotated files are removed, by the time in their names; 0 is never.
    #[arg(long, value_name = "DAYS", env = "NAVIGATOR_AUDIT_LOG_MAXAGE", default_value_t = 0)]
    audit_log_maxage: u32,
    /// Rotated files that are kept; 0 is all.
    #[arg(long, value_name = "COUNT", env = "NAVIGATOR_AUDIT_LOG_MAXBACKUP", default_value_t = 0)]
    audit_log_maxbackup: u32,
    /// Mebibytes above which the file is rotated; 0 is 100.
    #[arg(
        long,
        value_name = "MEBIBYTES",
        env = "NAVIGATOR_AUDIT_LOG_MAXSIZE",
        default_value_t = 0
    )]
    audit_log_maxsize: u32,
    /// Whether rotated files are compressed (gzip).
    #[arg(
        long,
        value_name = "BOOL",
        env = "NAVIGATOR_AUDIT_LOG_COMPRESS",
        action = ArgAction::Set,
        num_args = 0..=1,
        require_equals = true,
        default_value_t = false,
        default_missing_value = "true"
    )]
    audit_log_compress: bool,
    /// Format of the log.
    #[arg(
        long,
        value_name = "FORMAT",
        env = "NAVIGATOR_AUDIT_LOG_FORMAT",
        value_enum,
        default_value_t = AuditLogFormat::Json
    )]
    audit_log_format: AuditLogFormat,
}

#[derive(Clone, Debug, clap::Args)]
#[group(skip)]
struct AuditWebhookArgs {
    /// File in the form of a kubeconfig that says where audit events are sent. Nowhere when
    /// absent.
    #[arg(long, value_name = "FILE", env = "NAVIGATOR_AUDIT_WEBHOOK_CONFIG_FILE")]
    audit_webhook_config_file: Option<PathBuf>,
    /// Seconds before a failed request to the webhook is sent again.
    #[arg(
        long,
        value_name = "SECONDS",
        env = "NAVIGATOR_AUDIT_WEBHOOK_INITIAL_BACKOFF",
        default_value = "10",
        value_parser = seconds
    )]
    audit_webhook_initial_backoff: Duration,
}

impl Args {
    pub(super) fn build_config(self) -> Result<Config, String> {
        let Self { audit_policy_file, log, webhook, removed: removed_flags } = self;
        removed_flags.log_warnings();
        Ok(Config {
            policy: audit_policy_file,
            log: log.build_config()?,
            webhook: webhook.build_config(),
        })
    }
}

impl AuditLogArgs {
    fn build_config(self) -> Result<Option<AuditLogConfig>, String> {
        let Self {
            audit_log_path,
            audit_log_maxage,
            audit_log_maxbackup,
            audit_log_maxsize,
            audit_log_compress,
            audit_log_format: AuditLogFormat::Json,
        } = self;
        let Some(path) = audit_log_path else { return Ok(None) };
        let days = u64::from(audit_log_maxage);
        let max_size = match audit_log_maxsize {
            0 => FileRotation::DEFAULT.max_size,
            mebibytes => u64::from(mebibytes) * MEBIBYTE,
        };
        let max_backups =
            usize::try_from(audit_log_maxbackup).map_err(|error| error.to_string())?;
        Ok(Some(AuditLogConfig {
            target: if path.as_os_str() == "-" {
                AuditLogTarget::Stdout
            } else {
                AuditLogTarget::File(path)
            },
            rotation: FileRotation {
                max_size,
                max_age: (days > 0).then(|| Duration::from_secs(days * DAY)),
                max_backups,
                compress: audit_log_compress,
            },
        }))
    }
}

impl AuditWebhookArgs {
    fn build_config(self) -> Option<AuditWebhookConfig> {
        let Self { audit_webhook_config_file, audit_webhook_initial_backoff: backoff } = self;
        Some(AuditWebhookConfig { file: audit_webhook_config_file?, backoff })
    }
}
