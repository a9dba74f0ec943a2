//! A client of the agent in one JVM.
//!
//! Jolokia answers with HTTP 200 even for failures, and says in the body how each request of a
//! batch ended.

use std::{fs, net::IpAddr, path::Path, time::Duration};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use http::{HeaderValue, Method};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::{
    PORT, SETTINGS,
    answers::{BeanAttributes, OperationOutcome, parse_answer},
};
use crate::pilot::{
    driver::Error,
    http::{self as question, HttpClient},
    query_answer::{QueryAnswer, UnansweredQuery},
    volume::config_files::write_whole,
};

/// Limit for an answer about the node: shorter than the probes' time limit, longer than a full
/// garbage collection usually takes.
pub const PATIENCE: Duration = Duration::from_secs(5);
/// User name that the agent accepts.
const USER: &str = "navigator";

/// A client of the agent in one JVM. It works as long as the agent's password is the same.
#[derive(Clone, Debug)]
pub struct JolokiaClient {
    client: HttpClient,
    host: Option<IpAddr>,
}

impl JolokiaClient {
    /// Writes the agent's settings, with a new password, and returns a client of the agent.
    ///
    /// `executor=fixed` with several threads: the default has one thread, and an operation that
    /// runs for long would block every other request (measured).
    pub fn with_new_settings(config: &Path, address: IpAddr) -> Result<Self, Error> {
        let host = if address.is_loopback() { address } else { IpAddr::from([127, 0, 0, 1]) };
        let password = uuid::Uuid::new_v4().simple().to_string();
        let text = format!(
            "host={host}\nport={PORT}\nuser={USER}\npassword={password}\n\
             executor=fixed\nthreadNr=4\ndiscoveryEnabled=false\n"
        );
        write_whole(&config.join(SETTINGS), text.as_bytes(), 0o600)?;
        Self::new(&host.to_string(), &password)
    }

    /// Makes a client of the agent in a JVM that an earlier pilot started; `None` when the agent's
    /// settings cannot be read.
    pub fn from_settings(config: &Path) -> Option<Self> {
        let text = fs::read_to_string(config.join(SETTINGS)).ok()?;
        let value = |key: &str| {
            text.lines()
                .find_map(|line| line.strip_prefix(key)?.strip_prefix('='))
                .map(str::to_owned)
        };
        Self::new(&value("host")?, &value("password")?).ok()
    }

    fn new(host: &str, password: &str) -> Result<Self, Error> {
        let secret = STANDARD.encode(format!("{USER}:{password}"));
        let mut authorization = HeaderValue::try_from(format!("Basic {secret}"))
            .map_err(|error| Error::Unreachable { source: error.into() })?;
        authorization.set_sensitive(true);
        let address = host.parse().ok();
        let host = if host.contains(':') { format!("[{host}]") } else { host.to_owned() };
        let base = format!("http://{host}:{PORT}");
        Ok(Self { client: HttpClient::new(base, Some(authorization)), host: address })
    }

    /// Returns the address on which the agent listens.
    pub fn host(&self) -> Option<IpAddr> {
        self.host
    }

    /// Reads attributes of several beans at once and returns an answer about each. The answer about
    /// a bean that is not registered yet is `Null`. An attribute that fails is answered with a text
    /// that tells so.
    pub async fn read_beans(
        &self,
        beans: &[(&str, &[&str])],
    ) -> Result<Vec<QueryAnswer<Value>>, Error> {
        let request = |(bean, attributes): &(&str, &[&str])| {
            json!({
                "type": "read", "mbean": bean, "attribute": attributes,
                "config": {"ignoreErrors": true},
            })
        };
        self.send_batch(&beans.iter().map(request).collect::<Vec<_>>()).await
    }

