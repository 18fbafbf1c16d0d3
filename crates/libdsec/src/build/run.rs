//! The steps of a plan, each in a sandbox: create, work, pack, stop.

use std::{collections::BTreeSet, future::Future, pin::Pin, time::Duration};

use api::{
    Code, Error, Result,
    exec::{Exit, ExitReason},
    image::BUILD_CACHE,
    snapshot::{PackReport, PackRequest},
    spec::SandboxSpec,
};

use super::{
    Build, BuildEvent, copy,
    dockerfile::Run,
    plan::{Item, Plan, Step, Work, reference},
};
use crate::{
    Client,
    sandbox::{Sandbox, process::Event},
};

/// How long a step's sandbox outlives a builder that is gone, and how often one that is there says so.
const TTL: Duration = Duration::from_secs(60);
const BEAT: Duration = Duration::from_secs(15);
/// Of a failed RUN's output, in the error.
const TAIL_BYTES: usize = 2048;

/// One way along the plan.
pub(super) struct Walk<'a> {
    pub(super) client: &'a Client,
    pub(super) build: &'a Build,
    /// The reference of the base.
    pub(super) from: &'a str,
    pub(super) plan: &'a Plan,
    pub(super) on_event: &'a mut (dyn FnMut(BuildEvent) + Send),
    pub(super) cancelled: Pin<&'a mut (dyn Future<Output = ()> + Send)>,
    /// Keys of the steps that were run by this build, on this walk or one before.
    pub(super) fresh: BTreeSet<String>,
    /// The image below a step was gone when it was to begin: another walk makes it again.
    pub(super) lost: bool,
}

impl Walk<'_> {
    /// Runs what is not cached. Gives the reference of the last step's image, or the base's.
    pub(super) async fn walk(&mut self) -> Result<String> {
        let plan = self.plan;
        let mut cached = self.deepest().await?;
        let (total, mut below) = (plan.items.len(), self.from.to_owned());
        for (number, item) in (1..).zip(&plan.items) {
            let Item { line, text, step } = item;
            (self.on_event)(BuildEvent::Step { number, total, line: *line, text: text.clone() });
            let Some(step) = step else { continue };
            if cached > 0 {
                cached -= 1;
                (self.on_event)(BuildEvent::Cached { number });
            } else {
                let report = self.step(&below, item, step).await?;
                (self.on_event)(BuildEvent::Layer {
                    number,
                    layer: report.layer,
                    size_bytes: report.size_bytes,
                    scrubbed_count: report.scrubbed_count,
                });
                self.fresh.insert(step.key.clone());
            }
            below = reference(&step.key);
        }
        Ok(below)
    }

    /// How many steps need not be run: those up to the last one that is there.
    async fn deepest(&mut self) -> Result<usize> {
        // One look, since each of its own might ask a store that is far away.
        let images = self.client.images().list().await?.into_iter();
        let there: BTreeSet<String> =
            images.filter(|image| image.name == BUILD_CACHE).map(|image| image.version).collect();
        let steps: Vec<&Step> = self.plan.steps().collect();
        for (number, step) in steps.iter().enumerate().rev() {
            if self.build.no_cache && !self.fresh.contains(&step.key) {
                continue;
            }
            if there.contains(&step.key) {
                return Ok(number + 1);
            }
        }
        Ok(0)
    }

    async fn step(&mut self, below: &str, item: &Item, step: &Step) -> Result<PackReport> {
        let build = self.build;
        let spec = SandboxSpec {
            // Root makes directories and copies; a RUN says its own user.
            user: Some("0".into()),
            workdir: Some("/".into()),
            network: build.network,
            memory_bytes_max: build.memory_bytes_max,
            cpu_millis_max: build.cpu_millis_max,
            disk_bytes_max: build.disk_bytes_max,
            ttl_ms: TTL.as_millis() as u64,
            labels: [("dsec.build".to_owned(), step.key.clone())].into(),
            ..SandboxSpec::new(below)
        };
        // To its end, though the build is cancelled: what is not known cannot be stopped.
        let created = self.client.create(spec).await;
        self.lost = created.as_ref().is_err_and(|e| e.code == Code::NotFound);
        let sandbox = created?;
        let held = Held(Some(sandbox.clone()));
        let beats = async {
            loop {
                tokio::time::sleep(BEAT).await;
                // One that is missed is made up for by the next.
                let _ = sandbox.set_ttl(TTL).await;
            }
        };
        let work = work(&sandbox, build, item, step, &mut *self.on_event);
        let done = tokio::select! {
            biased;
            () = &mut self.cancelled => Err(Error::new(Code::Conflict, "the build was cancelled")),
            () = beats => Err(Error::internal("the beats of a step ended")),
            done = work => done,
        };
        let stopped = held.stop().await;
        // Of two failures the first one tells more.
        let report = done?;
        stopped.map(|()| report)
    }
}

