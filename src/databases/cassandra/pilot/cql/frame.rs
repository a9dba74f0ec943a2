//! Frames of the CQL protocol, version 4, and the notations in their bodies.

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use super::error::{CqlError, LARGEST_BODY};

/// Version 4, which every supported Cassandra speaks.
const VERSION: u8 = 4;
/// The bit of the first byte that marks an answer.
const ANSWER: u8 = 0x80;
const HEADER_BYTES: usize = 9;
/// In the flags of an answer: its body begins with data of the server's own, and with warnings.
const PAYLOAD: u8 = 0x04;
const WARNING: u8 = 0x08;

pub(super) mod opcode {
    pub(in super::super) const ERROR: u8 = 0x00;
    pub(in super::super) const STARTUP: u8 = 0x01;
    pub(in super::super) const READY: u8 = 0x02;
    pub(in super::super) const AUTHENTICATE: u8 = 0x03;
    pub(in super::super) const QUERY: u8 = 0x07;
    pub(in super::super) const RESULT: u8 = 0x08;
    pub(in super::super) const AUTH_CHALLENGE: u8 = 0x0e;
    pub(in super::super) const AUTH_RESPONSE: u8 = 0x0f;
    pub(in super::super) const AUTH_SUCCESS: u8 = 0x10;
}

/// A connection, plain or over TLS.
pub(super) trait CqlStream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> CqlStream for T {}

/// An answer: what it is, and its body without what stands before it.
pub(super) struct AnswerFrame {
    pub(super) opcode: u8,
    pub(super) body: Vec<u8>,
}

/// Sends a request and reads its answer. Requests are sent one by one, so all have one stream id.
pub(super) async fn exchange_frames(
    stream: &mut dyn CqlStream,
    opcode: u8,
    body: &[u8],
) -> Result<AnswerFrame, CqlError> {
    let length = i32::try_from(body.len()).map_err(|_| CqlError::Long(body.len()))?;
    let mut request = vec![VERSION, 0, 0, 0, opcode];
    request.extend(length.to_be_bytes());
    request.extend(body);
    stream.write_all(&request).await.map_err(CqlError::Transport)?;
    stream.flush().await.map_err(CqlError::Transport)?;

    let mut header = [0; HEADER_BYTES];
    stream.read_exact(&mut header).await.map_err(CqlError::Transport)?;
    let [version, flags, stream_high, stream_low, opcode, length @ ..] = header;
    if version != ANSWER | VERSION {
        return Err(CqlError::Malformed("the answer is not of version 4 of the CQL protocol"));
    }
    if [stream_high, stream_low] != [0, 0] || flags & !(PAYLOAD | WARNING) != 0 {
        return Err(CqlError::Malformed("the answer is not one to the request"));
    }
    let length = usize::try_from(i32::from_be_bytes(length))
        .map_err(|_| CqlError::Malformed("the answer has a negative length"))?;
    if length > LARGEST_BODY {
        return Err(CqlError::Long(length));
    }
    // Grows as bytes come, so that no memory is taken for a length that is only said.
    let mut body = Vec::new();
    let read_result = stream.take(length as u64).read_to_end(&mut body).await;
    if read_result.map_err(CqlError::Transport)? < length {
        return Err(CqlError::Transport(std::io::ErrorKind::UnexpectedEof.into()));
    }
    let mut reader = FrameReader(&body);
    if flags & WARNING != 0 {
        for _ in 0..reader.read_short()? {
            reader.read_text()?;
        }
    }
    if flags & PAYLOAD != 0 {
        for _ in 0..reader.read_short()? {
            reader.read_text()?;
            reader.read_bytes()?;
        }
    }
    let skipped = body.len() - reader.0.len();
    body.drain(..skipped);
    Ok(AnswerFrame { opcode, body })
}

/// A text with its length in two bytes.
pub(super) fn put_text(body: &mut Vec<u8>, text: &str) -> Result<(), CqlError> {
    let length = u16::try_from(text.len()).map_err(|_| CqlError::Long(text.len()))?;
    body.extend(length.to_be_bytes());
    body.extend(text.as_bytes());
    Ok(())
}

/// Bytes with their length in four.
pub(super) fn put_bytes(body: &mut Vec<u8>, bytes: &[u8]) -> Result<(), CqlError> {
    let length = i32::try_from(bytes.len()).map_err(|_| CqlError::Long(bytes.len()))?;
    body.extend(length.to_be_bytes());
    body.extend(bytes);
    Ok(())
}

/// Reads a body from its beginning.
pub(super) struct FrameReader<'a>(pub(super) &'a [u8]);

impl<'a> FrameReader<'a> {
    pub(super) fn take_bytes(&mut self, count: usize) -> Result<&'a [u8], CqlError> {
        let truncation_error = CqlError::Malformed("the answer ends in the middle");
        let (head, rest) = self.0.split_at_checked(count).ok_or(truncation_error)?;
        self.0 = rest;
        Ok(head)
    }

    fn read_array<const N: usize>(&mut self) -> Result<[u8; N], CqlError> {
        let mut array = [0; N];
        array.copy_from_slice(self.take_bytes(N)?);
        Ok(array)
    }

    pub(super) fn read_short(&mut self) -> Result<u16, CqlError> {
        self.read_array().map(u16::from_be_bytes)
    }

    pub(super) fn read_int(&mut self) -> Result<i32, CqlError> {
        self.read_array().map(i32::from_be_bytes)
    }

    /// A number of things that follow.
    pub(super) fn read_count(&mut self) -> Result<usize, CqlError> {
        usize::try_from(self.read_int()?).map_err(|_| CqlError::Malformed("a number is negative"))
    }

    /// A text with its length in two bytes.
    pub(super) fn read_text(&mut self) -> Result<&'a str, CqlError> {
        let length = self.read_short()?;
        let bytes = self.take_bytes(length.into())?;
        std::str::from_utf8(bytes).map_err(|_| CqlError::Malformed("a text is not in UTF-8"))
    }

    /// Bytes with their length in four, or none.
    pub(super) fn read_bytes(&mut self) -> Result<Option<&'a [u8]>, CqlError> {
        match usize::try_from(self.read_int()?) {
            Ok(length) => self.take_bytes(length).map(Some),
            Err(_) => Ok(None),
        }
    }
}
