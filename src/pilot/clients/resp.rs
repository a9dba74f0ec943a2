//! Asks a server that speaks RESP2, over a connection that is closed after the answers: plain, or over
//! TLS and with a login.
//!
//! Owns the deadline of an exchange and the bound of an answer. Knows no command.

use std::{fmt, io, net::SocketAddr, sync::Arc, time::Duration};

use futures::future::BoxFuture;
use rustls::ClientConfig;
use tokio::{
    io::{
        AsyncBufRead, AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt,
        BufReader,
    },
    net::TcpStream,
    time::timeout,
};
use tokio_rustls::TlsConnector;

use crate::pilot::driver::Error;

const LIMIT: Duration = Duration::from_secs(1);
/// Most bytes of a text, and most entries of a list.
const LARGEST: usize = 1 << 20;

/// The answer to one command.
#[derive(Clone, Debug, PartialEq)]
pub enum RespReply {
    /// A number, too; empty for a null.
    Text(String),
    Refusal(String),
    List(Vec<RespReply>),
}

impl RespReply {
    pub fn text(&self) -> &str {
        if let Self::Text(text) = self { text } else { "" }
    }
}

/// A server, and how it is asked: in plain text and by nobody in particular, or over TLS and as a
/// user.
#[derive(Clone)]
pub struct RespServer {
    pub address: SocketAddr,
    tls: Option<TlsConnector>,
    /// Name and password.
    login: Option<[String; 2]>,
}

impl fmt::Debug for RespServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { address, tls, login } = self;
        f.debug_struct("RespServer")
            .field("address", address)
            .field("tls", &tls.is_some())
            .field("user", &login.as_ref().map(|[user, _]| user))
            .finish_non_exhaustive()
    }
}

impl RespServer {
    /// A server that is asked in plain text, without a login.
    pub fn without_tls(address: SocketAddr) -> Self {
        Self { address, tls: None, login: None }
    }

    /// A server that is asked over TLS, with a name and a password where there is one. `tls` says
    /// whom the client trusts.
    pub fn with_tls(address: SocketAddr, tls: ClientConfig, login: Option<[&str; 2]>) -> Self {
        let login = login.map(|words| words.map(str::to_owned));
        Self { address, tls: Some(Arc::new(tls).into()), login }
    }

    /// Another server, which is asked in the same way.
    #[must_use]
    pub fn with_address(&self, address: SocketAddr) -> Self {
        Self { address, ..self.clone() }
    }

    /// Sends all commands at once; the answers come in their order.
    ///
    /// # Errors
    /// When there is no answer in time, or one of them is a refusal: [`Error::Refused`], for a login
    /// too.
    pub async fn send_commands(&self, commands: &[&[&str]]) -> Result<Vec<RespReply>, Error> {
        let unreachable_error = |source: io::Error| Error::Unreachable { source: source.into() };
        let login = self.login.as_ref().map(|[user, password]| ["AUTH", user, password]);
        let login = login.as_ref().map(<[&str; 3]>::as_slice);
        let all_commands: Vec<&[&str]> =
            login.into_iter().chain(commands.iter().copied()).collect();
        let mut replies =
            timeout(LIMIT, self.open_and_send(&all_commands)).await?.map_err(unreachable_error)?;
        let refusal = replies.iter().find_map(|reply| match reply {
            RespReply::Refusal(reason) => Some(reason.clone()),
            _ => None,
        });
        replies.drain(..all_commands.len() - commands.len());
        refusal.map_or(Ok(replies), |reason| Err(Error::Refused(reason)))
    }

    async fn open_and_send(&self, commands: &[&[&str]]) -> io::Result<Vec<RespReply>> {
        let stream = TcpStream::connect(self.address).await?;
        let Some(tls) = &self.tls else { return exchange_commands(stream, commands).await };
        exchange_commands(tls.connect(self.address.ip().into(), stream).await?, commands).await
    }
}

async fn exchange_commands(
    stream: impl AsyncRead + AsyncWrite + Send + Unpin,
    commands: &[&[&str]],
) -> io::Result<Vec<RespReply>> {
    let mut stream = BufReader::new(stream);
    let mut request = Vec::new();
    for words in commands {
        request.extend(format!("*{}\r\n", words.len()).bytes());
        for word in *words {
            request.extend(format!("${}\r\n{word}\r\n", word.len()).bytes());
        }
    }
    stream.write_all(&request).await?;
    stream.flush().await?;
    let mut replies = Vec::new();
    for _ in commands {
        replies.push(read_reply(&mut stream).await?);
    }
    Ok(replies)
}

fn read_reply(
    stream: &mut (dyn AsyncBufRead + Send + Unpin),
) -> BoxFuture<'_, io::Result<RespReply>> {
    Box::pin(async move {
        let mut line = String::new();
        stream.read_line(&mut line).await?;
        let (kind, rest) =
            line.trim_end().split_at_checked(1).ok_or(io::ErrorKind::UnexpectedEof)?;
        let length = rest.parse::<usize>();
        Ok(match (kind, length) {
            ("$" | "*", Ok(length)) if length > LARGEST => {
                return Err(io::ErrorKind::FileTooLarge.into());
            }
            ("$", Ok(length)) => {
                let mut bytes = vec![0; length + 2];
                stream.read_exact(&mut bytes).await?;
                RespReply::Text(String::from_utf8_lossy(&bytes[..length]).into_owned())
            }
            ("*", Ok(length)) => {
                let mut list = Vec::new();
                for _ in 0..length {
                    list.push(read_reply(stream).await?);
                }
                RespReply::List(list)
            }
            ("-", _) => RespReply::Refusal(rest.to_owned()),
            ("+" | ":", _) => RespReply::Text(rest.to_owned()),
            _ => RespReply::Text(String::new()),
        })
    })
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    #[tokio::test]
    async fn a_login_goes_ahead_and_the_answers_are_those_to_the_commands() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let login = Some(["pilot".to_owned(), "secret".to_owned()]);
        let server =
            RespServer { login, ..RespServer::without_tls(listener.local_addr().unwrap()) };
        assert!(!format!("{server:?}").contains("secret"));
        let expected = "*3\r\n$4\r\nAUTH\r\n$5\r\npilot\r\n$6\r\nsecret\r\n*1\r\n$4\r\nPING\r\n";
        let serve = async |answer: &str| {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut asked = vec![0; expected.len()];
            stream.read_exact(&mut asked).await.unwrap();
            assert_eq!(String::from_utf8(asked).unwrap(), expected);
            stream.write_all(answer.as_bytes()).await.unwrap();
        };
        let commands: &[&[&str]] = &[&["PING"]];
        let ((), answer) = tokio::join!(serve("+OK\r\n+PONG\r\n"), server.send_commands(commands));
        assert_eq!(answer.unwrap(), [RespReply::Text("PONG".to_owned())]);
        let wrong = "-WRONGPASS no\r\n-NOAUTH no\r\n";
        let ((), answer) = tokio::join!(serve(wrong), server.send_commands(commands));
        assert!(matches!(answer, Err(Error::Refused(why)) if why == "WRONGPASS no"));
    }
}
