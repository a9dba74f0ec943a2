//! Kubernetes' formats of names and values, in the words of apimachinery `pkg/util/validation`.
//!
//! Each function returns messages about what is wrong, none for a valid value.

const LABEL_FORMAT: &str = "[a-z0-9]([-a-z0-9]*[a-z0-9])?";
const QUALIFIED_FORMAT: &str = "([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]";
const QUALIFIED_TEXT: &str = "must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character";

/// Validates a DNS label, as upstream's `IsDNS1123Label`.
pub fn check_dns_label(value: &str) -> Vec<String> {
    let mut problems = check_length(value, 63);
    if !is_label(value) {
        problems.push(if is_subdomain(value) {
            "must not contain dots".to_owned()
        } else {
            format!("a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is '{LABEL_FORMAT}')")
        });
    }
    problems
}

/// Validates a DNS subdomain, as upstream's `IsDNS1123Subdomain`.
pub fn check_dns_subdomain(value: &str) -> Vec<String> {
    let mut problems = check_length(value, 253);
    if !is_subdomain(value) {
        problems.push(format!("a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is '{LABEL_FORMAT}(\\.{LABEL_FORMAT})*')"));
    }
    problems
}

/// Validates a qualified name, such as a label's key, as upstream's `IsQualifiedName`.
pub fn check_qualified_name(value: &str) -> Vec<String> {
    let examples = format!(
        "{QUALIFIED_TEXT} (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '{QUALIFIED_FORMAT}')"
    );
    let mut problems = Vec::new();
    let parts: Vec<&str> = value.split('/').collect();
    let name = match parts[..] {
        [name] => name,
        [prefix, name] => {
            if prefix.is_empty() {
                problems.push("prefix part must be non-empty".to_owned());
            } else {
                problems.extend(
                    check_dns_subdomain(prefix).iter().map(|text| format!("prefix part {text}")),
                );
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
        problems.push("name part must be non-empty".to_owned());
    }
    problems.extend(check_length(name, 63).iter().map(|text| format!("name part {text}")));
    if !is_qualified(name) {
        problems.push(format!("name part {examples}"));
    }
    problems
}

/// Validates the value of a label, as upstream's `IsValidLabelValue`.
pub fn check_label_value(value: &str) -> Vec<String> {
    let mut problems = check_length(value, 63);
    if !value.is_empty() && !is_qualified(value) {
        problems.push(format!("a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is '({QUALIFIED_FORMAT})?')"));
    }
    problems
}

/// Validates a percentage, as upstream's `IsValidPercent`.
pub fn check_percent(value: &str) -> Vec<String> {
    let digits = value.strip_suffix('%').unwrap_or_default();
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return vec!["a valid percent string must be a numeric string followed by an ending '%' (e.g. '1%',  or '93%', regex used for validation is '[0-9]+%')".to_owned()];
    }
    Vec::new()
}

/// Validates an address range, as upstream's `IsValidCIDR`.
pub fn check_cidr(value: &str) -> Vec<String> {
    let is_valid = value.trim().split_once('/').is_some_and(|(address, bits)| {
        let max_bits = match address.parse::<std::net::IpAddr>() {
            Ok(std::net::IpAddr::V4(_)) => 32,
            Ok(std::net::IpAddr::V6(_)) => 128,
            Err(_) => return false,
        };
        bits.parse::<u8>().is_ok_and(|bits| bits <= max_bits)
    });
    if is_valid {
        Vec::new()
    } else {
        vec!["must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)".to_owned()]
    }
}

/// Validates the name of a datacenter, rack or ring: it may hold what configuration files take
/// without quotes.
pub fn check_ring_name(value: &str) -> Vec<String> {
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    if !value.is_empty() && value.bytes().all(is_allowed) {
        return Vec::new();
    }
    vec!["must consist of alphanumeric characters, '-', '_' or '.'".to_owned()]
}

/// Validates a key in the data of a Secret, as upstream's `IsConfigMapKey`.
pub fn check_secret_key(value: &str) -> Vec<String> {
    let mut problems = check_length(value, 253);
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    if value.is_empty() || !value.bytes().all(is_allowed) {
        problems.push("a valid config key must consist of alphanumeric characters, '-', '_' or '.' (e.g. 'key.name',  or 'KEY_NAME',  or 'key-name', regex used for validation is '[-._a-zA-Z0-9]+')".to_owned());
    }
    match value {
        "." | ".." => problems.push(format!("must not be '{value}'")),
        _ if value.starts_with("..") => problems.push("must not start with '..'".to_owned()),
        _ => {}
    }
    problems
}

/// Validates the name of a user or a role: one that every database takes without quotes, and that
/// has no colon, which ends names in files of users.
pub fn check_login_name(value: &str) -> Vec<String> {
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"_.@-".contains(&byte);
    let has_valid_start = value.starts_with(|first: char| first.is_ascii_alphanumeric());
    if has_valid_start && value.len() <= 48 && value.bytes().all(is_allowed) {
        return Vec::new();
    }
    vec!["must consist of at most 48 alphanumeric characters, '_', '.', '@' or '-', and must start with an alphanumeric character".to_owned()]
}

/// Validates a name that a certificate may hold.
pub fn check_certificate_name(value: &str) -> Vec<String> {
    let name = value.strip_prefix("*.").unwrap_or(value);
    if value.parse::<std::net::IpAddr>().is_ok() || check_dns_subdomain(name).is_empty() {
        return Vec::new();
    }
    vec!["must be a DNS name, one that begins with '*.', or an IP address".to_owned()]
}

pub(super) const NOT_A_QUANTITY: &str =
    "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'";

fn check_length(value: &str, limit: usize) -> Vec<String> {
    if value.len() > limit {
        vec![format!("must be no more than {limit} characters")]
    } else {
        Vec::new()
    }
}

fn is_label(value: &str) -> bool {
    let is_label_byte =
        |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    !value.is_empty()
        && value.bytes().all(is_label_byte)
        && !value.starts_with('-')
        && !value.ends_with('-')
}

fn is_subdomain(value: &str) -> bool {
    value.split('.').all(is_label)
}

fn is_qualified(name: &str) -> bool {
    let is_alphanumeric = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_alphanumeric);
    let bytes = name.as_bytes();
    is_alphanumeric(bytes.first())
        && is_alphanumeric(bytes.last())
        && bytes.iter().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_validated_as_kubernetes_does() {
        assert!(check_dns_label("a-1").is_empty() && check_dns_label(&"a".repeat(63)).is_empty());
        assert_eq!(check_dns_label("a.b"), ["must not contain dots"]);
        assert_eq!(check_dns_label(&"a".repeat(64)), ["must be no more than 63 characters"]);
        assert_eq!(check_dns_label("A").len(), 1);
        assert!(check_dns_subdomain("a.b-c.d").is_empty());
        assert_eq!(check_dns_subdomain("a..b").len(), 1);
        assert!(check_qualified_name("example.com/My_Name").is_empty());
        assert_eq!(check_qualified_name("/a"), ["prefix part must be non-empty"]);
        assert_eq!(check_qualified_name("").len(), 2);
        assert_eq!(check_qualified_name("a/b/c").len(), 1);
        assert!(check_label_value("").is_empty());
        assert_eq!(check_label_value("-a").len(), 1);
        assert!(
            check_percent("30%").is_empty()
                && !check_percent("30").is_empty()
                && !check_percent("%").is_empty()
        );
        assert!(check_cidr("10.0.0.0/8").is_empty() && !check_cidr("10.0.0.0/33").is_empty());
        assert!(check_secret_key("tls.key").is_empty() && check_secret_key("_").is_empty());
        for bad in ["", "a/b", ".", "..", "..a"] {
            assert_eq!(check_secret_key(bad).len(), 1, "{bad:?}");
        }
    }

    #[test]
    fn names_of_logins_and_certificates_have_bounds() {
        let longest = "a".repeat(48);
        for good in ["a", "0", "Kibana_1", "me@example.org", "a-b.c", &longest] {
            assert!(check_login_name(good).is_empty(), "{good:?}");
        }
        let longer = "a".repeat(49);
        for bad in ["", "_system", "-a", "a:b", "a b", "ä", "a\n", &longer] {
            assert_eq!(check_login_name(bad).len(), 1, "{bad:?}");
        }
        for good in ["db.example.com", "*.example.com", "db", "10.0.0.1", "fd00::1"] {
            assert!(check_certificate_name(good).is_empty(), "{good:?}");
        }
        for bad in ["", "*", "*.", "a.*.b", "*.*.b", "DB", "10.0.0.0/8", "[fd00::1]", "a:9200"] {
            assert_eq!(check_certificate_name(bad).len(), 1, "{bad:?}");
        }
    }
}
