//! JMX over HTTP: a client of the Jolokia agent inside Cassandra's JVM.
//!
//! Jolokia answers with HTTP 200 even for failures, and says in the body how each request of a
//! batch ended.

use std::{fs, net::IpAddr, path::Path, time::Duration};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use http::{HeaderValue, Method};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::{
    databases::cassandra::{
        facts::{AGENT_PROPERTIES, AGENT_USER},
        names::port,
    },
    pilot::{
        driver::Error,
        http::{self as question, HttpClient},
        query_answer::{QueryAnswer, UnansweredQuery},
        volume::config_files::write_whole,
    },
};

/// Limit for an answer about the node: shorter than the probes' time limit, longer than a full
/// garbage collection usually takes.
pub(super) const PATIENCE: Duration = Duration::from_secs(5);

pub(super) const STORAGE_SERVICE: &str = "org.apache.cassandra.db:type=StorageService";
pub(super) const STREAM_MANAGER: &str = "org.apache.cassandra.net:type=StreamManager";
pub(super) const FAILURE_DETECTOR: &str = "org.apache.cassandra.net:type=FailureDetector";
pub(super) const SNITCH_INFO: &str = "org.apache.cassandra.db:type=EndpointSnitchInfo";
pub(super) const GOSSIPER: &str = "org.apache.cassandra.net:type=Gossiper";

/// A client of the agent in one JVM. It works as long as the agent's password is the same.
#[derive(Clone, Debug)]
pub(super) struct JolokiaClient {
    client: HttpClient,
    host: Option<IpAddr>,
}

impl JolokiaClient {
    /// Writes the agent's settings, with a new password, and returns a client of the agent.
    ///
    /// `executor=fixed` with several threads: the default has one thread, and a running
    /// decommission would block every other request (measured).
    pub(super) fn prepare(config: &Path, address: IpAddr) -> Result<Self, Error> {
        let host = if address.is_loopback() { address } else { IpAddr::from([127, 0, 0, 1]) };
        let password = uuid::Uuid::new_v4().simple().to_string();
        let text = format!(
            "host={host}\nport={}\nuser={AGENT_USER}\npassword={password}\n\
             executor=fixed\nthreadNr=4\ndiscoveryEnabled=false\n",
            port::JOLOKIA
        );
        write_whole(&config.join(AGENT_PROPERTIES), text.as_bytes(), 0o600)?;
        Self::new(&host.to_string(), &password)
    }

    /// Makes a client of the agent in a JVM that an earlier pilot started; `None` when the agent's
    /// settings cannot be read.
    pub(super) fn attach(config: &Path) -> Option<Self> {
        let text = fs::read_to_string(config.join(AGENT_PROPERTIES)).ok()?;
        let value = |key: &str| {
            text.lines()
                .find_map(|line| line.strip_prefix(key)?.strip_prefix('='))
                .map(str::to_owned)
        };
        Self::new(&value("host")?, &value("password")?).ok()
    }

    fn new(host: &str, password: &str) -> Result<Self, Error> {
        let secret = STANDARD.encode(format!("{AGENT_USER}:{password}"));
        let mut authorization = HeaderValue::try_from(format!("Basic {secret}"))
            .map_err(|error| Error::Unreachable { source: error.into() })?;
        authorization.set_sensitive(true);
        let address = host.parse().ok();
        let host = if host.contains(':') { format!("[{host}]") } else { host.to_owned() };
        let base = format!("http://{host}:{}", port::JOLOKIA);
        Ok(Self { client: HttpClient::new(base, Some(authorization)), host: address })
    }

    /// Returns the address on which the agent listens.
    pub(super) fn host(&self) -> Option<IpAddr> {
        self.host
    }

