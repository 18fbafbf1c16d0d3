//! Bytes of a sandbox as text that a model may read: bounded, and without what is no text.
//!
//! Invariants: no control character comes out but tab, newline and carriage return; what is left out is counted and
//! said, where it was.

use libdsec::Output;

/// In place of what is no text.
const REPLACEMENT: char = char::REPLACEMENT_CHARACTER;

/// Each character, clean, with the number of bytes that it was.
fn characters(bytes: &[u8]) -> impl Iterator<Item = (char, usize)> {
    bytes.utf8_chunks().flat_map(|chunk| {
        let broken = chunk.invalid().len();
        let valid = chunk.valid().chars().map(|c| (shown(c), c.len_utf8()));
        valid.chain((broken > 0).then_some((REPLACEMENT, broken)))
    })
}

fn shown(c: char) -> char {
    if is_control(c) { REPLACEMENT } else { c }
}

/// A control character that is no white space of a text.
pub(crate) fn is_control(c: char) -> bool {
    c.is_control() && !matches!(c, '\t' | '\n' | '\r')
}

/// All of it, clean.
pub(crate) fn clean(bytes: &[u8]) -> String {
    characters(bytes).map(|(c, _)| c).collect()
}

/// One line, clean and at most `chars_max` long; what is over is cut off, with a mark.
pub(crate) fn line(bytes: &[u8], chars_max: usize) -> String {
    let one_line = |c| if matches!(c, '\n' | '\r' | '\t') { ' ' } else { c };
    let mut all = characters(bytes).map(|(c, _)| one_line(c));
    let mut text: String = all.by_ref().take(chars_max).collect();
    if all.next().is_some() {
        text.push('…');
    }
    text
}

/// Text with, perhaps, its middle left out.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Clipped {
    pub(crate) text: String,
    pub(crate) truncated: bool,
}

/// Both streams of a command in `chars_max` characters together: a short one leaves its room to the other.
pub(crate) fn clip_both(stdout: &Output, stderr: &Output, chars_max: usize) -> [Clipped; 2] {
    let half = chars_max / 2;
    let [out, err] = [stdout, stderr].map(|o| if o.truncated { usize::MAX } else { length(&o.data.0) });
    let for_err = err.min(half.max(chars_max.saturating_sub(out)));
    let for_out = out.min(chars_max - for_err);
    [clip(stdout, for_out), clip(stderr, for_err)]
}

fn length(bytes: &[u8]) -> usize {
    characters(bytes).count()
}

/// The head and the tail of an output, `chars_max` characters together, and between them how much is left out.
pub(crate) fn clip(output: &Output, chars_max: usize) -> Clipped {
    let all: Vec<(char, usize)> = if output.truncated {
        let at = usize::try_from(output.dropped_at).unwrap_or(usize::MAX).min(output.data.0.len());
        let (head, tail) = output.data.0.split_at(at);
        let head: Vec<_> = characters(head).take(chars_max.div_ceil(2)).collect();
        let mut both: Vec<_> = characters(tail).collect();
        both.drain(..both.len().saturating_sub(chars_max / 2));
        return joined(&head, &both, output.bytes_total);
    } else {
        characters(&output.data.0).collect()
    };
    if all.len() <= chars_max {
        return Clipped { text: all.into_iter().map(|(c, _)| c).collect(), truncated: false };
    }
    let head = &all[..chars_max.div_ceil(2)];
    let tail = &all[all.len() - chars_max / 2..];
    joined(head, tail, output.bytes_total)
}

fn joined(head: &[(char, usize)], tail: &[(char, usize)], bytes_total: u64) -> Clipped {
    let kept: usize = head.iter().chain(tail).map(|(_, bytes)| bytes).sum();
    let left_out = bytes_total.saturating_sub(kept as u64);
    let mut text: String = head.iter().map(|(c, _)| c).collect();
    text.push_str(&format!("\n[... {left_out} bytes left out ...]\n"));
    text.extend(tail.iter().map(|(c, _)| c));
    Clipped { text, truncated: true }
}

/// How many bytes at the end are the start of a character whose rest is still to come: 0 to 3.
pub(crate) fn unfinished(bytes: &[u8]) -> usize {
    match bytes.utf8_chunks().last() {
        // Only the last sequence can be short of its rest, and then it is not wrong yet.
        Some(chunk) if !chunk.invalid().is_empty() => match std::str::from_utf8(chunk.invalid()) {
            Err(e) if e.error_len().is_none() => chunk.invalid().len(),
            _ => 0,
        },
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn output(data: &[u8]) -> Output {
        Output { data: data.to_vec().into(), bytes_total: data.len() as u64, ..Output::default() }
    }

    #[test]
    fn what_is_no_text_is_replaced() {
        assert_eq!(
            clean(b"a\tb\r\nc\x1b[31m\0\x7f\xff\xc2\x85"),
            "a\tb\r\nc\u{fffd}[31m\u{fffd}\u{fffd}\u{fffd}\u{fffd}"
        );
        assert_eq!(line(b"a\nb\x07cdef", 4), "a b\u{fffd}…");
        assert_eq!(line(b"abcd", 4), "abcd");
    }

    #[test]
    fn what_is_left_out_is_counted_where_it_was() {
        let clipped = clip(&output(b"0123456789"), 4);
        assert_eq!(clipped, Clipped { text: "01\n[... 6 bytes left out ...]\n89".into(), truncated: true });
        assert_eq!(clip(&output(b"0123"), 4), Clipped { text: "0123".into(), truncated: false });
        let holed = Output {
            data: "abyz".into(),
            bytes_total: 1004,
            bytes_dropped: 1000,
            dropped_at: 2,
            truncated: true,
        };
        assert_eq!(clip(&holed, 100).text, "ab\n[... 1000 bytes left out ...]\nyz");
        assert_eq!(clip(&holed, 2).text, "a\n[... 1002 bytes left out ...]\nz");
    }

    #[test]
    fn a_short_stream_leaves_its_room_to_the_other() {
        let long = output(&[b'x'; 100]);
        let [out, err] = clip_both(&long, &output(b"why"), 50);
        assert!(out.truncated && out.text.matches('x').count() == 47, "{out:?}");
        assert_eq!(err.text, "why");
        let [out, err] = clip_both(&output(b"abc"), &long, 50);
        assert_eq!((out.text.as_str(), err.text.matches('x').count()), ("abc", 47));
        let [out, err] = clip_both(&long, &long, 50);
        assert_eq!((out.text.matches('x').count(), err.text.matches('x').count()), (25, 25));
    }

    #[test]
    fn a_character_is_waited_for_only_while_it_can_still_come() {
        assert_eq!(unfinished(b"a"), 0);
        assert_eq!(unfinished("≤".as_bytes()), 0);
        assert_eq!(unfinished(&"a≤".as_bytes()[..2]), 1);
        assert_eq!(unfinished(&"a≤".as_bytes()[..3]), 2);
        assert_eq!(unfinished(b"a\xff"), 0);
        assert_eq!(unfinished(b"\xf0\x9f\x98"), 3);
    }

    proptest! {
        #[test]
        fn nothing_comes_out_that_is_no_text_or_too_long(
            bytes in proptest::collection::vec(any::<u8>(), 0..300), max in 0usize..80,
        ) {
            let clipped = clip(&output(&bytes), max);
            prop_assert!(!clipped.text.chars().any(is_control));
            prop_assert!(clipped.text.chars().count() <= max + 60);
            if !clipped.truncated {
                prop_assert_eq!(clipped.text, clean(&bytes));
            }
        }
    }
}
