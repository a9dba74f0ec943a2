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
    let mut decoded = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        let escape = (bytes[at] == b'%')
            .then(|| bytes.get(at + 1..at + 3))
            .flatten()
            .and_then(|digits| Some(hex(digits[0])? * 16 + hex(digits[1])?));
        if let Some(byte) = escape {
            decoded.push(byte);
            at += 3;
        } else {
            decoded.push(bytes[at]);
            at += 1;
        }
    }
    String::from_utf8_lossy(&decoded).into_owned()
}

fn hex(digit: u8) -> Option<u8> {
    char::from(digit).to_digit(16).and_then(|value| u8::try_from(value).ok())
}

/// Pairs of a query in their order; `+` is a space.
pub fn query_pairs(query: &str) -> impl Iterator<Item = (String, String)> {
    query.split('&').filter(|pair| !pair.is_empty()).map(|pair| {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        let decode = |text: &str| percent_decode(&text.replace('+', " "));
        (decode(key), decode(value))
    })
}

/// First value of a key.
pub fn query_value(query: &str, key: &str) -> Option<String> {
    query_pairs(query).find_map(|(name, value)| (name == key).then_some(value))
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
        let pairs: Vec<_> = query_pairs("watch&labelSelector=a%3Db+c&x=&x=2").collect();
        let expected = [("watch", ""), ("labelSelector", "a=b c"), ("x", ""), ("x", "2")];
        assert_eq!(pairs, expected.map(|(k, v)| (k.to_owned(), v.to_owned())));
        assert_eq!(query_value("x=1&x=2", "x").as_deref(), Some("1"));
    }
}
