//! A program in sealed memory: nobody can write to it, and it has no path.
//!
//! What runs inside a sandbox can open `/proc/self/exe` of what it executes; a sealed memfd makes that harmless
//! (the class of CVE-2019-5736).

use std::{
    ffi::CString,
    fs::File,
    io::{self, Read, Write},
    os::fd::{AsRawFd, BorrowedFd, OwnedFd},
    path::Path,
};

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};

/// Copies the program at `path` into a sealed memfd.
pub fn program(path: &Path) -> io::Result<OwnedFd> {
    let mut bytes = Vec::new();
    File::open(path)?.read_to_end(&mut bytes)?;
    of(&bytes)
}

/// A program's bytes in a sealed memfd.
pub fn of(bytes: &[u8]) -> io::Result<OwnedFd> {
    let fd = memfd_create("dsec", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING | MemfdFlags::EXEC)?;
    let mut file = File::from(fd.try_clone()?);
    file.write_all(bytes)?;
    fcntl_add_seals(&fd, SealFlags::SEAL | SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE)?;
    // Out of the way of the low numbers that a child gives meaning to.
    Ok(rustix::io::fcntl_dupfd_cloexec(&fd, 64)?)
}

/// Becomes the program. Returns only on an error.
pub fn exec(program: BorrowedFd, argv: &[&str]) -> io::Error {
    let Ok(argv) = argv.iter().map(|a| CString::new(*a)).collect::<Result<Vec<_>, _>>() else {
        return io::Error::new(io::ErrorKind::InvalidInput, "argv holds a NUL");
    };
    let mut pointers: Vec<*const libc::c_char> = argv.iter().map(|a| a.as_ptr()).collect();
    pointers.push(std::ptr::null());
    let no_env = [std::ptr::null::<libc::c_char>()];
    let empty = CString::default();
    // SAFETY: argv and envp are null-terminated arrays of C strings that outlive the call.
    unsafe {
        libc::syscall(
            libc::SYS_execveat,
            program.as_raw_fd(),
            empty.as_ptr(),
            pointers.as_ptr(),
            no_env.as_ptr(),
            libc::AT_EMPTY_PATH,
        );
    }
    io::Error::last_os_error()
}
