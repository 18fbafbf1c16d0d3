//! `cargo xtask tidy`: the rules of the source that no compiler holds. Each rule is a function from a file to findings.
//!
//! A finding is `file:line: what to do about it`. Crate edges are held by `arch`, which `tidy` calls as well.

pub mod scan;

use std::fs;

use anyhow::{Context, Result, bail};

use crate::{arch, step};

const FILE_LINES_MAX: usize = 600;
const FUNCTION_LINES_MAX: usize = 70;
/// How far above an `unsafe` its SAFETY line may stand: a comment of a few lines and an attribute.
const SAFETY_LINES_ABOVE: usize = 8;
/// Names that say nothing.
const NAMES_BANNED: &[&str] = &["utils", "util", "common", "helpers", "helper", "misc", "manager"];
/// What only this or that machine has. In halves, so that this file is clean itself.
const STRINGS_BANNED: &[(&str, &str)] = &[
    ("/work/", "main"),
    ("/work/", "shared"),
    ("/tmp/", "dsec/"),
    ("deb.debian", ".org"),
    ("security.debian", ".org"),
    ("pypi", ".org"),
    ("pythonhosted", ".org"),
    ("index.crates", ".io"),
    ("static.crates", ".io"),
    ("registry.npmjs", ".org"),
    ("proxy.golang", ".org"),
];

pub fn run() -> Result<()> {
    let mut findings = Vec::new();
    let mut count = 0;
    for file in step::files("")? {
        let bytes = fs::read(step::root().join(&file)).with_context(|| format!("cannot read {file}"))?;
        let Ok(text) = String::from_utf8(bytes) else { continue };
        count += 1;
        check_file(&file, &text, &mut findings);
    }
    findings.extend(arch::check_edges()?);
    for finding in &findings {
        println!("{finding}");
    }
    if !findings.is_empty() {
        bail!("tidy: {} findings", findings.len());
    }
    println!("tidy: {count} files, nothing to say");
    Ok(())
}

/// Every rule on one file.
fn check_file(file: &str, text: &str, findings: &mut Vec<String>) {
    if file != "Cargo.lock" {
        check_strings(file, text, findings);
    }
    if !file.ends_with(".rs") {
        return;
    }
    check_name(file, findings);
    if !text.starts_with("//!") {
        findings.push(format!("{file}:1: opens with no `//!`: say what it is, why here, its invariants"));
    }
    let masked = scan::mask(text);
    check_lengths(file, text, &masked, findings);
    check_unsafe(file, text, &masked, findings);
    check_unwrap(file, text, &masked, findings);
    check_stubs(file, &masked, findings);
}

/// Integration tests, benches, examples and fuzz targets: no limit of length, and they may unwrap.
fn is_test_file(file: &str) -> bool {
    file.split('/').any(|part| matches!(part, "tests" | "benches" | "examples" | "fuzz"))
        || file.ends_with("/tests.rs")
        || file.ends_with("/build.rs")
}

fn check_strings(file: &str, text: &str, findings: &mut Vec<String>) {
    for (number, line) in text.lines().enumerate() {
        for (head, tail) in STRINGS_BANNED {
            if line.contains(&[*head, *tail].concat()) {
                findings.push(format!(
                    "{file}:{}: names a place that others do not have: {head}{tail}",
                    number + 1
                ));
            }
        }
    }
}

fn check_name(file: &str, findings: &mut Vec<String>) {
    if file.ends_with("/mod.rs") {
        findings.push(format!("{file}:1: no mod.rs: name it after its module, `foo.rs` beside `foo/`"));
    }
    for part in file.split('/') {
        let stem = part.strip_suffix(".rs").unwrap_or(part);
        if NAMES_BANNED.contains(&stem) {
            findings.push(format!("{file}:1: `{stem}` says nothing: name it after what it does"));
        }
    }
}

