//! Flags of the audit trail: names and defaults are kube-apiserver's.

use std::{path::PathBuf, time::Duration};

use clap::{ArgAction, ValueEnum};

use super::seconds;
use crate::apiserver::audit::{
    AuditDelivery, AuditLogConfig, AuditLogTarget, AuditWebhookConfig, BatchConfig, BatchThrottle,
    Config, DeliveryMode, EventTruncation, FileRotation,
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
}

/// Does a request wait?
#[derive(Clone, Copy, Debug, ValueEnum)]
enum AuditModeArg {
    Batch,
    Blocking,
    BlockingStrict,
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
    /// Whether requests wait until their events are in the log: not at all, or they do, or they
    /// fail with 500 when their arrival cannot be recorded.
    #[arg(
        long,
        value_name = "MODE",
        env = "NAVIGATOR_AUDIT_LOG_MODE",
        value_enum,
        default_value_t = AuditModeArg::Blocking
    )]
    audit_log_mode: AuditModeArg,
    /// Events that may wait for the log; those beyond are lost. Mode batch only.
    #[arg(
        long,
        value_name = "COUNT",
        env = "NAVIGATOR_AUDIT_LOG_BATCH_BUFFER_SIZE",
        default_value_t = 10_000
    )]
    audit_log_batch_buffer_size: usize,
    /// Events written at one go. Mode batch only.
    #[arg(
        long,
        value_name = "COUNT",
        env = "NAVIGATOR_AUDIT_LOG_BATCH_MAX_SIZE",
        default_value_t = 1
    )]
    audit_log_batch_max_size: usize,
    /// Seconds that an event may wait for others to be written with. Mode batch only.
    #[arg(
        long,
        value_name = "SECONDS",
        env = "NAVIGATOR_AUDIT_LOG_BATCH_MAX_WAIT",
        default_value = "0",
        value_parser = seconds
    )]
    audit_log_batch_max_wait: Duration,
    /// Whether batches for the log are throttled. Mode batch only.
    #[arg(
        long,
        value_name = "BOOL",
        env = "NAVIGATOR_AUDIT_LOG_BATCH_THROTTLE_ENABLE",
        action = ArgAction::Set,
        num_args = 0..=1,
        require_equals = true,
        default_value_t = false,
        default_missing_value = "true"
    )]
    audit_log_batch_throttle_enable: bool,
    /// Batches a second for the log, where they are throttled.
    #[arg(
        long,
        value_name = "RATE",
        env = "NAVIGATOR_AUDIT_LOG_BATCH_THROTTLE_QPS",
        default_value_t = 0.0
    )]
    audit_log_batch_throttle_qps: f64,
    /// Batches for the log at one time, where they are throttled.
    #[arg(
        long,
        value_name = "COUNT",
        env = "NAVIGATOR_AUDIT_LOG_BATCH_THROTTLE_BURST",
        default_value_t = 0
    )]
    audit_log_batch_throttle_burst: u32,
    /// Whether large events lose their objects before they are logged.
    #[arg(
        long,
        value_name = "BOOL",
        env = "NAVIGATOR_AUDIT_LOG_TRUNCATE_ENABLED",
        action = ArgAction::Set,
        num_args = 0..=1,
        require_equals = true,
        default_value_t = false,
        default_missing_value = "true"
    )]
    audit_log_truncate_enabled: bool,
    /// Bytes of events in a batch for the log, where large ones are truncated.
    #[arg(
        long,
        value_name = "BYTES",
        env = "NAVIGATOR_AUDIT_LOG_TRUNCATE_MAX_BATCH_SIZE",
        default_value_t = 10_485_760
    )]
    audit_log_truncate_max_batch_size: usize,
    /// Bytes above which an event loses its objects, where large ones are truncated; one that is
    /// still larger is lost.
    #[arg(
        long,
        value_name = "BYTES",
        env = "NAVIGATOR_AUDIT_LOG_TRUNCATE_MAX_EVENT_SIZE",
        default_value_t = 102_400
    )]
    audit_log_truncate_max_event_size: usize,
}

