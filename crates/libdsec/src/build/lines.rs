//! A Dockerfile's text as instructions: directives, comments, continuations. Nothing here knows what an instruction means.

use api::{Code, Error, Result};

/// Of the whole text.
pub(crate) const TEXT_BYTES_MAX: usize = 1 << 20;
/// Of instructions: more than any image has layers for, in configs alone.
const INSTRUCTIONS_MAX: usize = 1000;

/// One instruction, its lines joined.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Line {
    /// Of its first line, from 1.
    pub(crate) number: usize,
    /// In capitals.
    pub(crate) word: String,
    /// What follows it, without blanks around.
    pub(crate) rest: String,
}

/// The text, and the character that escapes in it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Text {
    pub(crate) lines: Vec<Line>,
    pub(crate) escape: char,
}

/// An error of a line.
pub(crate) fn refuse(number: usize, code: Code, why: impl std::fmt::Display) -> Error {
    Error::new(code, format!("line {number}: {why}"))
}

/// Errors: `invalid_argument`.
pub(crate) fn split(text: &str) -> Result<Text> {
    if text.len() > TEXT_BYTES_MAX {
        return Err(Error::invalid(format!("the Dockerfile is over {TEXT_BYTES_MAX} bytes")));
    }
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    if text.contains('\0') {
        return Err(Error::invalid("the Dockerfile holds a NUL byte"));
    }
    let escape = directives(text)?;
    let (mut lines, mut joined) = (Vec::new(), None::<(usize, String)>);
    for (number, line) in text.lines().enumerate().map(|(at, line)| (at + 1, line)) {
        let trimmed = line.trim_start();
        // Within an instruction too: a comment or an empty line there is as if it were not.
        if trimmed.is_empty() || trimmed.starts_with('#') {
            continue;
        }
        let (first, mut whole) = joined.take().unwrap_or((number, String::new()));
        let line = if whole.is_empty() { trimmed } else { line };
        match continued(line, escape) {
            Some(part) => {
                whole.push_str(part);
                joined = Some((first, whole));
            }
            None => {
                whole.push_str(line);
                lines.push(instruction(first, &whole));
            }
        }
        if lines.len() > INSTRUCTIONS_MAX {
            return Err(Error::invalid(format!("the Dockerfile has over {INSTRUCTIONS_MAX} instructions")));
        }
    }
    if let Some((first, whole)) = joined {
        lines.push(instruction(first, &whole));
    }
    Ok(Text { lines, escape })
}

fn instruction(number: usize, whole: &str) -> Line {
    let whole = whole.trim();
    let (word, rest) = whole.split_once(char::is_whitespace).unwrap_or((whole, ""));
    Line { number, word: word.to_ascii_uppercase(), rest: rest.trim().to_owned() }
}

/// A line that goes on in the next one, without the character that says so.
fn continued(line: &str, escape: char) -> Option<&str> {
    let part = line.trim_end_matches([' ', '\t']).strip_suffix(escape)?;
    // One that is escaped itself is a character.
    (!part.ends_with(escape)).then_some(part)
}

/// The comments at the very top that mean something. Gives the escape character.
fn directives(text: &str) -> Result<char> {
    let (mut escape, mut seen) = ('\\', Vec::new());
    for (number, line) in text.lines().enumerate().map(|(at, line)| (at + 1, line)) {
        let said = line.trim().strip_prefix('#').and_then(|comment| comment.split_once('='));
        let Some((name, value)) = said else { break };
        let (name, value) = (name.trim().to_ascii_lowercase(), value.trim());
        if !["escape", "syntax", "check"].contains(&name.as_str()) {
            break;
        }
        if seen.contains(&name) {
            return Err(refuse(number, Code::InvalidArgument, format!("directive `{name}` a second time")));
        }
        match (name.as_str(), value) {
            ("escape", "\\") => {}
            ("escape", "`") => escape = '`',
            ("escape", _) => {
                return Err(refuse(number, Code::InvalidArgument, "escape: expected `\\` or a backtick"));
            }
            // Another front end reads another language.
            ("syntax", other) if !other.starts_with("docker/dockerfile") => {
                return Err(refuse(
                    number,
                    Code::Unsupported,
                    "syntax: only `docker/dockerfile` is understood",
                ));
            }
            _ => {}
        }
        seen.push(name);
    }
    Ok(escape)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(text: &str) -> Vec<(usize, String, String)> {
        split(text).unwrap().lines.into_iter().map(|line| (line.number, line.word, line.rest)).collect()
    }

    fn one(number: usize, word: &str, rest: &str) -> (usize, String, String) {
        (number, word.to_owned(), rest.to_owned())
    }

    #[test]
    fn lines_are_joined_and_comments_are_not_there() {
        let text = "# a comment\r\n\nfrom a\r\n  run one \\\n# not this\n\n   && two \\  \n  # nor this\n&& three\nENV a=1\\\\\nUSER x";
        assert_eq!(
            said(text),
            [
                one(3, "FROM", "a"),
                one(4, "RUN", "one    && two && three"),
                one(10, "ENV", "a=1\\\\"),
                one(11, "USER", "x"),
            ]
        );
        assert_eq!(said("RUN a \\"), [one(1, "RUN", "a")], "the last line may go on in nothing");
    }

    #[test]
    fn directives_are_heeded_at_the_top_alone() {
        let text = "# syntax=docker/dockerfile:1.7\n# escape = `\nRUN dir c:\\ `\n x";
        assert_eq!(split(text).unwrap().escape, '`');
        assert_eq!(said(text), [one(3, "RUN", "dir c:\\  x")]);
        assert_eq!(split("# a\n# escape=`\nRUN x").unwrap().escape, '\\');
        assert_eq!(split("FROM x\n# escape=`").unwrap().escape, '\\');
        for (text, code) in [
            ("# escape=x\nFROM a", Code::InvalidArgument),
            ("# escape=`\n# escape=`\nFROM a", Code::InvalidArgument),
            ("# syntax=example/other\nFROM a", Code::Unsupported),
            ("FROM a\0", Code::InvalidArgument),
        ] {
            assert_eq!(split(text).unwrap_err().code, code, "{text}");
        }
    }
}
