//! As much of the CQL binary protocol (version 4) as the tests need: one query at a time.

use std::{
    collections::BTreeSet,
    io::{self, Read, Write},
    net::{IpAddr, SocketAddr, TcpStream},
    time::Duration,
};

pub(crate) struct Cql(TcpStream);

/// In the flags of an answer: it begins with warnings, as about a count over all partitions.
const WARNING: u8 = 8;
const ERROR: u8 = 0x00;
const STARTUP: u8 = 0x01;
const QUERY: u8 = 0x07;
const AUTH_RESPONSE: u8 = 0x0f;
const ROWS: i32 = 2;
/// A type that is followed by that of its elements.
const SET: u16 = 0x22;

/// How many replicas must answer.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Consistency {
    One = 1,
    Quorum = 4,
    All = 5,
}

/// Cells of a result, as bytes; `None` where there is no value.
pub(crate) type Row = Vec<Option<Vec<u8>>>;

impl Cql {
    pub(crate) fn connect(address: IpAddr) -> Self {
        Self::try_connect(address).unwrap_or_else(|error| panic!("{address}:9042: {error}"))
    }

    pub(crate) fn try_connect(address: IpAddr) -> io::Result<Self> {
        let peer = SocketAddr::new(address, 9042);
        let stream = TcpStream::connect_timeout(&peer, Duration::from_secs(5))?;
        stream.set_read_timeout(Some(Duration::from_secs(60)))?;
        let mut cql = Self(stream);
        let mut body = vec![0, 1];
        for text in ["CQL_VERSION", "3.0.0"] {
            body.extend(u16::try_from(text.len()).unwrap().to_be_bytes());
            body.extend(text.as_bytes());
        }
        cql.exchange(STARTUP, &body)?;
        Ok(cql)
    }

    /// Connects where a name and a password are asked for.
    pub(crate) fn log_in(address: IpAddr, name: &str, password: &str) -> io::Result<Self> {
        let mut cql = Self::try_connect(address)?;
        let token = format!("\0{name}\0{password}");
        let mut body = u32::try_from(token.len()).unwrap().to_be_bytes().to_vec();
        body.extend(token.as_bytes());
        cql.exchange(AUTH_RESPONSE, &body)?;
        Ok(cql)
    }

    /// Runs a statement at consistency ONE.
    pub(crate) fn run(&mut self, statement: &str) -> Vec<Row> {
        let answer = self.query(statement, Consistency::One);
        answer.unwrap_or_else(|error| panic!("{statement}: {error}"))
    }

    /// Runs a statement. A refusal of the database comes as an error of kind `Other`.
    pub(crate) fn query(&mut self, statement: &str, level: Consistency) -> io::Result<Vec<Row>> {
        let mut body = u32::try_from(statement.len()).unwrap().to_be_bytes().to_vec();
        body.extend(statement.as_bytes());
        body.extend((level as u16).to_be_bytes());
        body.push(0);
        let answer = self.exchange(QUERY, &body)?;
        Ok(Cursor(&answer).rows())
    }

    pub(crate) fn count(&mut self, table: &str) -> i64 {
        let rows = self.run(&format!("SELECT count(*) FROM {table}"));
        i64::from_be_bytes(rows[0][0].as_deref().unwrap().try_into().unwrap())
    }

    /// The node's own tokens.
    pub(crate) fn tokens(&mut self) -> Vec<i64> {
        let rows = self.run("SELECT tokens FROM system.local");
        let set = rows[0][0].as_deref().unwrap();
        let mut set = Cursor(set);
        let texts = (0..set.int()).map(|_| set.cell().unwrap());
        texts.map(|text| String::from_utf8(text).unwrap().parse().unwrap()).collect()
    }

    /// Host ids of every node that this one counts to its ring, itself included.
    pub(crate) fn ring(&mut self) -> io::Result<BTreeSet<String>> {
        self.members("host_id")
    }

    /// Schema versions of those nodes: one when they agree.
    pub(crate) fn schemas(&mut self) -> io::Result<BTreeSet<String>> {
        self.members("schema_version")
    }

    /// A column of uuids about every node.
    fn members(&mut self, column: &str) -> io::Result<BTreeSet<String>> {
        let mut ids = BTreeSet::new();
        for table in ["local", "peers_v2"] {
            let statement = format!("SELECT {column} FROM system.{table}");
            for row in self.query(&statement, Consistency::One)? {
                let id: [u8; 16] =
                    row[0].as_deref().and_then(|cell| cell.try_into().ok()).unwrap_or_default();
                ids.insert(uuid::Uuid::from_bytes(id).to_string());
            }
        }
        Ok(ids)
    }

    fn exchange(&mut self, opcode: u8, body: &[u8]) -> io::Result<Vec<u8>> {
        let mut frame = vec![4, 0, 0, 0, opcode];
        frame.extend(u32::try_from(body.len()).unwrap().to_be_bytes());
        frame.extend(body);
        self.0.write_all(&frame)?;
        let mut header = [0; 9];
        self.0.read_exact(&mut header)?;
        let length = u32::from_be_bytes(header[5..].try_into().unwrap());
        let mut answer = vec![0; usize::try_from(length).unwrap()];
        self.0.read_exact(&mut answer)?;
        if header[1] & WARNING != 0 {
            // The warnings come first: their number, and each with its length.
            let mut warned = Cursor(&answer);
            for _ in 0..warned.short() {
                warned.skip_text();
            }
            answer = warned.0.to_vec();
        }
        if header[4] == ERROR {
            // A code, then a text with its length.
            return Err(io::Error::other(String::from_utf8_lossy(&answer[6..]).into_owned()));
        }
        Ok(answer)
    }
}

/// Reads a result from its beginning.
struct Cursor<'a>(&'a [u8]);

impl<'a> Cursor<'a> {
    fn take(&mut self, count: usize) -> &'a [u8] {
        let (head, rest) = self.0.split_at(count);
        self.0 = rest;
        head
    }

    fn int(&mut self) -> i32 {
        i32::from_be_bytes(self.take(4).try_into().unwrap())
    }

    fn short(&mut self) -> u16 {
        u16::from_be_bytes(self.take(2).try_into().unwrap())
    }

    fn skip_text(&mut self) {
        let length = self.short();
        self.take(length.into());
    }

    /// Rows whose columns are of plain types, or sets of them, which come as they were sent;
    /// none when the statement returns nothing.
    fn rows(mut self) -> Vec<Row> {
        if self.0.is_empty() || self.int() != ROWS {
            return Vec::new();
        }
        let one_table = self.int() & 1 == 1;
        let columns = self.int();
        let tables = if one_table { 1 } else { columns };
        let names = if one_table { 1 } else { 3 };
        if one_table {
            (0..tables * 2).for_each(|_| self.skip_text());
        }
        for _ in 0..columns {
            (0..names).for_each(|_| self.skip_text());
            let kind = match self.short() {
                SET => self.short(),
                kind => kind,
            };
            assert!((1..0x20).contains(&kind), "a column of type {kind:#x} is not read here");
        }
        let count = self.int();
        (0..count).map(|_| (0..columns).map(|_| self.cell()).collect()).collect()
    }

    fn cell(&mut self) -> Option<Vec<u8>> {
        let length = usize::try_from(self.int()).ok()?;
        Some(self.take(length).to_vec())
    }
}
