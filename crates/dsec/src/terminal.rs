//! The person's terminal: raw while a remote one is shown in it, and always as it was afterwards.

use std::io;

use rustix::termios::{OptionalActions, Termios, isatty, tcgetattr, tcgetwinsize, tcsetattr};

/// Raw mode of standard input; dropping it restores what was.
pub(crate) struct Raw(Termios);

impl Raw {
    /// None where standard input is no terminal.
    pub(crate) fn enter() -> io::Result<Option<Self>> {
        let stdin = rustix::stdio::stdin();
        if !isatty(stdin) {
            return Ok(None);
        }
        let before = tcgetattr(stdin)?;
        let mut raw = before.clone();
        raw.make_raw();
        tcsetattr(stdin, OptionalActions::Now, &raw)?;
        Ok(Some(Self(before)))
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        // Nothing is left to try where this fails.
        let _ = tcsetattr(rustix::stdio::stdin(), OptionalActions::Now, &self.0);
    }
}

/// Rows and columns of the terminal, where there is one.
pub(crate) fn size() -> Option<(u16, u16)> {
    let size =
        tcgetwinsize(rustix::stdio::stdout()).or_else(|_| tcgetwinsize(rustix::stdio::stdin())).ok()?;
    (size.ws_row > 0 && size.ws_col > 0).then_some((size.ws_row, size.ws_col))
}

/// Standard input is a terminal.
pub(crate) fn stdin_is_terminal() -> bool {
    isatty(rustix::stdio::stdin())
}
