//! Every limit that a caller can meet, each with a why. Sizes in bytes, times in milliseconds.

/// A JSON request body. Specs and commands are small; file bytes travel as streams, which have no such limit.
pub const REQUEST_BODY_BYTES_MAX: usize = 8 << 20;
/// argv, shell text and environment together: the kernel's own bound is near 2 MiB for argv and envp.
pub const COMMAND_BYTES_MAX: usize = 2 << 20;
/// One argument: the kernel's MAX_ARG_STRLEN.
pub const ARGUMENT_BYTES_MAX: usize = 128 << 10;
/// Standard input that rides inside the request; more is streamed.
pub const STDIN_INLINE_BYTES_MAX: usize = 4 << 20;
/// A path: the kernel's PATH_MAX less the NUL.
pub const PATH_BYTES_MAX: usize = 4095;
/// One frame's payload: big enough to amortise a system call, small enough to bound a reader.
pub const FRAME_BYTES_MAX: usize = 256 << 10;
/// What a collecting exec returns of each stream unless told otherwise: head and tail, the middle dropped.
pub const EXEC_OUTPUT_BYTES_DEFAULT: u64 = 8 << 20;
/// The most that a caller may ask a collecting exec to return of each stream.
pub const EXEC_OUTPUT_BYTES_MAX: u64 = 64 << 20;
/// The head of each stream that an edge keeps of every exec.
pub const SPOOL_HEAD_BYTES: u64 = 4 << 20;
/// The tail of each stream that an edge keeps of every exec.
pub const SPOOL_TAIL_BYTES: u64 = 4 << 20;
/// What aether holds of each stream until the edge has acknowledged it; a full buffer stops the process.
pub const AETHER_BUFFER_BYTES: usize = 1 << 20;
/// Ended execs that an edge remembers for each sandbox (their exit codes and spools); the oldest go first.
pub const EXECS_REMEMBERED_MAX: usize = 64;
/// Execs alive at once in one sandbox.
pub const EXECS_LIVE_MAX: usize = 1024;
/// Sandboxes of one create request: the paper's largest.
pub const CREATE_COUNT_MAX: u32 = 32_768;
/// A sandbox's life when the caller names none.
pub const TTL_MS_DEFAULT: u64 = 60 * 60 * 1000;
/// The longest life: a week.
pub const TTL_MS_MAX: u64 = 7 * 24 * 60 * 60 * 1000;
/// Memory of a sandbox when the caller names none.
pub const MEMORY_BYTES_DEFAULT: u64 = 512 << 20;
/// Less than this and a shell cannot start.
pub const MEMORY_BYTES_MIN: u64 = 4 << 20;
/// CPU of a sandbox when the caller names none: thousandths of a core.
pub const CPU_MILLIS_DEFAULT: u32 = 1000;
/// The kernel's smallest quota (1 ms in 100 ms) is 10.
pub const CPU_MILLIS_MIN: u32 = 10;
/// Names and values of an environment: it rides in one message to the node's spawner.
pub const ENV_BYTES_MAX: usize = 48 << 10;
/// init, the two forks of a command's start, and room for a shell and what it calls.
pub const PIDS_MIN: u32 = 8;
/// Processes and threads of a sandbox when the caller names none.
pub const PIDS_DEFAULT: u32 = 1024;
/// Writable disk of a sandbox when the caller names none.
pub const DISK_BYTES_DEFAULT: u64 = 10 << 30;
/// btrfs needs some room for its own metadata of a subvolume.
pub const DISK_BYTES_MIN: u64 = 1 << 20;
/// Layers of one sandbox (base, workspaces, toolkits): overlayfs mounts stay under a page of options.
pub const LAYERS_MAX: usize = 64;
/// Labels of one sandbox.
pub const LABELS_MAX: usize = 32;
/// Names and values of an image's labels: each list of images carries them.
pub const IMAGE_LABELS_BYTES_MAX: usize = 64 << 10;
/// Ports that an image is said to listen on.
pub const EXPOSED_PORTS_MAX: usize = 256;
/// Checkpoints of one sandbox: each may hold as many bytes of the node's disk as the sandbox itself may.
pub const CHECKPOINTS_MAX: usize = 8;
/// Patterns of one scrub: each is tried on each path.
pub const SCRUB_PATTERNS_MAX: usize = 256;
/// Paths that a pack tells of by name; the rest are counted.
pub const SCRUBBED_TOLD_MAX: usize = 10_000;
/// From asking to answering for a pack: a whole disk may have to be read.
pub const PACK_MS_MAX: u64 = 30 * 60 * 1000;
/// A name, a label's key or value.
pub const NAME_BYTES_MAX: usize = 128;
/// From asking to answering for a stop: kill, reap, unmount.
pub const STOP_MS_MAX: u64 = 10_000;
/// From asking to answering for a create.
pub const CREATE_MS_MAX: u64 = 30_000;
/// Between SIGTERM and SIGKILL of a timed-out exec: none. The promise is "nothing is left".
pub const TIMEOUT_GRACE_MS: u64 = 0;

const _: () = assert!(FRAME_BYTES_MAX <= AETHER_BUFFER_BYTES);
const _: () = assert!(COMMAND_BYTES_MAX < REQUEST_BODY_BYTES_MAX);
const _: () = assert!(STDIN_INLINE_BYTES_MAX < REQUEST_BODY_BYTES_MAX);
const _: () = assert!(TTL_MS_DEFAULT <= TTL_MS_MAX);
const _: () = assert!(EXEC_OUTPUT_BYTES_DEFAULT <= EXEC_OUTPUT_BYTES_MAX);
