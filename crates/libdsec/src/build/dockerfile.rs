//! What the instructions of a Dockerfile are. All that is not supported is refused here, by its name and line.
//!
//! Nothing is expanded yet: that needs the base's environment.

use std::collections::BTreeSet;

use api::{Code, Error, Result};

use super::{
    expand::words,
    lines::{self, Line, refuse},
};

/// Those that say how a container is started: `Build::skip` may leave them out. A sandbox runs what it is asked to.
pub const SKIPPABLE: [&str; 6] = ["CMD", "ENTRYPOINT", "HEALTHCHECK", "STOPSIGNAL", "VOLUME", "MAINTAINER"];

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Dockerfile {
    pub(crate) escape: char,
    /// ARGs before the FROM.
    pub(crate) arguments: Vec<Instruction>,
    /// As it is written; its line.
    pub(crate) from: (usize, String),
    pub(crate) instructions: Vec<Instruction>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Instruction {
    pub(crate) line: usize,
    /// To show it.
    pub(crate) text: String,
    pub(crate) verb: Verb,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Verb {
    /// Names, with their defaults.
    Arg(Vec<(String, Option<String>)>),
    Env(Vec<(String, String)>),
    Label(Vec<(String, String)>),
    Expose(String),
    User(String),
    Workdir(String),
    Run(Run),
    Copy(Copy),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Run {
    Shell(String),
    Argv(Vec<String>),
}

/// COPY and ADD.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Copy {
    pub(crate) sources: Vec<String>,
    pub(crate) to: String,
    pub(crate) chown: Option<String>,
    pub(crate) chmod: Option<String>,
    /// ADD: a tar is unpacked.
    pub(crate) unpacks: bool,
}

/// Errors: `invalid_argument` for what makes no sense, `unsupported` for what docker would understand; with the line.
pub(crate) fn parse(text: &str, skip: &BTreeSet<String>) -> Result<Dockerfile> {
    if let Some(other) = skip.iter().find(|word| !SKIPPABLE.contains(&word.as_str())) {
        let all = SKIPPABLE.join(", ");
        return Err(Error::invalid(format!("skip: `{other}` cannot be left out: only {all}")));
    }
    let lines::Text { lines, escape } = lines::split(text)?;
    let (mut arguments, mut from, mut instructions) = (Vec::new(), None, Vec::new());
    for line in lines {
        if skip.contains(&line.word) {
            continue;
        }
        if line.word == "FROM" {
            if from.is_some() {
                return Err(refuse(
                    line.number,
                    Code::Unsupported,
                    "a second FROM: builds of several stages",
                ));
            }
            from = Some((line.number, base(&line)?));
            continue;
        }
        let instruction = Instruction {
            line: line.number,
            text: format!("{} {}", line.word, line.rest),
            verb: verb(&line, escape)?,
        };
        match (&from, &instruction.verb) {
            (Some(_), _) => instructions.push(instruction),
            (None, Verb::Arg(_)) => arguments.push(instruction),
            (None, _) => {
                let why = format!("{} before FROM", line.word);
                return Err(refuse(line.number, Code::InvalidArgument, why));
            }
        }
    }
    let from = from.ok_or_else(|| Error::invalid("the Dockerfile has no FROM"))?;
    Ok(Dockerfile { escape, arguments, from, instructions })
}

/// The image of a FROM.
fn base(line: &Line) -> Result<String> {
    let (flags, rest) = flags(line)?;
    if let Some((name, _)) = flags.first() {
        return Err(unsupported(line, format!("FROM --{name}")));
    }
    let words: Vec<&str> = rest.split_whitespace().collect();
    match words.as_slice() {
        [image] => Ok((*image).to_owned()),
        [image, word, _] if word.eq_ignore_ascii_case("as") => Ok((*image).to_owned()),
        _ => Err(invalid(line, "expected `FROM IMAGE` or `FROM IMAGE AS NAME`")),
    }
}

fn verb(line: &Line, escape: char) -> Result<Verb> {
    if line.rest.is_empty() {
        return Err(invalid(line, format!("{} without arguments, or no instruction", line.word)));
    }
    let rest = line.rest.as_str();
    Ok(match line.word.as_str() {
        "ARG" => Verb::Arg(arguments(line, escape)?),
        "ENV" => Verb::Env(pairs(line, escape)?),
        "LABEL" => Verb::Label(pairs(line, escape)?),
        "EXPOSE" => Verb::Expose(rest.to_owned()),
        "USER" => Verb::User(rest.to_owned()),
        "WORKDIR" => Verb::Workdir(rest.to_owned()),
        "RUN" => Verb::Run(run(line)?),
        "COPY" => Verb::Copy(copy(line, false)?),
        "ADD" => Verb::Copy(copy(line, true)?),
        word if SKIPPABLE.contains(&word) => {
            let why = format!("{word}: a sandbox runs what it is asked to; `--skip {word}` leaves it out");
            return Err(refuse(line.number, Code::Unsupported, why));
        }
        "SHELL" | "ONBUILD" => return Err(unsupported(line, &line.word)),
        word => return Err(invalid(line, format!("`{}` is no instruction", word.escape_debug()))),
    })
}

fn invalid(line: &Line, why: impl std::fmt::Display) -> Error {
    refuse(line.number, Code::InvalidArgument, why)
}

fn unsupported(line: &Line, what: impl std::fmt::Display) -> Error {
    refuse(line.number, Code::Unsupported, format!("{what} is not supported"))
}

/// `--name=value` at the beginning, and what follows.
fn flags(line: &Line) -> Result<(Vec<(&str, &str)>, &str)> {
    let (mut flags, mut rest) = (Vec::new(), line.rest.as_str());
    while let Some(flag) = rest.strip_prefix("--") {
        let (flag, after) = flag.split_once(char::is_whitespace).unwrap_or((flag, ""));
        rest = after.trim_start();
        if flag.is_empty() {
            break;
        }
        let (name, value) = flag.split_once('=').unwrap_or((flag, ""));
        if flags.iter().any(|(other, _)| *other == name) {
            return Err(invalid(line, format!("--{name} a second time")));
        }
        flags.push((name, value));
    }
    Ok((flags, rest))
}

/// The JSON form; None where it is the other one.
fn argv(rest: &str) -> Option<Vec<String>> {
    if rest.starts_with('[') { serde_json::from_str(rest).ok() } else { None }
}

/// `<<WORD`: the lines that follow would be its content.
fn check_no_heredoc(line: &Line, rest: &str) -> Result<()> {
    let opens = |word: &str| {
        let Some(after) = word.trim_start_matches(|c: char| c.is_ascii_digit()).strip_prefix("<<") else {
            return false;
        };
        let after = after.strip_prefix('-').unwrap_or(after).trim_start_matches(['"', '\'']);
        after.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
    };
    match rest.split_whitespace().find(|word| opens(word)) {
        Some(word) => Err(unsupported(line, format!("the heredoc `{word}`"))),
        None => Ok(()),
    }
}

fn run(line: &Line) -> Result<Run> {
    let (flags, rest) = flags(line)?;
    if let Some((name, _)) = flags.first() {
        return Err(unsupported(line, format!("RUN --{name}")));
    }
    check_no_heredoc(line, rest)?;
    match argv(rest) {
        Some(argv) if argv.first().is_none_or(String::is_empty) => Err(invalid(line, "RUN of nothing")),
        Some(argv) => Ok(Run::Argv(argv)),
        None if rest.is_empty() => Err(invalid(line, "RUN of nothing")),
        None => Ok(Run::Shell(rest.to_owned())),
    }
}

fn copy(line: &Line, unpacks: bool) -> Result<Copy> {
    let (flags, rest) = flags(line)?;
    let (mut chown, mut chmod) = (None, None);
    for (name, value) in flags {
        match name {
            "chown" => chown = Some(value.to_owned()),
            "chmod" => chmod = Some(value.to_owned()),
            name => return Err(unsupported(line, format!("{} --{name}", line.word))),
        }
    }
    check_no_heredoc(line, rest)?;
    let split = || rest.split_whitespace().map(str::to_owned).collect();
    let mut sources: Vec<String> = argv(rest).unwrap_or_else(split);
    let to = sources.pop().unwrap_or_default();
    if sources.is_empty() || to.is_empty() || sources.iter().any(String::is_empty) {
        return Err(invalid(line, format!("expected `{} SOURCE... DESTINATION`", line.word)));
    }
    let is_remote = |source: &&String| {
        let source = source.to_ascii_lowercase();
        source.contains("://") || source.starts_with("git@")
    };
    if unpacks && let Some(source) = sources.iter().find(is_remote) {
        return Err(unsupported(line, format!("ADD of the remote `{source}`")));
    }
    Ok(Copy { sources, to, chown, chmod, unpacks })
}

fn arguments(line: &Line, escape: char) -> Result<Vec<(String, Option<String>)>> {
    let parts = words(&line.rest, escape).into_iter().map(|word| {
        let (name, default) = match word.split_once('=') {
            Some((name, default)) => (name.to_owned(), Some(default.to_owned())),
            None => (word, None),
        };
        let is_name = name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
            && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
        match is_name {
            true => Ok((name, default)),
            false => Err(invalid(line, format!("ARG: `{}` is no name", name.escape_debug()))),
        }
    });
    parts.collect()
}

/// `A=b C="d e"`, or the old form `A the rest`, which is one pair.
fn pairs(line: &Line, escape: char) -> Result<Vec<(String, String)>> {
    let all = words(&line.rest, escape);
    let is_old = all.first().is_some_and(|word| !word.contains('='));
    if is_old {
        let (name, value) = line.rest.split_once(char::is_whitespace).unwrap_or((&line.rest, ""));
        let value = value.trim_start();
        return match value.is_empty() {
            true => Err(invalid(line, format!("{} {name} without a value", line.word))),
            false => Ok(vec![(name.to_owned(), value.to_owned())]),
        };
    }
    let pair = |word: String| match word.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err(invalid(line, format!("{}: `{}` is no NAME=VALUE", line.word, word.escape_debug()))),
    };
    all.into_iter().map(pair).collect()
}

#[cfg(test)]
mod tests;
