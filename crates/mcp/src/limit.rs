//! Every limit of this crate, each with a why.

use std::time::Duration;

/// What a tool shows of an output unless told otherwise: about a tenth of a usual model's context.
pub const OUTPUT_CHARS_DEFAULT: usize = 30_000;
/// The most that a caller may ask for.
pub(crate) const OUTPUT_CHARS_MAX: usize = 200_000;
/// The longest character of UTF-8, to turn a bound of characters into one of bytes.
pub(crate) const CHAR_BYTES_MAX: usize = 4;
/// One read of a file: more is read in pieces.
pub(crate) const READ_BYTES_MAX: u64 = 1 << 20;
/// One write of a file: it is in memory several times, as JSON and as text.
pub(crate) const WRITE_BYTES_MAX: usize = 8 << 20;
/// Entries of a listing that are shown.
pub(crate) const ENTRIES_MAX: usize = 1_000;
/// Sandboxes or images of a listing that are shown.
pub(crate) const ROWS_MAX: usize = 200;
/// A name, a value of a header, a reason: what stands in one line.
pub(crate) const LINE_CHARS_MAX: usize = 1_000;
/// An error's message: the words of a parser may repeat the whole of a bad argument.
pub(crate) const MESSAGE_CHARS_MAX: usize = 2_000;
/// Headers of an HTTP answer that are shown, and how much of each.
pub(crate) const HEADERS_MAX: usize = 64;
pub(crate) const HEADER_CHARS_MAX: usize = 300;

/// Calls at once of one server; more are refused, not queued: a client that sends without end must be told.
pub(crate) const CALLS_MAX: usize = 64;
/// One message by stdio. Over it the SDK drops the line without an answer, so it is well above what a tool takes.
pub(crate) const LINE_BYTES_MAX: usize = 64 << 20;
/// One request by HTTP: a write of `WRITE_BYTES_MAX` in base64 and its quotes.
pub(crate) const REQUEST_BYTES_MAX: usize = 16 << 20;
/// Connections by HTTP; more wait in the kernel's queue.
pub(crate) const CONNECTIONS_MAX: usize = 256;
/// Sessions by HTTP: each has a task and its buffers.
pub(crate) const SESSIONS_MAX: usize = 128;
/// A session that says nothing for this long is forgotten: longer than the longest command.
pub(crate) const SESSION_IDLE: Duration = Duration::from_secs(2 * 3600);
/// To send a request's head, and its body.
pub(crate) const REQUEST_WITHIN: Duration = Duration::from_secs(30);

/// A call that says nothing of time itself.
pub(crate) const CALL_WITHIN: Duration = Duration::from_secs(60);
/// A command's time when the caller names none: clients give up on a call after a minute.
pub(crate) const EXEC_S_DEFAULT: u64 = 50;
/// The most that may be waited for a command; in the background there is no bound but the sandbox's life.
pub(crate) const EXEC_S_MAX: u64 = 3600;
/// The most that a background command's time may be: the longest life of a sandbox.
pub(crate) const BACKGROUND_S_MAX: u64 = 7 * 24 * 3600;
/// From a command's timeout to its answer: the kill, and the rest of the output.
pub(crate) const EXEC_SLACK: Duration = Duration::from_secs(30);
/// The most that one poll of a background command may wait.
pub(crate) const POLL_S_MAX: u64 = 300;
/// A server inside, when the caller names no time, and the most.
pub(crate) const FETCH_S_DEFAULT: u64 = 30;
pub(crate) const FETCH_S_MAX: u64 = 300;
/// To look why a call failed; without, it is told as it is.
pub(crate) const EXPLAIN_WITHIN: Duration = Duration::from_secs(5);
/// To kill the command of a call that was cancelled.
pub(crate) const KILL_WITHIN: Duration = Duration::from_secs(5);

/// The life of a sandbox that belongs to this server, renewed while it lives: what is left after a kill -9 of it.
pub const LEASE: Duration = Duration::from_secs(10 * 60);
/// Three renewals may fail before the sandbox ends.
pub(crate) const LEASE_PERIOD: Duration = Duration::from_secs(150);
/// After the client closed its side: what it asked for before may still be answered.
pub(crate) const GRACE: Duration = Duration::from_secs(1);
/// For the SDK to end its loop: it waits for answers that nobody may be reading.
pub(crate) const END_WITHIN: Duration = Duration::from_secs(3);
/// For a create in flight, and for the stops at the end.
pub(crate) const CLOSE_WITHIN: Duration = Duration::from_secs(20);

const _: () = assert!(LEASE_PERIOD.as_secs() * 3 < LEASE.as_secs());
const _: () = assert!(OUTPUT_CHARS_DEFAULT <= OUTPUT_CHARS_MAX);
const _: () = assert!(SESSION_IDLE.as_secs() > EXEC_S_MAX + EXEC_SLACK.as_secs());
const _: () = assert!(WRITE_BYTES_MAX / 3 * 4 < REQUEST_BYTES_MAX && REQUEST_BYTES_MAX <= LINE_BYTES_MAX);
