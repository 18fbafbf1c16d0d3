//! What is executed: argument vector, environment, candidates of the PATH. Pure.

use std::{
    collections::BTreeMap,
    ffi::{CString, OsStr},
    os::unix::ffi::OsStrExt,
};

use api::{
    exec::{Command, PATH_DEFAULT},
    limit,
};

use crate::account::Account;

const SHELL: &str = "/bin/sh";

/// The argument vector of `command`.
///
/// A shell text beyond what the kernel takes as one argument is given in parts that the shell joins; it sees no
/// difference: `$0`, `$#`, line numbers, stdin and descriptors are as with `sh -c`.
pub fn argv(command: &Command) -> Vec<String> {
    match command {
        Command::Argv(argv) => argv.clone(),
        Command::Shell(text) if text.len() < limit::ARGUMENT_BYTES_MAX => {
            vec![SHELL.into(), "-c".into(), text.clone()]
        }
        Command::Shell(text) => {
            let parts = split(text, limit::ARGUMENT_BYTES_MAX - 1);
            let joined: String = (1..=parts.len()).map(|n| format!("${{{n}}}")).collect();
            let mut argv =
                vec![SHELL.into(), "-c".into(), format!("eval \"set --; {joined}\""), SHELL.into()];
            argv.extend(parts);
            argv
        }
    }
}

fn split(text: &str, bytes_max: usize) -> Vec<String> {
    let mut parts = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        let (part, after) = rest.split_at(rest.floor_char_boundary(bytes_max));
        parts.push(part.to_owned());
        rest = after;
    }
    parts
}

/// The sandbox's environment, the user's own, what is missing, and the request's over all.
pub fn env(
    sandbox: &BTreeMap<String, String>,
    account: &Account,
    pty: bool,
    request: &BTreeMap<String, String>,
) -> BTreeMap<String, String> {
    let mut env = sandbox.clone();
    for (key, value) in [("USER", &account.name), ("LOGNAME", &account.name), ("SHELL", &account.shell)] {
        env.insert(key.into(), value.clone());
    }
    env.insert("HOME".into(), account.home.clone());
    let mut ensure = |key: &str, value: &str| {
        env.entry(key.into()).or_insert_with(|| value.into());
    };
    ensure("PATH", PATH_DEFAULT);
    // Not the C locale: Python and others would choke on the first non-ASCII byte.
    ensure("LANG", "C.UTF-8");
    if pty {
        ensure("TERM", "xterm-256color");
    }
    env.extend(request.iter().map(|(k, v)| (k.clone(), v.clone())));
    env
}

/// Where `program` may be, in order: itself if it has a slash, else in each directory of the PATH.
pub fn candidates(program: &str, env: &BTreeMap<String, String>) -> Vec<CString> {
    let paths: Vec<Vec<u8>> = if program.contains('/') {
        vec![program.into()]
    } else {
        let path = env.get("PATH").map_or(PATH_DEFAULT, String::as_str);
        path.split(':')
            .map(|dir| if dir.is_empty() { program.into() } else { format!("{dir}/{program}").into_bytes() })
            .collect()
    };
    paths.into_iter().filter_map(|p| CString::new(p).ok()).collect()
}

/// C strings of texts that were checked to hold no NUL.
pub fn c_strings<S: AsRef<OsStr>>(texts: impl IntoIterator<Item = S>) -> Vec<CString> {
    texts.into_iter().filter_map(|t| CString::new(t.as_ref().as_bytes()).ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_shell_text_is_split_at_characters_and_joined() {
        let text = "é".repeat(100_000);
        let argv = argv(&Command::Shell(text.clone()));
        assert_eq!(argv[2], "eval \"set --; ${1}${2}\"");
        assert_eq!(argv[4..].concat(), text);
        assert!(argv.iter().all(|a| a.len() < limit::ARGUMENT_BYTES_MAX));
    }

    #[test]
    fn env_goes_from_the_sandbox_over_the_user_to_the_request() {
        let map = |pairs: &[(&str, &str)]| -> BTreeMap<String, String> {
            pairs.iter().map(|(k, v)| ((*k).into(), (*v).into())).collect()
        };
        let env = env(
            &map(&[("A", "1"), ("B", "1"), ("HOME", "/x")]),
            &Account::root(),
            false,
            &map(&[("B", "2")]),
        );
        assert_eq!((env["A"].as_str(), env["B"].as_str(), env["HOME"].as_str()), ("1", "2", "/"));
        assert_eq!((env["PATH"].as_str(), env["LANG"].as_str()), (PATH_DEFAULT, "C.UTF-8"));
        assert!(!env.contains_key("TERM"));
    }

    #[test]
    fn the_path_of_the_exec_itself_decides() {
        let env = [("PATH".to_owned(), "/a::/b".to_owned())].into();
        let names: Vec<_> = candidates("x", &env).into_iter().map(|c| c.into_string().unwrap()).collect();
        assert_eq!(names, ["/a/x", "x", "/b/x"]);
        assert_eq!(candidates("./x", &env).len(), 1);
    }
}
