//! build: an image of a Dockerfile, each step in a sandbox of its own. `docs/rfd/0005-builds.md` says why so.
//!
//! ```text
//! lines -> dockerfile -> plan (expand, context, ignore, add) -> run (copy) -> tag
//! ```
//! Invariants: nothing runs before all of the file is understood and all that is copied is found; a step's sandbox is
//! stopped however the step ends; no image gets the build's name before every step is done.

mod add;
mod context;
mod copy;
mod dockerfile;
mod expand;
mod ignore;
mod lines;
mod plan;
mod run;

use std::{
    collections::{BTreeMap, BTreeSet},
    future::Future,
    path::{Path, PathBuf},
    time::Duration,
};

use api::{
    Code, Error, Result,
    image::{BUILD_CACHE, ImageInfo, LayerKind, TagRequest},
    limit,
    snapshot::Scrub,
    spec::{self, Network},
};
use bytes::Bytes;
use tokio::io::AsyncReadExt;

use crate::{Client, sandbox::tree::local};
use context::Context;
use plan::Plan;

/// Steps that stay cached on a node; the oldest go.
const CACHED_MAX: usize = 256;
/// Walks of one build: each time that a step's image was pruned under it, it looks anew.
const WALKS_MAX: u32 = 4;
const STEP_TIMEOUT: Duration = Duration::from_secs(60 * 60);

/// A build, to be run by [`Client::build`].
#[derive(Debug, Clone)]
pub struct Build {
    /// The directory that COPY and ADD take from.
    pub context: PathBuf,
    /// Default: `Dockerfile` in the context.
    pub dockerfile: Option<PathBuf>,
    /// `NAME` or `NAME:VERSION` of the image; what has that name loses it. Default: none, and the image goes with the cache.
    pub tag: Option<String>,
    /// Values of ARGs.
    pub arguments: BTreeMap<String, String>,
    /// Of RUNs.
    pub network: Network,
    /// Of each step's sandbox.
    pub memory_bytes_max: u64,
    /// Thousandths of a core.
    pub cpu_millis_max: u32,
    pub disk_bytes_max: u64,
    /// Of each RUN.
    pub timeout: Duration,
    /// Instructions to leave out, in capitals: of those that say how a container is started.
    pub skip: BTreeSet<String>,
    /// What no layer holds.
    pub scrub: Scrub,
    /// Run every step, though it is cached.
    pub no_cache: bool,
}

impl Build {
    /// With every default.
    pub fn new(context: impl Into<PathBuf>) -> Self {
        Self {
            context: context.into(),
            dockerfile: None,
            tag: None,
            arguments: BTreeMap::new(),
            network: Network::None,
            memory_bytes_max: limit::MEMORY_BYTES_DEFAULT,
            cpu_millis_max: limit::CPU_MILLIS_DEFAULT,
            disk_bytes_max: limit::DISK_BYTES_DEFAULT,
            timeout: STEP_TIMEOUT,
            skip: BTreeSet::new(),
            scrub: Scrub::default(),
            no_cache: false,
        }
    }

    fn validate(&self) -> Result<()> {
        self.scrub.validate()?;
        if self.scrub.git_unreachable {
            return Err(Error::invalid("scrub.git_unreachable: not for the steps of a build"));
        }
        if self.scrub.newer_than.is_some() {
            return Err(Error::invalid("scrub.newer_than: a step has no file to compare with"));
        }
        spec::check_env(&self.arguments)?;
        self.name().map(|_| ())
    }

    /// Of the image.
    fn name(&self) -> Result<Option<(&str, &str)>> {
        let Some(tag) = &self.tag else { return Ok(None) };
        let (name, version) = tag.split_once(':').unwrap_or((tag, "latest"));
        spec::check_name("tag", name)?;
        spec::check_name("tag", version)?;
        match name {
            BUILD_CACHE => {
                Err(Error::invalid(format!("tag: `{BUILD_CACHE}` is the name of what builds cache")))
            }
            _ => Ok(Some((name, version))),
        }
    }
}

/// What a build does, as it does it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BuildEvent {
    /// An instruction begins. `number` of `total`, `line` of the Dockerfile.
    Step {
        number: usize,
        total: usize,
        line: usize,
        text: String,
    },
    /// It was done before, or something above it was.
    Cached {
        number: usize,
    },
    Stdout(Bytes),
    Stderr(Bytes),
    /// Its layer is there.
    Layer {
        number: usize,
        layer: String,
        size_bytes: u64,
        scrubbed_count: u64,
    },
    /// Something that a person may want to know.
    Note(String),
}

/// What came of a build.
#[derive(Debug, Clone, PartialEq)]
pub struct Built {
    pub image: ImageInfo,
    /// Steps that ran in a sandbox.
    pub steps_run: usize,
    pub steps_cached: usize,
}

