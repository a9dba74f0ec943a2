//! Results: their columns, and values of the types that tables about users and keyspaces have.

use std::net::IpAddr;

use uuid::Uuid;

use super::{error::CqlError, frame::FrameReader};

const ROWS: i32 = 2;
/// In the flags of a result: all columns are of one table, there are further pages, and nothing is
/// said about the columns.
const ONE_TABLE: i32 = 1;
const MORE_PAGES: i32 = 2;
const NO_COLUMNS: i32 = 4;
/// How deep types are nested in each other, at most.
const DEEPEST: usize = 8;

/// Type of a column, as far as its values are read.
#[derive(Clone, Debug, PartialEq, Eq)]
enum ColumnType {
    Text,
    Boolean,
    /// A number of 1, 2, 4 or 8 bytes.
    Integer,
    Uuid,
    Address,
    /// A list or a set.
    List(Box<ColumnType>),
    Map(Box<ColumnType>, Box<ColumnType>),
    /// Of another type, which is left as bytes.
    Other,
}

/// One value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CqlValue {
    Text(String),
    Boolean(bool),
    Integer(i64),
    Uuid(Uuid),
    Address(IpAddr),
    /// A list or a set.
    List(Vec<CqlValue>),
    Map(Vec<(CqlValue, CqlValue)>),
    /// Of a type that is not read.
    Bytes(Vec<u8>),
}

/// The rows that a statement returned: none where it returns nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CqlRows {
    columns: Vec<String>,
    rows: Vec<Vec<Option<CqlValue>>>,
}

/// One row. A column that is not there, or that is of another type, reads as an absent value.
#[derive(Clone, Copy, Debug)]
pub struct CqlRow<'a> {
    columns: &'a [String],
    values: &'a [Option<CqlValue>],
}

impl CqlRows {
    pub fn iter(&self) -> impl Iterator<Item = CqlRow<'_>> {
        self.rows.iter().map(|values| CqlRow { columns: &self.columns, values })
    }

    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Reads the body of a result.
    pub(super) fn parse(body: &[u8]) -> Result<Self, CqlError> {
        let mut reader = FrameReader(body);
        if reader.read_int()? != ROWS {
            return Ok(Self::default());
        }
        let flags = reader.read_int()?;
        if flags & (MORE_PAGES | NO_COLUMNS) != 0 {
            return Err(CqlError::Malformed("the answer has pages that were not asked for"));
        }
        let count = reader.read_count()?;
        if flags & ONE_TABLE != 0 {
            reader.read_text()?;
            reader.read_text()?;
        }
        let (mut columns, mut types) = (Vec::new(), Vec::new());
        for _ in 0..count {
            if flags & ONE_TABLE == 0 {
                reader.read_text()?;
                reader.read_text()?;
            }
            columns.push(reader.read_text()?.to_owned());
            types.push(ColumnType::parse(&mut reader, DEEPEST)?);
        }
        let count = reader.read_count()?;
        if types.is_empty() && count > 0 {
            // Rows of no bytes would be read without end.
            return Err(CqlError::Malformed("the answer has rows without columns"));
        }
        let mut rows = Vec::new();
        for _ in 0..count {
            let values = types.iter().map(|column| {
                reader.read_bytes()?.map(|bytes| column.parse_value(bytes)).transpose()
            });
            rows.push(values.collect::<Result<_, _>>()?);
        }
        Ok(Self { columns, rows })
    }
}

impl<'a> CqlRow<'a> {
    pub fn get(&self, column: &str) -> Option<&'a CqlValue> {
        let index = self.columns.iter().position(|name| name == column)?;
        self.values.get(index)?.as_ref()
    }

    pub fn text(&self, column: &str) -> Option<&'a str> {
        self.get(column)?.as_text()
    }

    pub fn boolean(&self, column: &str) -> Option<bool> {
        match self.get(column)? {
            CqlValue::Boolean(value) => Some(*value),
            _ => None,
        }
    }

    pub fn uuid(&self, column: &str) -> Option<Uuid> {
        match self.get(column)? {
            CqlValue::Uuid(value) => Some(*value),
            _ => None,
        }
    }

    /// The texts of a list or a set: none where it is empty, which reads as absent.
    pub fn text_list(&self, column: &str) -> Vec<&'a str> {
        match self.get(column) {
            Some(CqlValue::List(values)) => values.iter().filter_map(CqlValue::as_text).collect(),
            _ => Vec::new(),
        }
    }

    /// The entries of a map of texts.
    pub fn text_map(&self, column: &str) -> Vec<(&'a str, &'a str)> {
        match self.get(column) {
            Some(CqlValue::Map(entries)) => {
                let text = |(key, value): &'a (CqlValue, CqlValue)| {
                    Some((key.as_text()?, value.as_text()?))
                };
                entries.iter().filter_map(text).collect()
            }
            _ => Vec::new(),
        }
    }
}

