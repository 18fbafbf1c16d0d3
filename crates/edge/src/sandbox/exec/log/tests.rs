//! The log's promises: an attached reader sees every byte once, whatever the order of writes and reads; what was gone
//! when it came is declared; a restart changes nothing of what the file tells.

use std::path::Path;

use api::exec::ExitReason;
use proptest::prelude::*;

use super::*;

const EXIT: Exit = Exit { code: 0, reason: ExitReason::Exited, signal: None, duration_ms: 1 };

fn byte(stream: Stream, offset: u64) -> u8 {
    (offset.wrapping_mul(37) >> 1) as u8 ^ index(stream) as u8
}

fn log(dir: &Path) -> Arc<Log> {
    Arc::new(Log::new(Shape::SMALL, [dir.join("o"), dir.join("e")]))
}

/// Writes as the pump does. False: an attached reader must catch up first.
fn write(log: &Log, stream: Stream, count: u64) -> bool {
    if !log.has_room(stream, count) {
        return false;
    }
    let total = log.totals()[index(stream)];
    let data: Vec<u8> = (total..total + count).map(|o| byte(stream, o)).collect();
    if !log.append_to_memory(stream, &data) {
        log.append_to_file(stream, &data).unwrap();
    }
    true
}

/// An attached client: what it has seen.
struct Client {
    reader: Reader,
    at: [u64; 2],
    dropped: [u64; 2],
    exited: bool,
}

impl Client {
    fn new(log: &Arc<Log>, from: [u64; 2]) -> Self {
        let query = AttachQuery { stdout_offset: from[0], stderr_offset: from[1] };
        Self { reader: log.attach(query).unwrap(), at: from, dropped: [0; 2], exited: false }
    }

    /// One step; false: nothing to do.
    fn step(&mut self) -> bool {
        let (stream, offset, data) = match self.reader.next().unwrap() {
            Next::Bytes { stream, offset, data } => (stream, offset, data),
            Next::Read { stream, offset, count, spool } => {
                (stream, offset, spool.read(offset, count).unwrap())
            }
            Next::Dropped { stream, offset, bytes } => {
                assert_eq!(offset, self.at[index(stream)]);
                self.at[index(stream)] += bytes;
                self.dropped[index(stream)] += bytes;
                self.reader.advance(stream, offset + bytes);
                return true;
            }
            Next::Exit(exit) => {
                assert_eq!(exit, EXIT);
                self.exited = true;
                return false;
            }
            Next::Wait | Next::Closed => return false,
        };
        assert_eq!(offset, self.at[index(stream)], "no gap and no byte twice");
        assert!(!data.is_empty());
        for (n, seen) in data.iter().enumerate() {
            assert_eq!(*seen, byte(stream, offset + n as u64), "at {} of {stream:?}", offset + n as u64);
        }
        self.at[index(stream)] += data.len() as u64;
        self.reader.advance(stream, self.at[index(stream)]);
        true
    }
}

#[derive(Debug, Clone)]
enum Step {
    Write(bool, u64),
    Attach(u64, u64),
    Read(usize, usize),
    Detach(usize),
    Restart,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        6 => (any::<bool>(), 1u64..=5).prop_map(|(err, count)| Step::Write(err, count)),
        2 => (0u64..60, 0u64..60).prop_map(|(out, err)| Step::Attach(out, err)),
        4 => (0usize..4, 1usize..6).prop_map(|(client, times)| Step::Read(client, times)),
        1 => (0usize..4).prop_map(Step::Detach),
        1 => Just(Step::Restart),
    ];
    proptest::collection::vec(step, 1..80)
}

