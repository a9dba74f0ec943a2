//! As much of the CQL binary protocol (version 4) as the tests need: one query at a time.

use std::{
    io::{Read, Write},
    net::{IpAddr, TcpStream},
    time::Duration,
};

pub(crate) struct Cql(TcpStream);

const ERROR: u8 = 0x00;
const STARTUP: u8 = 0x01;
const QUERY: u8 = 0x07;
const CONSISTENCY_ONE: u16 = 1;

impl Cql {
    pub(crate) fn connect(address: IpAddr) -> Self {
        let stream = TcpStream::connect((address, 9042)).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let mut cql = Self(stream);
        let mut body = vec![0, 1];
        for text in ["CQL_VERSION", "3.0.0"] {
            body.extend(u16::try_from(text.len()).unwrap().to_be_bytes());
            body.extend(text.as_bytes());
        }
        cql.exchange(STARTUP, &body);
        cql
    }

    /// Runs a statement at consistency ONE and returns the raw result.
    pub(crate) fn run(&mut self, statement: &str) -> Vec<u8> {
        let mut body = u32::try_from(statement.len()).unwrap().to_be_bytes().to_vec();
        body.extend(statement.as_bytes());
        body.extend(CONSISTENCY_ONE.to_be_bytes());
        body.push(0);
        self.exchange(QUERY, &body)
    }

    /// Result of `SELECT count(*) …`: the last eight bytes are the only cell.
    pub(crate) fn count(&mut self, table: &str) -> i64 {
        let body = self.run(&format!("SELECT count(*) FROM {table}"));
        i64::from_be_bytes(body[body.len() - 8..].try_into().unwrap())
    }

    fn exchange(&mut self, opcode: u8, body: &[u8]) -> Vec<u8> {
        let mut frame = vec![4, 0, 0, 0, opcode];
        frame.extend(u32::try_from(body.len()).unwrap().to_be_bytes());
        frame.extend(body);
        self.0.write_all(&frame).unwrap();
        let mut header = [0; 9];
        self.0.read_exact(&mut header).unwrap();
        let length = u32::from_be_bytes(header[5..].try_into().unwrap());
        let mut answer = vec![0; usize::try_from(length).unwrap()];
        self.0.read_exact(&mut answer).unwrap();
        assert_ne!(header[4], ERROR, "{}", String::from_utf8_lossy(&answer));
        answer
    }
}
