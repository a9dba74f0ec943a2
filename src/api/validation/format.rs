//! Kubernetes' formats of names and values, in the words of apimachinery `pkg/util/validation`.
//!
//! Each function returns messages about what is wrong, none for a valid value.

const LABEL_FORMAT: &str = "[a-z0-9]([-a-z0-9]*[a-z0-9])?";
const QUALIFIED_FORMAT: &str = "([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]";
const QUALIFIED_TEXT: &str = "must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character";

/// Validates a DNS label, as upstream's `IsDNS1123Label`.
pub fn dns_label(value: &str) -> Vec<String> {
    let mut wrong = too_long(value, 63);
    if !is_label(value) {
        wrong.push(if is_subdomain(value) {
            "must not contain dots".to_owned()
        } else {
            format!("a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is '{LABEL_FORMAT}')")
        });
    }
    wrong
}

/// Validates a DNS subdomain, as upstream's `IsDNS1123Subdomain`.
pub fn dns_subdomain(value: &str) -> Vec<String> {
    let mut wrong = too_long(value, 253);
    if !is_subdomain(value) {
        wrong.push(format!("a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is '{LABEL_FORMAT}(\\.{LABEL_FORMAT})*')"));
    }
    wrong
}

/// Validates a qualified name, such as a label's key, as upstream's `IsQualifiedName`.
pub fn qualified_name(value: &str) -> Vec<String> {
    let examples = format!(
        "{QUALIFIED_TEXT} (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '{QUALIFIED_FORMAT}')"
    );
    let mut wrong = Vec::new();
    let parts: Vec<&str> = value.split('/').collect();
    let name = match parts[..] {
        [name] => name,
        [prefix, name] => {
            if prefix.is_empty() {
                wrong.push("prefix part must be non-empty".to_owned());
            } else {
                wrong
                    .extend(dns_subdomain(prefix).iter().map(|text| format!("prefix part {text}")));
            }
            name
        }
        _ => {
            return vec![format!(
                "a qualified name {examples} with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')"
            )];
        }
    };
    if name.is_empty() {
        wrong.push("name part must be non-empty".to_owned());
    }
    wrong.extend(too_long(name, 63).iter().map(|text| format!("name part {text}")));
    if !is_qualified(name) {
        wrong.push(format!("name part {examples}"));
    }
    wrong
}

/// Validates the value of a label, as upstream's `IsValidLabelValue`.
pub fn label_value(value: &str) -> Vec<String> {
    let mut wrong = too_long(value, 63);
    if !value.is_empty() && !is_qualified(value) {
        wrong.push(format!("a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is '({QUALIFIED_FORMAT})?')"));
    }
    wrong
}

/// Validates a percentage, as upstream's `IsValidPercent`.
pub fn percent(value: &str) -> Vec<String> {
    let digits = value.strip_suffix('%').unwrap_or_default();
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return vec!["a valid percent string must be a numeric string followed by an ending '%' (e.g. '1%',  or '93%', regex used for validation is '[0-9]+%')".to_owned()];
    }
    Vec::new()
}

/// Validates an address range, as upstream's `IsValidCIDR`.
pub fn cidr(value: &str) -> Vec<String> {
    let valid = value.trim().split_once('/').is_some_and(|(address, bits)| {
        let most = match address.parse::<std::net::IpAddr>() {
            Ok(std::net::IpAddr::V4(_)) => 32,
            Ok(std::net::IpAddr::V6(_)) => 128,
            Err(_) => return false,
        };
        bits.parse::<u8>().is_ok_and(|bits| bits <= most)
    });
    if valid {
        Vec::new()
    } else {
        vec!["must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)".to_owned()]
    }
}

/// Validates the name of a datacenter, rack or ring: it may hold what configuration files take
/// without quotes.
pub fn ring_name(value: &str) -> Vec<String> {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    if !value.is_empty() && value.bytes().all(fits) {
        return Vec::new();
    }
    vec!["must consist of alphanumeric characters, '-', '_' or '.'".to_owned()]
}

