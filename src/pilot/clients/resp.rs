//! Asks a server that speaks RESP2, over a connection that is closed after the answers.
//!
//! Owns the deadline of an exchange and the bound of an answer. Knows no command.

use std::{io, net::SocketAddr, time::Duration};

use futures::future::BoxFuture;
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    net::{TcpStream, tcp::ReadHalf},
    time::timeout,
};

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

/// Sends all commands at once; the answers come in their order.
///
/// # Errors
/// When there is no answer in time, or one of them is a refusal.
pub async fn ask(at: SocketAddr, commands: &[&[&str]]) -> Result<Vec<RespReply>, Error> {
    let silence = |source: io::Error| Error::Unreachable { source: source.into() };
    let replies = timeout(LIMIT, exchange(at, commands)).await?.map_err(silence)?;
    let refusal = replies.iter().find_map(|reply| match reply {
        RespReply::Refusal(why) => Some(why.clone()),
        _ => None,
    });
    refusal.map_or(Ok(replies), |why| Err(Error::Refused(why)))
}

async fn exchange(at: SocketAddr, commands: &[&[&str]]) -> io::Result<Vec<RespReply>> {
    let mut stream = TcpStream::connect(at).await?;
    let (read, mut write) = stream.split();
    let mut sent = Vec::new();
    for words in commands {
        sent.extend(format!("*{}\r\n", words.len()).bytes());
        for word in *words {
            sent.extend(format!("${}\r\n{word}\r\n", word.len()).bytes());
        }
    }
    write.write_all(&sent).await?;
    let mut read = BufReader::new(read);
    let mut replies = Vec::new();
    for _ in commands {
        replies.push(reply(&mut read).await?);
    }
    Ok(replies)
}

fn reply<'a>(read: &'a mut BufReader<ReadHalf<'_>>) -> BoxFuture<'a, io::Result<RespReply>> {
    Box::pin(async move {
        let mut line = String::new();
        read.read_line(&mut line).await?;
        let (kind, rest) =
            line.trim_end().split_at_checked(1).ok_or(io::ErrorKind::UnexpectedEof)?;
        let length = rest.parse::<usize>();
        Ok(match (kind, length) {
            ("$" | "*", Ok(length)) if length > LARGEST => {
                return Err(io::ErrorKind::FileTooLarge.into());
            }
            ("$", Ok(length)) => {
                let mut bytes = vec![0; length + 2];
                read.read_exact(&mut bytes).await?;
                RespReply::Text(String::from_utf8_lossy(&bytes[..length]).into_owned())
            }
            ("*", Ok(length)) => {
                let mut list = Vec::new();
                for _ in 0..length {
                    list.push(reply(read).await?);
                }
                RespReply::List(list)
            }
            ("-", _) => RespReply::Refusal(rest.to_owned()),
            ("+" | ":", _) => RespReply::Text(rest.to_owned()),
            _ => RespReply::Text(String::new()),
        })
    })
}
