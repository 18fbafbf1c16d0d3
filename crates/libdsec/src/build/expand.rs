//! Variables and quotes in the arguments of instructions, as docker reads them.
//!
//! Invariants: what comes out is bounded, though each variable may hold ten of the one before; so is the depth.

use std::collections::BTreeMap;

use api::{Code, Error, Result};

/// Of one expanded word.
pub(crate) const WORD_BYTES_MAX: usize = 48 << 10;
/// `${a:-${b:-...}}`
const DEPTH_MAX: usize = 16;

pub(crate) type Variables = BTreeMap<String, String>;

/// A text with variables replaced and quotes removed. Errors: `invalid_argument`; `unsupported` for a modifier that is
/// not `:-`, `-`, `:+` or `+`.
pub(crate) fn expand(text: &str, escape: char, variables: &Variables) -> Result<String> {
    let mut reader = Reader { rest: text.chars().peekable(), escape, variables, written: 0 };
    reader.word(None, 0)
}

struct Reader<'a> {
    rest: std::iter::Peekable<std::str::Chars<'a>>,
    escape: char,
    variables: &'a Variables,
    /// All that was written, thrown away or not.
    written: usize,
}

impl Reader<'_> {
    fn put(&mut self, out: &mut String, text: &str) -> Result<()> {
        self.written += text.len();
        if self.written > WORD_BYTES_MAX {
            return Err(Error::invalid(format!("an argument is over {WORD_BYTES_MAX} bytes when expanded")));
        }
        out.push_str(text);
        Ok(())
    }

    fn put_char(&mut self, out: &mut String, c: char) -> Result<()> {
        self.put(out, c.encode_utf8(&mut [0; 4]))
    }

    /// To the end, or to the unquoted `until`, which is taken.
    fn word(&mut self, until: Option<char>, depth: usize) -> Result<String> {
        if depth > DEPTH_MAX {
            return Err(Error::invalid(format!("variables are over {DEPTH_MAX} deep in one another")));
        }
        let mut out = String::new();
        while let Some(c) = self.rest.next() {
            match c {
                c if Some(c) == until => return Ok(out),
                '\'' => self.single_quoted(&mut out)?,
                '"' => self.double_quoted(&mut out, depth)?,
                '$' => self.variable(&mut out, depth)?,
                c if c == self.escape => match self.rest.next() {
                    Some(next) => self.put_char(&mut out, next)?,
                    // It escapes nothing, and is left out as docker does.
                    None => break,
                },
                c => self.put_char(&mut out, c)?,
            }
        }
        match until {
            Some(_) => Err(Error::invalid("`${` without its `}`")),
            None => Ok(out),
        }
    }

    fn single_quoted(&mut self, out: &mut String) -> Result<()> {
        loop {
            match self.rest.next() {
                Some('\'') => return Ok(()),
                Some(c) => self.put_char(out, c)?,
                None => return Err(Error::invalid("a single quote without its end")),
            }
        }
    }

    fn double_quoted(&mut self, out: &mut String, depth: usize) -> Result<()> {
        loop {
            match self.rest.next() {
                Some('"') => return Ok(()),
                Some('$') => self.variable(out, depth)?,
                Some(c) if c == self.escape => match self.rest.next() {
                    Some(next) if next == '"' || next == '$' || next == self.escape => {
                        self.put_char(out, next)?
                    }
                    Some(next) => {
                        self.put_char(out, c)?;
                        self.put_char(out, next)?;
                    }
                    None => {}
                },
                Some(c) => self.put_char(out, c)?,
                None => return Err(Error::invalid("a double quote without its end")),
            }
        }
    }

    /// After the `$`.
    fn variable(&mut self, out: &mut String, depth: usize) -> Result<()> {
        if self.rest.peek() != Some(&'{') {
            let name = self.name();
            let value = match name.as_str() {
                "" => "$",
                name => self.variables.get(name).map_or("", String::as_str),
            };
            return self.put(out, value);
        }
        self.rest.next();
        let name = self.name();
        if name.is_empty() {
            return Err(Error::invalid("`${` without a name"));
        }
        let value = self.variables.get(&name);
        let mut modifier = self.rest.next();
        let empty_counts = modifier == Some(':');
        if empty_counts {
            modifier = self.rest.next();
        }
        let is_there = value.is_some_and(|value| !empty_counts || !value.is_empty());
        let plain = value.map_or("", String::as_str);
        match modifier {
            Some('}') if !empty_counts => self.put(out, plain),
            Some('-') => {
                let other = self.word(Some('}'), depth + 1)?;
                let other = if is_there { plain } else { &other };
                self.put(out, other)
            }
            Some('+') => {
                let other = self.word(Some('}'), depth + 1)?;
                self.put(out, if is_there { &other } else { "" })
            }
            None => Err(Error::invalid(format!("`${{{name}` without its `}}`"))),
            Some(_) => Err(Error::new(
                Code::Unsupported,
                format!("`${{{name}...}}`: only `:-`, `-`, `:+` and `+` are understood"),
            )),
        }
    }

    /// Of a variable: letters, digits and `_`; or digits; or a sign, as shells have it. Empty: none is there.
    fn name(&mut self) -> String {
        let mut name = String::new();
        match self.rest.peek() {
            Some(c) if c.is_ascii_alphabetic() || *c == '_' => {
                while let Some(c) = self.rest.next_if(|c| c.is_ascii_alphanumeric() || *c == '_') {
                    name.push(c);
                }
            }
            Some(c) if c.is_ascii_digit() => {
                while let Some(c) = self.rest.next_if(char::is_ascii_digit) {
                    name.push(c);
                }
            }
            Some(c) if "@*#?-$!".contains(*c) => name.extend(self.rest.next()),
            _ => {}
        }
        name
    }
}

