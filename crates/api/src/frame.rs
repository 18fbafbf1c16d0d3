//! The framing of an attached exec: `[type: u8][length: u32, big-endian][payload]`, both ways, on a connection that
//! was upgraded to `dsec-frames`. One codec for every hop; a hop relays frames untouched.
//!
//! Readers treat the bytes as hostile: a length over the limit or a payload of the wrong shape is an error that ends
//! the stream, never a panic and never an allocation of the claimed size.

use bytes::{Buf, BufMut, Bytes, BytesMut};

use crate::{
    Error, ExecId, Result,
    exec::{Exit, PtySize},
    limit,
};

/// The `Upgrade` token.
pub const PROTOCOL: &str = "dsec-frames";
const HEADER: usize = 5;
/// Payload and the offset before it.
const PAYLOAD_MAX: usize = limit::FRAME_BYTES_MAX + 8;

/// Which output.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Stream {
    Stdout,
    Stderr,
}

/// From the sandbox to the client. Ends with `Exit` or `Error`.
#[derive(Debug, Clone, PartialEq)]
pub enum ServerFrame {
    /// First: the id to attach to again.
    Started(ExecId),
    /// Bytes at `offset` of a stream.
    Output {
        stream: Stream,
        offset: u64,
        data: Bytes,
    },
    /// `bytes` at `offset` are not kept any more.
    Dropped {
        stream: Stream,
        offset: u64,
        bytes: u64,
    },
    /// The process ended. More `Output` may follow only before it: all that the spool holds comes first.
    Exit(Exit),
    Error(Error),
    /// Keeps proxies from closing a silent stream.
    Alive,
}

/// From the client to the sandbox.
#[derive(Debug, Clone, PartialEq)]
pub enum ClientFrame {
    Stdin(Bytes),
    /// Half-close: the process reads end-of-file; its output goes on.
    StdinClose,
    Resize(PtySize),
    Signal(i32),
    /// Bytes below these offsets are safe elsewhere (edge to aether).
    Ack {
        stdout: u64,
        stderr: u64,
    },
}

mod kind {
    pub(super) const STARTED: u8 = 1;
    pub(super) const STDOUT: u8 = 2;
    pub(super) const STDERR: u8 = 3;
    pub(super) const DROPPED_STDOUT: u8 = 4;
    pub(super) const DROPPED_STDERR: u8 = 5;
    pub(super) const EXIT: u8 = 6;
    pub(super) const ERROR: u8 = 7;
    pub(super) const ALIVE: u8 = 8;
    pub(super) const STDIN: u8 = 64;
    pub(super) const STDIN_CLOSE: u8 = 65;
    pub(super) const RESIZE: u8 = 66;
    pub(super) const SIGNAL: u8 = 67;
    pub(super) const ACK: u8 = 68;
}

/// A frame that can be written to and read from bytes.
pub trait Frame: Sized {
    /// Appends the frame.
    fn encode(&self, out: &mut BytesMut);
    /// Appends the frame but for its data, which the caller writes next: bulk is never copied.
    fn encode_head(&self, out: &mut BytesMut) -> Bytes {
        self.encode(out);
        Bytes::new()
    }
    /// Reads one payload. Errors: `invalid_argument`.
    fn decode_payload(kind: u8, payload: Bytes) -> Result<Self>;

    /// Takes one frame off the front, or None where it is not all there yet. Errors: `invalid_argument`.
    fn decode(buffer: &mut BytesMut) -> Result<Option<Self>> {
        if buffer.len() < HEADER {
            return Ok(None);
        }
        let length = u32::from_be_bytes([buffer[1], buffer[2], buffer[3], buffer[4]]) as usize;
        if length > PAYLOAD_MAX {
            return Err(Error::invalid(format!("frame of {length} bytes, at most {PAYLOAD_MAX}")));
        }
        if buffer.len() < HEADER + length {
            return Ok(None);
        }
        let kind = buffer[0];
        buffer.advance(HEADER);
        Self::decode_payload(kind, buffer.split_to(length).freeze()).map(Some)
    }
}