#[derive(Clone, Debug, clap::Args)]
#[group(skip)]
#[expect(clippy::struct_field_names, reason = "the flags are named so")]
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
    /// Whether requests wait until the webhook has their events: not at all, or they do, or they
    /// fail with 500 when their arrival cannot be recorded.
    #[arg(
        long,
        value_name = "MODE",
        env = "NAVIGATOR_AUDIT_WEBHOOK_MODE",
        value_enum,
        default_value_t = AuditModeArg::Batch
    )]
    audit_webhook_mode: AuditModeArg,
    /// Events that may wait for the webhook; those beyond are lost. Mode batch only.
    #[arg(
        long,
        value_name = "COUNT",
        env = "NAVIGATOR_AUDIT_WEBHOOK_BATCH_BUFFER_SIZE",
        default_value_t = 10_000
    )]
    audit_webhook_batch_buffer_size: usize,
    /// Events sent at one go. Mode batch only.
    #[arg(
        long,
        value_name = "COUNT",
        env = "NAVIGATOR_AUDIT_WEBHOOK_BATCH_MAX_SIZE",
        default_value_t = 400
    )]
    audit_webhook_batch_max_size: usize,
    /// Seconds that an event may wait for others to be sent with. Mode batch only.
    #[arg(
        long,
        value_name = "SECONDS",
        env = "NAVIGATOR_AUDIT_WEBHOOK_BATCH_MAX_WAIT",
        default_value = "30",
        value_parser = seconds
    )]
    audit_webhook_batch_max_wait: Duration,
    /// Whether batches for the webhook are throttled. Mode batch only.
    #[arg(
        long,
        value_name = "BOOL",
        env = "NAVIGATOR_AUDIT_WEBHOOK_BATCH_THROTTLE_ENABLE",
        action = ArgAction::Set,
        num_args = 0..=1,
        require_equals = true,
        default_value_t = true,
        default_missing_value = "true"
    )]
    audit_webhook_batch_throttle_enable: bool,
    /// Batches a second for the webhook, where they are throttled.
    #[arg(
        long,
        value_name = "RATE",
        env = "NAVIGATOR_AUDIT_WEBHOOK_BATCH_THROTTLE_QPS",
        default_value_t = 10.0
    )]
    audit_webhook_batch_throttle_qps: f64,
    /// Batches for the webhook at one time, where they are throttled.
    #[arg(
        long,
        value_name = "COUNT",
        env = "NAVIGATOR_AUDIT_WEBHOOK_BATCH_THROTTLE_BURST",
        default_value_t = 15
    )]
    audit_webhook_batch_throttle_burst: u32,
    /// Whether large events lose their objects before they are sent.
    #[arg(
        long,
        value_name = "BOOL",
        env = "NAVIGATOR_AUDIT_WEBHOOK_TRUNCATE_ENABLED",
        action = ArgAction::Set,
        num_args = 0..=1,
        require_equals = true,
        default_value_t = false,
        default_missing_value = "true"
    )]
    audit_webhook_truncate_enabled: bool,
    /// Bytes of events in a batch for the webhook, where large ones are truncated.
    #[arg(
        long,
        value_name = "BYTES",
        env = "NAVIGATOR_AUDIT_WEBHOOK_TRUNCATE_MAX_BATCH_SIZE",
        default_value_t = 10_485_760
    )]
    audit_webhook_truncate_max_batch_size: usize,
    /// Bytes above which an event loses its objects, where large ones are truncated; one that is
    /// still larger is lost.
    #[arg(
        long,
        value_name = "BYTES",
        env = "NAVIGATOR_AUDIT_WEBHOOK_TRUNCATE_MAX_EVENT_SIZE",
        default_value_t = 102_400
    )]
    audit_webhook_truncate_max_event_size: usize,
}

impl Args {
    pub(super) fn config(self) -> Result<Config, String> {
        let Self { audit_policy_file, log, webhook } = self;
        Ok(Config { policy: audit_policy_file, log: log.config()?, webhook: webhook.config()? })
    }
}

impl AuditLogArgs {
    fn config(self) -> Result<Option<AuditLogConfig>, String> {
        let Self {
            audit_log_path,
            audit_log_maxage,
            audit_log_maxbackup,
            audit_log_maxsize,
            audit_log_compress,
            audit_log_format: AuditLogFormat::Json,
            audit_log_mode,
            audit_log_batch_buffer_size,
            audit_log_batch_max_size,
            audit_log_batch_max_wait,
            audit_log_batch_throttle_enable,
            audit_log_batch_throttle_qps,
            audit_log_batch_throttle_burst,
            audit_log_truncate_enabled,
            audit_log_truncate_max_batch_size,
            audit_log_truncate_max_event_size,
        } = self;
        let Some(path) = audit_log_path else { return Ok(None) };
        let days = u64::from(audit_log_maxage);
        let max_size = match audit_log_maxsize {
            0 => FileRotation::DEFAULT.max_size,
            mebibytes => u64::from(mebibytes) * MEBIBYTE,
        };
        let kept = usize::try_from(audit_log_maxbackup).map_err(|error| error.to_string())?;
        Ok(Some(AuditLogConfig {
            target: if path.as_os_str() == "-" {
                AuditLogTarget::Stdout
            } else {
                AuditLogTarget::File(path)
            },
            rotation: FileRotation {
                max_size,
                max_age: (days > 0).then(|| Duration::from_secs(days * DAY)),
                max_backups: kept,
                compress: audit_log_compress,
            },
            delivery: delivery(
                "log",
                audit_log_mode,
                BatchConfig {
                    buffer: audit_log_batch_buffer_size,
                    max_size: audit_log_batch_max_size,
                    max_wait: audit_log_batch_max_wait,
                    throttle: audit_log_batch_throttle_enable.then_some(BatchThrottle {
                        rate: audit_log_batch_throttle_qps,
                        burst: audit_log_batch_throttle_burst,
                    }),
                },
                audit_log_truncate_enabled,
                EventTruncation {
                    max_event: audit_log_truncate_max_event_size,
                    max_batch: audit_log_truncate_max_batch_size,
                },
            )?,
        }))
    }
}

