//! What the agent's answers say.

use std::{collections::BTreeSet, net::IpAddr};

use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::pilot::{
    driver::Error,
    query_answer::{QueryAnswer, UnansweredQuery},
};

/// Prefix of the text that stands in place of a failed attribute.
const FAILED: &str = "ERROR";
const NOT_REGISTERED: &str = "javax.management.InstanceNotFoundException";

/// Reads the answer to one request. The answer about a bean that is not registered yet is `Null`.
pub(super) fn parse_answer(request: &Value, mut answer: Value) -> QueryAnswer<Value> {
    if answer["status"].as_i64() == Some(200) {
        return QueryAnswer::Said(answer["value"].take());
    }
    if answer["error_type"] == NOT_REGISTERED {
        return QueryAnswer::Said(Value::Null);
    }
    let reason = answer["error"].as_str().unwrap_or("answered what is not understood");
    QueryAnswer::Not(UnansweredQuery::new(&describe_request(request), reason))
}

/// Describes a request in words for people.
fn describe_request(request: &Value) -> String {
    let text = |name: &str| request[name].as_str().unwrap_or_default();
    let bean = text("mbean").rsplit(['=', ':']).next().unwrap_or_default();
    match request["operation"].as_str() {
        Some(operation) => format!("{bean}.{operation}"),
        None => bean.to_owned(),
    }
}

/// The attributes of one bean. There are none as long as the bean is not registered, and where the
/// agent was not heard.
#[derive(Clone, Debug, Default)]
pub struct BeanAttributes(Value);

impl BeanAttributes {
    /// Reads the answers about `N` beans; adds to `open` those that were not heard.
    pub fn parse_all<const N: usize>(
        answers: Vec<QueryAnswer<Value>>,
        unanswered_queries: &mut Vec<UnansweredQuery>,
    ) -> [Self; N] {
        let mut values = answers.into_iter().map(|answer| answer.or_note(unanswered_queries));
        std::array::from_fn(|_| Self(values.next().flatten().unwrap_or_default()))
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_null()
    }

    /// Returns one attribute; `Null` where it is missing.
    pub fn get(&self, name: &str) -> &Value {
        &self.0[name]
    }

    /// Reads one attribute as a `T`.
    pub fn read_attribute<T: DeserializeOwned>(&self, name: &str) -> QueryAnswer<T> {
        match self.failure(name) {
            Some(failure) => QueryAnswer::Not(UnansweredQuery::new(name, failure)),
            None => T::deserialize(self.get(name)).map_or_else(
                |error| {
                    let reason = format!("answered what is not understood: {error}");
                    QueryAnswer::Not(UnansweredQuery::new(name, reason))
                },
                QueryAnswer::Said,
            ),
        }
    }

    /// Returns a text that decides nothing: `None` where it is missing or failed.
    pub fn optional_text(&self, name: &str) -> Option<String> {
        if self.failure(name).is_some() { None } else { self.get(name).as_str().map(str::to_owned) }
    }

    fn failure(&self, name: &str) -> Option<&str> {
        self.get(name).as_str().filter(|text| text.starts_with(FAILED))
    }

    /// Returns the open question after an attribute that is not what it has to be.
    pub fn check_attribute(
        &self,
        name: &str,
        is_fit: impl Fn(&Value) -> bool,
    ) -> Option<UnansweredQuery> {
        let value = self.get(name);
        (!is_fit(value)).then(|| UnansweredQuery::new(name, format!("answered {value}")))
    }
}

/// How an operation ended.
#[derive(Debug, PartialEq)]
pub enum OperationOutcome {
    Done(Value),
    /// The database refused the operation, in these words.
    Failed(String),
    /// No answer in time. The agent goes on with the operation, although the pilot stopped waiting.
    StillRunning,
}

impl OperationOutcome {
    /// Returns the refusal of an operation that nothing waits for: one that still runs has begun.
    pub fn refusal(self) -> Option<String> {
        match self {
            Self::Failed(refusal) => Some(refusal),
            Self::Done(_) | Self::StillRunning => None,
        }
    }

    /// Fails where the database refused.
    pub fn fail_if_refused(self) -> Result<(), Error> {
        self.refusal().map_or(Ok(()), |refusal| Err(Error::Refused(refusal)))
    }
}

/// Returns the addresses in a list, less what is none.
pub fn parse_addresses(list: &Value) -> BTreeSet<IpAddr> {
    let texts = list.as_array().into_iter().flatten().filter_map(Value::as_str);
    texts.filter_map(parse_address).collect()
}

/// Parses an address in the spellings of the JVM: `10.0.0.1`, `host/10.0.0.1`, `/10.0.0.1:7000`,
/// `fd00:0:0:0:0:0:0:1`.
pub fn parse_address(text: &str) -> Option<IpAddr> {
    let text = text.rsplit('/').next().unwrap_or(text);
    text.parse()
        .ok()
        .or_else(|| text.parse::<std::net::SocketAddr>().ok().map(|socket| socket.ip()))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn addresses_are_read_as_every_release_writes_them() {
        for (text, address) in [
            ("10.0.0.1", "10.0.0.1"),
            ("host/10.0.0.1", "10.0.0.1"),
            ("/10.0.0.1:7000", "10.0.0.1"),
            ("fd00:0:0:0:0:0:0:1", "fd00::1"),
        ] {
            assert_eq!(parse_address(text), address.parse().ok(), "{text}");
        }
        assert_eq!(parse_address("host"), None);
        assert_eq!(
            parse_addresses(&json!(["/10.0.0.1", 7, "host"])),
            [[10, 0, 0, 1].into()].into()
        );
    }

    #[test]
    fn an_attribute_that_failed_is_not_heard() {
        let mut open = Vec::new();
        let read = json!({"Mode": "ERROR: IllegalStateException", "Count": 7});
        let [bean, none] = BeanAttributes::parse_all(
            vec![QueryAnswer::Said(read), QueryAnswer::Not(UnansweredQuery::new("it", "failed"))],
            &mut open,
        );
        assert_eq!((bean.is_empty(), none.is_empty(), open.len()), (false, true, 1));
        assert!(matches!(bean.read_attribute::<String>("Mode"), QueryAnswer::Not(_)));
        assert_eq!(
            (bean.optional_text("Mode"), bean.read_attribute("Count")),
            (None, QueryAnswer::Said(7))
        );
        assert!(bean.check_attribute("Count", Value::is_array).is_some());
    }
}