fn put(out: &mut BytesMut, kind: u8, parts: &[&[u8]]) {
    let length: usize = parts.iter().map(|p| p.len()).sum();
    debug_assert!(length <= PAYLOAD_MAX);
    out.reserve(HEADER + length);
    out.put_u8(kind);
    out.put_u32(length as u32);
    parts.iter().for_each(|p| out.put_slice(p));
}

/// The head of a frame whose last `data` bytes follow.
fn put_head(out: &mut BytesMut, kind: u8, part: &[u8], data: &Bytes) -> Bytes {
    let length = part.len() + data.len();
    debug_assert!(length <= PAYLOAD_MAX);
    out.reserve(HEADER + part.len());
    out.put_u8(kind);
    out.put_u32(length as u32);
    out.put_slice(part);
    data.clone()
}

fn put_json(out: &mut BytesMut, kind: u8, value: &impl serde::Serialize) {
    // Plain data with string keys: serialising it cannot fail.
    let json = serde_json::to_vec(value).unwrap_or_default();
    put(out, kind, &[&json]);
}

fn get_json<T: serde::de::DeserializeOwned>(payload: &[u8]) -> Result<T> {
    serde_json::from_slice(payload).map_err(|e| Error::invalid(format!("frame: {e}")))
}

fn get<const N: usize>(payload: &[u8]) -> Result<[u8; N]> {
    payload.try_into().map_err(|_| Error::invalid(format!("frame: {} bytes where {N} belong", payload.len())))
}

fn get_two(payload: &[u8]) -> Result<(u64, u64)> {
    let bytes: [u8; 16] = get(payload)?;
    let (a, b) = bytes.split_at(8);
    Ok((u64::from_be_bytes(get(a)?), u64::from_be_bytes(get(b)?)))
}

impl Frame for ServerFrame {
    fn encode(&self, out: &mut BytesMut) {
        match self {
            Self::Started(id) => put_json(out, kind::STARTED, id),
            Self::Output { stream, offset, data } => {
                let kind = if *stream == Stream::Stdout { kind::STDOUT } else { kind::STDERR };
                put(out, kind, &[&offset.to_be_bytes(), data]);
            }
            Self::Dropped { stream, offset, bytes } => {
                let kind =
                    if *stream == Stream::Stdout { kind::DROPPED_STDOUT } else { kind::DROPPED_STDERR };
                put(out, kind, &[&offset.to_be_bytes(), &bytes.to_be_bytes()]);
            }
            Self::Exit(exit) => put_json(out, kind::EXIT, exit),
            Self::Error(error) => put_json(out, kind::ERROR, error),
            Self::Alive => put(out, kind::ALIVE, &[]),
        }
    }

    fn encode_head(&self, out: &mut BytesMut) -> Bytes {
        if let Self::Output { stream, offset, data } = self {
            let kind = if *stream == Stream::Stdout { kind::STDOUT } else { kind::STDERR };
            return put_head(out, kind, &offset.to_be_bytes(), data);
        }
        self.encode(out);
        Bytes::new()
    }

    fn decode_payload(kind: u8, mut payload: Bytes) -> Result<Self> {
        Ok(match kind {
            kind::STARTED => Self::Started(get_json(&payload)?),
            kind::STDOUT | kind::STDERR => {
                if payload.len() < 8 {
                    return Err(Error::invalid("frame: output without an offset"));
                }
                let stream = if kind == kind::STDOUT { Stream::Stdout } else { Stream::Stderr };
                Self::Output { stream, offset: payload.get_u64(), data: payload }
            }
            kind::DROPPED_STDOUT | kind::DROPPED_STDERR => {
                let stream = if kind == kind::DROPPED_STDOUT { Stream::Stdout } else { Stream::Stderr };
                let (offset, bytes) = get_two(&payload)?;
                Self::Dropped { stream, offset, bytes }
            }
            kind::EXIT => Self::Exit(get_json(&payload)?),
            kind::ERROR => Self::Error(get_json(&payload)?),
            kind::ALIVE => Self::Alive,
            other => return Err(Error::invalid(format!("frame of unknown type {other}"))),
        })
    }
}

