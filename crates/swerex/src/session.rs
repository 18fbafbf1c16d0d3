//! Sessions: each is an exec with a terminal, where bash waits for lines.
//!
//! ```text
//! exec's log:  r what .bashrc says  s1 output of startup files p1 t2 p2  s3 output of a command p3 t4 p4  s5 output ...
//!                                                                             all before is taken -'   runs: no p5 yet
//! ```
//! A mark is a word of the log with a number that nobody can guess: `s` a command begins, `p` bash's prompt, with the
//! command's status, `t` what is before was taken by a request. So the log alone tells where to go on reading and whether
//! bash waits, to any apiserver: output that no request took (a timeout, a client that left, a server that was killed)
//! comes with the next one, as it does with theirs.
//!
//! A command is one line: `eval` of quoted text, so that what it has in it (tabs, control characters, line ends, an
//! exclamation mark) reaches bash as it is, whatever its length. The terminal does not echo, bash does not edit lines,
//! and the prompt is set after each command, so nothing of ours is in the output.
//!
//! What is not in the log: how far a client has read the output of an interactive program. It is kept here as a hint;
//! when it is lost (a restart, another apiserver) the program's output is told again from its start.

pub(crate) mod close;
pub(crate) mod create;
mod expect;
mod find;
mod interactive;
mod interrupt;
mod line;
mod mark;
pub(crate) mod places;
pub(crate) mod run;
mod syntax;
mod terminal;
mod transcript;

/// What theirs calls its prompt, in the answers that it ends.
const PROMPT: &str = "SHELLPS1PREFIX";
