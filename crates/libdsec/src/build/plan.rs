//! What a build will do, decided before any of it is done: the config as it grows, the steps, their keys.
//!
//! Pure but for reading the context. Invariant: a step's key covers all that its layer depends on, but the time.

use std::collections::BTreeSet;

use api::{
    Code, Error, Result,
    exec::PATH_DEFAULT,
    image::{ImageConfig, ImageInfo, is_port},
    limit, spec,
};
use serde_json::json;

use super::{
    Build, add,
    context::{Context, Source},
    dockerfile::{Copy, Dockerfile, Instruction, Run, Verb},
    expand::{Variables, expand},
    ignore,
    lines::refuse,
};

/// Of a key, in hex: a version has at most 63 characters.
const KEY_DIGITS: usize = 48;
/// Names that docker takes as build arguments though no ARG declares them; none of them means anything here.
const PREDEFINED: [&str; 5] = ["HTTP_PROXY", "HTTPS_PROXY", "FTP_PROXY", "NO_PROXY", "ALL_PROXY"];

pub(crate) struct Plan {
    /// Each instruction after the FROM, in order, and what is to be run for it.
    pub(crate) items: Vec<Item>,
    /// Of the image.
    pub(crate) config: ImageConfig,
    /// For people.
    pub(crate) notes: Vec<String>,
}

pub(crate) struct Item {
    pub(crate) line: usize,
    pub(crate) text: String,
    pub(crate) step: Option<Step>,
}

/// What makes one layer.
pub(crate) struct Step {
    /// The image that it makes is `build-cache:<key>`.
    pub(crate) key: String,
    /// Directories of WORKDIRs before it.
    pub(crate) directories: Vec<String>,
    pub(crate) work: Work,
}

pub(crate) enum Work {
    Run {
        run: Run,
        user: String,
        workdir: String,
        env: Variables,
    },
    Copy(Copying),
    /// The directories alone.
    Nothing,
}

pub(crate) struct Copying {
    pub(crate) sources: Vec<Source>,
    /// Absolute.
    pub(crate) to: String,
    /// Whether it is a directory though none is there yet.
    pub(crate) is_directory: bool,
    pub(crate) chown: Option<String>,
    pub(crate) chmod: Option<u32>,
    /// ADD: archives are unpacked.
    pub(crate) unpacks: bool,
}

impl Plan {
    pub(crate) fn steps(&self) -> impl DoubleEndedIterator<Item = &Step> {
        self.items.iter().filter_map(|item| item.step.as_ref())
    }
}

/// The reference of the base. Errors: `invalid_argument`, with the line.
pub(crate) fn base_of(file: &Dockerfile, build: &Build) -> Result<String> {
    let (line, from) = &file.from;
    let at = |e: Error| Error { message: format!("line {line}: {}", e.message), ..e };
    let reference = expand(from, file.escape, &global_arguments(file, build)?).map_err(at)?;
    let why = match reference.as_str() {
        "scratch" => "FROM scratch: a build begins with an image that has a file system",
        other if other.contains(['/', '@']) => {
            "FROM names an image of this node, as NAME or NAME:VERSION: `dsec image pull` it first"
        }
        other if spec::check_text("image", other).is_err() => "FROM without an image",
        _ => return Ok(reference),
    };
    Err(refuse(*line, Code::InvalidArgument, why))
}

/// What the ARGs before the FROM give.
fn global_arguments(file: &Dockerfile, build: &Build) -> Result<Variables> {
    let mut arguments = Variables::new();
    for Instruction { line, verb, .. } in &file.arguments {
        let Verb::Arg(all) = verb else { continue };
        for (name, default) in all {
            let default = default.as_ref().map(|text| expand(text, file.escape, &arguments)).transpose();
            let default =
                default.map_err(|e| Error { message: format!("line {line}: {}", e.message), ..e })?;
            if let Some(value) = build.arguments.get(name).cloned().or(default) {
                arguments.insert(name.clone(), value);
            }
        }
    }
    Ok(arguments)
}

