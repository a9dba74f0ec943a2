//! Reads the files of objects that were given to `up -f`.

use std::{io::Read, path::Path};

use serde::Deserialize;
use serde_json::Value;

use super::CommandFailure;

/// An object from a file.
#[derive(Clone, Debug)]
pub(super) struct ManifestDocument {
    /// The file, and the number of the document in it, for messages.
    pub(super) place: String,
    pub(super) body: Value,
}

impl ManifestDocument {
    pub(super) fn text(&self, pointer: &str) -> &str {
        self.body.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
    }

    pub(super) fn kind(&self) -> &str {
        self.text("/kind")
    }

    pub(super) fn name(&self) -> &str {
        self.text("/metadata/name")
    }

    pub(super) fn namespace(&self) -> &str {
        match self.text("/metadata/namespace") {
            "" => "default",
            namespace => namespace,
        }
    }
}

/// Reads every object of these files; `-` is standard input.
pub(super) fn read_documents(
    files: &[impl AsRef<Path>],
) -> Result<Vec<ManifestDocument>, CommandFailure> {
    let mut documents = Vec::new();
    for file in files {
        let file = file.as_ref();
        let file_name = file.display().to_string();
        let text = if file_name == "-" {
            let mut text = String::new();
            std::io::stdin().read_to_string(&mut text).map(|_| text)
        } else {
            std::fs::read_to_string(file)
        };
        let text =
            text.map_err(|error| CommandFailure::usage(format!("-f {file_name}: {error}")))?;
        documents.extend(parse_documents(&file_name, &text)?);
    }
    Ok(documents)
}

fn parse_documents(file: &str, text: &str) -> Result<Vec<ManifestDocument>, CommandFailure> {
    let mut documents = Vec::new();
    for (number, document) in serde_yaml::Deserializer::from_str(text).enumerate() {
        let place = format!("-f {file}, document {}", number + 1);
        let body = Value::deserialize(document)
            .map_err(|error| CommandFailure::usage(format!("{place}: {error}")))?;
        if body.is_null() {
            continue;
        }
        let document = ManifestDocument { place, body };
        for pointer in ["/apiVersion", "/kind", "/metadata/name"] {
            if document.text(pointer).is_empty() {
                let text =
                    format!("{}: {} is missing", document.place, pointer[1..].replace('/', "."));
                return Err(CommandFailure::usage(text));
            }
        }
        documents.push(document);
    }
    Ok(documents)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documents_are_read_and_incomplete_ones_are_named() {
        let all = parse_documents(
            "a.yaml",
            "# none\n---\n{apiVersion: v1, kind: A, metadata: {name: x}}\n",
        )
        .unwrap();
        assert_eq!(all.len(), 1);
        assert_eq!((all[0].kind(), all[0].name(), all[0].namespace()), ("A", "x", "default"));
        for (text, part) in [
            ("a: [", "document 1"),
            ("apiVersion: v1\nkind: A", "metadata.name is missing"),
            (
                "{apiVersion: v1, kind: A, metadata: {name: x}}\n---\nkind: B",
                "document 2: apiVersion",
            ),
        ] {
            let told = parse_documents("a.yaml", text).unwrap_err();
            assert_eq!(told.code, crate::error::exit::USAGE);
            assert!(told.text.contains(part), "{}", told.text);
        }
    }
}
