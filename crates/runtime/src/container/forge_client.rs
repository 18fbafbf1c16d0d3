//! The edge's side of forge: finds it or starts it, and asks it things. Blocking; called from the blocking pool.

use std::{
    io,
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::process::CommandExt,
    },
    path::PathBuf,
    process::{Command, Stdio},
    sync::Mutex,
    time::{Duration, Instant},
};

use api::limit;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};

use super::{
    Config,
    protocol::{Answer, Ask, Create, Husk, VERSION},
    wire,
};

const ANSWER_TIMEOUT: Duration = Duration::from_millis(limit::CREATE_MS_MAX);
const START_TIMEOUT: Duration = Duration::from_secs(10);
/// Connections kept for the next ask.
const IDLE_MAX: usize = 16;

pub(super) struct ForgeClient {
    config: Config,
    socket: PathBuf,
    idle: Mutex<Vec<OwnedFd>>,
    /// One at a time starts it.
    starting: Mutex<()>,
}

/// A sandbox that forge has made.
pub(super) struct Created {
    pub(super) husk: Husk,
    pub(super) init: OwnedFd,
    pub(super) aether: OwnedFd,
}

impl ForgeClient {
    pub(super) fn new(config: &Config) -> Self {
        let socket = config.data.join("run/forge.sock");
        Self { config: config.clone(), socket, idle: Mutex::default(), starting: Mutex::default() }
    }

    /// Uses the forge that listens if it is of this build; else retires it and starts ours.
    pub(super) fn ensure_running(&self) -> io::Result<()> {
        let _one = self.starting.lock().expect("no panic while held");
        match self.ask_once(&Ask::Hello, &[]) {
            Ok((Answer::Hello { version, .. }, _)) if version == VERSION => return Ok(()),
            Ok(_) => {
                self.ask_once(&Ask::Retire, &[])?;
                self.idle.lock().expect("no panic while held").clear();
            }
            Err(_) => {}
        }
        self.start()
    }

    fn start(&self) -> io::Result<()> {
        let mut child = Command::new(&self.config.forge)
            .arg("--data")
            .arg(&self.config.data)
            .arg("--socket")
            .arg(&self.socket)
            .arg("--aether")
            .arg(&self.config.aether)
            .arg("--pool")
            .arg(self.config.pool_size.to_string())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            // Its own group: a Ctrl-C at the terminal is the edge's to hear, sandboxes outlive it.
            .process_group(0)
            .spawn()
            .map_err(|e| io::Error::new(e.kind(), format!("{}: {e}", self.config.forge.display())))?;
        let deadline = Instant::now() + START_TIMEOUT;
        loop {
            if self.ask_once(&Ask::Hello, &[]).is_ok() {
                // Reaped when it ends, so that it leaves no zombie of ours.
                std::thread::Builder::new().name("forge-wait".into()).spawn(move || child.wait())?;
                return Ok(());
            }
            if let Some(status) = child.try_wait()? {
                return Err(io::Error::other(format!("forge ended at start: {status}; its log says why")));
            }
            if Instant::now() > deadline {
                child.kill()?;
                child.wait()?;
                return Err(io::Error::new(io::ErrorKind::TimedOut, "forge did not answer"));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Makes a sandbox; starts forge anew where it has died. True: that has been done.
    pub(super) fn create(&self, create: Create, listener: BorrowedFd) -> io::Result<(Created, bool)> {
        let ask = Ask::Create(Box::new(create));
        let mut restarted = false;
        let (answer, fds) = match self.ask_once(&ask, &[listener]) {
            // A refused connection means that nothing has been asked: safe to ask again.
            Err(e) if matches!(e.kind(), io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound) => {
                restarted = true;
                self.ensure_running()?;
                self.ask_once(&ask, &[listener])?
            }
            other => other?,
        };
        let Answer::Created(husk) = answer else { return Err(unexpected(answer)) };
        let mut fds = fds.into_iter();
        match (fds.next(), fds.next()) {
            (Some(init), Some(aether)) => Ok((Created { husk, init, aether }, restarted)),
            _ => Err(io::Error::other("forge sent no descriptors")),
        }
    }

    pub(super) fn forget(&self, digest: &str) -> io::Result<()> {
        match self.ask_once(&Ask::Forget { digest: digest.to_owned() }, &[])?.0 {
            Answer::Done => Ok(()),
            other => Err(unexpected(other)),
        }
    }

    /// Slots of the husks that wait.
    pub(super) fn pooled(&self) -> io::Result<Vec<u32>> {
        match self.ask_once(&Ask::Hello, &[])?.0 {
            Answer::Hello { pooled, .. } => Ok(pooled),
            other => Err(unexpected(other)),
        }
    }

    /// Ends forge, if it runs, and waits until it is gone.
    pub(super) fn retire(&self) -> io::Result<()> {
        if self.ask_once(&Ask::Retire, &[]).is_err() {
            return Ok(());
        }
        self.idle.lock().expect("no panic while held").clear();
        let deadline = Instant::now() + START_TIMEOUT;
        while self.connect().is_ok() {
            if Instant::now() > deadline {
                return Err(io::Error::new(io::ErrorKind::TimedOut, "forge did not end"));
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        Ok(())
    }

    fn connect(&self) -> io::Result<OwnedFd> {
        let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        connect(&socket, &SocketAddrUnix::new(&self.socket)?)?;
        Ok(socket)
    }

    fn ask_once(&self, ask: &Ask, fds: &[BorrowedFd]) -> io::Result<(Answer, Vec<OwnedFd>)> {
        let idle = self.idle.lock().expect("no panic while held").pop();
        let fresh = idle.is_none();
        let mut connection = idle.map_or_else(|| self.connect(), Ok)?;
        if let Err(error) = wire::send(connection.as_fd(), ask, fds) {
            // An idle connection of a forge that has died meanwhile: nothing was asked yet.
            if fresh {
                return Err(error);
            }
            self.idle.lock().expect("no panic while held").clear();
            connection = self.connect()?;
            wire::send(connection.as_fd(), ask, fds)?;
        }
        let answer = wire::receive(connection.as_fd(), ANSWER_TIMEOUT)?;
        let mut idle = self.idle.lock().expect("no panic while held");
        if idle.len() < IDLE_MAX {
            idle.push(connection);
        }
        Ok(answer)
    }
}

fn unexpected(answer: Answer) -> io::Error {
    match answer {
        Answer::Failed { message, refused: true } => io::Error::new(io::ErrorKind::InvalidInput, message),
        Answer::Failed { message, .. } => io::Error::other(message),
        other => io::Error::other(format!("forge answered {other:?}")),
    }
}
