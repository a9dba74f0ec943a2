//! For how long the nodes of a ring keep hints of what a node that is down misses.

use std::time::Duration;

use serde_json::{Map, Value};

/// The default of every release: three hours (`Config.max_hint_window`).
const DEFAULT: Duration = Duration::from_secs(3 * 3600);

/// Returns for how long nodes with the settings `config` keep hints for a node of `datacenter`: zero
/// where they keep none (`StorageProxy.shouldHint`).
///
/// 4.0 knows `max_hint_window_in_ms`, a number. 4.1 and 5.0 know `max_hint_window`, a number with a
/// unit, and read the former name as well (`Config`, `@Replaces`). A value that cannot be read counts
/// as zero; Cassandra does not start with it.
pub fn hint_window(config: &Map<String, Value>, datacenter: &str) -> Duration {
    let value = |key: &str| config.get(key).filter(|value| !value.is_null());
    let is_off = |value: &Value| setting_text(value).eq_ignore_ascii_case("false");
    let is_named = |names: &Value| {
        let mut names = names.as_array().into_iter().flatten();
        names.any(|name| name.as_str() == Some(datacenter))
    };
    if value("hinted_handoff_enabled").is_some_and(is_off)
        || value("hinted_handoff_disabled_datacenters").is_some_and(is_named)
    {
        return Duration::ZERO;
    }
    let window = match (value("max_hint_window"), value("max_hint_window_in_ms")) {
        (Some(window), _) => parse_duration(&setting_text(window)),
        (None, Some(millis)) => setting_text(millis).parse().ok().map(Duration::from_millis),
        (None, None) => Some(DEFAULT),
    };
    window.unwrap_or_default()
}

fn setting_text(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), |text| text.trim().to_owned())
}

/// Reads a duration as Cassandra writes it (`DurationSpec`), of a unit that the setting may have.
fn parse_duration(text: &str) -> Option<Duration> {
    let number = text.trim_end_matches(|unit: char| unit.is_ascii_alphabetic());
    let millis: u64 = match &text[number.len()..] {
        "ms" => 1,
        "s" => 1000,
        "m" => 60 * 1000,
        "h" => 3600 * 1000,
        "d" => 24 * 3600 * 1000,
        _ => return None,
    };
    Some(Duration::from_millis(number.parse::<u64>().ok()?.saturating_mul(millis)))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn hint_window_follows_settings_of_every_release() {
        let hours = |hours: u64| Duration::from_secs(hours * 3600);
        for (config, expected) in [
            (json!({}), hours(3)),
            (json!({"hinted_handoff_enabled": null, "max_hint_window": null}), hours(3)),
            (json!({"hinted_handoff_enabled": true}), hours(3)),
            (json!({"hinted_handoff_enabled": false}), Duration::ZERO),
            (json!({"hinted_handoff_enabled": "False", "max_hint_window": "6h"}), Duration::ZERO),
            (json!({"max_hint_window_in_ms": 3_600_000}), hours(1)),
            (json!({"max_hint_window_in_ms": "3600000"}), hours(1)),
            (json!({"max_hint_window_in_ms": 0}), Duration::ZERO),
            (json!({"max_hint_window": "10800000ms"}), hours(3)),
            (json!({"max_hint_window": "7200s"}), hours(2)),
            (json!({"max_hint_window": "60m"}), hours(1)),
            (json!({"max_hint_window": "6h"}), hours(6)),
            (json!({"max_hint_window": "2d"}), hours(48)),
            (json!({"max_hint_window": "0ms"}), Duration::ZERO),
            (json!({"max_hint_window": 3600}), Duration::ZERO),
            (json!({"max_hint_window": "long"}), Duration::ZERO),
            (json!({"hinted_handoff_disabled_datacenters": ["us"]}), hours(3)),
            (json!({"hinted_handoff_disabled_datacenters": ["us", "eu"]}), Duration::ZERO),
        ] {
            assert_eq!(hint_window(config.as_object().unwrap(), "eu"), expected, "{config}");
        }
    }
}