fn check_lengths(file: &str, text: &str, masked: &str, findings: &mut Vec<String>) {
    if is_test_file(file) {
        return;
    }
    let lines = scan::lines_before_tests(text);
    if lines > FILE_LINES_MAX {
        findings.push(format!(
            "{file}:1: {lines} lines without tests, at most {FILE_LINES_MAX}: split it by what it does"
        ));
    }
    for function in scan::functions(masked) {
        if function.line <= lines && function.code_lines > FUNCTION_LINES_MAX {
            let scan::Function { name, line, code_lines } = function;
            findings.push(format!(
                "{file}:{line}: `{name}` has {code_lines} lines, at most {FUNCTION_LINES_MAX}"
            ));
        }
    }
}

fn check_unsafe(file: &str, text: &str, masked: &str, findings: &mut Vec<String>) {
    let lines: Vec<&str> = text.lines().collect();
    for (index, line) in masked.lines().enumerate() {
        if !scan::has_word(line, "unsafe") {
            continue;
        }
        if !file.starts_with("crates/linux/") {
            findings.push(format!("{file}:{}: `unsafe` lives in crate `linux` only", index + 1));
            continue;
        }
        let above = &lines[index.saturating_sub(SAFETY_LINES_ABOVE)..=index];
        if !above.iter().any(|l| l.contains("SAFETY:") || l.contains("# Safety")) {
            findings.push(format!("{file}:{}: `unsafe` without a `// SAFETY:` line above it", index + 1));
        }
    }
}

fn check_unwrap(file: &str, text: &str, masked: &str, findings: &mut Vec<String>) {
    if is_test_file(file) {
        return;
    }
    let lines = scan::lines_before_tests(text);
    for (index, line) in masked.lines().enumerate().take(lines) {
        if line.contains(".unwrap()") {
            findings.push(format!(
                "{file}:{}: `.unwrap()` outside tests: return an error, or `expect` the why",
                index + 1
            ));
        }
    }
}

fn check_stubs(file: &str, masked: &str, findings: &mut Vec<String>) {
    for (index, line) in masked.lines().enumerate() {
        for stub in [["todo", "!("], ["unimplemented", "!("], ["#[", "ignore"]] {
            if line.contains(&stub.concat()) {
                findings.push(format!("{file}:{}: work left undone: {}", index + 1, stub.concat()));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(file: &str, text: &str) -> Vec<String> {
        let mut findings = Vec::new();
        check_file(file, text, &mut findings);
        findings
    }

    #[test]
    fn a_clean_file_has_no_findings() {
        let text = "//! What.\nfn a() -> &'static str {\n    \"unsafe .unwrap()\" // unsafe\n}\n\
                    #[cfg(test)]\nmod tests {\n    fn b() { None::<u8>.unwrap(); }\n}\n";
        assert_eq!(findings("crates/edge/src/a.rs", text), Vec::<String>::new());
    }

    #[test]
    fn each_rule_finds_its_breach() {
        let long_fn = format!("//! x\nfn a() {{\n{}}}\n", "    b();\n".repeat(71));
        let long_file = format!("//! x\n{}", "const A: u8 = 0;\n".repeat(600));
        for (file, text, part) in [
            ("crates/a/src/a.rs", "fn a() {}\n", "`//!`"),
            ("crates/a/src/a.rs", "//! x\nfn a() { unsafe { b() } }\n", "crate `linux` only"),
            ("crates/linux/src/a.rs", "//! x\nfn a() { unsafe { b() } }\n", "SAFETY"),
            ("crates/a/src/a.rs", "//! x\nfn a() { b().unwrap() }\n", "unwrap"),
            ("crates/a/src/utils.rs", "//! x\n", "says nothing"),
            ("crates/a/src/a/mod.rs", "//! x\n", "no mod.rs"),
            ("crates/a/src/a.rs", long_fn.as_str(), "71 lines"),
            ("crates/a/src/a.rs", long_file.as_str(), "601 lines"),
        ] {
            let found = findings(file, text);
            assert_eq!(found.len(), 1, "{file}: {found:?}");
            assert!(found[0].contains(part), "{found:?}");
        }
        let host = ["see deb.debian", ".org\n"].concat();
        assert_eq!(findings("README.md", &host).len(), 1);
    }

    #[test]
    fn a_safety_line_satisfies() {
        let text = "//! x\nfn a() {\n    // SAFETY: b has no precondition.\n    unsafe { b() }\n}\n";
        assert_eq!(findings("crates/linux/src/a.rs", text), Vec::<String>::new());
    }
}
