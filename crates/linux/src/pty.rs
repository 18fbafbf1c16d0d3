//! A terminal from the sandbox's own devpts, and taking it as the controlling one.

use std::{
    io,
    os::fd::{AsFd, OwnedFd},
};

use rustix::{
    fs::{CWD, FileType, Mode, OFlags, ResolveFlags, fstat, major, minor, openat2},
    pty::{OpenptFlags, ioctl_tiocgptpeer, unlockpt},
    termios::{Winsize, tcsetwinsize},
};

/// Opens `/dev/ptmx` of the current root: (master, slave). What is there may be hostile: anything but the real
/// multiplexer is refused.
pub fn open() -> io::Result<(OwnedFd, OwnedFd)> {
    let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let master = openat2(CWD, "/dev/ptmx", flags, Mode::empty(), ResolveFlags::NO_MAGICLINKS)?;
    let stat = fstat(&master)?;
    let is_char = FileType::from_raw_mode(stat.st_mode) == FileType::CharacterDevice;
    if !is_char || (major(stat.st_rdev), minor(stat.st_rdev)) != (5, 2) {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "/dev/ptmx is not the terminal multiplexer"));
    }
    unlockpt(&master)?;
    let slave = ioctl_tiocgptpeer(&master, OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)?;
    Ok((master, slave))
}

/// Sets the size; the foreground group gets SIGWINCH if it changed.
pub fn resize(terminal: impl AsFd, rows: u16, cols: u16) -> io::Result<()> {
    Ok(tcsetwinsize(terminal, Winsize { ws_row: rows, ws_col: cols, ws_xpixel: 0, ws_ypixel: 0 })?)
}

/// The leader of a new session takes `slave` as its controlling terminal.
pub fn control(slave: impl AsFd) -> io::Result<()> {
    Ok(rustix::process::ioctl_tiocsctty(slave)?)
}
