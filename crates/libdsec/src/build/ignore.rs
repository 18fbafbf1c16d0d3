//! `.dockerignore`: which names of a context are as if they were not there.

use api::{Error, Result};
use globset::{GlobBuilder, GlobMatcher};

/// Of the file, and its lines.
pub(crate) const BYTES_MAX: usize = 1 << 20;
const PATTERNS_MAX: usize = 4096;

/// The last pattern that matches a name, or a directory above it, decides.
#[derive(Debug, Default)]
pub(crate) struct Ignore {
    patterns: Vec<Pattern>,
}

#[derive(Debug)]
struct Pattern {
    matches: GlobMatcher,
    /// `!`: what it matches is there.
    keeps: bool,
}

/// A pattern as docker has them: `*` and `?` within a name, `[a-z]`, `**` over any number of directories.
pub(crate) fn glob(pattern: &str) -> Result<GlobMatcher> {
    // Alternatives in braces are not among them.
    let mut plain = String::new();
    let mut rest = pattern.chars();
    while let Some(c) = rest.next() {
        match c {
            '{' | '}' => plain.extend(['[', c, ']']),
            '\\' => plain.extend(std::iter::once(c).chain(rest.next())),
            c => plain.push(c),
        }
    }
    let built = GlobBuilder::new(&plain).literal_separator(true).backslash_escape(true).build();
    let built = built.map_err(|e| Error::invalid(format!("the pattern `{pattern}`: {}", e.kind())))?;
    Ok(built.compile_matcher())
}

/// A name below the context: no empty parts, no `.`; `..` takes one part away, and stops at the top.
pub(crate) fn clean(path: &str) -> String {
    let mut parts = Vec::new();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    parts.join("/")
}

impl Ignore {
    /// Errors: `invalid_argument`.
    pub(crate) fn parse(text: &str) -> Result<Self> {
        if text.len() > BYTES_MAX {
            return Err(Error::invalid(format!(".dockerignore is over {BYTES_MAX} bytes")));
        }
        let mut patterns = Vec::new();
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            let line = line.trim();
            let (keeps, name) = line.strip_prefix('!').map_or((false, line), |kept| (true, kept.trim()));
            let name = clean(name);
            if name.is_empty() {
                continue;
            }
            let matches = glob(&name).map_err(|e| Error::invalid(format!(".dockerignore: {}", e.message)))?;
            patterns.push(Pattern { matches, keeps });
            if patterns.len() > PATTERNS_MAX {
                return Err(Error::invalid(format!(".dockerignore has over {PATTERNS_MAX} patterns")));
            }
        }
        Ok(Self { patterns })
    }

    /// `name` is relative to the context.
    pub(crate) fn hides(&self, name: &str) -> bool {
        let ends = name.match_indices('/').map(|(at, _)| at).chain([name.len()]);
        let names: Vec<&str> = ends.map(|end| &name[..end]).collect();
        let decides = |pattern: &&Pattern| names.iter().any(|name| pattern.matches.is_match(name));
        self.patterns.iter().rev().find(decides).is_some_and(|pattern| !pattern.keeps)
    }

    /// Whether something below a hidden directory may be there all the same.
    pub(crate) fn keeps_any(&self) -> bool {
        self.patterns.iter().any(|pattern| pattern.keeps)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_last_pattern_decides() {
        let text = "# comment\n*.log\n!keep.log\n/build/\n**/node_modules\ndocs\n!docs/README.md\na?c\n  [xy].md \n{1,2}\n\n.git/**";
        let ignore = Ignore::parse(text).unwrap();
        for hidden in [
            "x.log",
            "build",
            "build/a/b",
            "node_modules",
            "a/b/node_modules/c",
            "docs",
            "docs/other",
            "abc",
            "x.md",
            "{1,2}",
            ".git/config",
        ] {
            assert!(ignore.hides(hidden), "{hidden}");
        }
        for there in
            ["keep.log", "a/x.log", "a/build", "docs/README.md", "ac", "a/c", "z.md", "1", "# comment"]
        {
            assert!(!ignore.hides(there), "{there}");
        }
        assert!(!Ignore::default().hides("x"));
        assert!(
            Ignore::parse("*\n!src").unwrap().hides("x") && !Ignore::parse("*\n!src").unwrap().hides("src/a")
        );
        assert_eq!((clean("/a/./b//../c/"), clean("../..")), ("a/c".into(), String::new()));
    }

    proptest! {
        #[test]
        fn no_file_makes_it_panic(text in "[!*?a-c\\[\\]{}/\\\\.# \n]{0,60}", name in "[a-c/.]{0,20}") {
            if let Ok(ignore) = Ignore::parse(&text) {
                let _ = ignore.hides(&name);
            }
        }
    }
}
