//! An exec joined to this process: its output here, our input there, signals and terminal size too.

use std::{
    io::{self, Write},
    process::exit,
    sync::{
        Arc, Mutex,
        atomic::{AtomicI32, Ordering},
    },
};

use libdsec::{
    Event, ExecId, ExecResult, Exit, ExitReason, OutputStream, Process, ProcessControl, Sandbox, StdinWriter,
};
use tokio::{
    io::AsyncReadExt,
    signal::unix::{Signal, SignalKind, signal},
    task::JoinSet,
};

use crate::{
    outcome::{self, Failure, Outcome},
    print, terminal,
};

const STDIN_CHUNK_BYTES: usize = 64 << 10;
const SIGINT: i32 = 2;
const SIGPIPE: i32 = 13;
const SIGTERM: i32 = 15;

/// What Ctrl-C and SIGTERM do, where the terminal is not raw.
pub(crate) enum OnSignal {
    /// The command gets it; a second one leaves the command alone and ends this tool.
    Forward,
    /// The sandbox is stopped.
    Stop(Sandbox),
    /// This tool ends at once: it was only looking.
    Leave,
}

pub(crate) struct Join {
    /// Our standard input goes to the command.
    pub(crate) stdin: bool,
    /// It has a terminal.
    pub(crate) pty: bool,
    pub(crate) json: bool,
    pub(crate) on_signal: OnSignal,
}

/// Where the person's terminal is put right before an exit from any task.
type Screen = Arc<Mutex<Option<terminal::Raw>>>;

/// Until the command ends. The exit code is the command's.
pub(crate) async fn join(process: Process, join: Join) -> Outcome {
    let raw = if join.pty && join.stdin { terminal::Raw::enter()? } else { None };
    let is_raw = raw.is_some();
    let screen: Screen = Arc::new(Mutex::new(raw));
    // Aborted when it is dropped.
    let mut tasks = JoinSet::new();
    if join.stdin {
        tasks.spawn(feed(process.stdin()));
    }
    if join.pty {
        tasks.spawn(resize(process.control(), signal(SignalKind::window_change())?));
    }
    let signals = [signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?];
    let stopped_by = Arc::new(AtomicI32::new(0));
    let on = Obeyed { on: join.on_signal, stopped_by: stopped_by.clone() };
    tasks.spawn(obey(signals, process.control(), on, process.exec_id().clone(), screen.clone()));
    let control = process.control();
    let ended = if join.json { collect(process).await } else { show(process).await };
    drop(screen.lock().ok().and_then(|mut raw| raw.take()));
    let exit = match ended {
        Err(Failure::OutputClosed) => {
            // As with a local command: the writer learns that its reader left.
            let _ = control.signal_tree(SIGPIPE).await;
            return Err(Failure::OutputClosed);
        }
        ended => ended?,
    };
    let number = stopped_by.load(Ordering::Relaxed);
    if number != 0 && exit.reason == ExitReason::SandboxGone {
        // The signal's doing: it is no news that the sandbox is gone.
        return Ok(u8::try_from(128 + number).unwrap_or(outcome::PLATFORM));
    }
    if let Some(remark) = outcome::remark(&exit).filter(|_| !join.json) {
        outcome::note(&if is_raw { format!("\r{remark}") } else { remark });
    }
    Ok(outcome::of_exit(&exit))
}

async fn show(mut process: Process) -> Result<Exit, Failure> {
    loop {
        match process.next().await? {
            Some(Event::Stdout(data)) => write(&mut io::stdout().lock(), &data)?,
            // A closed stderr is no reason to end: the output is on stdout.
            Some(Event::Stderr(data)) => drop(write(&mut io::stderr().lock(), &data)),
            Some(Event::Dropped { stream, bytes, .. }) => outcome::note(&dropped(stream, bytes)),
            Some(Event::Exit(exit)) => return Ok(exit),
            None => return Err(libdsec::Error::internal("the command's stream ended without an exit").into()),
        }
    }
}

pub(crate) fn dropped(stream: OutputStream, bytes: u64) -> String {
    let stream = match stream {
        OutputStream::Stdout => "stdout",
        OutputStream::Stderr => "stderr",
    };
    format!("dsec: {bytes} bytes of {stream} are not kept any more")
}

pub(crate) fn write(to: &mut impl Write, data: &[u8]) -> io::Result<()> {
    to.write_all(data)?;
    to.flush()
}

async fn collect(process: Process) -> Result<Exit, Failure> {
    let out = process.output().await?;
    let exit = out.exit;
    print::json(&ExecResult {
        exec_id: out.exec_id,
        exit: Some(exit),
        stdout: out.stdout,
        stderr: out.stderr,
    })?;
    Ok(exit)
}

async fn feed(stdin: StdinWriter) {
    let mut input = tokio::io::stdin();
    let mut buffer = vec![0; STDIN_CHUNK_BYTES];
    loop {
        match input.read(&mut buffer).await {
            Ok(0) | Err(_) => break,
            // The command takes no more; its end comes by its output.
            Ok(size) if stdin.write(buffer[..size].to_vec()).await.is_err() => return,
            Ok(_) => {}
        }
    }
    let _ = stdin.close().await;
}

async fn resize(control: ProcessControl, mut changes: Signal) {
    while changes.recv().await.is_some() {
        if let Some((rows, cols)) = terminal::size() {
            // Between two connections the size is kept and told again.
            let _ = control.resize(rows, cols).await;
        }
    }
}

struct Obeyed {
    on: OnSignal,
    /// The signal that made us stop the sandbox.
    stopped_by: Arc<AtomicI32>,
}

async fn obey(
    [mut interrupt, mut terminate]: [Signal; 2],
    control: ProcessControl,
    Obeyed { on, stopped_by }: Obeyed,
    exec_id: ExecId,
    screen: Screen,
) {
    let mut seen = false;
    loop {
        let number = tokio::select! {
            _ = interrupt.recv() => SIGINT,
            _ = terminate.recv() => SIGTERM,
        };
        let leave = match &on {
            OnSignal::Leave => true,
            OnSignal::Forward => {
                let leave = seen || control.signal_tree(number).await.is_err();
                if leave {
                    outcome::note(&format!(
                        "dsec: {exec_id} goes on; `dsec logs SANDBOX {exec_id}` shows it"
                    ));
                }
                leave
            }
            OnSignal::Stop(sandbox) => {
                stopped_by.store(number, Ordering::Relaxed);
                if let Err(e) = sandbox.stop().await {
                    outcome::note(&format!("dsec: {} did not stop: {e}", sandbox.id()));
                }
                true
            }
        };
        if leave {
            drop(screen.lock().ok().and_then(|mut raw| raw.take()));
            exit(128 + number);
        }
        seen = true;
    }
}
