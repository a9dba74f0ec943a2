//! Writes JSON as YAML with Helm's expressions in it.
//!
//! A string that holds `{{ … }}` is an expression. A [`raw`] entry of a map or list is lines of a
//! template, in which `@0` is the indentation and `@2` the next one.

use serde_json::{Map, Value};

const RAW: char = '\u{1}';
const STEP: usize = 2;

/// Lines of a template in the place of an entry of a map, key and all, or of a list.
pub(super) fn raw(lines: impl AsRef<str>) -> Value {
    Value::String(format!("{RAW}{}", lines.as_ref()))
}

/// The value at `path` of the values, as an entry of a map; nothing when it is empty.
pub(super) fn optional(key: &str, path: &str) -> Value {
    raw(format!(
        "{{{{- with .Values.{path} }}}}\n{key}: {{{{- toYaml . | nindent @2 }}}}\n{{{{- end }}}}"
    ))
}

/// A single word at `path` of the values, as an entry of a map; nothing when it is empty.
pub(super) fn optional_word(key: &str, path: &str) -> Value {
    raw(format!("{{{{- with .Values.{path} }}}}\n{key}: {{{{ . | quote }}}}\n{{{{- end }}}}"))
}

/// The value at `path`, as an entry of a map.
pub(super) fn block(key: &str, path: &str) -> Value {
    raw(format!("{key}: {{{{- toYaml .Values.{path} | nindent @2 }}}}"))
}

/// Entries of the map or list at `path`, behind others.
pub(super) fn entries(path: &str) -> Value {
    raw(format!("{{{{- with .Values.{path} }}}}\n{{{{- toYaml . | nindent @0 }}}}\n{{{{- end }}}}"))
}

/// An argument that is there when the value at `path` is.
pub(super) fn argument(flag: &str, path: &str) -> Value {
    raw(format!(
        "{{{{- with .Values.{path} }}}}\n- {{{{ printf \"--{flag}=%v\" . | quote }}}}\n{{{{- end }}}}"
    ))
}

/// An entry of a list that is there when `condition` holds.
pub(super) fn when(condition: &str, entry: &Value) -> Value {
    when_all(condition, std::slice::from_ref(entry))
}

/// Entries of a list that are there when `condition` holds.
pub(super) fn when_all(condition: &str, entries: &[Value]) -> Value {
    let mut lines = String::new();
    list(&mut lines, 0, entries);
    raw(format!("{{{{- if {condition} }}}}\n{lines}{{{{- end }}}}"))
}

/// A document of its own, there when `condition` holds, or always.
pub(super) fn document(object: &Value, condition: Option<&str>) -> String {
    either_document(object, object, "true", condition)
}

/// The document `one` when `choice` holds, else `other`.
pub(super) fn either_document(
    one: &Value,
    other: &Value,
    choice: &str,
    condition: Option<&str>,
) -> String {
    let mut text = String::new();
    if let Some(condition) = condition {
        line(&mut text, 0, &format!("{{{{- if {condition} }}}}"));
    }
    text.push_str("---\n");
    let (one, other) = (one.as_object().unwrap(), other.as_object().unwrap());
    either_maps(&mut text, 0, one, other, choice);
    if condition.is_some() {
        text.push_str("{{- end }}\n");
    }
    text
}

fn either_maps(
    text: &mut String,
    indent: usize,
    one: &Map<String, Value>,
    other: &Map<String, Value>,
    choice: &str,
) {
    let mut keys: Vec<&String> = one.keys().chain(other.keys()).collect();
    keys.sort();
    keys.dedup();
    keys.sort_by_key(|key| rank(key, one.get(*key)));
    for key in keys {
        match (one.get(key), other.get(key)) {
            (Some(one), Some(other)) if one == other => entry(text, indent, key, one),
            (Some(Value::Object(one)), Some(Value::Object(other))) => {
                line(text, indent, &format!("{key}:"));
                either_maps(text, indent + STEP, one, other, choice);
            }
            (Some(Value::Array(one)), Some(Value::Array(other))) if one.len() == other.len() => {
                line(text, indent, &format!("{key}:"));
                for (one, other) in one.iter().zip(other) {
                    either_items(text, indent, one, other, choice);
                }
            }
            (one, other) => choose(text, choice, one, other, |text, value| {
                entry(text, indent, key, value);
            }),
        }
    }
}

fn either_items(text: &mut String, indent: usize, one: &Value, other: &Value, choice: &str) {
    match (one, other) {
        (one, other) if one == other => list(text, indent, std::slice::from_ref(one)),
        (Value::Object(one), Value::Object(other)) => {
            let mut lines = String::new();
            either_maps(&mut lines, indent + STEP, one, other, choice);
            text.push_str(&dashed(&lines, indent));
        }
        (one, other) => choose(text, choice, Some(one), Some(other), |text, value| {
            list(text, indent, std::slice::from_ref(value));
        }),
    }
}