/// A restart keeps what is in files; aether sends the rest again.
fn restart(old: &Log, dir: &Path) -> Arc<Log> {
    let spooled = old.spooled();
    let totals = old.totals();
    let log = Arc::new(Log::recover(Shape::SMALL, [dir.join("o"), dir.join("e")], [None, None], None));
    assert_eq!(log.totals(), spooled, "what was acknowledged is there");
    for stream in STREAMS {
        let mut missing = totals[index(stream)] - spooled[index(stream)];
        while missing > 0 {
            let count = missing.min(5);
            assert!(write(&log, stream, count));
            missing -= count;
        }
    }
    log
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]
    #[test]
    fn every_attached_reader_sees_every_byte_once(steps in steps()) {
        let dir = tempfile::tempdir().unwrap();
        let mut log = log(dir.path());
        let mut clients: Vec<Client> = Vec::new();
        for step in steps {
            match step {
                Step::Write(err, count) => {
                    write(&log, STREAMS[usize::from(err)], count);
                }
                Step::Attach(out, err) if clients.len() < 4 => {
                    // A client comes back at an offset that it was given.
                    let totals = log.totals();
                    clients.push(Client::new(&log, [out.min(totals[0]), err.min(totals[1])]));
                }
                Step::Attach(..) => {}
                Step::Read(client, times) => {
                    if let Some(client) = clients.get_mut(client) {
                        for _ in 0..times {
                            if !client.step() {
                                break;
                            }
                        }
                    }
                }
                Step::Detach(client) => {
                    if client < clients.len() {
                        clients.remove(client);
                    }
                }
                Step::Restart => {
                    // Clients of the old process come back where they were.
                    let at: Vec<_> = clients.drain(..).map(|c| c.at).collect();
                    log = restart(&log, dir.path());
                    clients.extend(at.into_iter().map(|at| Client::new(&log, at)));
                }
            }
        }
        log.finish(EXIT);
        for client in &mut clients {
            while client.step() {}
            prop_assert!(client.exited);
            prop_assert_eq!(client.at, log.totals());
        }
        // Who comes after the end sees head and tail, and is told of the rest.
        let totals = log.totals();
        let mut late = Client::new(&log, [0, 0]);
        while late.step() {}
        let kept = totals.map(|t| t - Shape::SMALL.bytes_kept(t));
        prop_assert_eq!((late.at, late.dropped), (totals, kept));
    }

    /// Without a reader nothing ever waits.
    #[test]
    fn without_a_reader_there_is_always_room(counts in proptest::collection::vec(1u64..=5, 1..60)) {
        let dir = tempfile::tempdir().unwrap();
        let log = log(dir.path());
        for count in &counts {
            prop_assert!(write(&log, Stream::Stdout, *count));
        }
        prop_assert_eq!(log.totals()[0], counts.iter().sum::<u64>());
    }
}

#[test]
fn a_reader_that_does_not_read_stops_the_writer_until_it_leaves() {
    let dir = tempfile::tempdir().unwrap();
    let log = log(dir.path());
    let client = Client::new(&log, [0, 0]);
    let mut written = 0;
    while write(&log, Stream::Stdout, 5) {
        written += 5;
        assert!(written <= Shape::SMALL.lag_bytes_max);
    }
    assert!(written > 0);
    drop(client);
    assert!(write(&log, Stream::Stdout, 5));
}

#[test]
fn an_ended_log_keeps_no_file_open_unless_it_is_read() {
    let dir = tempfile::tempdir().unwrap();
    let log = log(dir.path());
    while log.totals()[0] < 20 {
        assert!(write(&log, Stream::Stdout, 5));
    }
    let mut client = Client::new(&log, [0, 0]);
    log.finish(EXIT);
    let open = |log: &Log| matches!(log.lock().halves[0].kept, Kept::File(Some(_)));
    assert!(open(&log));
    // Its files may even be removed under an attached client.
    std::fs::remove_file(dir.path().join("o")).unwrap();
    while client.step() {}
    assert_eq!(client.at[0], 20);
    drop(client);
    assert!(!open(&log));
    assert!(
        log.attach(AttachQuery::default()).unwrap().next().is_err(),
        "the file is gone, and that is told"
    );
}

#[test]
fn readers_are_bounded() {
    let dir = tempfile::tempdir().unwrap();
    let log = log(dir.path());
    let readers: Vec<_> = (0..CURSORS_MAX).map(|_| log.attach(AttachQuery::default()).unwrap()).collect();
    assert!(log.attach(AttachQuery::default()).is_none());
    drop(readers);
    assert!(log.attach(AttachQuery::default()).is_some());
}

#[test]
fn a_hole_is_declared_and_survives_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let log = log(dir.path());
    assert!(write(&log, Stream::Stdout, 4));
    log.skip(Stream::Stdout, 3).unwrap();
    assert!(write(&log, Stream::Stdout, 5));
    log.skip(Stream::Stdout, 2).unwrap();
    assert!(write(&log, Stream::Stdout, 1));
    for log in [log.clone(), restart(&log, dir.path())] {
        log.finish(EXIT);
        let mut client = Client::new(&log, [0, 0]);
        while client.step() {}
        // The second hole swallows what lies between the two.
        assert_eq!((client.at[0], client.dropped[0], client.exited), (15, 10, true));
    }
}
