//! Log lines as JSON: one object a line, `ts`, `level` and `target` first.
//!
//! Owns the names of the fields, how texts are escaped, and the form of a record: a line that
//! another program wrote, whole in the field `record`.

use std::{
    fmt::{self, Write as _},
    sync::OnceLock,
};

use jiff::Timestamp;
use tracing::{
    Event, Subscriber,
    field::{Field, Visit},
};
use tracing_subscriber::{
    fmt::{
        FmtContext, FormatEvent, FormattedFields,
        format::{JsonFields, Writer},
    },
    registry::LookupSpan,
};

/// Fields that every log line of this process carries, as JSON text.
static MARKS: OnceLock<String> = OnceLock::new();

/// Puts `fields` into every log line from now on. Only the first call counts.
pub fn set_common_fields(fields: &[(&str, &str)]) {
    let mut text = String::new();
    for (name, value) in fields {
        write_field(&mut text, name, value);
    }
    drop(MARKS.set(text));
}

fn common_fields() -> &'static str {
    MARKS.get().map_or("", String::as_str)
}

/// What records of one stream have in common.
#[derive(Clone, Debug)]
pub struct RecordHead(String);

impl RecordHead {
    /// Makes the head of the records of what `target` writes to `stream`. The level of such lines
    /// is not known: INFO stands for any.
    pub fn new(target: &str, stream: &str) -> Self {
        let mut text = String::from(r#","level":"INFO""#);
        write_field(&mut text, "target", target);
        text.push_str(common_fields());
        write_field(&mut text, "stream", stream);
        Self(text)
    }

    /// Appends a record of `line`, which comes without its newline. A `partial` line goes on in the
    /// next record. Bytes that are no UTF-8 are replaced.
    pub fn write_record(&self, out: &mut String, ts: &str, line: &[u8], is_partial: bool) {
        begin_line(out, ts);
        out.push_str(&self.0);
        if is_partial {
            out.push_str(r#","partial":true"#);
        }
        out.push_str(r#","record":""#);
        for chunk in line.utf8_chunks() {
            write_escaped(out, chunk.valid());
            if !chunk.invalid().is_empty() {
                out.push(char::REPLACEMENT_CHARACTER);
            }
        }
        out.push_str("\"}\n");
    }
}

/// Returns the present time, as log lines tell it.
pub fn current_time() -> String {
    format!("{:.6}", Timestamp::now())
}

/// Formats the log lines of this process as JSON.
pub(super) struct JsonFormat;

impl<S> FormatEvent<S, JsonFields> for JsonFormat
where
    S: Subscriber + for<'a> LookupSpan<'a>,
{
    fn format_event(
        &self,
        ctx: &FmtContext<'_, S, JsonFields>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let mut line = LineFields::default();
        event.record(&mut line);
        let LineFields { message, fields, names_task } = line;
        let metadata = event.metadata();
        let mut out = String::with_capacity(256);
        begin_line(&mut out, &current_time());
        write_field(&mut out, "level", metadata.level().as_str());
        write_field(&mut out, "target", metadata.target());
        write_field(&mut out, "msg", message.as_deref().unwrap_or_default());
        out.push_str(&fields);
        let span = ctx.lookup_current();
        let span = span.as_ref().map(|span| span.extensions());
        // The fields of the task's span, formatted as a JSON object already.
        let task = span.as_ref().and_then(|span| span.get::<FormattedFields<JsonFields>>());
        let task = task.and_then(|task| task.fields.strip_prefix('{')?.strip_suffix('}'));
        if let Some(task) = task.filter(|task| !task.is_empty() && !names_task) {
            out.push(',');
            out.push_str(task);
        }
        out.push_str(common_fields());
        out.push('}');
        writeln!(writer, "{out}")
    }
}

/// Keys with a meaning of their own in every line: a field of an event by such a name gets a `_`
/// behind it.
const TAKEN: &[&str] = &["ts", "level", "target", "msg", "cluster", "pilot"];
/// Name of the field of a task's span. An event that has a field of this name itself is logged
/// without the span's fields.
const TASK: &str = "task";

/// The fields of one line while they are collected.
#[derive(Default)]
struct LineFields {
    /// The text of the event, which stands before its fields.
    message: Option<String>,
    fields: String,
    names_task: bool,
}

impl LineFields {
    fn write_plain(&mut self, field: &Field, value: impl fmt::Display) {
        self.write_name(field);
        write_text(&mut self.fields, format_args!("{value}"));
    }

    fn write_name(&mut self, field: &Field) {
        let key = field.name();
        // A field whose name is a keyword of Rust is written `r#type` in the source.
        let key = key.strip_prefix("r#").unwrap_or(key);
        self.names_task |= key == TASK;
        write_key(&mut self.fields, key, if TAKEN.contains(&key) { "_" } else { "" });
    }
}

impl Visit for LineFields {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.record_str(field, &format!("{value:?}"));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        if field.name() == "message" && self.message.is_none() {
            self.message = Some(value.to_owned());
            return;
        }
        self.write_name(field);
        write_quoted(&mut self.fields, value);
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.write_plain(field, value);
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.write_plain(field, value);
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.write_plain(field, value);
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        // JSON has no number for infinity or NaN.
        if value.is_finite() {
            self.write_plain(field, value);
        } else {
            self.write_plain(field, "null");
        }
    }
}

fn begin_line(out: &mut String, ts: &str) {
    out.push_str(r#"{"ts":""#);
    out.push_str(ts);
    out.push('"');
}

/// Appends one more field to `out`.
fn write_field(out: &mut String, key: &str, value: &str) {
    write_key(out, key, "");
    write_quoted(out, value);
}

fn write_key(out: &mut String, key: &str, end: &str) {
    out.push_str(",\"");
    write_escaped(out, key);
    out.push_str(end);
    out.push_str("\":");
}

fn write_quoted(out: &mut String, value: &str) {
    out.push('"');
    write_escaped(out, value);
    out.push('"');
}

fn write_text(out: &mut String, text: fmt::Arguments<'_>) {
    out.write_fmt(text).expect("a String takes everything");
}

/// Appends a text as JSON has it between quotes. All control characters are escaped, also those
/// that JSON would let pass: nothing in a line moves a terminal's cursor.
fn write_escaped(out: &mut String, text: &str) {
    let bytes = text.as_bytes();
    let mut copied_length = 0;
    for (position, byte) in bytes.iter().enumerate() {
        let (length, code) = match byte {
            0..0x20 | b'"' | b'\\' | 0x7f => (1, *byte),
            // U+0080 to U+009F
            0xc2 if bytes.get(position + 1).is_some_and(|next| *next < 0xa0) => {
                (2, bytes[position + 1])
            }
            _ => continue,
        };
        out.push_str(&text[copied_length..position]);
        copied_length = position + length;
        match code {
            b'"' => out.push_str("\\\""),
            b'\\' => out.push_str("\\\\"),
            b'\n' => out.push_str("\\n"),
            b'\r' => out.push_str("\\r"),
            b'\t' => out.push_str("\\t"),
            code => write_text(out, format_args!("\\u{code:04x}")),
        }
    }
    out.push_str(&text[copied_length..]);
}

#[cfg(test)]
mod tests {
    use std::{
        io::{self, Write},
        sync::{Arc, Mutex},
    };

    use proptest::prelude::*;
    use serde_json::{Value, json};
    use tracing_subscriber::layer::SubscriberExt;

    use super::*;

    fn record(line: &[u8], partial: bool) -> Value {
        let mut out = String::new();
        RecordHead::new("example", "stderr").write_record(&mut out, "T", line, partial);
        assert_eq!(out.find('\n'), Some(out.len() - 1), "{out}");
        serde_json::from_str(&out).unwrap()
    }

    #[test]
    fn a_record_holds_the_line_and_where_it_comes_from() {
        let mut whole = json!({
            "ts": "T", "level": "INFO", "target": "example", "stream": "stderr",
            "record": "a \"b\"\tc\\\r",
        });
        assert_eq!(record(b"a \"b\"\tc\\\r", false), whole);
        whole["partial"] = true.into();
        assert_eq!(record(b"a \"b\"\tc\\\r", true), whole);
        assert_eq!(record(b"a\xff\xe2\x82b\xc3", false)["record"], "a\u{fffd}\u{fffd}b\u{fffd}");
    }

    #[test]
    fn no_control_character_is_written() {
        let all: String = (0..0xa1).filter_map(char::from_u32).collect();
        let mut out = String::new();
        write_escaped(&mut out, &all);
        assert!(!out.contains(char::is_control), "{out:?}");
        let back: String = serde_json::from_str(&format!("\"{out}\"")).unwrap();
        assert_eq!(back, all);
    }

    proptest! {
        #[test]
        fn any_line_is_told_as_it_was(line in prop::collection::vec(any::<u8>(), 0..200)) {
            let told = record(&line, false);
            prop_assert_eq!(told["record"].as_str(), Some(&*String::from_utf8_lossy(&line)));
        }
    }

    #[derive(Clone, Default)]
    struct Written(Arc<Mutex<Vec<u8>>>);

    impl Write for Written {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn our_own_lines_have_their_names_and_types() {
        let written = Written::default();
        let to = written.clone();
        let layer = tracing_subscriber::fmt::layer().json().with_writer(move || to.clone());
        let subscriber = tracing_subscriber::registry().with(layer.event_format(JsonFormat));
        tracing::subscriber::with_default(subscriber, || {
            let task = tracing::info_span!("task", task = "intent");
            let _entered = task.enter();
            let error: &dyn std::error::Error = &io::Error::other("no \"room\"");
            tracing::warn!(
                target: "t", error, on = true, left = -1, code = 7u8, part = 0.5, none = f64::NAN,
                name = %"a\nb", r#type = ?Some(1), message = "a field", pilot = "other",
                "Said {}", 1
            );
        });
        let text = String::from_utf8(written.0.lock().unwrap().clone()).unwrap();
        assert!(text.starts_with(r#"{"ts":""#) && text.ends_with("}\n"), "{text}");
        let mut line: Value = serde_json::from_str(&text).unwrap();
        let ts = line.as_object_mut().unwrap().remove("ts").unwrap();
        let ts = ts.as_str().unwrap();
        assert_eq!((ts.parse::<Timestamp>().is_ok(), ts.len()), (true, 27), "{ts}");
        let wanted = json!({
            "level": "WARN", "target": "t", "msg": "Said 1", "error": "no \"room\"", "on": true,
            "left": -1, "code": 7, "part": 0.5, "none": null, "name": "a\nb", "type": "Some(1)",
            "message": "a field", "pilot_": "other", "task": "intent",
        });
        assert_eq!(line, wanted);
    }
}
