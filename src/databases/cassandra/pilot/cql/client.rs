//! One connection to one node: opened, logged in, and asked one statement after the other.

use std::{
    fmt,
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use tokio::{net::TcpStream, time::timeout};
use tokio_rustls::TlsConnector;

use super::{
    error::CqlError,
    frame::{AnswerFrame, CqlStream, FrameReader, exchange_frames, opcode, put_bytes},
    rows::CqlRows,
    statement::{CqlStatement, startup_body},
    tls::CqlTls,
};
use crate::databases::cassandra::names::port;

/// A name and a password.
#[derive(Clone)]
pub struct CqlLogin {
    pub name: String,
    pub password: String,
}

impl fmt::Debug for CqlLogin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, password: _ } = self;
        f.debug_struct("CqlLogin").field("name", name).finish_non_exhaustive()
    }
}

/// Where to connect, how, and as whom.
#[derive(Clone)]
pub struct CqlTarget {
    pub address: SocketAddr,
    /// `None` for a plain connection.
    pub tls: Option<CqlTls>,
    /// Sent only when the node asks for it.
    pub login: Option<CqlLogin>,
    /// Limit for connecting as a whole, and for each statement.
    pub timeout: Duration,
}

impl CqlTarget {
    /// The port for clients at `host`, in plain text and without a login.
    pub fn without_tls(host: IpAddr) -> Self {
        const LIMIT: Duration = Duration::from_secs(10);
        Self { address: (host, port::CQL).into(), tls: None, login: None, timeout: LIMIT }
    }
}

/// A connection that is ready for statements.
pub struct CqlClient {
    /// `None` after an exchange that was cut off: the next answer would be that to it.
    stream: Option<Box<dyn CqlStream>>,
    timeout: Duration,
    asked_for_login: bool,
    local: SocketAddr,
}

impl CqlClient {
    /// Connects, and logs in when the node asks for that.
    ///
    /// # Errors
    /// When that does not succeed within the target's limit; [`CqlError::Database`] with code
    /// 0x0100 when name or password are wrong.
    pub async fn connect(target: &CqlTarget) -> Result<Self, CqlError> {
        let CqlTarget { address: _, tls: _, login, timeout: limit } = target;
        let connection = async {
            let (mut stream, local) = open_stream(target).await?;
            let asked_for_login = log_in(&mut *stream, login.as_ref()).await?;
            Ok(Self { stream: Some(stream), timeout: *limit, asked_for_login, local })
        };
        timeout(*limit, connection).await.unwrap_or(Err(CqlError::TimedOut(*limit)))
    }

    /// Whether the node asked who its client is.
    pub fn asked_for_login(&self) -> bool {
        self.asked_for_login
    }

    /// This end of the connection, as the node lists it.
    pub fn local_address(&self) -> SocketAddr {
        self.local
    }

    /// Runs a statement, and returns its rows. Without an answer in time it may have run, or may run
    /// yet.
    ///
    /// # Errors
    /// When there is no answer, or a refusal. After a refusal of the database the connection is
    /// usable as before.
    pub async fn run_statement(&mut self, statement: &CqlStatement) -> Result<CqlRows, CqlError> {
        let body = statement.encode_body()?;
        // Comes back only with a whole answer; also when this future is dropped in the middle.
        let mut stream = self.stream.take().ok_or(CqlError::Unusable)?;
        let query = timeout(self.timeout, exchange_frames(&mut *stream, opcode::QUERY, &body));
        let answer = query.await.unwrap_or(Err(CqlError::TimedOut(self.timeout)))?;
        self.stream = Some(stream);
        match answer.opcode {
            opcode::RESULT => CqlRows::parse(&answer.body),
            opcode::ERROR => Err(parse_error(&answer)),
            _ => Err(CqlError::Malformed("the answer to a statement is no result")),
        }
    }
}

/// Opens a connection, and says from where. Sets no time limit of its own.
pub(super) async fn open_stream(
    target: &CqlTarget,
) -> Result<(Box<dyn CqlStream>, SocketAddr), CqlError> {
    let stream = TcpStream::connect(target.address).await.map_err(CqlError::Transport)?;
    stream.set_nodelay(true).map_err(CqlError::Transport)?;
    let local = stream.local_addr().map_err(CqlError::Transport)?;
    let Some(CqlTls { config, server }) = &target.tls else {
        return Ok((Box::new(stream), local));
    };
    let connector = TlsConnector::from(config.clone());
    let handshake = connector.connect(server.clone(), stream).await;
    Ok((Box::new(handshake.map_err(CqlError::Tls)?), local))
}

/// Begins the protocol. Returns whether the node asked for a login.
async fn log_in(stream: &mut dyn CqlStream, login: Option<&CqlLogin>) -> Result<bool, CqlError> {
    let answer = exchange_frames(stream, opcode::STARTUP, &startup_body()?).await?;
    match answer.opcode {
        opcode::READY => return Ok(false),
        opcode::AUTHENTICATE => {}
        opcode::ERROR => return Err(parse_error(&answer)),
        _ => return Err(CqlError::Malformed("the answer to the begin of a connection is none")),
    }
    let Some(CqlLogin { name, password }) = login else {
        let authenticator = FrameReader(&answer.body).read_text()?;
        return Err(CqlError::LoginNeeded(authenticator.to_owned()));
    };
    // SASL PLAIN: nothing, a name and a password, with zeros between.
    if [name, password].iter().any(|part| part.contains('\0')) {
        return Err(CqlError::Malformed("a name or a password with a zero in it cannot be sent"));
    }
    let mut body = Vec::new();
    put_bytes(&mut body, format!("\0{name}\0{password}").as_bytes())?;
    let answer = exchange_frames(stream, opcode::AUTH_RESPONSE, &body).await?;
    match answer.opcode {
        opcode::AUTH_SUCCESS => Ok(true),
        opcode::ERROR => Err(parse_error(&answer)),
        opcode::AUTH_CHALLENGE => {
            Err(CqlError::Malformed("the database asks for more than a name and a password"))
        }
        _ => Err(CqlError::Malformed("the answer to a login is none")),
    }
}

fn parse_error(answer: &AnswerFrame) -> CqlError {
    let mut reader = FrameReader(&answer.body);
    let code_and_message =
        reader.read_int().and_then(|code| Ok((code, reader.read_text()?.to_owned())));
    code_and_message
        .map_or_else(|error| error, |(code, message)| CqlError::Database { code, message })
}

#[cfg(test)]
mod tests;