/// Blocks: it reads what is copied. Errors: `invalid_argument`, `unsupported`, `not_found`, with the line.
pub(crate) fn plan(file: &Dockerfile, base: &ImageInfo, context: &Context, build: &Build) -> Result<Plan> {
    let mut planner = Planner {
        escape: file.escape,
        build,
        context,
        globals: global_arguments(file, build)?,
        arguments: Variables::new(),
        declared: file.arguments.iter().flat_map(|one| names(&one.verb)).collect(),
        config: base.config.clone(),
        directories: Vec::new(),
        key: base.digest.clone(),
    };
    let mut items = Vec::new();
    for instruction in &file.instructions {
        let Instruction { line, text, .. } = instruction;
        let step = planner.instruction(instruction);
        let step = step.map_err(|e| Error { message: format!("line {line}: {}", e.message), ..e })?;
        items.push(Item { line: *line, text: text.clone(), step });
    }
    if !planner.directories.is_empty() {
        let line = file.instructions.last().map_or(file.from.0, |last| last.line);
        let text = format!("(makes {})", planner.directories.join(" "));
        items.push(Item { line, text, step: Some(planner.step(Work::Nothing, &json!(null))) });
    }
    let unknown = build.arguments.keys().filter(|name| {
        !planner.declared.contains(*name) && !PREDEFINED.contains(&name.to_ascii_uppercase().as_str())
    });
    let notes = unknown.map(|name| format!("no ARG takes the build argument `{name}`")).collect();
    planner.config.validate()?;
    let plan = Plan { items, config: planner.config, notes };
    let layers = base.layers.len() + plan.steps().count();
    if layers > limit::LAYERS_MAX {
        return Err(Error::invalid(format!(
            "the image would have {layers} layers, at most {}: join some RUNs with `&&`, or merge the base",
            limit::LAYERS_MAX
        )));
    }
    Ok(plan)
}

fn names(verb: &Verb) -> Vec<String> {
    match verb {
        Verb::Arg(all) => all.iter().map(|(name, _)| name.clone()).collect(),
        _ => Vec::new(),
    }
}

struct Planner<'a> {
    escape: char,
    build: &'a Build,
    context: &'a Context,
    globals: Variables,
    arguments: Variables,
    declared: BTreeSet<String>,
    config: ImageConfig,
    /// Of WORKDIRs since the last step.
    directories: Vec<String>,
    /// Of what is below the next step.
    key: String,
}

