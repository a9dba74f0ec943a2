//! Turns JSON lines of logs into lines for people. A line that is no JSON object stays as it is.

use serde_json::{Map, Value};

use crate::plugin::text::{OutputStyle, Screen, StyledText, Tone, cell, clean_text};

/// Names that programs use for the time, level, message and source of a line; the first that a line
/// has counts.
const TIME: &[&str] = &["timestamp", "@timestamp", "ts", "time"];
const LEVEL: &[&str] = &["level", "log.level", "severity"];
const MESSAGE: &[&str] = &["message", "msg"];
const FROM: &[&str] = &["target", "component", "log.logger", "logger"];
/// Field with a line of the database, which its pilot put into a line of its own.
const RECORD: &str = "record";
/// Fields with the pilot and its cluster, which every line of a pilot has. They are not shown: the
/// user asked for them.
const WHOSE: [&str; 2] = ["cluster", "pilot"];
/// Fields with a stack trace, whose lines are shown one below the other.
const TRACE: &[&str] = &["stacktrace", "error.stack_trace"];

/// Returns a line as people read it, with its line end. It may become several lines.
pub fn format_line(line: &str, style: OutputStyle) -> String {
    let mut screen = Screen::new(OutputStyle { width: None, ..style });
    match parse_object(line) {
        Some(fields) => draw_line(&mut screen, fields, None),
        None => screen.line(&[clean_text(line).into()]),
    }
    screen.finish()
}

/// Parses a line that is a JSON object with a message or a record.
fn parse_object(line: &str) -> Option<Map<String, Value>> {
    let line = line.trim();
    if !line.starts_with('{') {
        return None;
    }
    let Ok(Value::Object(fields)) = serde_json::from_str(line) else { return None };
    let has_message = MESSAGE.iter().any(|name| fields.contains_key(*name));
    (has_message || fields.contains_key(RECORD)).then_some(fields)
}

fn draw_line(screen: &mut Screen, mut fields: Map<String, Value>, outer: Option<String>) {
    let time = take_field(&mut fields, TIME).map(|time| short_time(&time)).or(outer);
    match fields.remove(RECORD) {
        Some(Value::Object(inner)) => return draw_line(screen, inner, time),
        Some(Value::String(inner)) => {
            if let Some(inner) = parse_object(&inner) {
                return draw_line(screen, inner, time);
            }
            let time = time.map(|time| cell(format!("{time} "), Tone::Faint));
            let parts: Vec<StyledText> = time.into_iter().chain([inner.into()]).collect();
            return screen.line(&parts);
        }
        Some(other) => {
            fields.insert(RECORD.to_owned(), other);
        }
        None => {}
    }
    let level = take_field(&mut fields, LEVEL).unwrap_or_default().to_uppercase();
    let message = take_field(&mut fields, MESSAGE).unwrap_or_default();
    let source = take_field(&mut fields, FROM);
    if fields.contains_key("pilot") {
        fields.retain(|name, _| !WHOSE.contains(&name.as_str()));
    }
    let traces: Vec<Value> = TRACE.iter().filter_map(|name| fields.remove(*name)).collect();
    let tone = match level.as_str() {
        "ERROR" | "FATAL" | "CRITICAL" => Tone::Bad,
        "WARN" | "WARNING" => Tone::Care,
        "DEBUG" | "TRACE" => Tone::Faint,
        _ => Tone::Good,
    };
    let mut parts = Vec::new();
    parts.extend(time.map(|time| cell(format!("{time} "), Tone::Faint)));
    parts.push(cell(format!("{level:<5} "), tone));
    parts.push(message.into());
    for (name, value) in &fields {
        parts.push(cell(format!(" {name}="), Tone::Faint));
        parts.push(field_text(value).into());
    }
    parts.extend(source.map(|source| cell(format!(" ({source})"), Tone::Faint)));
    screen.line(&parts);
    for trace in traces {
        let lines: Vec<String> = match trace {
            Value::Array(lines) => lines.iter().map(field_text).collect(),
            other => field_text(&other).lines().map(str::to_owned).collect(),
        };
        for line in lines {
            screen.paragraph(4, &line, Tone::Faint);
        }
    }
}

fn take_field(fields: &mut Map<String, Value>, names: &[&str]) -> Option<String> {
    let name = names.iter().find(|name| fields.contains_key(**name))?;
    fields.remove(*name).map(|value| field_text(&value))
}

/// Writes a value, without quotes where none are needed.
fn field_text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// Cuts a time to milliseconds: finer digits only take room.
fn short_time(time: &str) -> String {
    let Some((whole, fraction)) = time.split_once(['.', ',']) else { return time.to_owned() };
    let digits = fraction.bytes().take_while(u8::is_ascii_digit).count();
    let (fraction, zone) = fraction.split_at(digits);
    format!("{whole}.{}{zone}", &fraction[..digits.min(3)])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plain(line: &str) -> String {
        format_line(line, OutputStyle::default())
    }

    #[test]
    fn lines_of_ours_and_of_others_read_alike() {
        for (line, wanted) in [
            (
                r#"{"ts":"2026-11-22T12:33:46.123456Z","level":"INFO","msg":"Planned step","name":"demo","step":"Raise","target":"navigator::controller"}"#,
                "2026-11-22T12:33:46.123Z INFO  Planned step name=demo step=Raise (navigator::controller)\n",
            ),
            (
                r#"{"@timestamp":"2026-11-22T12:33:46,12+01:00","log.level":"warn","message":"slow","took":3,"log.logger":"o.e.n"}"#,
                "2026-11-22T12:33:46.12+01:00 WARN  slow took=3 (o.e.n)\n",
            ),
            (
                r#"{"ts":"T","level":"INFO","target":"t","msg":"up","pid":1,"cluster":"n/demo","pilot":"n/a"}"#,
                "T INFO  up pid=1 (t)\n",
            ),
            (
                r#"{"level":"ERROR","message":"failed","stacktrace":["a","  at b"]}"#,
                "ERROR failed\n    a\n      at b\n",
            ),
        ] {
            assert_eq!(plain(line), wanted);
        }
    }

    #[test]
    fn what_the_database_says_is_shown_as_it_said_it() {
        assert_eq!(
            plain(r#"{"ts":"2026-11-22T12:33:46Z","record":"INFO  [main] up"}"#),
            "2026-11-22T12:33:46Z INFO  [main] up\n"
        );
        let wrapped = r#"{"ts":"T","level":"INFO","target":"t","pilot":"n/a","stream":"stdout","partial":true,"record":"\u001b[2Jup"}"#;
        assert_eq!(plain(wrapped), "T  [2Jup\n");
        let inner = r#"{"timestamp":"T","record":{"level":"INFO","message":"up"}}"#;
        assert_eq!(plain(inner), "T INFO  up\n");
        let quoted = r#"{"record":"{\"level\":\"INFO\",\"message\":\"up\"}"}"#;
        assert_eq!(plain(quoted), "INFO  up\n");
    }

    #[test]
    fn other_lines_stay_as_they_are() {
        for line in ["INFO  [main] 12:00 up", "{not json", "{}", "[1]", "", r#"{"a":1}"#] {
            assert_eq!(plain(line), format!("{line}\n"));
        }
        assert_eq!(plain("a\u{1b}[2Jb"), "a [2Jb\n");
    }

    #[test]
    fn levels_have_colours_on_a_terminal() {
        let style = OutputStyle { colour: true, width: None };
        let line = format_line(r#"{"level":"ERROR","message":"no"}"#, style);
        assert_eq!(line, "\u{1b}[31mERROR \u{1b}[0mno\n");
    }
}
