//! Bytes to text across chunk borders: a character whose bytes arrive in pieces comes out whole, once.

/// Decodes a stream of UTF-8. What is not UTF-8 becomes U+FFFD; a character that is merely incomplete waits for its
/// rest in the next chunk.
///
/// ```
/// let mut decoder = libdsec::TextDecoder::default();
/// assert_eq!(decoder.push(&[b'a', 0xe2]), "a");
/// assert_eq!(decoder.push(&[0x89]), "");
/// assert_eq!(decoder.push(&[0xa4]), "≤");
/// assert_eq!(decoder.finish(), "");
/// ```
#[derive(Debug, Default, Clone)]
pub struct TextDecoder {
    /// The start of a character, at most three bytes.
    pending: Vec<u8>,
}

impl TextDecoder {
    /// The text that is complete after `chunk`.
    pub fn push(&mut self, chunk: &[u8]) -> String {
        let mut bytes = std::mem::take(&mut self.pending);
        bytes.extend_from_slice(chunk);
        let mut text = String::with_capacity(bytes.len());
        let mut rest = bytes.as_slice();
        loop {
            match std::str::from_utf8(rest) {
                Ok(valid) => {
                    text.push_str(valid);
                    return text;
                }
                Err(e) => {
                    let (valid, after) = rest.split_at(e.valid_up_to());
                    text.push_str(std::str::from_utf8(valid).expect("valid up to here, says the error"));
                    let Some(bad) = e.error_len() else {
                        self.pending = after.to_vec();
                        return text;
                    };
                    text.push(char::REPLACEMENT_CHARACTER);
                    rest = &after[bad..];
                }
            }
        }
    }

    /// At the end of the stream: one replacement character where a character was cut off, else nothing.
    pub fn finish(&mut self) -> &'static str {
        if self.pending.is_empty() {
            return "";
        }
        self.pending.clear();
        "\u{fffd}"
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn case_9_a_cut_tail_is_one_replacement() {
        let mut decoder = TextDecoder::default();
        assert_eq!(decoder.push(&[b'x', 0xf0, 0x9f, 0x98]), "x");
        assert_eq!(decoder.finish(), "\u{fffd}");
        assert_eq!(decoder.finish(), "");
    }

    #[test]
    fn case_10_invalid_bytes_are_replaced_and_the_rest_is_kept() {
        let mut decoder = TextDecoder::default();
        assert_eq!(decoder.push(b"\xc3\x28\xff\x00"), "\u{fffd}(\u{fffd}\0");
    }

    proptest! {
        #[test]
        fn however_it_is_cut_the_text_is_that_of_the_whole(bytes in proptest::collection::vec(any::<u8>(), 0..64),
                                                          cuts in proptest::collection::vec(0usize..64, 0..8)) {
            let mut cuts: Vec<_> = cuts.into_iter().filter(|c| *c <= bytes.len()).collect();
            cuts.extend([0, bytes.len()]);
            cuts.sort();
            let mut decoder = TextDecoder::default();
            let mut text: String = cuts.windows(2).map(|w| decoder.push(&bytes[w[0]..w[1]])).collect();
            text.push_str(decoder.finish());
            prop_assert_eq!(text, String::from_utf8_lossy(&bytes).into_owned());
        }
    }
}