impl CqlValue {
    fn as_text(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(text),
            _ => None,
        }
    }
}

impl ColumnType {
    fn parse(reader: &mut FrameReader<'_>, depth: usize) -> Result<Self, CqlError> {
        let depth = depth.checked_sub(1);
        let depth =
            depth.ok_or(CqlError::Malformed("the types of a column are nested too deep"))?;
        Ok(match reader.read_short()? {
            0x0000 => {
                reader.read_text()?;
                Self::Other
            }
            // ascii, varchar
            0x0001 | 0x000d => Self::Text,
            0x0004 => Self::Boolean,
            // bigint, counter, int, smallint, tinyint
            0x0002 | 0x0005 | 0x0009 | 0x0013 | 0x0014 => Self::Integer,
            // uuid, timeuuid
            0x000c | 0x000f => Self::Uuid,
            0x0010 => Self::Address,
            // list, set
            0x0020 | 0x0022 => Self::List(Box::new(Self::parse(reader, depth)?)),
            0x0021 => {
                let key = Self::parse(reader, depth)?;
                Self::Map(Box::new(key), Box::new(Self::parse(reader, depth)?))
            }
            // A type of the users' own: its names and its fields.
            0x0030 => {
                reader.read_text()?;
                reader.read_text()?;
                for _ in 0..reader.read_short()? {
                    reader.read_text()?;
                    Self::parse(reader, depth)?;
                }
                Self::Other
            }
            // tuple
            0x0031 => {
                for _ in 0..reader.read_short()? {
                    Self::parse(reader, depth)?;
                }
                Self::Other
            }
            0x0003 | 0x0006..=0x0008 | 0x000b | 0x000e | 0x0011 | 0x0012 | 0x0015 => Self::Other,
            _ => return Err(CqlError::Malformed("a column is of a type that is not known")),
        })
    }

    fn parse_value(&self, bytes: &[u8]) -> Result<CqlValue, CqlError> {
        const WRONG: CqlError = CqlError::Malformed("a value does not fit its type");
        let element = |column: &Self, reader: &mut FrameReader<'_>| {
            column.parse_value(reader.read_bytes()?.ok_or(WRONG)?)
        };
        Ok(match self {
            Self::Text => CqlValue::Text(String::from_utf8(bytes.to_vec()).map_err(|_| WRONG)?),
            Self::Boolean => CqlValue::Boolean(*bytes.first().ok_or(WRONG)? != 0),
            Self::Integer => CqlValue::Integer(match *bytes {
                [a] => i8::from_be_bytes([a]).into(),
                [a, b] => i16::from_be_bytes([a, b]).into(),
                [a, b, c, d] => i32::from_be_bytes([a, b, c, d]).into(),
                _ => i64::from_be_bytes(bytes.try_into().map_err(|_| WRONG)?),
            }),
            Self::Uuid => CqlValue::Uuid(Uuid::from_slice(bytes).map_err(|_| WRONG)?),
            Self::Address => CqlValue::Address(match bytes.len() {
                4 => <[u8; 4]>::try_from(bytes).map_err(|_| WRONG)?.into(),
                _ => <[u8; 16]>::try_from(bytes).map_err(|_| WRONG)?.into(),
            }),
            Self::List(element_type) => {
                let mut reader = FrameReader(bytes);
                let count = reader.read_count()?;
                let values = (0..count).map(|_| element(element_type, &mut reader));
                CqlValue::List(values.collect::<Result<_, _>>()?)
            }
            Self::Map(key, value) => {
                let mut reader = FrameReader(bytes);
                let count = reader.read_count()?;
                let entries = (0..count)
                    .map(|_| Ok((element(key, &mut reader)?, element(value, &mut reader)?)));
                CqlValue::Map(entries.collect::<Result<_, CqlError>>()?)
            }
            Self::Other => CqlValue::Bytes(bytes.to_vec()),
        })
    }
}