impl AuditWebhookArgs {
    fn config(self) -> Result<Option<AuditWebhookConfig>, String> {
        let Self {
            audit_webhook_config_file,
            audit_webhook_initial_backoff,
            audit_webhook_mode,
            audit_webhook_batch_buffer_size,
            audit_webhook_batch_max_size,
            audit_webhook_batch_max_wait,
            audit_webhook_batch_throttle_enable,
            audit_webhook_batch_throttle_qps,
            audit_webhook_batch_throttle_burst,
            audit_webhook_truncate_enabled,
            audit_webhook_truncate_max_batch_size,
            audit_webhook_truncate_max_event_size,
        } = self;
        let Some(file) = audit_webhook_config_file else { return Ok(None) };
        Ok(Some(AuditWebhookConfig {
            file,
            backoff: audit_webhook_initial_backoff,
            delivery: delivery(
                "webhook",
                audit_webhook_mode,
                BatchConfig {
                    buffer: audit_webhook_batch_buffer_size,
                    max_size: audit_webhook_batch_max_size,
                    max_wait: audit_webhook_batch_max_wait,
                    throttle: audit_webhook_batch_throttle_enable.then_some(BatchThrottle {
                        rate: audit_webhook_batch_throttle_qps,
                        burst: audit_webhook_batch_throttle_burst,
                    }),
                },
                audit_webhook_truncate_enabled,
                EventTruncation {
                    max_event: audit_webhook_truncate_max_event_size,
                    max_batch: audit_webhook_truncate_max_batch_size,
                },
            )?,
        }))
    }
}

/// Checks the settings of one audit backend, with upstream's messages
/// (`pkg/server/options/audit.go`).
fn delivery(
    plugin: &str,
    mode: AuditModeArg,
    batch: BatchConfig,
    truncate: bool,
    truncation: EventTruncation,
) -> Result<AuditDelivery, String> {
    let positive = |what: &str, value: f64| {
        if value > 0.0 && value.is_finite() {
            return Ok(());
        }
        Err(format!("invalid audit batch {plugin} {what} {value}, must be a positive number"))
    };
    let mode = match mode {
        AuditModeArg::Batch => {
            // Larger counts are of no use, and an f64 holds every u32 exactly.
            let count = |count: usize| u32::try_from(count).map_or(f64::from(u32::MAX), f64::from);
            positive("buffer size", count(batch.buffer))?;
            positive("max batch size", count(batch.max_size))?;
            if let Some(throttle) = batch.throttle {
                positive("throttle QPS", throttle.rate)?;
                positive("throttle burst", f64::from(throttle.burst))?;
            }
            if batch.buffer > tokio::sync::Semaphore::MAX_PERMITS {
                let buffer = batch.buffer;
                return Err(format!(
                    "invalid audit batch {plugin} buffer size {buffer}, too large"
                ));
            }
            DeliveryMode::Batch(batch)
        }
        AuditModeArg::Blocking => DeliveryMode::Blocking,
        AuditModeArg::BlockingStrict => DeliveryMode::BlockingStrict,
    };
    let EventTruncation { max_event, max_batch } = truncation;
    if max_event == 0 {
        return Err(format!(
            "invalid audit truncate {plugin} max event size 0, must be a positive number"
        ));
    }
    if max_batch < max_event {
        return Err(format!(
            "invalid audit truncate {plugin} max batch size {max_batch}, must be greater than max \
             event size ({max_event})"
        ));
    }
    Ok(AuditDelivery { mode, truncation: truncate.then_some(truncation) })
}
