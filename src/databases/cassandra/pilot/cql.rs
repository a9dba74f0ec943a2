//! Speaks to Cassandra as its clients do: checks whether it answers them, a second opinion where its
//! management agent does not answer; and logs in and runs statements, where only a client can.

mod client;
mod error;
mod frame;
mod rows;
mod statement;
mod tls;

use tokio::io::{AsyncReadExt, AsyncWriteExt};

pub use self::{
    client::{CqlClient, CqlLogin, CqlTarget},
    error::CqlError,
    rows::{CqlRow, CqlRows, CqlValue},
    statement::{Consistency, CqlStatement, quote_name, quote_text},
    tls::{CqlTls, CqlTlsError},
};
/// An OPTIONS request in version 4 of the CQL protocol, which every supported Cassandra speaks. It
/// is answered before any login, by the threads that answer queries.
const OPTIONS: [u8; 9] = [4, 0, 0, 0, 5, 0, 0, 0, 0];
/// The bit of the first byte that marks an answer in the CQL protocol.
const ANSWER: u8 = 0x80;

/// Does Cassandra answer the request, with whatever content? Sets no time limit of its own.
pub(super) async fn is_answering(target: &CqlTarget) -> bool {
    let probe = async {
        let (mut stream, _) = client::open_stream(target).await?;
        stream.write_all(&OPTIONS).await.map_err(CqlError::Transport)?;
        stream.read_u8().await.map_err(CqlError::Transport)
    };
    probe.await.is_ok_and(|first_byte| first_byte & ANSWER != 0)
}

#[cfg(test)]
mod tests {
    use std::{net::IpAddr, time::Duration};

    use tokio::net::TcpListener;

    use super::*;

    #[tokio::test]
    async fn an_answer_to_options_is_life_and_a_closed_port_is_none() {
        let host = IpAddr::from([127, 0, 99, 1]);
        let server = TcpListener::bind((host, 0)).await.unwrap();
        let target = CqlTarget {
            address: server.local_addr().unwrap(),
            tls: None,
            login: None,
            timeout: Duration::from_secs(30),
        };
        let closed = CqlTarget { address: (host, 1).into(), ..target.clone() };
        assert!(!is_answering(&closed).await);
        let serve = async {
            for answer in [&[0x84, 0, 0, 0, 6, 0, 0, 0, 2, 0, 0][..], b"HTTP/1.1 400", b""] {
                let (mut client, _) = server.accept().await.unwrap();
                let mut asked = [0; OPTIONS.len()];
                client.read_exact(&mut asked).await.unwrap();
                assert_eq!(asked, OPTIONS);
                client.write_all(answer).await.unwrap();
            }
        };
        let ask = async {
            [is_answering(&target).await, is_answering(&target).await, is_answering(&target).await]
        };
        assert_eq!(tokio::join!(serve, ask).1, [true, false, false]);
    }
}
