//! The value of a Kubernetes quantity: `1Gi`, `500m`, `1.5e3`.
//!
//! Quantities are stored and returned as written; only comparing and computing looks inside.
//! apimachinery `pkg/api/resource/quantity.go` is the reference.

/// Returns the exact value of a quantity in billionths, the finest step that quantities have.
/// `None` when the text is no quantity, or its value does not fit into an `i128`.
pub fn parse_nanos(text: &str) -> Option<i128> {
    let (is_negative, unsigned_text) = match text.strip_prefix(['+', '-']) {
        Some(rest) => (text.starts_with('-'), rest),
        None => (false, text),
    };
    let digits = unsigned_text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(unsigned_text.len());
    let (number, suffix) = unsigned_text.split_at(digits);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if (whole.is_empty() && fraction.is_empty()) || fraction.contains('.') {
        return None;
    }
    let mantissa: i128 = format!("{whole}{fraction}").parse().ok()?;
    let scale = i32::try_from(fraction.len()).ok()?;
    let value = match suffix {
        "Ki" | "Mi" | "Gi" | "Ti" | "Pi" | "Ei" => {
            let power = 1 + "KMGTPE".find(&suffix[..1])?;
            times_ten(mantissa.checked_mul(1_i128 << (10 * power))?, 9 - scale)?
        }
        _ => times_ten(mantissa, 9 + decimal_exponent(suffix)? - scale)?,
    };
    Some(if is_negative { -value } else { value })
}

/// Returns the value of a quantity in whole units (bytes), rounded up as Kubernetes rounds.
pub fn parse_units(text: &str) -> Option<i128> {
    let nanos = parse_nanos(text)?;
    Some(nanos.div_euclid(1_000_000_000) + i128::from(nanos.rem_euclid(1_000_000_000) != 0))
}

/// Returns the quantity in its plainest spelling: `4096Mi` is `4Gi`, `1000m` is `1`, `0.5` is
/// `500m`. A whole number of mebibytes is spelled in powers of two. `None` when the text is no
/// quantity.
pub fn simplify_quantity(text: &str) -> Option<String> {
    const UNIT: i128 = 1_000_000_000;
    let nanos = parse_nanos(text)?;
    let (mut value, mut suffixes) =
        (nanos, ["n", "u", "m", "", "k", "M", "G", "T", "P", "E"].iter());
    let mut base = 1000;
    if nanos != 0 && nanos % (UNIT << 20) == 0 {
        (value, suffixes) = (nanos / (UNIT << 20), ["Mi", "Gi", "Ti", "Pi", "Ei"].iter());
        base = 1024;
    }
    let mut suffix = suffixes.next()?;
    if value == 0 {
        return Some("0".to_owned());
    }
    while value % base == 0
        && let Some(next_suffix) = suffixes.next()
    {
        (value, suffix) = (value / base, next_suffix);
    }
    Some(format!("{value}{suffix}"))
}

fn decimal_exponent(suffix: &str) -> Option<i32> {
    Some(match suffix {
        "n" => -9,
        "u" => -6,
        "m" => -3,
        "" => 0,
        "k" => 3,
        "M" => 6,
        "G" => 9,
        "T" => 12,
        "P" => 15,
        "E" => 18,
        _ => {
            let exponent = suffix.strip_prefix(['e', 'E'])?;
            exponent.parse().ok().filter(|e: &i32| e.abs() <= 30)?
        }
    })
}

/// Returns `value × 10^exponent`, rounded up; `None` when it does not fit.
fn times_ten(value: i128, exponent: i32) -> Option<i128> {
    let power = 10_i128.checked_pow(exponent.unsigned_abs())?;
    if exponent >= 0 {
        return value.checked_mul(power);
    }
    Some(value / power + i128::from(value % power != 0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_have_the_value_that_kubernetes_gives_them() {
        for (text, expected) in [
            ("1", Some(1)),
            ("1Ki", Some(1024)),
            ("1.5Gi", Some(1_610_612_736)),
            ("500m", Some(1)),
            ("0.5", Some(1)),
            (".5Ki", Some(512)),
            ("2k", Some(2000)),
            ("1e3", Some(1000)),
            ("12E", Some(12_000_000_000_000_000_000)),
            ("1E2", Some(100)),
            ("-1Mi", Some(-1_048_576)),
            ("0", Some(0)),
            ("1n", Some(1)),
            ("", None),
            ("Gi", None),
            ("1.2.3", None),
            ("1gi", None),
            ("1 Gi", None),
            ("--1", None),
        ] {
            assert_eq!(parse_units(text), expected, "{text:?}");
        }
    }

    #[test]
    fn the_plainest_spelling_is_one_for_each_value() {
        for (text, expected) in [
            ("4096Mi", "4Gi"),
            ("4294967296", "4Gi"),
            ("4Gi", "4Gi"),
            ("1.5Gi", "1536Mi"),
            ("4G", "4G"),
            ("5000M", "5G"),
            ("1000m", "1"),
            ("1e0", "1"),
            ("0.5", "500m"),
            ("1500m", "1500m"),
            ("0Mi", "0"),
            ("-1024Mi", "-1Gi"),
        ] {
            assert_eq!(simplify_quantity(text).as_deref(), Some(expected), "{text:?}");
            assert_eq!(parse_nanos(expected), parse_nanos(text));
        }
        assert_eq!(simplify_quantity("a lot"), None);
    }

    #[test]
    fn equal_values_compare_equal_however_they_are_written() {
        assert_eq!(parse_nanos("1Gi"), parse_nanos("1024Mi"));
        assert_eq!(parse_nanos("0.1"), parse_nanos("100m"));
        assert!(parse_nanos("1G") < parse_nanos("1Gi"));
    }
}