fn choose(
    text: &mut String,
    choice: &str,
    one: Option<&Value>,
    other: Option<&Value>,
    mut write: impl FnMut(&mut String, &Value),
) {
    let condition = if one.is_some() { choice.to_owned() } else { format!("not ({choice})") };
    line(text, 0, &format!("{{{{- if {condition} }}}}"));
    match (one, other) {
        (Some(one), Some(other)) => {
            write(text, one);
            text.push_str("{{- else }}\n");
            write(text, other);
        }
        (Some(only), None) | (None, Some(only)) => write(text, only),
        (None, None) => unreachable!("the key is of one of the two"),
    }
    text.push_str("{{- end }}\n");
}

fn entry(text: &mut String, indent: usize, key: &str, value: &Value) {
    match value {
        Value::Object(fields) if !fields.is_empty() => {
            line(text, indent, &format!("{}:", scalar(&key.into())));
            map(text, indent + STEP, fields);
        }
        Value::Array(entries) if !entries.is_empty() => {
            line(text, indent, &format!("{}:", scalar(&key.into())));
            list(text, indent, entries);
        }
        Value::String(lines) if lines.starts_with(RAW) => raw_lines(text, indent, lines),
        _ => line(text, indent, &format!("{}: {}", scalar(&key.into()), scalar(value))),
    }
}

fn map(text: &mut String, indent: usize, fields: &Map<String, Value>) {
    let mut keys: Vec<&String> = fields.keys().collect();
    keys.sort_by_key(|key| rank(key, fields.get(*key)));
    for key in keys {
        entry(text, indent, key, &fields[key]);
    }
}

/// An entry of a list has to begin with a field that is always there.
fn rank(key: &str, value: Option<&Value>) -> (bool, bool) {
    let is_raw = value.and_then(Value::as_str).is_some_and(|text| text.starts_with(RAW));
    (key != "name", is_raw)
}

/// Of a list, the dashes stand below the first letter of its key.
fn list(text: &mut String, indent: usize, entries: &[Value]) {
    for value in entries {
        match value {
            Value::String(lines) if lines.starts_with(RAW) => raw_lines(text, indent, lines),
            Value::Object(fields) => {
                let mut lines = String::new();
                map(&mut lines, indent + STEP, fields);
                text.push_str(&dashed(&lines, indent));
            }
            Value::Array(_) => unreachable!("no list of ours holds a list"),
            _ => line(text, indent, &format!("- {}", scalar(value))),
        }
    }
}

/// The lines of a map as an entry of a list. Its first line must not be one of the template's.
fn dashed(lines: &str, indent: usize) -> String {
    assert!(!lines.starts_with("{{"), "a list's entry begins with a field: {lines}");
    format!("{}- {}", " ".repeat(indent), lines.trim_start())
}

fn raw_lines(text: &mut String, indent: usize, lines: &str) {
    let lines = lines
        .trim_start_matches(RAW)
        .replace("@0", &indent.to_string())
        .replace("@2", &(indent + STEP).to_string());
    for one in lines.lines() {
        // A line that trims its own white space needs none.
        line(text, if one.starts_with("{{-") { 0 } else { indent }, one);
    }
}

fn line(text: &mut String, indent: usize, content: &str) {
    text.push_str(&" ".repeat(indent));
    text.push_str(content);
    text.push('\n');
}

fn scalar(value: &Value) -> String {
    match value {
        Value::String(text) if text.contains("{{") => expression(text),
        // As people write them: quoted where YAML would read something else.
        _ => serde_yaml::to_string(value).unwrap().trim_end().to_owned(),
    }
}

/// An expression with a quoted result: what looks like a number stays a string.
fn expression(text: &str) -> String {
    if text.starts_with("{{") && text.ends_with("}}") && text.matches("{{").count() == 1 {
        let inner = text.trim_start_matches("{{").trim_end_matches("}}").trim();
        return format!("{{{{ {inner} | quote }}}}");
    }
    let mut parts = Vec::new();
    for (number, part) in text.split("{{").enumerate() {
        let literal = match part.split_once("}}") {
            Some((inner, literal)) if number > 0 => {
                parts.push(format!("({})", inner.trim()));
                literal
            }
            _ => part,
        };
        if !literal.is_empty() {
            parts.push(serde_json::to_string(literal).unwrap());
        }
    }
    format!("{{{{ print {} | quote }}}}", parts.join(" "))
}