    /// Reads one attribute; fails where it was not heard.
    pub async fn read_attribute<T: DeserializeOwned>(
        &self,
        bean: &str,
        name: &str,
    ) -> Result<T, Error> {
        let mut unanswered_queries = Vec::new();
        let answers = self.read_beans(&[(bean, &[name])]).await?;
        let [attributes] = BeanAttributes::parse_all(answers, &mut unanswered_queries);
        let attribute = attributes.read_attribute(name);
        Ok(unanswered_queries.pop().map_or(attribute, QueryAnswer::Not).or_fail()?)
    }

    /// Calls operations of one text each, all at once: `(OPERATION, TEXT)`. Returns an answer to
    /// each.
    pub async fn call_each(
        &self,
        bean: &str,
        calls: &[(&str, String)],
    ) -> Result<Vec<QueryAnswer<Value>>, Error> {
        let request =
            |(operation, text): &(&str, String)| exec_request(bean, operation, &json!([text]));
        self.send_batch(&calls.iter().map(request).collect::<Vec<_>>()).await
    }

    async fn send_batch(&self, requests: &[Value]) -> Result<Vec<QueryAnswer<Value>>, Error> {
        if requests.is_empty() {
            return Ok(Vec::new());
        }
        match self
            .post(&Value::from(requests.to_vec()), PATIENCE)
            .await
            .map_err(unreachable_error)?
        {
            Value::Array(answers) if answers.len() == requests.len() => {
                let pairs = requests.iter().zip(answers);
                Ok(pairs.map(|(request, reply)| parse_answer(request, reply)).collect())
            }
            other => {
                Err(Error::NotHeard(UnansweredQuery::new("/jolokia/", format!("answered {other}"))))
            }
        }
    }

    /// Runs an operation and waits for its end, at most `timeout`.
    pub async fn execute_operation(
        &self,
        bean: &str,
        operation: &str,
        arguments: &Value,
        timeout: Duration,
    ) -> Result<OperationOutcome, Error> {
        match self.post(&exec_request(bean, operation, arguments), timeout).await {
            Ok(answer) => Ok(parse_outcome(answer)),
            Err(question::Error::TimedOut(_)) => Ok(OperationOutcome::StillRunning),
            Err(error) => Err(unreachable_error(error)),
        }
    }

    /// Runs operations without arguments, one after the other, and waits for their end, at most
    /// `timeout`. The agent gets all of them in one request, and runs all of them: also after one that
    /// failed, and when the pilot ends meanwhile. Returns the outcome of the first that failed.
    pub async fn execute_all(
        &self,
        bean: &str,
        operations: &[&str],
        timeout: Duration,
    ) -> Result<OperationOutcome, Error> {
        let requests = operations.iter().map(|operation| exec_request(bean, operation, &json!([])));
        let answers = match self.post(&requests.collect(), timeout).await {
            Ok(Value::Array(answers)) if answers.len() == operations.len() => answers,
            Ok(other) => return Ok(OperationOutcome::Failed(format!("answered {other}"))),
            Err(question::Error::TimedOut(_)) => return Ok(OperationOutcome::StillRunning),
            Err(error) => return Err(unreachable_error(error)),
        };
        let mut outcomes = answers.into_iter().map(parse_outcome);
        let first_failure = outcomes.find(|outcome| !matches!(outcome, OperationOutcome::Done(_)));
        Ok(first_failure.unwrap_or(OperationOutcome::Done(Value::Null)))
    }

    async fn post(&self, body: &Value, timeout: Duration) -> Result<Value, question::Error> {
        Ok(self.client.send(Method::POST, "/jolokia/", Some(body), timeout).await?.body)
    }
}

fn unreachable_error(error: question::Error) -> Error {
    Error::Unreachable { source: error.into() }
}

fn parse_outcome(mut answer: Value) -> OperationOutcome {
    if answer["status"].as_i64() == Some(200) {
        return OperationOutcome::Done(answer["value"].take());
    }
    OperationOutcome::Failed(answer["error"].as_str().unwrap_or("unknown error").to_owned())
}

fn exec_request(bean: &str, operation: &str, arguments: &Value) -> Value {
    json!({"type": "exec", "mbean": bean, "operation": operation, "arguments": arguments})
}
