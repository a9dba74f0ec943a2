//! Statements: their text, their values and how many replicas must answer.

use super::{
    error::CqlError,
    frame::{put_bytes, put_text},
};

/// In the flags of a query: values follow.
const VALUES: u8 = 0x01;

/// How many replicas must answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Consistency {
    One = 0x01,
    Quorum = 0x04,
    All = 0x05,
    LocalQuorum = 0x06,
    LocalOne = 0x0a,
}

/// One statement. Values take the places of `?` in its text, where the grammar has such places:
/// statements about roles and rights have none, and take [`quote_text`] and [`quote_name`].
#[derive(Clone, PartialEq, Eq)]
pub struct CqlStatement {
    text: String,
    values: Vec<Vec<u8>>,
    consistency: Consistency,
}

impl CqlStatement {
    pub fn new(text: impl Into<String>, consistency: Consistency) -> Self {
        Self { text: text.into(), values: Vec::new(), consistency }
    }

    /// Binds the next `?` to a text.
    #[must_use]
    pub fn bind_text(mut self, value: &str) -> Self {
        self.values.push(value.as_bytes().to_vec());
        self
    }

    /// Binds the next `?` to a boolean.
    #[must_use]
    pub fn bind_boolean(mut self, value: bool) -> Self {
        self.values.push(vec![value.into()]);
        self
    }

    pub(super) fn encode_body(&self) -> Result<Vec<u8>, CqlError> {
        let Self { text, values, consistency } = self;
        let mut body = Vec::new();
        put_bytes(&mut body, text.as_bytes())?;
        body.extend((*consistency as u16).to_be_bytes());
        if values.is_empty() {
            body.push(0);
            return Ok(body);
        }
        body.push(VALUES);
        let count = u16::try_from(values.len()).map_err(|_| CqlError::Long(values.len()))?;
        body.extend(count.to_be_bytes());
        for value in values {
            put_bytes(&mut body, value)?;
        }
        Ok(body)
    }
}

/// The options with which a connection begins.
pub(super) fn startup_body() -> Result<Vec<u8>, CqlError> {
    let mut body = vec![0, 1];
    put_text(&mut body, "CQL_VERSION")?;
    put_text(&mut body, "3.0.0")?;
    Ok(body)
}

/// Writes a text as a literal. Within it nothing but the quote has a meaning, and two of them stand
/// for one.
pub fn quote_text(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}

/// Writes the name of a role, a keyspace or a table, with its capitals and whatever else is in it.
pub fn quote_name(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Reads a quoted text as Cassandra's grammar does, and returns what follows it, too.
    fn read_quoted(text: &str, quote: char) -> Option<(String, &str)> {
        let mut rest = text.strip_prefix(quote)?;
        let mut read = String::new();
        loop {
            let (part, after) = rest.split_once(quote)?;
            read.push_str(part);
            let Some(more) = after.strip_prefix(quote) else { return Some((read, after)) };
            read.push(quote);
            rest = more;
        }
    }

    #[test]
    fn quotes_are_doubled_and_nothing_else_is_touched() {
        assert_eq!(quote_text("it's"), "'it''s'");
        assert_eq!(quote_text("a\"$$\\\n--;/*"), "'a\"$$\\\n--;/*'");
        assert_eq!(quote_text(""), "''");
        assert_eq!(quote_name("a\"; DROP ROLE b; --"), "\"a\"\"; DROP ROLE b; --\"");
    }

    proptest! {
        #[test]
        fn a_quoted_text_ends_where_it_was_ended(text in "[a'\"; \\\\$-]{0,20}|\\PC*") {
            for (quoted, quote) in [(quote_text(&text), '\''), (quote_name(&text), '"')] {
                let statement = format!("{quoted} AND LOGIN = true");
                let read = read_quoted(&statement, quote);
                prop_assert_eq!(read, Some((text.clone(), " AND LOGIN = true")));
            }
        }
    }

    #[test]
    fn values_follow_the_text_with_their_lengths() {
        let bare = CqlStatement::new("SELECT", Consistency::LocalQuorum);
        assert_eq!(bare.encode_body().unwrap(), *b"\0\0\0\x06SELECT\0\x06\0");
        let bound = bare.bind_text("a'b").bind_boolean(true);
        let values = b"\0\0\0\x06SELECT\0\x06\x01\0\x02\0\0\0\x03a'b\0\0\0\x01\x01";
        assert_eq!(bound.encode_body().unwrap(), *values);
    }
}
