//! `cargo xtask path <verb>`: each file of a verb's road, with the line of its entry function.
//!
//! Works by the rule that the same verb has the same file name at every hop.

use std::fs;

use anyhow::{Result, bail};

use crate::{step, tidy::scan};

/// The order of the hops; a crate that is not here comes last.
const HOPS: &[&str] =
    &["dsec", "libdsec", "e2b", "swerex", "apiserver", "edge", "image", "runtime", "aether", "linux", "api"];

pub fn run(verb: &str) -> Result<()> {
    if verb.is_empty() || !verb.chars().all(|c| c.is_ascii_lowercase() || c == '_') {
        bail!("{verb:?} is no verb; try create, exec or stop");
    }
    let mut files = step::files(&format!("crates/*/{verb}.rs"))?;
    files.retain(|f| f.contains("/src/"));
    if files.is_empty() {
        bail!("no file is named {verb}.rs");
    }
    files.sort_by_key(|f| (hop(f), f.clone()));
    for file in files {
        let text = fs::read_to_string(step::root().join(&file))?;
        match entry(&text, verb) {
            Some((line, head)) => println!("{file}:{line}  {head}"),
            None => println!("{file}:1  (no function)"),
        }
    }
    Ok(())
}

fn hop(file: &str) -> usize {
    let name = file.split('/').nth(1).unwrap_or_default();
    HOPS.iter().position(|h| *h == name).unwrap_or(HOPS.len())
}

/// The first public function whose name holds the verb, else the first public one, else the first: its line and head.
fn entry(text: &str, verb: &str) -> Option<(usize, String)> {
    let masked = scan::mask(text);
    let functions = scan::functions(&masked);
    let lines: Vec<&str> = text.lines().collect();
    let head = |line: usize| lines.get(line - 1).map_or("", |l| l.trim());
    let tests = scan::lines_before_tests(text);
    let ours = || functions.iter().filter(|f| f.line <= tests);
    let is_public = |line: usize| head(line).starts_with("pub");
    let found = ours()
        .find(|f| is_public(f.line) && f.name.contains(verb))
        .or_else(|| ours().find(|f| f.name.contains(verb)))
        .or_else(|| ours().find(|f| is_public(f.line)))
        .or_else(|| ours().next())?;
    Some((found.line, head(found.line).trim_end_matches('{').trim_end().to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_entry_is_the_public_function_of_the_verb() {
        let text =
            "//! x\nfn plan() {}\npub fn other() {}\npub async fn create_all(n: u32) -> u32 {\n    n\n}\n";
        assert_eq!(entry(text, "create"), Some((4, "pub async fn create_all(n: u32) -> u32".into())));
        assert_eq!(entry(text, "stop"), Some((3, "pub fn other() {}".into())));
        assert_eq!(entry("//! only types\n", "stop"), None);
    }

    #[test]
    fn hops_follow_the_request() {
        assert!(hop("crates/libdsec/src/sandbox/create.rs") < hop("crates/edge/src/sandbox/create.rs"));
        assert!(hop("crates/runtime/src/container/create.rs") < hop("crates/unknown/src/create.rs"));
    }
}
