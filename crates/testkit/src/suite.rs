//! The main of a test binary: its tests run on one node, which is stopped and checked for leaks at the end.
//!
//! The output is that of `cargo test`, so a test is found, filtered and counted as any other. The node starts with the
//! first test that wants it: `--list` starts none.

use std::{
    future::Future,
    pin::Pin,
    process::ExitCode,
    sync::{Arc, Mutex},
    time::Duration,
};

use libtest_mimic::{Arguments, Failed, Trial};
use tokio::runtime::Runtime;

use crate::Node;

/// A bound against hangs, not a promise of speed.
const TEST_WITHIN: Duration = Duration::from_secs(180);

type Done = Pin<Box<dyn Future<Output = ()> + Send>>;

/// One test: its name and how to run it.
pub struct Test {
    name: &'static str,
    run: Run,
}

#[derive(Clone, Copy)]
enum Run {
    OnNode(fn(Arc<Node>) -> Done),
    /// It starts what it needs.
    Alone(fn() -> Done),
}

impl Test {
    pub const fn new(name: &'static str, run: fn(Arc<Node>) -> Done) -> Self {
        Self { name, run: Run::OnNode(run) }
    }

    /// A test that wants no node, or several of its own.
    pub const fn alone(name: &'static str, run: fn() -> Done) -> Self {
        Self { name, run: Run::Alone(run) }
    }
}

/// `tests![a, b]`: async functions of a node, by their names.
#[macro_export]
macro_rules! tests {
    ($($name:ident),* $(,)?) => {
        vec![$($crate::suite::Test::new(stringify!($name), |node| Box::pin(async move { $name(&node).await }))),*]
    };
}

/// Started at most once; a failed start fails every test with the same words.
type Shared = Mutex<Option<Result<Arc<Node>, String>>>;

fn node(shared: &Shared, runtime: &Runtime) -> Result<Arc<Node>, Failed> {
    let mut slot = shared.lock().map_err(|_| "the node's start panicked")?;
    let started = slot
        .get_or_insert_with(|| runtime.block_on(Node::start()).map(Arc::new).map_err(|e| format!("{e:#}")));
    started.clone().map_err(Failed::from)
}

/// Runs the tests, `threads` at once unless the command line says otherwise.
pub fn run(threads: usize, tests: Vec<Test>) -> ExitCode {
    let mut arguments = Arguments::from_args();
    arguments.test_threads = arguments.test_threads.or(Some(threads));
    let runtime = Arc::new(Runtime::new().expect("threads can be started"));
    let shared: Arc<Shared> = Arc::default();
    let trials = tests.into_iter().map(|test| {
        let (runtime, shared) = (runtime.clone(), shared.clone());
        Trial::test(test.name, move || {
            let done = match test.run {
                Run::OnNode(run) => run(node(&shared, &runtime)?),
                Run::Alone(run) => run(),
            };
            // A task of its own: a panic comes back as an error.
            let task = runtime.spawn(async move { tokio::time::timeout(TEST_WITHIN, done).await });
            match runtime.block_on(task) {
                Ok(Ok(())) => Ok(()),
                Ok(Err(_)) => Err(format!("not done within {} s", TEST_WITHIN.as_secs()).into()),
                Err(e) => Err(e.try_into_panic().map_or("cancelled".into(), |panic| said(&*panic)).into()),
            }
        })
    });
    let conclusion = libtest_mimic::run(&arguments, trials.collect());
    let started = shared.lock().ok().and_then(|mut s| s.take());
    let ended = match started.and_then(Result::ok).map(Arc::try_unwrap) {
        None => Ok(()),
        Some(Ok(node)) => node.stop(),
        Some(Err(_)) => Err(anyhow::anyhow!("a test still holds the node")),
    };
    if let Err(error) = ended {
        eprintln!("testkit: the node did not end as it should: {error:#}");
        return ExitCode::FAILURE;
    }
    conclusion.exit_code()
}

fn said(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|s| (*s).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "panicked".into())
}
