//! An upload that comes compressed, unpacked as it flows. What it grows to is bounded by the sandbox's disk, and what
//! is held at once by the slice that is fed.

use std::{collections::VecDeque, io::Write};

use api::{Error, arrow::ByteStream};
use bytes::Bytes;
use flate2::write::MultiGzDecoder;
use futures_util::{StreamExt, stream};

/// Fed at once: gzip grows a slice at most about a thousandfold.
const SLICE_BYTES: usize = 4 << 10;

struct State {
    body: ByteStream,
    /// Compressed bytes that are not fed yet.
    waiting: VecDeque<Bytes>,
    /// None at its end.
    decoder: Option<MultiGzDecoder<Vec<u8>>>,
}

pub(super) fn gunzip(body: ByteStream) -> ByteStream {
    let state = State { body, waiting: VecDeque::new(), decoder: Some(MultiGzDecoder::new(Vec::new())) };
    Box::pin(stream::unfold(state, |mut state| async move {
        let item = state.next().await?;
        if item.is_err() {
            state.decoder = None;
        }
        Some((item, state))
    }))
}

impl State {
    async fn next(&mut self) -> Option<api::Result<Bytes>> {
        loop {
            let decoder = self.decoder.as_mut()?;
            let slice = match self.waiting.pop_front() {
                Some(slice) => slice,
                None => match self.body.next().await {
                    Some(Ok(chunk)) => {
                        self.waiting = cut(chunk);
                        continue;
                    }
                    Some(Err(error)) => return Some(Err(error)),
                    None => {
                        let rest = self.decoder.take()?.finish();
                        return Some(rest.map(Bytes::from).map_err(|_| broken()));
                    }
                },
            };
            if decoder.write_all(&slice).is_err() {
                return Some(Err(broken()));
            }
            let out = std::mem::take(decoder.get_mut());
            if !out.is_empty() {
                return Some(Ok(out.into()));
            }
        }
    }
}

fn cut(mut chunk: Bytes) -> VecDeque<Bytes> {
    let mut slices = VecDeque::with_capacity(chunk.len().div_ceil(SLICE_BYTES));
    while !chunk.is_empty() {
        slices.push_back(chunk.split_to(SLICE_BYTES.min(chunk.len())));
    }
    slices
}

fn broken() -> Error {
    Error::invalid("body: it is not whole gzip, as its Content-Encoding says")
}

#[cfg(test)]
mod tests {
    use super::*;
    use flate2::{Compression, write::GzEncoder};

    async fn unpack(bytes: &[u8]) -> api::Result<Vec<u8>> {
        let chunks: Vec<_> = bytes.chunks(7).map(|c| Ok(Bytes::copy_from_slice(c))).collect();
        let mut stream = gunzip(Box::pin(stream::iter(chunks)));
        let mut out = Vec::new();
        while let Some(part) = stream.next().await {
            out.extend_from_slice(&part?);
        }
        Ok(out)
    }

    #[tokio::test]
    async fn what_was_packed_is_unpacked_and_what_is_cut_is_refused() {
        let plain: Vec<u8> = (0..100_000u32).flat_map(|n| (n / 7).to_le_bytes()).collect();
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(&plain).unwrap();
        let packed = encoder.finish().unwrap();
        assert_eq!(unpack(&packed).await.unwrap(), plain);
        assert!(unpack(&packed[..packed.len() - 9]).await.is_err());
        assert!(unpack(b"not gzip at all").await.is_err());
    }
}