/// Validates a key in the data of a Secret, as upstream's `IsConfigMapKey`.
pub fn secret_key(value: &str) -> Vec<String> {
    let mut wrong = too_long(value, 253);
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    if value.is_empty() || !value.bytes().all(fits) {
        wrong.push("a valid config key must consist of alphanumeric characters, '-', '_' or '.' (e.g. 'key.name',  or 'KEY_NAME',  or 'key-name', regex used for validation is '[-._a-zA-Z0-9]+')".to_owned());
    }
    match value {
        "." | ".." => wrong.push(format!("must not be '{value}'")),
        _ if value.starts_with("..") => wrong.push("must not start with '..'".to_owned()),
        _ => {}
    }
    wrong
}

/// Validates the name of a user or a role: one that every database takes without quotes, and that
/// has no colon, which ends names in files of users.
pub fn login_name(value: &str) -> Vec<String> {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"_.@-".contains(&byte);
    let begins = value.starts_with(|first: char| first.is_ascii_alphanumeric());
    if begins && value.len() <= 48 && value.bytes().all(fits) {
        return Vec::new();
    }
    vec!["must consist of at most 48 alphanumeric characters, '_', '.', '@' or '-', and must start with an alphanumeric character".to_owned()]
}

/// Validates a name that a certificate may hold.
pub fn certificate_name(value: &str) -> Vec<String> {
    let name = value.strip_prefix("*.").unwrap_or(value);
    if value.parse::<std::net::IpAddr>().is_ok() || dns_subdomain(name).is_empty() {
        return Vec::new();
    }
    vec!["must be a DNS name, one that begins with '*.', or an IP address".to_owned()]
}

pub(super) const NOT_A_QUANTITY: &str =
    "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'";

fn too_long(value: &str, limit: usize) -> Vec<String> {
    if value.len() > limit {
        vec![format!("must be no more than {limit} characters")]
    } else {
        Vec::new()
    }
}

fn is_label(value: &str) -> bool {
    let inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    !value.is_empty()
        && value.bytes().all(inner)
        && !value.starts_with('-')
        && !value.ends_with('-')
}

fn is_subdomain(value: &str) -> bool {
    value.split('.').all(is_label)
}

fn is_qualified(name: &str) -> bool {
    let edge = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_alphanumeric);
    let bytes = name.as_bytes();
    edge(bytes.first())
        && edge(bytes.last())
        && bytes.iter().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_validated_as_kubernetes_does() {
        assert!(dns_label("a-1").is_empty() && dns_label(&"a".repeat(63)).is_empty());
        assert_eq!(dns_label("a.b"), ["must not contain dots"]);
        assert_eq!(dns_label(&"a".repeat(64)), ["must be no more than 63 characters"]);
        assert_eq!(dns_label("A").len(), 1);
        assert!(dns_subdomain("a.b-c.d").is_empty());
        assert_eq!(dns_subdomain("a..b").len(), 1);
        assert!(qualified_name("example.com/My_Name").is_empty());
        assert_eq!(qualified_name("/a"), ["prefix part must be non-empty"]);
        assert_eq!(qualified_name("").len(), 2);
        assert_eq!(qualified_name("a/b/c").len(), 1);
        assert!(label_value("").is_empty());
        assert_eq!(label_value("-a").len(), 1);
        assert!(percent("30%").is_empty() && !percent("30").is_empty() && !percent("%").is_empty());
        assert!(cidr("10.0.0.0/8").is_empty() && !cidr("10.0.0.0/33").is_empty());
        assert!(secret_key("tls.key").is_empty() && secret_key("_").is_empty());
        for bad in ["", "a/b", ".", "..", "..a"] {
            assert_eq!(secret_key(bad).len(), 1, "{bad:?}");
        }
    }

    #[test]
    fn names_of_logins_and_certificates_have_bounds() {
        let longest = "a".repeat(48);
        for good in ["a", "0", "Kibana_1", "me@example.org", "a-b.c", &longest] {
            assert!(login_name(good).is_empty(), "{good:?}");
        }
        let longer = "a".repeat(49);
        for bad in ["", "_system", "-a", "a:b", "a b", "ä", "a\n", &longer] {
            assert_eq!(login_name(bad).len(), 1, "{bad:?}");
        }
        for good in ["db.example.com", "*.example.com", "db", "10.0.0.1", "fd00::1"] {
            assert!(certificate_name(good).is_empty(), "{good:?}");
        }
        for bad in ["", "*", "*.", "a.*.b", "*.*.b", "DB", "10.0.0.0/8", "[fd00::1]", "a:9200"] {
            assert_eq!(certificate_name(bad).len(), 1, "{bad:?}");
        }
    }
}