async fn work(
    sandbox: &Sandbox,
    build: &Build,
    item: &Item,
    step: &Step,
    on_event: &mut (dyn FnMut(BuildEvent) + Send),
) -> Result<PackReport> {
    let at = |e: Error| Error { message: format!("line {}: {}", item.line, e.message), ..e };
    for directory in &step.directories {
        sandbox.files().mkdir(directory).await.map_err(at)?;
    }
    match &step.work {
        Work::Nothing => {}
        Work::Copy(copying) => copy::copy(sandbox, copying).await.map_err(at)?,
        Work::Run { run, user, workdir, env } => {
            let exec = match run {
                Run::Shell(text) => sandbox.sh(text),
                Run::Argv(argv) => sandbox.exec(argv),
            };
            let exec = exec.envs(env.clone()).user(user).cwd(workdir).timeout(build.timeout);
            let mut tail = Tail::default();
            let mut process = exec.spawn().await.map_err(at)?;
            let exit = loop {
                let event = process.next().await.map_err(at)?;
                match event.ok_or_else(|| at(Error::internal("a RUN ended without its exit")))? {
                    Event::Stdout(bytes) => {
                        tail.push(&bytes);
                        on_event(BuildEvent::Stdout(bytes));
                    }
                    Event::Stderr(bytes) => {
                        tail.push(&bytes);
                        on_event(BuildEvent::Stderr(bytes));
                    }
                    Event::Dropped { bytes, .. } => {
                        on_event(BuildEvent::Note(format!("{bytes} bytes of output are not kept")));
                    }
                    Event::Exit(exit) => break exit,
                }
            };
            if exit.code != 0 {
                return Err(at(tail.failed(&item.text, &exit)));
            }
        }
    }
    let request = PackRequest {
        version: step.key.clone(),
        scrub: build.scrub.clone(),
        ..PackRequest::new(BUILD_CACHE)
    };
    sandbox.pack_diff(request).await.map_err(at)
}

/// The end of what a command wrote.
#[derive(Default)]
struct Tail(Vec<u8>);

impl Tail {
    fn push(&mut self, bytes: &[u8]) {
        let bytes = &bytes[bytes.len().saturating_sub(TAIL_BYTES)..];
        let over = (self.0.len() + bytes.len()).saturating_sub(TAIL_BYTES);
        self.0.drain(..over);
        self.0.extend_from_slice(bytes);
    }

    fn failed(&self, text: &str, exit: &Exit) -> Error {
        // Both are shown to people, whose terminals they may not drive.
        let plain = |text: &str| -> String {
            let is_plain = |c: char| !c.is_control() || c == '\n' || c == '\t';
            text.chars().map(|c| if is_plain(c) { c } else { '\u{fffd}' }).collect()
        };
        let text = plain(&text.chars().take(200).collect::<String>());
        let how = match exit.reason {
            ExitReason::Exited => format!("ended with code {}", exit.code),
            reason => format!("ended with code {} ({reason:?})", exit.code),
        };
        let tail = plain(String::from_utf8_lossy(&self.0).trim_end());
        Error::invalid(format!("`{text}` {how}: {tail}"))
    }
}

/// A step's sandbox. Dropped with the build it is stopped in the background, as far as there is one.
struct Held(Option<Sandbox>);

impl Held {
    async fn stop(mut self) -> Result<()> {
        let Some(sandbox) = &self.0 else { return Ok(()) };
        let stopped = sandbox.stop().await;
        self.0 = None;
        match stopped {
            Err(e) if e.code != Code::NotFound => Err(e),
            _ => Ok(()),
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if let (Some(sandbox), Ok(runtime)) = (self.0.take(), tokio::runtime::Handle::try_current()) {
            // Where this fails too, its TTL is short.
            runtime.spawn(async move { sandbox.stop().await });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tail_is_bounded_and_cannot_drive_a_terminal() {
        let mut tail = Tail::default();
        tail.push(&[b'a'; 3000]);
        tail.push(b"b\x1b[2Jc\n\xff\n\n");
        assert_eq!(tail.0.len(), TAIL_BYTES);
        tail.push(&[b'd'; 10]);
        assert_eq!(tail.0.len(), TAIL_BYTES);
        let exit = Exit { code: 137, reason: ExitReason::OomKilled, signal: None, duration_ms: 1 };
        let error = tail.failed(&"RUN x".repeat(100), &exit);
        assert!(
            error.message.contains("code 137 (OomKilled)") && error.message.ends_with("dddddddddd"),
            "{error}"
        );
        assert!(error.message.contains("ab\u{fffd}[2Jc\n\u{fffd}\n"), "{error}");
        assert!(error.message.len() < TAIL_BYTES + 400);
    }
}
