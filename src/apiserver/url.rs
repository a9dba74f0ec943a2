//! Paths and queries of request URLs, decoded.
//!
//! A `%2F` inside a segment stays inside it: it can never make another segment.

/// Decodes `%XX`; anything that is no escape stays as it is. Bytes that are no UTF-8 become
/// U+FFFD, which no Kubernetes name contains.
pub fn percent_decode(text: &str) -> String {
    if !text.contains('%') {
        return text.to_owned();
    }
    let bytes = text.as_bytes();
    let mut output = Vec::with_capacity(bytes.len());
    let mut index = 0;
    while index < bytes.len() {
        let escape =
            (bytes[index] == b'%').then(|| bytes.get(index + 1..index + 3)).flatten().and_then(
                |digits| Some(parse_hex_digit(digits[0])? * 16 + parse_hex_digit(digits[1])?),
            );
        if let Some(byte) = escape {
            output.push(byte);
            index += 3;
        } else {
            output.push(bytes[index]);
            index += 1;
        }
    }
    String::from_utf8_lossy(&output).into_owned()
}

fn parse_hex_digit(digit: u8) -> Option<u8> {
    char::from(digit).to_digit(16).and_then(|value| u8::try_from(value).ok())
}

/// The query of a request, decoded once. The first value counts of a key that is given more than
/// once, except where all of them do.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Query(Vec<(String, String)>);

impl Query {
    /// Parses a query, in which `+` is a space.
    pub fn parse(text: &str) -> Self {
        let pairs = text.split('&').filter(|pair| !pair.is_empty()).map(|pair| {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            let decode = |text: &str| percent_decode(&text.replace('+', " "));
            (decode(key), decode(value))
        });
        Self(pairs.collect())
    }

    pub fn get(&self, key: &str) -> Option<&str> {
        self.pairs().find_map(|(name, value)| (name == key).then_some(value))
    }

    /// Returns the first value of a key; empty when absent.
    pub fn text(&self, key: &str) -> &str {
        self.get(key).unwrap_or_default()
    }

    /// Returns whether a flag is set: false when absent; when given, only `false` and `0` are
    /// false, as Go's clients write them.
    pub fn is_set(&self, key: &str) -> bool {
        self.get(key).is_some_and(parse_bool)
    }

    /// Returns each value of a key.
    pub fn values<'a>(&'a self, key: &'a str) -> impl Iterator<Item = &'a str> {
        self.pairs().filter_map(move |(name, value)| (name == key).then_some(value))
    }

    /// Returns keys and values in the order in which they were written.
    pub fn pairs(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(key, value)| (key.as_str(), value.as_str()))
    }
}

/// Reads a flag in a query as Go does: only `false` and `0` are false.
pub fn parse_bool(value: &str) -> bool {
    !matches!(value.to_ascii_lowercase().as_str(), "false" | "0")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes_decode_and_broken_ones_stay() {
        for (given, expected) in [
            ("a%2Fb", "a/b"),
            ("100%", "100%"),
            ("%zz", "%zz"),
            ("%e2%82%ac", "€"),
            ("%ff", "\u{fffd}"),
        ] {
            assert_eq!(percent_decode(given), expected, "{given}");
        }
    }

    #[test]
    fn query_keeps_order_and_empty_values() {
        let query = Query::parse("watch&labelSelector=a%3Db+c&x=&x=2");
        let pairs: Vec<_> = query.pairs().collect();
        assert_eq!(pairs, [("watch", ""), ("labelSelector", "a=b c"), ("x", ""), ("x", "2")]);
        assert_eq!((query.get("x"), query.text("x"), query.text("y")), (Some(""), "", ""));
        assert_eq!(query.values("x").collect::<Vec<_>>(), ["", "2"]);
        assert!(
            query.is_set("watch") && !query.is_set("y") && !Query::parse("y=False").is_set("y")
        );
    }
}
