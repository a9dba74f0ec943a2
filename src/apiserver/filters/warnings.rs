//! Warnings in addition to the response: `Warning: 299 - "…"` headers, which kubectl prints.

use std::sync::{Arc, Mutex, PoisonError};

use http::HeaderValue;

/// Most characters of all warnings together; when they have more, each is cut to [`CUT`].
const TOTAL: usize = 4096;
const CUT: usize = 256;
/// Most warnings that are kept of one request; further ones are dropped.
const KEPT: usize = 256;

/// The warnings of one request, kept in its extensions. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct Warnings(Arc<Mutex<Vec<String>>>);

impl Warnings {
    /// Adds a warning. An empty text, a text that was added before, and texts beyond a limit are
    /// ignored.
    pub fn add(&self, text: impl Into<String>) {
        let text = text.into();
        let mut texts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if !text.is_empty() && texts.len() < KEPT && !texts.contains(&text) {
            texts.push(text);
        }
    }

    /// Returns the warnings that were added so far.
    pub fn texts(&self) -> Vec<String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn headers(&self) -> Vec<HeaderValue> {
        let texts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_long = texts.iter().map(|text| text.chars().count()).sum::<usize>() > TOTAL;
        let mut remaining_length = TOTAL;
        let mut headers = Vec::new();
        for text in texts.iter() {
            let text: String = text.chars().take(if is_long { CUT } else { TOTAL }).collect();
            let Some(rest) = remaining_length.checked_sub(text.chars().count()) else { break };
            remaining_length = rest;
            headers.extend(warning_header(&text));
        }
        headers
    }
}

fn warning_header(text: &str) -> Option<HeaderValue> {
    let mut value = String::from("299 - \"");
    for character in text.chars() {
        match character {
            '"' | '\\' => value.extend(['\\', character]),
            // A line break would begin another header.
            _ if character.is_control() => value.push(' '),
            _ => value.push(character),
        }
    }
    value.push('"');
    HeaderValue::from_bytes(value.as_bytes()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(warnings: &Warnings) -> Vec<String> {
        let text = |value: HeaderValue| String::from_utf8(value.as_bytes().to_vec()).unwrap();
        warnings.headers().into_iter().map(text).collect()
    }

    #[test]
    fn texts_are_quoted_and_said_once() {
        let warnings = Warnings::default();
        for text in ["a \"b\" \\ c", "line\nbreak", "a \"b\" \\ c", "größer"] {
            warnings.add(text);
        }
        let expected = [r#"299 - "a \"b\" \\ c""#, r#"299 - "line break""#, r#"299 - "größer""#];
        assert_eq!(shown(&warnings), expected);
    }

    #[test]
    fn many_long_texts_are_cut() {
        let warnings = Warnings::default();
        for number in 0..100 {
            warnings.add(format!("{number:03}{}", "x".repeat(1000)));
        }
        let shown = shown(&warnings);
        assert_eq!(shown.len(), TOTAL / CUT);
        assert!(shown.iter().all(|header| header.len() == CUT + "299 - \"\"".len()));
    }
}
