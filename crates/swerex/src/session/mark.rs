//! Marks in a session's log, and what they tell.
//!
//! In a prompt the first character is written as `\137`, so that a listing of variables has no mark in it. Whoever runs
//! in the session can print marks all the same, and deceives nobody but the reader of that session.

use std::{ops::Range, sync::LazyLock};

use regex::bytes::Regex;

/// Longer than any mark.
pub(super) const BYTES_MAX: usize = 64;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// The terminal is ready, bash starts.
    Ready,
    Started,
    Prompt,
    Taken,
}

/// 64 bits that no command can guess.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Nonce(u64);

impl Nonce {
    pub(super) const READY: Nonce = Nonce(0);

    pub(super) fn new() -> Self {
        let mut bytes = [0; 8];
        // The system's source does not fail; a number that repeats would only confuse one session's output.
        let _ = getrandom::fill(&mut bytes);
        Self(u64::from_le_bytes(bytes) | 1)
    }
}

impl std::fmt::Display for Nonce {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Mark {
    pub(super) kind: Kind,
    pub(super) nonce: Nonce,
    pub(super) status: i32,
    /// Where it lies in the bytes that were searched.
    pub(super) at: Range<usize>,
}

/// As printf and prompts write it: `status` is a number or `$?`.
pub(super) fn written(kind: Kind, nonce: Nonce, status: &str) -> String {
    let letter = match kind {
        Kind::Ready => 'r',
        Kind::Started => 's',
        Kind::Prompt => 'p',
        Kind::Taken => 't',
    };
    format!("\\137DSEC_{letter}{nonce}:{status}:")
}

fn pattern() -> &'static Regex {
    static PATTERN: LazyLock<Regex> = LazyLock::new(|| {
        Regex::new(r"(?-u)_DSEC_([rspt])([0-9a-f]{16}):([0-9]{1,3}):").expect("a pattern that is tested")
    });
    &PATTERN
}

/// The marks from `from` on.
pub(super) fn all(bytes: &[u8], from: usize) -> impl Iterator<Item = Mark> {
    let rest = &bytes[from.min(bytes.len())..];
    pattern().captures_iter(rest).filter_map(move |found| {
        let (whole, [kind, nonce, status]) = (found.get(0)?, found.extract().1);
        let kind = match kind {
            b"r" => Kind::Ready,
            b"s" => Kind::Started,
            b"p" => Kind::Prompt,
            _ => Kind::Taken,
        };
        let nonce = Nonce(u64::from_str_radix(std::str::from_utf8(nonce).ok()?, 16).ok()?);
        let status = std::str::from_utf8(status).ok()?.parse().ok()?;
        Some(Mark { kind, nonce, status, at: whole.start() + from..whole.end() + from })
    })
}

/// How much of `bytes` may be searched for other words: not what may be the beginning of a mark.
pub(super) fn whole(bytes: &[u8]) -> usize {
    static PART: LazyLock<Regex> = LazyLock::new(|| {
        Regex::new(r"(?-u)_(?:D(?:S(?:E(?:C(?:_[rspt0-9a-f:]{0,40})?)?)?)?)?$")
            .expect("a pattern that is tested")
    });
    let from = bytes.len().saturating_sub(BYTES_MAX);
    let tail = &bytes[from..];
    // A whole mark at the very end is one too.
    let ends = all(tail, 0).last().is_some_and(|mark| mark.at.end == tail.len());
    match PART.find(tail) {
        Some(part) if !ends => from + part.start(),
        _ => bytes.len(),
    }
}

/// `bytes` without marks.
pub(super) fn without(bytes: &[u8]) -> Vec<u8> {
    pattern().replace_all(bytes, &b""[..]).into_owned()
}

/// What a stretch of the log tells of its session.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct State {
    /// The end of the last mark that says that all before it was taken.
    pub(super) taken: Option<usize>,
    /// Whether a command has begun and not ended, where there is any mark to tell.
    pub(super) busy: Option<bool>,
}

impl State {
    pub(super) fn of(bytes: &[u8]) -> Self {
        let mut state = Self::default();
        for mark in all(bytes, 0) {
            match mark.kind {
                Kind::Ready => {}
                Kind::Started => state.busy = Some(true),
                Kind::Prompt => state.busy = Some(false),
                Kind::Taken => (state.busy, state.taken) = (Some(false), Some(mark.at.end)),
            }
        }
        state
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn printed(kind: Kind, number: u64, status: &str) -> String {
        written(kind, Nonce(number), status).replace("\\137", "_")
    }

    #[test]
    fn a_mark_as_printed_is_found_and_as_written_is_not() {
        let text = format!("a{}b{}", printed(Kind::Prompt, 7, "130"), written(Kind::Taken, Nonce(7), "0"));
        let marks: Vec<Mark> = all(text.as_bytes(), 0).collect();
        assert_eq!(marks.len(), 1);
        assert_eq!((marks[0].kind, marks[0].nonce, marks[0].status), (Kind::Prompt, Nonce(7), 130));
        assert!(marks[0].at.len() < BYTES_MAX);
        assert!(without(text.as_bytes()).starts_with(b"ab\\137"));
        assert_eq!(all(text.as_bytes(), 2).count(), 0);
        assert_eq!((whole(b"ab"), whole(b"ab_"), whole(b"ab_DSEC_p00"), whole(b"ab_x")), (2, 2, 2, 4));
        assert_eq!(whole(&text.as_bytes()[..marks[0].at.end]), marks[0].at.end);
    }

    #[test]
    fn the_log_tells_what_was_taken_and_whether_a_command_runs() {
        let (s, p, t) = (
            |n| printed(Kind::Started, n, "0"),
            |n| printed(Kind::Prompt, n, "0"),
            |n| printed(Kind::Taken, n, "0"),
        );
        let of = |text: &str| {
            let state = State::of(text.as_bytes());
            (state.taken.map(|at| text[at..].to_owned()), state.busy)
        };
        assert_eq!(of("hello"), (None, None));
        let idle = format!("{}x{}{}{}", s(1), p(1), t(2), p(2));
        assert_eq!(of(&idle), (Some(p(2)), Some(false)));
        let noise = format!("{idle}background");
        assert_eq!(of(&noise), (Some(format!("{}background", p(2))), Some(false)));
        let runs = format!("{idle}{}out", s(3));
        assert_eq!(of(&runs), (Some(format!("{}{}out", p(2), s(3))), Some(true)));
        let ended = format!("{runs}{}", p(3));
        assert_eq!(of(&ended).1, Some(false));
        assert!(of(&ended).0.unwrap().contains("out"));
        // Interrupted: the old prompt again, and nothing of it is taken.
        let interrupted = format!("{runs}{}", p(2));
        assert_eq!(of(&interrupted).1, Some(false));
        assert!(of(&interrupted).0.unwrap().contains("out"));
    }

    proptest! {
        #[test]
        fn any_bytes_have_a_state(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = State::of(&bytes);
            let _ = without(&bytes);
        }
    }
}