/// Words that blanks part, where neither quotes nor the escape character hold them together; as they are written.
pub(crate) fn words(text: &str, escape: char) -> Vec<String> {
    let (mut words, mut word, mut quote) = (Vec::new(), String::new(), None);
    let mut rest = text.chars();
    while let Some(c) = rest.next() {
        match quote {
            None if c.is_whitespace() => {
                if !word.is_empty() {
                    words.push(std::mem::take(&mut word));
                }
                continue;
            }
            None if c == '"' || c == '\'' => quote = Some(c),
            Some(open) if c == open => quote = None,
            _ => {}
        }
        word.push(c);
        if c == escape && quote != Some('\'') {
            word.extend(rest.next());
        }
    }
    if !word.is_empty() {
        words.push(word);
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn variables() -> Variables {
        [("A", "one"), ("EMPTY", ""), ("Q", "a 'b' $A")]
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .into()
    }

    #[test]
    fn variables_are_replaced_as_docker_does() {
        for (text, wanted) in [
            ("$A-${A}x$Ax", "one-onex"),
            ("${A:-d}${NO:-d}${EMPTY:-d}", "onedd"),
            ("${A-d}${NO-d}${EMPTY-d}", "oned"),
            ("${A:+d}[${NO:+d}][${EMPTY:+d}]", "d[][]"),
            ("${A+d}[${NO+d}][${EMPTY+d}]", "d[][d]"),
            ("${NO:-${A}/${NO:-'}'}}", "one/}"),
            (r"\$A '$A' \\", r"$A $A \"),
            (r#""$A \" \$A \n" x"#, r#"one " $A \n x"#),
            ("a$ b$", "a$ b$"),
            ("$Q", "a 'b' $A"),
            ("$1$?$$x", "x"),
            ("é${A}é", "éoneé"),
        ] {
            assert_eq!(expand(text, '\\', &variables()).unwrap(), wanted, "{text}");
        }
        assert_eq!(expand(r"c:\dir `$A", '`', &variables()).unwrap(), r"c:\dir $A");
    }

    #[test]
    fn what_is_not_understood_is_refused() {
        for text in ["${A", "${", "${}", "${A:-x", "'x", "\"x", "${NO:-'}", "${A:}"] {
            let code = expand(text, '\\', &variables()).unwrap_err().code;
            assert!([Code::InvalidArgument, Code::Unsupported].contains(&code), "{text}");
        }
        for text in ["${A#x}", "${A:?x}", "${A/a/b}", "${A%x}"] {
            assert_eq!(expand(text, '\\', &variables()).unwrap_err().code, Code::Unsupported, "{text}");
        }
    }

    #[test]
    fn what_comes_out_is_bounded() {
        let large = Variables::from([("A".to_owned(), "x".repeat(10_000))]);
        assert!(expand("$A$A$A$A", '\\', &large).is_ok());
        assert!(expand("$A$A$A$A$A", '\\', &large).is_err());
        assert!(expand("${A:+${A:+${A:+$A}}}", '\\', &large).is_ok());
        let deep = format!("{}{}", "${N:-".repeat(1000), "}".repeat(1000));
        assert!(expand(&deep, '\\', &large).unwrap_err().message.contains("deep"));
    }

    #[test]
    fn words_are_parted_where_nothing_holds_them() {
        assert_eq!(words(r#" a="x y" b='1 "2' c\ d  e "#, '\\'), ["a=\"x y\"", "b='1 \"2'", r"c\ d", "e"]);
    }

    proptest! {
        #[test]
        fn no_text_makes_it_panic_or_grow(text in "[${}:+'\"\\\\A-C_ a\u{e9}-]{0,60}") {
            if let Ok(out) = expand(&text, '\\', &variables()) {
                prop_assert!(out.len() <= WORD_BYTES_MAX);
            }
            let glued: String = words(&text, '\\').concat();
            prop_assert!(glued.len() <= text.len());
        }
    }
}