impl Frame for ClientFrame {
    fn encode(&self, out: &mut BytesMut) {
        match self {
            Self::Stdin(data) => put(out, kind::STDIN, &[data]),
            Self::StdinClose => put(out, kind::STDIN_CLOSE, &[]),
            Self::Resize(size) => {
                put(out, kind::RESIZE, &[&size.rows.to_be_bytes(), &size.cols.to_be_bytes()])
            }
            Self::Signal(signal) => put(out, kind::SIGNAL, &[&signal.to_be_bytes()]),
            Self::Ack { stdout, stderr } => {
                put(out, kind::ACK, &[&stdout.to_be_bytes(), &stderr.to_be_bytes()])
            }
        }
    }

    fn encode_head(&self, out: &mut BytesMut) -> Bytes {
        if let Self::Stdin(data) = self {
            return put_head(out, kind::STDIN, &[], data);
        }
        self.encode(out);
        Bytes::new()
    }

    fn decode_payload(kind: u8, payload: Bytes) -> Result<Self> {
        Ok(match kind {
            kind::STDIN => Self::Stdin(payload),
            kind::STDIN_CLOSE => Self::StdinClose,
            kind::RESIZE => {
                let [a, b, c, d] = get(&payload)?;
                Self::Resize(PtySize { rows: u16::from_be_bytes([a, b]), cols: u16::from_be_bytes([c, d]) })
            }
            kind::SIGNAL => Self::Signal(i32::from_be_bytes(get(&payload)?)),
            kind::ACK => {
                let (stdout, stderr) = get_two(&payload)?;
                Self::Ack { stdout, stderr }
            }
            other => return Err(Error::invalid(format!("frame of unknown type {other}"))),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exec::ExitReason;
    use proptest::prelude::*;

    fn round_trip<F: Frame + Clone + PartialEq + std::fmt::Debug>(frames: &[F]) {
        let mut wire = BytesMut::new();
        frames.iter().for_each(|f| f.encode(&mut wire));
        // Head and data apart are the same bytes.
        let mut apart = BytesMut::new();
        for frame in frames {
            let data = frame.encode_head(&mut apart);
            apart.put_slice(&data);
        }
        assert_eq!(wire, apart);
        // One byte at a time: no split loses or doubles a frame.
        let (mut seen, mut buffer) = (Vec::new(), BytesMut::new());
        for byte in wire {
            buffer.put_u8(byte);
            seen.extend(F::decode(&mut buffer).unwrap());
        }
        assert_eq!(seen, frames);
        assert!(buffer.is_empty());
    }

    #[test]
    fn frames_survive_any_split() {
        let data = Bytes::from_static(b"\xff\0x");
        round_trip(&[
            ServerFrame::Started(ExecId::new()),
            ServerFrame::Output { stream: Stream::Stdout, offset: 7, data: data.clone() },
            ServerFrame::Output { stream: Stream::Stderr, offset: u64::MAX, data: Bytes::new() },
            ServerFrame::Dropped { stream: Stream::Stderr, offset: 1, bytes: 2 },
            ServerFrame::Alive,
            ServerFrame::Error(Error::invalid("x")),
            ServerFrame::Exit(Exit {
                code: 143,
                reason: ExitReason::Signal,
                signal: Some(15),
                duration_ms: 1,
            }),
        ]);
        round_trip(&[
            ClientFrame::Stdin(data),
            ClientFrame::StdinClose,
            ClientFrame::Resize(PtySize { rows: 0, cols: 65535 }),
            ClientFrame::Signal(9),
            ClientFrame::Ack { stdout: 1, stderr: u64::MAX },
        ]);
    }

    proptest! {
        #[test]
        fn any_bytes_decode_or_err_within_bounds(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            let mut a = BytesMut::from(&bytes[..]);
            while let Ok(Some(_)) = ServerFrame::decode(&mut a) {}
            let mut b = BytesMut::from(&bytes[..]);
            while let Ok(Some(_)) = ClientFrame::decode(&mut b) {}
        }
    }

    #[test]
    fn an_oversize_length_is_refused_before_its_bytes_come() {
        let mut wire = BytesMut::from(&[kind::STDIN, 0xff, 0xff, 0xff, 0xff][..]);
        assert!(ClientFrame::decode(&mut wire).is_err());
    }
}
