//! Child G: in the sandbox, on its way to become the command. Plain Rust after a fork of a single-threaded process.
//!
//! The order matters: descriptors are closed before any path of the caller's is followed; the filter is installed
//! while CAP_SYS_ADMIN is still there; the user comes before the working directory and the lookup of the program.

use std::{
    collections::BTreeMap,
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

use api::{Code, Error, Result, exec::ExecRequest};
use linux::{fork, pty, scm};
use rustix::{
    fs::{CWD, FileType, Mode, OFlags, ResolveFlags, fstat, major, minor, openat2},
    io::Errno,
    pipe::{PipeFlags, pipe_with},
    process::{Resource, Rlimit, setrlimit, setsid, umask},
};

use super::{NotStarted, plan, tell};
use crate::{
    account::{self, Account},
    inside::{Inside, step},
};

/// Nobody sees this code: the report says why.
const NEVER_RAN: i32 = 125;

/// Never returns on success.
pub fn become_command(
    inside: &Inside,
    request: &ExecRequest,
    stdio: [Option<BorrowedFd>; 3],
    report: &OwnedFd,
) -> i32 {
    let report = match settle(request, stdio, report) {
        Ok(report) => report,
        Err(error) => {
            tell(report, b'E', &error);
            return NEVER_RAN;
        }
    };
    match prepare(inside, request).and_then(|env| execute(request, &env)) {
        Ok(failed) => tell(&report, b'N', &failed),
        Err(error) => tell(&report, b'E', &error),
    }
    NEVER_RAN
}

/// Session, terminal, standard streams; every other descriptor is closed.
fn settle(request: &ExecRequest, stdio: [Option<BorrowedFd>; 3], report: &OwnedFd) -> Result<OwnedFd> {
    step("session", setsid().map_err(io::Error::from))?;
    let Some(size) = request.pty else {
        let null = if stdio[0].is_none() { Some(step("stdin", no_input())?) } else { None };
        let stdin = stdio[0].or(null.as_ref().map(AsFd::as_fd));
        let (Some(stdin), Some(stdout), Some(stderr)) = (stdin, stdio[1], stdio[2]) else {
            return Err(Error::internal("a command without its pipes"));
        };
        return step("descriptors", fork::settle([stdin, stdout, stderr], report.as_fd()));
    };
    let (master, slave) = pty::open().map_err(|e| {
        Error::new(Code::SandboxBroken, format!("pty: the sandbox has no working /dev/ptmx ({e})"))
    })?;
    step("terminal", pty::resize(&master, size.rows, size.cols))?;
    step("terminal", pty::control(&slave))?;
    step("terminal", scm::send(report, b"M", &[master.as_fd()]))?;
    let fd = slave.as_fd();
    step("descriptors", fork::settle([fd, fd, fd], report.as_fd()))
}

/// The sandbox's `/dev/null` if it is one, else a pipe whose far end is closed: both end at once.
fn no_input() -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    if let Ok(fd) = openat2(CWD, "/dev/null", flags, Mode::empty(), ResolveFlags::NO_MAGICLINKS) {
        let stat = fstat(&fd)?;
        let is_char = FileType::from_raw_mode(stat.st_mode) == FileType::CharacterDevice;
        if is_char && (major(stat.st_rdev), minor(stat.st_rdev)) == (1, 3) {
            return Ok(fd);
        }
    }
    Ok(pipe_with(PipeFlags::CLOEXEC)?.0)
}

/// Everything from root with every capability to the user with none to spare.
fn prepare(inside: &Inside, request: &ExecRequest) -> Result<BTreeMap<String, String>> {
    let account = account::resolve(inside.user_or_default(request.user.as_deref()))?;
    let env = plan::env(&inside.env, &account, request.pty.is_some(), &request.env);
    umask(Mode::from_raw_mode(0o022));
    // Lowering only: the host's root may lack CAP_SYS_RESOURCE.
    let no_core = Rlimit { current: Some(0), maximum: Some(0) };
    step("rlimit", setrlimit(Resource::Core, no_core).map_err(io::Error::from))?;
    if request.pty.is_some() {
        // So that the user can open it again by its name.
        let owner = rustix::process::Uid::from_raw(account.uid);
        step("terminal", rustix::fs::fchown(io::stdin(), Some(owner), None).map_err(io::Error::from))?;
    }
    step("filter", inside.filter.install())?;
    step("user", inside.become_account(&account))?;
    enter_directory(inside, request, &account)?;
    fork::reset_signals();
    Ok(env)
}

fn enter_directory(inside: &Inside, request: &ExecRequest, account: &Account) -> Result<()> {
    let to = |field: &str, path: &str| {
        rustix::process::chdir(path).map_err(|e| {
            let (code, why) = match e {
                Errno::NOENT => (Code::NotFound, "does not exist in the sandbox".to_owned()),
                Errno::NOTDIR => (Code::InvalidArgument, "is not a directory".to_owned()),
                Errno::ACCESS => (Code::PermissionDenied, format!("is closed to user `{}`", account.name)),
                e => (Code::InvalidArgument, e.to_string()),
            };
            Error::new(code, format!("{field}: `{path}` {why}"))
        })
    };
    match (&request.cwd, &inside.workdir) {
        (Some(cwd), _) if cwd.starts_with('/') => to("cwd", cwd),
        (cwd, workdir) => {
            match workdir {
                Some(workdir) => to("workdir", workdir)?,
                // A home that is not there is no reason to run nothing.
                None => to("home", &account.home).or_else(|_| to("cwd", "/"))?,
            }
            cwd.as_deref().map_or(Ok(()), |cwd| to("cwd", cwd))
        }
    }
}

/// Tries each place where the program may be. Returns only if none worked.
fn execute(request: &ExecRequest, env: &BTreeMap<String, String>) -> Result<NotStarted> {
    let argv = plan::argv(&request.command);
    let program = argv[0].clone();
    let is_shell = matches!(request.command, api::exec::Command::Shell(_));
    let candidates = plan::candidates(&program, env);
    let vars = env.iter().map(|(k, v)| format!("{k}={v}"));
    let image = fork::Image::new(plan::c_strings(argv), plan::c_strings(vars));
    let mut worst = Errno::NOENT;
    for path in &candidates {
        let error = Errno::from_io_error(&image.exec(path)).unwrap_or(Errno::NOENT);
        // As execvp(3): go on past what is not there; remember what may not be run.
        match error {
            Errno::NOENT if program.contains('/') && rustix::fs::stat(path.as_c_str()).is_ok() => {
                return Ok(not_started(127, &program, "its interpreter is missing"));
            }
            Errno::NOENT | Errno::NOTDIR => {}
            Errno::ACCESS => worst = error,
            error => {
                worst = error;
                break;
            }
        }
    }
    if is_shell && worst != Errno::TOOBIG {
        return Err(Error::new(
            Code::SandboxBroken,
            format!("the sandbox has no working /bin/sh ({worst}): run an argument vector, or repair it"),
        ));
    }
    Ok(match worst {
        Errno::NOENT if program.contains('/') => not_started(127, &program, "no such file or directory"),
        Errno::NOENT => not_started(127, &program, "command not found"),
        Errno::ACCESS => not_started(126, &program, "permission denied"),
        Errno::NOEXEC => not_started(126, &program, "not a program that this machine can run"),
        Errno::TOOBIG => not_started(126, &program, "argument list too long"),
        error => not_started(126, &program, &error.to_string()),
    })
}

fn not_started(code: i32, program: &str, why: &str) -> NotStarted {
    let short: String = program.chars().take(200).collect();
    NotStarted { code, message: format!("dsec: {short}: {why}\n") }
}
