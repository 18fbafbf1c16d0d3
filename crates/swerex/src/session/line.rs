//! The lines that bash is given. Each begins with a space, and none has a control character in it: the terminal would
//! take that for a key.
//!
//! A terminal that nobody reads holds 4 KiB, and drops what of a line goes beyond: so a long line is broken into short
//! ones that bash joins again.

use super::mark::{Kind, Nonce, written};

/// Of quoted text on one line; quoting makes at most four of one.
const QUOTED_BYTES_MAX: usize = 1000;

/// A command, between its marks.
pub(super) fn command(nonce: Nonce, text: &str) -> String {
    let mut line = started(nonce);
    line.push_str(" builtin eval ");
    line.push_str(&quoted(text));
    line.push_str("; ");
    line.push_str(&prompt(Kind::Prompt, nonce));
    line.push('\n');
    line
}

/// The first line of a session: what is ours of its state, then its startup files. No history, as it would be of these
/// lines; the prompt is exported, so that a shell inside the shell has it too.
pub(super) fn startup(nonce: Nonce, sources: &[String]) -> String {
    let files: Vec<String> = sources.iter().map(|path| format!("source {path}")).collect();
    let settings = "set +o history; set +H; export PS0= PS1= PS2=;";
    let sourced = format!("{} builtin eval {}", started(nonce), quoted(&files.join(" ; ")));
    format!(" {settings}{sourced}; export PS0= PS2=; export PS1; {}\n", prompt(Kind::Prompt, nonce))
}

/// Asks for the status of a command whose line was broken off.
pub(super) fn status(nonce: Nonce) -> String {
    format!(" {}\n", prompt(Kind::Prompt, nonce))
}

/// Runs `first` and says that all before was taken. Not by the prompt: what bash tells of its jobs before that is not.
pub(super) fn taken_after(first: &str, nonce: Nonce) -> String {
    let (taken, next) = (written(Kind::Taken, nonce, "0"), written(Kind::Prompt, nonce, "0"));
    format!(" {first} {{ builtin printf '{taken}' >&3; PS1=\"{next}\"; }} 3>&2 2>/dev/null\n")
}

/// The mark goes where prompts go. What bash says of this line when it traces (`set -x`) goes nowhere.
fn started(nonce: Nonce) -> String {
    format!(" {{ builtin printf '{}' >&3; }} 3>&2 2>/dev/null;", written(Kind::Started, nonce, "0"))
}

fn prompt(kind: Kind, nonce: Nonce) -> String {
    format!("{{ PS1=\"{}\"; }} 2>/dev/null", written(kind, nonce, "$?"))
}

/// Text in quotes of bash, on as many lines as it needs.
fn quoted(text: &str) -> String {
    let mut out = String::from("$'");
    let mut on_line = 0;
    for byte in text.bytes() {
        if on_line >= QUOTED_BYTES_MAX {
            out.push_str("'\\\n$'");
            on_line = 0;
        }
        let before = out.len();
        match byte {
            b'\'' => out.push_str("\\'"),
            b'\\' => out.push_str("\\\\"),
            b'!' => out.push_str("\\x21"),
            b' '..=b'~' => out.push(char::from(byte)),
            _ => out.push_str(&format!("\\x{byte:02x}")),
        }
        on_line += out.len() - before;
    }
    out.push('\'');
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// What bash makes of a quoted text.
    fn unquoted(quoted: &str) -> Vec<u8> {
        let joined = quoted.replace("'\\\n$'", "");
        let inner = joined.strip_prefix("$'").unwrap().strip_suffix('\'').unwrap();
        let (mut out, mut bytes) = (Vec::new(), inner.bytes());
        while let Some(byte) = bytes.next() {
            match (byte, if byte == b'\\' { bytes.next() } else { None }) {
                (b'\\', Some(b'x')) => {
                    let digits = [bytes.next().unwrap(), bytes.next().unwrap()];
                    out.push(u8::from_str_radix(std::str::from_utf8(&digits).unwrap(), 16).unwrap());
                }
                (b'\\', Some(other)) => out.push(other),
                (byte, _) => out.push(byte),
            }
        }
        out
    }

    proptest! {
        #[test]
        fn any_text_survives_on_short_lines_without_keys(text in "(\\PC|[\n\t\r!'\\\\]){0,3000}") {
            let quoted = quoted(&text);
            prop_assert_eq!(unquoted(&quoted), text.as_bytes());
            for line in command(Nonce::READY, &text).lines() {
                prop_assert!(line.len() < 2000);
                prop_assert!(line.bytes().all(|b| (b' '..=b'~').contains(&b)));
            }
        }
    }

    #[test]
    fn a_line_is_one_command_with_its_marks() {
        let line = command(Nonce::READY, "echo 'a'\nfalse");
        assert!(line.contains(
            "builtin eval $'echo \\'a\\'\\x0afalse'; { PS1=\"\\137DSEC_p0000000000000000:$?:\"; }"
        ));
        assert_eq!(line.lines().count(), 1);
    }
}