impl Client {
    /// Builds an image. `on_event` is told what happens. Where `cancelled` ends first, the step's sandbox is stopped and
    /// the answer is `conflict`; a build that is dropped stops its sandbox in the background.
    ///
    /// Errors: `invalid_argument` and `unsupported` with the line, before anything runs; `invalid_argument` with the end
    /// of its output for a RUN that fails; `not_found` for a base or a file that is not there.
    ///
    /// ```no_run
    /// # async fn demo(client: libdsec::Client) -> libdsec::Result<()> {
    /// use libdsec::Build;
    /// let build = Build { tag: Some("app:1".into()), ..Build::new("./app") };
    /// let built = client.build(&build, |event| eprintln!("{event:?}"), std::future::pending()).await?;
    /// println!("{}", built.image.digest);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn build(
        &self,
        build: &Build,
        mut on_event: impl FnMut(BuildEvent) + Send,
        cancelled: impl Future<Output = ()> + Send,
    ) -> Result<Built> {
        build.validate()?;
        let text = dockerfile_text(build).await?;
        let file = dockerfile::parse(&text, &build.skip)?;
        let reference = plan::base_of(&file, build)?;
        let at_from = |e: Error| Error { message: format!("line {}: {}", file.from.0, e.message), ..e };
        let base = self.images().inspect(&reference).await.map_err(at_from)?;
        if base.kind != LayerKind::Base {
            return Err(at_from(Error::invalid(format!("`{reference}` is no base"))));
        }
        // By digest it is the same one for every step. An environment that follows its parts has none to be found by.
        let exact = self.images().inspect(&base.digest).await.map(|exact| exact.digest);
        let from = exact.unwrap_or(reference);
        let plan = planned(build, file, base.clone()).await?;
        plan.notes.iter().for_each(|note| on_event(BuildEvent::Note(note.clone())));
        let mut cancelled = std::pin::pin!(cancelled);
        let mut walk = run::Walk {
            client: self,
            build,
            from: &from,
            plan: &plan,
            on_event: &mut on_event,
            cancelled: cancelled.as_mut(),
            fresh: BTreeSet::new(),
            lost: false,
        };
        let mut walks = 1;
        let image = loop {
            let last = walk.walk().await;
            let named = match &last {
                Ok(last) => self.name_it(build, &base, &plan, last).await,
                Err(e) => Err(e.clone()),
            };
            match named {
                // Pruned, or replaced by a build of the same file, between two looks at it.
                Err(e) if e.code == Code::NotFound && (walk.lost || last.is_ok()) && walks < WALKS_MAX => {
                    walks += 1
                }
                named => break named?,
            }
        };
        let steps_run = walk.fresh.len();
        self.trim().await;
        Ok(Built { image, steps_run, steps_cached: plan.steps().count() - steps_run })
    }

    async fn name_it(&self, build: &Build, base: &ImageInfo, plan: &Plan, last: &str) -> Result<ImageInfo> {
        let unnamed = plan::unnamed(base, plan);
        let (name, version) = build.name()?.unwrap_or((BUILD_CACHE, &unnamed));
        let (name, version) = (name.to_owned(), version.to_owned());
        let request = TagRequest { name, version, config: Some(plan.config.clone()) };
        self.images().tag(last, request).await
    }

    /// A build is done without: what stays too long is no harm to it.
    async fn trim(&self) {
        let trimmed = async {
            let mut steps = self.images().list().await?;
            steps.retain(|image| image.name == BUILD_CACHE);
            steps.sort_by_key(|image| image.created_ms);
            steps.truncate(steps.len().saturating_sub(CACHED_MAX));
            self.images().remove_steps(steps).await
        };
        if let Err(error) = trimmed.await {
            tracing::warn!(%error, "old steps of builds stay cached");
        }
    }
}

async fn dockerfile_text(build: &Build) -> Result<String> {
    let path = build.dockerfile.clone().unwrap_or_else(|| build.context.join("Dockerfile"));
    let bytes = read(&path, lines::TEXT_BYTES_MAX).await?;
    let bytes = bytes.ok_or_else(|| Error::not_found(format!("there is no {}", path.display())))?;
    String::from_utf8(bytes).map_err(|_| Error::invalid(format!("{} is not UTF-8", path.display())))
}

/// None: there is no such file. One byte over `bytes_max` is kept, for who checks to see.
async fn read(path: &Path, bytes_max: usize) -> Result<Option<Vec<u8>>> {
    match tokio::fs::metadata(path).await {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        // A pipe would be waited for.
        Ok(found) if !found.is_file() => {
            return Err(Error::invalid(format!("{} is no regular file", path.display())));
        }
        _ => {}
    }
    let file = tokio::fs::File::open(path).await.map_err(|e| local("reading", path, &e))?;
    let mut bytes = Vec::new();
    let read = file.take(bytes_max as u64 + 1).read_to_end(&mut bytes).await;
    read.map_err(|e| local("reading", path, &e))?;
    Ok(Some(bytes))
}

async fn planned(build: &Build, file: dockerfile::Dockerfile, base: ImageInfo) -> Result<Plan> {
    let mut ignored = Vec::new();
    // As docker has it: one that is the Dockerfile's own goes before the context's.
    let own = build.dockerfile.clone().unwrap_or_else(|| build.context.join("Dockerfile"));
    let mut own = own.into_os_string();
    own.push(".dockerignore");
    let own = PathBuf::from(own);
    for path in [own, build.context.join(".dockerignore")] {
        if let Some(bytes) = read(&path, ignore::BYTES_MAX).await? {
            ignored = bytes;
            break;
        }
    }
    let build = build.clone();
    let planning = tokio::task::spawn_blocking(move || {
        let context = Context::open(&build.context, &String::from_utf8_lossy(&ignored))?;
        plan::plan(&file, &base, &context, &build)
    });
    planning.await.map_err(|e| Error::internal(format!("the planning thread: {e}")))?
}
