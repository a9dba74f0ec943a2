//! Speaks to Cassandra as its clients do: checks whether it answers them, a second opinion where its
//! management agent does not answer; and logs in and runs statements, where only a client can.

mod client;
mod error;
mod frame;
mod rows;
mod statement;
mod tls;

use std::net::IpAddr;

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

pub use self::{
    client::{CqlClient, CqlLogin, CqlTarget},
    error::CqlError,
    rows::{CqlRow, CqlRows, CqlValue},
    statement::{Consistency, CqlStatement, quote_name, quote_text},
    tls::{CqlTls, CqlTlsError},
};
use crate::databases::cassandra::names::port;

/// An OPTIONS request in version 4 of the CQL protocol, which every supported Cassandra speaks. It
/// is answered before any login, by the threads that answer queries.
const OPTIONS: [u8; 9] = [4, 0, 0, 0, 5, 0, 0, 0, 0];
/// The bit of the first byte that marks an answer in the CQL protocol.
const ANSWER: u8 = 0x80;

/// Does Cassandra answer the request, with whatever content? Sets no time limit of its own.
pub(super) async fn answers(host: IpAddr) -> bool {
    let asked = async {
        let mut stream = TcpStream::connect((host, port::CQL)).await?;
        stream.write_all(&OPTIONS).await?;
        stream.read_u8().await
    };
    asked.await.is_ok_and(|first| first & ANSWER != 0)
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    #[tokio::test]
    async fn an_answer_to_options_is_life_and_a_closed_port_is_none() {
        // The port is fixed, so this test uses an address of its own.
        let host = IpAddr::from([127, 0, 99, 1]);
        assert!(!answers(host).await);
        let server = TcpListener::bind((host, port::CQL)).await.unwrap();
        let serve = async {
            for answer in [&[0x84, 0, 0, 0, 6, 0, 0, 0, 2, 0, 0][..], b"HTTP/1.1 400", b""] {
                let (mut client, _) = server.accept().await.unwrap();
                let mut asked = [0; OPTIONS.len()];
                client.read_exact(&mut asked).await.unwrap();
                assert_eq!(asked, OPTIONS);
                client.write_all(answer).await.unwrap();
            }
        };
        let ask = async { [answers(host).await, answers(host).await, answers(host).await] };
        assert_eq!(tokio::join!(serve, ask).1, [true, false, false]);
    }
}
