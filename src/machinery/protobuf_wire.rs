//! Encodes fields of protobuf messages.

pub fn write_bytes(out: &mut Vec<u8>, number: u32, value: &[u8]) {
    write_head(out, number, value.len());
    out.extend_from_slice(value);
}

/// Writes tag and length of a field whose value has `length` bytes.
pub fn write_head(out: &mut Vec<u8>, number: u32, length: usize) {
    write_raw_varint(out, u64::from(number) << 3 | 2);
    write_raw_varint(out, length as u64);
}

pub fn write_varint(out: &mut Vec<u8>, number: u32, value: u64) {
    write_raw_varint(out, u64::from(number) << 3);
    write_raw_varint(out, value);
}

pub fn write_double(out: &mut Vec<u8>, number: u32, value: f64) {
    write_raw_varint(out, u64::from(number) << 3 | 1);
    out.extend_from_slice(&value.to_le_bytes());
}

/// Writes a number as a varint: seven bits a byte, the lowest first.
fn write_raw_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(u8::try_from(value & 0x7f | 0x80).expect("eight bits"));
        value >>= 7;
    }
    out.push(u8::try_from(value).expect("seven bits"));
}