impl Planner<'_> {
    /// What instructions see: the environment hides arguments.
    fn variables(&self) -> Variables {
        let mut all = self.arguments.clone();
        // Every command has it, though an image may not say so.
        all.insert("PATH".into(), PATH_DEFAULT.into());
        all.extend(self.config.env.clone());
        all
    }

    fn expand(&self, text: &str) -> Result<String> {
        expand(text, self.escape, &self.variables())
    }

    fn instruction(&mut self, instruction: &Instruction) -> Result<Option<Step>> {
        match &instruction.verb {
            Verb::Arg(all) => self.declare(all)?,
            Verb::Env(pairs) => {
                let pairs = self.expand_pairs(pairs)?;
                self.config.env.extend(pairs);
                spec::check_env(&self.config.env)?;
            }
            Verb::Label(pairs) => {
                let pairs = self.expand_pairs(pairs)?;
                self.config.labels.extend(pairs);
                self.config.validate()?;
            }
            Verb::Expose(text) => self.expose(text)?,
            Verb::User(text) => {
                let user = self.expand(text)?;
                let config = ImageConfig { user: Some(user.clone()), ..ImageConfig::default() };
                config.validate()?;
                self.config.user = Some(user);
            }
            Verb::Workdir(text) => {
                let directory = self.absolute(&self.expand(text)?)?;
                if directory != "/" && !self.directories.contains(&directory) {
                    self.directories.push(directory.clone());
                }
                self.config.workdir = Some(directory);
            }
            Verb::Run(run) => return Ok(Some(self.run(run))),
            Verb::Copy(copy) => return self.copy(copy).map(Some),
        }
        Ok(None)
    }

    fn expand_pairs(&self, pairs: &[(String, String)]) -> Result<Vec<(String, String)>> {
        // All of them see what was before the first of them.
        let variables = self.variables();
        let expand = |text: &String| expand(text, self.escape, &variables);
        pairs.iter().map(|(name, value)| Ok((expand(name)?, expand(value)?))).collect()
    }

    fn declare(&mut self, all: &[(String, Option<String>)]) -> Result<()> {
        for (name, default) in all {
            self.declared.insert(name.clone());
            let default = default.as_ref().map(|text| self.expand(text)).transpose()?;
            let given = self.build.arguments.get(name).cloned();
            if let Some(value) = given.or(default).or_else(|| self.globals.get(name).cloned()) {
                self.arguments.insert(name.clone(), value);
            }
        }
        // They become the environment of RUNs.
        spec::check_env(&self.arguments)
    }

    fn expose(&mut self, text: &str) -> Result<()> {
        for word in self.expand(text)?.split_whitespace() {
            let (numbers, protocol) = word.split_once('/').unwrap_or((word, "tcp"));
            let (first, last) = numbers.split_once('-').unwrap_or((numbers, numbers));
            let bad = || Error::invalid(format!("EXPOSE: `{word}` is no port"));
            let (first, last): (u16, u16) =
                (first.parse().map_err(|_| bad())?, last.parse().map_err(|_| bad())?);
            if first > last || usize::from(last - first) >= limit::EXPOSED_PORTS_MAX {
                return Err(Error::invalid(format!("EXPOSE: `{word}`: an empty range, or too large a one")));
            }
            for port in first..=last {
                let port = format!("{port}/{}", protocol.to_ascii_lowercase());
                if !is_port(&port) {
                    return Err(bad());
                }
                self.config.exposed_ports.insert(port);
            }
            self.config.validate()?;
        }
        Ok(())
    }

    fn workdir(&self) -> &str {
        self.config.workdir.as_deref().unwrap_or("/")
    }

    /// A path of the image, from its working directory.
    fn absolute(&self, path: &str) -> Result<String> {
        spec::check_path("path", path)?;
        let whole =
            if path.starts_with('/') { path.to_owned() } else { format!("{}/{path}", self.workdir()) };
        Ok(format!("/{}", ignore::clean(&whole)))
    }

    /// A step with all that came before it.
    fn step(&mut self, work: Work, what: &serde_json::Value) -> Step {
        let directories = std::mem::take(&mut self.directories);
        let covered = json!(["1", self.key, directories, what, self.build.scrub]);
        let hash = blake3::hash(covered.to_string().as_bytes()).to_hex();
        self.key = hash[..KEY_DIGITS].to_owned();
        Step { key: self.key.clone(), directories, work }
    }

    fn run(&mut self, run: &Run) -> Step {
        let user = self.config.user.clone().unwrap_or_else(|| "0".to_owned());
        let (workdir, env) = (self.workdir().to_owned(), self.variables());
        let command = match run {
            Run::Shell(text) => json!(text),
            Run::Argv(argv) => json!(argv),
        };
        let what = json!(["RUN", command, user, workdir, env, self.build.network]);
        self.step(Work::Run { run: run.clone(), user, workdir, env }, &what)
    }

    fn copy(&mut self, copy: &Copy) -> Result<Step> {
        let to = self.expand(&copy.to)?;
        let is_directory =
            to.ends_with('/') || to == "." || to.ends_with("/.") || to == ".." || to.ends_with("/..");
        let to = self.absolute(&to)?;
        let chown = copy.chown.as_ref().map(|text| self.expand(text)).transpose()?;
        if let Some(owner) = &chown {
            spec::check_text("--chown", owner)?;
        }
        let chmod = copy.chmod.as_ref().map(|text| octal(&self.expand(text)?)).transpose()?;
        let mut sources = Vec::new();
        for word in &copy.sources {
            sources.extend(self.context.find(&self.expand(word)?)?);
        }
        if sources.len() > 1 && !is_directory {
            return Err(Error::invalid(format!(
                "{} sources: the destination must end with `/`",
                sources.len()
            )));
        }
        if copy.unpacks {
            for source in &sources {
                if add::is_archive(source)? && (chown.is_some() || chmod.is_some()) {
                    return Err(Error::new(Code::Unsupported, "--chown or --chmod of an archive's content"));
                }
            }
        }
        let mut hasher = blake3::Hasher::new();
        sources.iter().for_each(|source| source.hash_into(&mut hasher));
        let content = hasher.finalize().to_hex();
        let what = json!(["COPY", copy.unpacks, content.as_str(), to, is_directory, chown, chmod]);
        let unpacks = copy.unpacks;
        Ok(self.step(Work::Copy(Copying { sources, to, is_directory, chown, chmod, unpacks }), &what))
    }
}

fn octal(text: &str) -> Result<u32> {
    let mode = u32::from_str_radix(text, 8).ok().filter(|mode| *mode <= 0o7777 && !text.starts_with('+'));
    mode.ok_or_else(|| Error::invalid(format!("--chmod: `{text}` is no octal mode")))
}

/// The reference of a step's image.
pub(crate) fn reference(key: &str) -> String {
    format!("{}:{key}", api::image::BUILD_CACHE)
}

/// A name for an image that was given none.
pub(crate) fn unnamed(base: &ImageInfo, plan: &Plan) -> String {
    let last = plan.steps().next_back().map_or(&base.digest, |step| &step.key);
    let hash = blake3::hash(json!(["image", last, plan.config]).to_string().as_bytes()).to_hex();
    hash[..KEY_DIGITS].to_owned()
}

#[cfg(test)]
mod tests;
