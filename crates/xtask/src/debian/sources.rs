//! Reads the apt sources of this machine: both forms, one line (`deb URI suite main`) and deb822 (`URIs: ...`).
//!
//! Only the suites of the machine's own Debian release are taken, so that third parties' packages stay out of images.

use std::{fs, path::PathBuf};

use anyhow::{Context, Result, bail};

/// One line of a sources list, taken apart.
#[derive(Debug, PartialEq, Eq)]
struct Source {
    signed_by: Option<String>,
    uri: String,
    suite: String,
    components: String,
}

impl Source {
    fn line(&self) -> String {
        let options = self.signed_by.as_ref().map(|key| format!("[signed-by={key}] ")).unwrap_or_default();
        format!("deb {options}{} {} {}\n", self.uri, self.suite, self.components)
    }
    fn is_of(&self, suite: &str) -> bool {
        let ours = self.suite == suite
            || self.suite.strip_prefix(suite).is_some_and(|rest| matches!(rest, "-updates" | "-security"))
            || self.suite == format!("{suite}/updates");
        ours && self.components.split_whitespace().any(|c| c == "main")
    }
}

/// The release name of this machine's Debian.
pub fn this_suite() -> Result<String> {
    host_suite(&fs::read_to_string("/etc/os-release").context("cannot read /etc/os-release")?)
}

fn host_suite(os_release: &str) -> Result<String> {
    let field = |name: &str| {
        let line = os_release.lines().find_map(|l| l.strip_prefix(name)?.strip_prefix('='));
        line.map(|v| v.trim_matches('"').to_owned())
    };
    if field("ID").as_deref() != Some("debian") {
        bail!("images are built from Debian packages, on Debian: /etc/os-release says {:?}", field("ID"));
    }
    field("VERSION_CODENAME").context("/etc/os-release names no VERSION_CODENAME")
}

/// The lines for `suite` of all of apt's sources on this machine.
pub fn of_this_machine(suite: &str) -> Result<String> {
    let mut files = vec![PathBuf::from("/etc/apt/sources.list")];
    if let Ok(entries) = fs::read_dir("/etc/apt/sources.list.d") {
        files.extend(entries.flatten().map(|e| e.path()));
    }
    files.sort();
    let mut lines = String::new();
    for file in files {
        let Ok(text) = fs::read_to_string(&file) else { continue };
        let sources = match file.extension().and_then(|e| e.to_str()) {
            Some("list") => parse_list(&text),
            Some("sources") => parse_deb822(&text),
            _ => continue,
        };
        lines.extend(sources.iter().filter(|s| s.is_of(suite)).map(Source::line));
    }
    if lines.is_empty() {
        bail!("apt's sources on this machine name no Debian {suite} with component main");
    }
    Ok(lines)
}

/// The lines for `suite` and for its backports, which are on the same mirrors.
pub fn with_backports(suite: &str) -> Result<String> {
    let own = of_this_machine(suite)?;
    let of_release = own.lines().filter(|line| line.split(' ').any(|word| word == suite));
    let backports: String = of_release
        .map(|l| l.replace(&format!(" {suite} "), &format!(" {suite}-backports ")) + "\n")
        .collect();
    Ok(own + &backports)
}

fn parse_list(text: &str) -> Vec<Source> {
    text.lines().filter_map(parse_line).collect()
}

fn parse_line(line: &str) -> Option<Source> {
    let rest = line.split('#').next()?.trim().strip_prefix("deb")?;
    let rest = rest.strip_prefix([' ', '\t'])?.trim_start();
    let (options, rest) = match rest.strip_prefix('[') {
        Some(rest) => rest.split_once(']')?,
        None => ("", rest),
    };
    let signed_by = options.split_whitespace().find_map(|o| o.strip_prefix("signed-by=")).map(str::to_owned);
    let mut words = rest.split_whitespace();
    let (uri, suite) = (words.next()?.to_owned(), words.next()?.to_owned());
    Some(Source { signed_by, uri, suite, components: words.collect::<Vec<_>>().join(" ") })
}

fn parse_deb822(text: &str) -> Vec<Source> {
    let mut sources = Vec::new();
    let text: Vec<_> = text.lines().filter(|l| !l.starts_with('#')).map(str::trim_end).collect();
    for stanza in text.split(|l| l.is_empty()) {
        let field = |name: &str| {
            let value = stanza.iter().find_map(|l| l.strip_prefix(name)?.strip_prefix(':'));
            value.map(|v| v.trim().to_owned())
        };
        let off = field("Enabled").is_some_and(|v| v == "no");
        let binary = field("Types").is_some_and(|t| t.split_whitespace().any(|t| t == "deb"));
        let (Some(uris), Some(suites), Some(components)) =
            (field("URIs"), field("Suites"), field("Components"))
        else {
            continue;
        };
        if off || !binary {
            continue;
        }
        // A key may also be written out in the stanza; only a file's name fits in one line.
        let signed_by = field("Signed-By").filter(|s| s.starts_with('/'));
        for uri in uris.split_whitespace() {
            for suite in suites.split_whitespace() {
                let (uri, suite, components) = (uri.to_owned(), suite.to_owned(), components.clone());
                sources.push(Source { signed_by: signed_by.clone(), uri, suite, components });
            }
        }
    }
    sources
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_with_and_without_options() {
        let text = "# a comment\ndeb http://a.test/debian bookworm main contrib # why\n\
                    deb [arch=amd64 signed-by=/k.gpg] http://b.test/x bookworm-security main\n\
                    deb-src http://a.test/debian bookworm main\n";
        let sources = parse_list(text);
        assert_eq!(sources.len(), 2);
        assert_eq!(sources[0].line(), "deb http://a.test/debian bookworm main contrib\n");
        assert_eq!(sources[1].line(), "deb [signed-by=/k.gpg] http://b.test/x bookworm-security main\n");
    }

    #[test]
    fn stanzas_multiply_and_can_be_off() {
        let text = "Types: deb\n# old\nURIs: http://a.test/debian\nSuites: bookworm bookworm-updates\nComponents: main\n\
                    Signed-By: /k.gpg\n\nTypes: deb\nURIs: http://c.test\nSuites: nodistro\nComponents: main\n\n\
                    Enabled: no\nTypes: deb\nURIs: http://d.test\nSuites: bookworm\nComponents: main\n";
        let sources = parse_deb822(text);
        assert_eq!(sources.len(), 3);
        let ours: Vec<_> = sources.iter().filter(|s| s.is_of("bookworm")).map(|s| s.suite.as_str()).collect();
        assert_eq!(ours, ["bookworm", "bookworm-updates"]);
    }

    #[test]
    fn only_debian_has_a_suite() {
        assert_eq!(host_suite("ID=debian\nVERSION_CODENAME=bookworm\n").unwrap(), "bookworm");
        assert!(host_suite("ID=ubuntu\nVERSION_CODENAME=noble\n").is_err());
    }
}
