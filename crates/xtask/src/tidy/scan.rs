//! Just enough of Rust's grammar for `tidy`: where comments and literals are, where functions begin and end.
//!
//! Invariant: `mask` keeps every byte position's line, so that line numbers of the masked text are the file's.

/// A function with a body.
#[derive(Debug, PartialEq, Eq)]
pub struct Function {
    pub name: String,
    /// Of `fn`, from 1.
    pub line: usize,
    /// Lines of the body that hold code: neither blank nor only a comment, nor only a brace at its ends.
    pub code_lines: usize,
}

/// The text with comments and the insides of literals blanked.
pub fn mask(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        let end = literal_end(bytes, at);
        if end == at {
            out.push(bytes[at]);
            at += 1;
        } else {
            out.extend(bytes[at..end].iter().map(|b| if *b == b'\n' { b'\n' } else { b' ' }));
            at = end;
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

/// The end of the comment or literal that starts at `at`; `at` itself if none does.
fn literal_end(bytes: &[u8], at: usize) -> usize {
    let rest = &bytes[at..];
    if rest.starts_with(b"//") {
        return at + rest.iter().position(|b| *b == b'\n').unwrap_or(rest.len());
    }
    if rest.starts_with(b"/*") {
        return at + block_comment(rest);
    }
    let in_word = at > 0 && is_word(bytes[at - 1]);
    if matches!(rest[0], b'r' | b'b' | b'c') && !in_word {
        let prefix = rest.iter().take(2).take_while(|b| matches!(b, b'r' | b'b' | b'c')).count();
        if rest[..prefix].contains(&b'r')
            && let Some(end) = raw_string(&rest[prefix..])
        {
            return at + prefix + end;
        }
    }
    match rest[0] {
        b'"' => at + quoted(rest, b'"'),
        b'\'' => at + character(rest),
        _ => at,
    }
}

/// Block comments nest.
fn block_comment(rest: &[u8]) -> usize {
    let (mut depth, mut at) = (0usize, 0);
    while at < rest.len() {
        if rest[at..].starts_with(b"/*") {
            depth += 1;
            at += 2;
        } else if rest[at..].starts_with(b"*/") {
            depth -= 1;
            at += 2;
            if depth == 0 {
                return at;
            }
        } else {
            at += 1;
        }
    }
    at
}

/// `#"..."#` with any number of hashes, after its `r`.
fn raw_string(rest: &[u8]) -> Option<usize> {
    let hashes = rest.iter().take_while(|b| **b == b'#').count();
    if rest.get(hashes) != Some(&b'"') {
        return None;
    }
    let close: Vec<u8> = std::iter::once(b'"').chain(std::iter::repeat_n(b'#', hashes)).collect();
    let body = hashes + 1;
    let end = rest[body..].windows(close.len()).position(|w| w == close);
    Some(end.map_or(rest.len(), |e| body + e + close.len()))
}

fn quoted(rest: &[u8], quote: u8) -> usize {
    let mut at = 1;
    while at < rest.len() {
        match rest[at] {
            b'\\' => at += 2,
            b if b == quote => return at + 1,
            _ => at += 1,
        }
    }
    rest.len()
}

/// A character literal; a lifetime (`'a`) gives 0.
fn character(rest: &[u8]) -> usize {
    if rest.get(1) == Some(&b'\\') {
        return quoted(rest, b'\'');
    }
    let first = rest.get(1).copied().unwrap_or(0);
    let width = match first {
        0xf0.. => 4,
        0xe0.. => 3,
        0xc0.. => 2,
        _ => 1,
    };
    if rest.get(1 + width) == Some(&b'\'') { width + 2 } else { 0 }
}

fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_'
}

/// Whether `word` stands in `line` with no word character beside it.
pub fn has_word(line: &str, word: &str) -> bool {
    let bytes = line.as_bytes();
    line.match_indices(word).any(|(at, _)| {
        let before = at.checked_sub(1).map(|i| bytes[i]);
        let after = bytes.get(at + word.len()).copied();
        !before.is_some_and(is_word) && !after.is_some_and(is_word)
    })
}

/// Lines before the test module of a file (all of them where there is none).
pub fn lines_before_tests(text: &str) -> usize {
    let lines: Vec<&str> = text.lines().collect();
    for (index, line) in lines.iter().enumerate() {
        if line.starts_with("#[cfg(test)]") {
            let next = lines[index + 1..].iter().find(|l| !l.trim_start().starts_with("#["));
            if next.is_some_and(|l| l.starts_with("mod ") && l.contains('{')) || line.contains("mod ") {
                return index;
            }
        }
    }
    lines.len()
}

/// Every function with a body in a masked text, nested ones too, in order.
pub fn functions(masked: &str) -> Vec<Function> {
    let bytes = masked.as_bytes();
    let mut found = Vec::new();
    for (at, _) in masked.match_indices("fn ") {
        if at > 0 && is_word(bytes[at - 1]) {
            continue;
        }
        let name: String =
            masked[at + 3..].trim_start().chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
        // `fn (` is a type; a name makes a function.
        if name.is_empty() {
            continue;
        }
        let Some(open) = body_start(bytes, at) else { continue };
        let close = body_end(bytes, open);
        let line = 1 + masked[..at].matches('\n').count();
        let code_lines = masked[open + 1..close].lines().filter(|l| !l.trim().is_empty()).count();
        found.push(Function { name, line, code_lines });
    }
    found
}

/// The brace that opens the body of the function at `at`; none for a declaration.
fn body_start(bytes: &[u8], at: usize) -> Option<usize> {
    let mut depth = 0i32;
    for (offset, byte) in bytes[at..].iter().enumerate() {
        match byte {
            b'(' | b'[' => depth += 1,
            b')' | b']' => depth -= 1,
            b';' if depth == 0 => return None,
            b'{' if depth == 0 => return Some(at + offset),
            _ => {}
        }
    }
    None
}

fn body_end(bytes: &[u8], open: usize) -> usize {
    let mut depth = 0i32;
    for (offset, byte) in bytes[open..].iter().enumerate() {
        match byte {
            b'{' => depth += 1,
            b'}' => {
                depth -= 1;
                if depth == 0 {
                    return open + offset;
                }
            }
            _ => {}
        }
    }
    bytes.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_and_literals_are_blanked_and_lines_stay() {
        let text = "let a = \"x { \\\" }\"; // { fn no() {\n/* { /* } */\n */ let b = r#\"} \" \"#; let c = '{'; let d: &'a str;\n";
        let masked = mask(text);
        assert_eq!(masked.matches('\n').count(), text.matches('\n').count());
        assert!(!masked.contains('{') && !masked.contains('}'), "{masked}");
        assert!(masked.contains("let b") && masked.contains("&'a str"), "{masked}");
    }

    #[test]
    fn prefixes_of_literals() {
        for text in ["b\"{\"", "br#\"{\"#", "c\"{\"", "b'{'", "'\\u{7b}'", "'é'", "'\\''", "r\"{\""] {
            let masked = mask(text);
            assert!(!masked.contains(['{', '}', 'é', '"']), "{text} -> {masked}");
        }
        assert_eq!(mask("for r in x {}"), "for r in x {}");
    }

    #[test]
    fn functions_are_found_with_their_lines() {
        let text = "//! x\ntrait T { fn declared(&self); }\npub async fn a<'x>(b: [u8; 3]) -> u8 where u8: Copy {\n    // only a comment\n\n    b[0]\n}\ntype F = fn (u8);\n";
        let functions = functions(&mask(text));
        assert_eq!(functions, [Function { name: "a".into(), line: 3, code_lines: 1 }]);
    }

    #[test]
    fn words_are_whole() {
        assert!(has_word("x = unsafe {", "unsafe"));
        assert!(!has_word("unsafe_code", "unsafe") && !has_word("an_unsafe", "unsafe"));
    }

    #[test]
    fn tests_begin_at_the_module() {
        assert_eq!(lines_before_tests("a\nb\n#[cfg(test)]\nmod tests {\n}\n"), 2);
        assert_eq!(lines_before_tests("a\n#[cfg(test)]\nuse x;\nb\n"), 4);
    }
}
