//! What their server gets from Python: bytes decoded with its error handlers, `repr` in messages, and the text of a
//! terminal without its control sequences.

use std::sync::LazyLock;

use regex::Regex;

/// Bytes as UTF-8; what is none as `\xNN`, as the handler `backslashreplace` does.
pub(crate) fn backslashreplace(bytes: &[u8]) -> String {
    lossy(bytes, |bad, text| bad.iter().for_each(|b| text.push_str(&format!("\\x{b:02x}"))))
}

/// Bytes as UTF-8, `bad` told of each run that is none.
pub(crate) fn lossy(bytes: &[u8], bad: impl Fn(&[u8], &mut String)) -> String {
    let mut text = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        text.push_str(chunk.valid());
        if !chunk.invalid().is_empty() {
            bad(chunk.invalid(), &mut text);
        }
    }
    text
}

/// As they strip it: escape sequences go, and the carriage returns that a terminal puts before each line's end.
pub(crate) fn strip_controls(text: &str) -> String {
    static SEQUENCE: LazyLock<Regex> =
        LazyLock::new(|| Regex::new(r"\x1B[@-_][0-?]*[ -/]*[@-~]").expect("a pattern that is tested"));
    SEQUENCE.replace_all(text, "").replace("\r\n", "\n")
}

/// `repr(text)`.
pub(crate) fn repr(text: &str) -> String {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    let mut out = String::with_capacity(text.len() + 2);
    out.push(quote);
    for c in text.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if c == quote => {
                out.push('\\');
                out.push(c);
            }
            c if (c as u32) < 0x20 || (0x7f..0xa1).contains(&(c as u32)) || c == '\u{ad}' => {
                out.push_str(&format!("\\x{:02x}", c as u32));
            }
            c => out.push(c),
        }
    }
    out.push(quote);
    out
}

/// `repr` of a list of texts.
pub(crate) fn repr_list(texts: &[String]) -> String {
    let texts: Vec<String> = texts.iter().map(|text| repr(text)).collect();
    format!("[{}]", texts.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn as_python_shows_it() {
        assert_eq!(repr("a'b"), r#""a'b""#);
        assert_eq!(repr("a'\"b"), r#"'a\'"b'"#);
        assert_eq!(repr("\n\t\\\x1b\u{e9}"), r"'\n\t\\\x1bé'");
        assert_eq!(repr_list(&["a".into(), "b c".into()]), "['a', 'b c']");
        assert_eq!(backslashreplace(b"a\xff\xe2\x82b"), "a\\xff\\xe2\\x82b");
        assert_eq!(strip_controls("\x1b[31mred\x1b[0m\r\n\x1b[?2004hx\rY"), "red\nx\rY");
    }

    proptest! {
        #[test]
        fn any_bytes_have_a_text(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = repr(&strip_controls(&backslashreplace(&bytes)));
        }
    }
}
