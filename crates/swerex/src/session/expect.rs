//! Waiting for words of a program or for a mark, whichever comes first.

use std::ops::Range;

use regex::bytes::{Regex, RegexBuilder};
use tokio::time::Instant;

use super::{
    PROMPT,
    mark::{self, Kind, Mark, Nonce},
    terminal::{Came, Terminal},
};
use crate::{fault::Fault, python::repr};

const PATTERNS_MAX: usize = 64;
const PATTERN_BYTES_MAX: usize = 1 << 10;
/// Of a compiled pattern.
const SIZE_MAX: usize = 1 << 20;
/// How far before new output a match may begin.
const WINDOW_BYTES: usize = 64 << 10;

/// Patterns that a client gave. Those of Python, but for what makes matching slow: no references, no looking around.
#[derive(Debug, Default)]
pub(super) struct Expect(Vec<(String, Regex)>);

impl Expect {
    /// Faults: a pattern that is none.
    pub(super) fn of(patterns: &[String]) -> Result<Self, Fault> {
        if patterns.len() > PATTERNS_MAX || patterns.iter().any(|p| p.len() > PATTERN_BYTES_MAX) {
            let message = format!("expect: at most {PATTERNS_MAX} patterns of {PATTERN_BYTES_MAX} bytes");
            return Err(Fault::invalid(message));
        }
        let compiled = patterns.iter().map(|pattern| {
            let regex = RegexBuilder::new(pattern).dot_matches_new_line(true).size_limit(SIZE_MAX).build();
            let regex = regex.map_err(|_| {
                let text = repr(pattern);
                Fault::invalid(format!("expect: {text} is no regular expression, or one that DSec has not"))
            })?;
            Ok((pattern.clone(), regex))
        });
        compiled.collect::<Result<_, _>>().map(Self)
    }

    /// The match that begins first; of several, that of the first pattern.
    fn first(&self, bytes: &[u8], from: usize) -> Option<(&str, Range<usize>)> {
        let matches = self.0.iter().filter_map(|(pattern, regex)| {
            regex.find_at(bytes, from.min(bytes.len())).map(|found| (pattern.as_str(), found.range()))
        });
        matches.min_by_key(|(_, range)| range.start)
    }
}

#[derive(Debug)]
pub(super) enum Hit {
    /// A prompt, of whatever number.
    Prompt(Mark),
    Expected {
        pattern: String,
        at: Range<usize>,
    },
    Late,
}

impl Hit {
    /// Where what was waited for begins and ends, and what theirs calls it.
    pub(super) fn place(self) -> Option<(Range<usize>, String)> {
        match self {
            Self::Prompt(mark) => Some((mark.at, PROMPT.into())),
            Self::Expected { pattern, at } => Some((at, pattern)),
            Self::Late => None,
        }
    }
}

/// One wait for several things, that can be gone on with.
pub(super) struct Watch {
    /// Offsets of the log: marks and words before were seen.
    marks_from: u64,
    words_from: u64,
}

impl Watch {
    /// For what comes from now on.
    pub(super) fn new(terminal: &Terminal) -> Self {
        Self { marks_from: terminal.text.end(), words_from: terminal.text.end() }
    }

    /// For marks that may be there already.
    pub(super) fn from_the_start() -> Self {
        Self { marks_from: 0, words_from: 0 }
    }

    /// Words may be in what is there already.
    pub(super) fn with_words_from_the_start(terminal: &Terminal) -> Self {
        Self { words_from: 0, ..Self::new(terminal) }
    }

    /// The next prompt or match.
    pub(super) async fn next(
        &mut self,
        terminal: &mut Terminal,
        expect: &Expect,
        deadline: Instant,
    ) -> Result<Hit, Fault> {
        loop {
            let mark = self.mark(terminal, |mark| mark.kind == Kind::Prompt);
            let bytes = terminal.text.bytes();
            let from = terminal.text.index_of(self.words_from);
            let words = expect.first(&bytes[..mark::whole(bytes)], from);
            match (mark, words) {
                (Some(mark), Some((pattern, at))) if at.start <= mark.at.start => {
                    return Ok(Hit::Expected { pattern: pattern.to_owned(), at });
                }
                (Some(mark), _) => {
                    self.marks_from = terminal.text.offset_of(mark.at.end);
                    return Ok(Hit::Prompt(mark));
                }
                (None, Some((pattern, at))) => {
                    return Ok(Hit::Expected { pattern: pattern.to_owned(), at });
                }
                (None, None) => {}
            }
            match self.more(terminal, deadline).await? {
                Came::Late => return Ok(Hit::Late),
                Came::Output(fresh) => {
                    let seen = terminal.text.offset_of(fresh.saturating_sub(WINDOW_BYTES));
                    self.words_from = self.words_from.max(seen);
                }
            }
        }
    }

    /// A mark of this kind and number. None: it is late.
    pub(super) async fn mark_of(
        &mut self,
        terminal: &mut Terminal,
        kind: Kind,
        nonce: Nonce,
        deadline: Instant,
    ) -> Result<Option<Mark>, Fault> {
        loop {
            if let Some(mark) = self.mark(terminal, |mark| mark.kind == kind && mark.nonce == nonce) {
                let seen = terminal.text.offset_of(mark.at.end);
                (self.marks_from, self.words_from) = (seen, seen);
                return Ok(Some(mark));
            }
            if matches!(self.more(terminal, deadline).await?, Came::Late) {
                return Ok(None);
            }
        }
    }

    fn mark(&self, terminal: &Terminal, fits: impl Fn(&Mark) -> bool) -> Option<Mark> {
        mark::all(terminal.text.bytes(), terminal.text.index_of(self.marks_from)).find(fits)
    }

    async fn more(&mut self, terminal: &mut Terminal, deadline: Instant) -> Result<Came, Fault> {
        let seen = terminal.text.end().saturating_sub(mark::BYTES_MAX as u64);
        self.marks_from = self.marks_from.max(seen);
        terminal.more(deadline).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_match_wins_and_the_first_pattern_of_equals() {
        let expect = Expect::of(&["b+".into(), "a.*c".into(), "a".into()]).unwrap();
        assert_eq!(expect.first(b"xxa\nbbc", 0), Some(("a.*c", 2..7)));
        assert_eq!(expect.first(b"xxa\nbbc", 3), Some(("b+", 4..6)));
        assert_eq!(expect.first(b"", 0), None);
        assert_eq!(Expect::default().first(b"abc", 0), None);
    }

    #[test]
    fn what_is_no_pattern_is_refused() {
        for bad in ["(", "(?=x)", r"(a)\1", &"x".repeat(2000), "(((a{100}){100}){100})"] {
            assert!(Expect::of(&[bad.to_owned()]).is_err(), "{bad}");
        }
        assert!(Expect::of(&vec!["a".to_owned(); 65]).is_err());
    }
}