    /// Sends several requests at once and returns an answer to each. The answer about a bean that
    /// Cassandra has not registered yet is `Null`.
    pub(super) async fn ask(
        &self,
        requests: &[Value],
        timeout: Duration,
    ) -> Result<Vec<QueryAnswer<Value>>, Error> {
        let body =
            self.post(&Value::from(requests.to_vec()), timeout).await.map_err(unreachable)?;
        match body {
            Value::Array(answers) if answers.len() == requests.len() => Ok(requests
                .iter()
                .zip(answers)
                .map(|(request, one)| answer(request, one))
                .collect()),
            other => {
                Err(Error::NotHeard(UnansweredQuery::new("/jolokia/", format!("answered {other}"))))
            }
        }
    }

    /// Runs a JMX operation and waits for its end, at most `timeout`.
    pub(super) async fn execute(
        &self,
        mbean: &str,
        operation: &str,
        arguments: &Value,
        timeout: Duration,
    ) -> Result<OperationOutcome, Error> {
        let request = exec(mbean, operation, arguments);
        let mut answer = match self.post(&request, timeout).await {
            Ok(answer) => answer,
            Err(question::Error::TimedOut(_)) => return Ok(OperationOutcome::StillRunning),
            Err(error) => return Err(unreachable(error)),
        };
        if answer["status"].as_i64() == Some(200) {
            return Ok(OperationOutcome::Done(answer["value"].take()));
        }
        Ok(OperationOutcome::Failed(answer["error"].as_str().unwrap_or("unknown error").to_owned()))
    }

    async fn post(&self, body: &Value, timeout: Duration) -> Result<Value, question::Error> {
        Ok(self.client.send(Method::POST, "/jolokia/", Some(body), timeout).await?.body)
    }
}

fn answer(request: &Value, mut answer: Value) -> QueryAnswer<Value> {
    if answer["status"].as_i64() == Some(200) {
        return QueryAnswer::Said(answer["value"].take());
    }
    if answer["error_type"] == NOT_REGISTERED {
        return QueryAnswer::Said(Value::Null);
    }
    let why = answer["error"].as_str().unwrap_or("answered what is not understood");
    QueryAnswer::Not(UnansweredQuery::new(&asked(request), why))
}

/// Describes a request in words for people.
fn asked(request: &Value) -> String {
    let text = |name: &str| request[name].as_str().unwrap_or_default();
    let bean = text("mbean").rsplit(['=', ':']).next().unwrap_or_default();
    match request["operation"].as_str() {
        Some(operation) => format!("{bean}.{operation}"),
        None => bean.to_owned(),
    }
}

/// Returns one attribute of an answer to [`read`].
pub(super) fn attribute<T: DeserializeOwned>(part: &Value, name: &str) -> QueryAnswer<T> {
    let value = &part[name];
    match value.as_str().filter(|text| text.starts_with(FAILED)) {
        Some(why) => QueryAnswer::Not(UnansweredQuery::new(name, why)),
        None => T::deserialize(value).map_or_else(
            |error| {
                QueryAnswer::Not(UnansweredQuery::new(
                    name,
                    format!("answered what is not understood: {error}"),
                ))
            },
            QueryAnswer::Said,
        ),
    }
}

/// Prefix of the text that stands in place of a failed attribute.
const FAILED: &str = "ERROR";
const NOT_REGISTERED: &str = "javax.management.InstanceNotFoundException";

/// How a JMX operation ended.
#[derive(Debug, PartialEq)]
pub(super) enum OperationOutcome {
    Done(Value),
    /// Cassandra refused the operation, in these words.
    Failed(String),
    /// No answer in time. The agent goes on with the operation, although the pilot stopped waiting.
    StillRunning,
}

fn unreachable(error: question::Error) -> Error {
    Error::Unreachable { source: error.into() }
}

/// Makes a request for attributes; an attribute that fails is answered with text beginning with
/// [`FAILED`].
pub(super) fn read(mbean: &str, attributes: &[&str]) -> Value {
    json!({
        "type": "read", "mbean": mbean, "attribute": attributes,
        "config": {"ignoreErrors": true},
    })
}

pub(super) fn exec(mbean: &str, operation: &str, arguments: &Value) -> Value {
    json!({"type": "exec", "mbean": mbean, "operation": operation, "arguments": arguments})
}
