//! How many files a process of ours may have open. The usual soft limit, 1,024, is there for the sake of `select(2)`,
//! and is less than the commands of one busy sandbox need.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// The server: three for each command that somebody follows (client, agent, log), and ten thousand of those at once.
pub(crate) const SERVER: u64 = 1 << 20;
/// forge, and by it each agent (a thousand commands, each with its pipes) and what runs inside. Not more: programs that
/// close every descriptor up to their limit before an exec would take long.
pub(crate) const FORGE: u64 = 1 << 16;

/// Sets the soft limit, and the hard one where it is lower and may be raised.
pub(crate) fn set(files: u64) {
    let now = getrlimit(Resource::Nofile);
    let hard = now.maximum.unwrap_or(u64::MAX);
    let wanted = Rlimit { current: Some(files), maximum: now.maximum.map(|hard| hard.max(files)) };
    if setrlimit(Resource::Nofile, wanted).is_err() {
        let least = Rlimit { current: Some(files.min(hard)), maximum: now.maximum };
        if let Err(error) = setrlimit(Resource::Nofile, least) {
            tracing::warn!(%error, files, "the limit of open files stays as it was");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_what_was_asked_for_or_what_is_allowed() {
        let before = getrlimit(Resource::Nofile);
        set(777);
        assert_eq!(getrlimit(Resource::Nofile).current, Some(777));
        assert_eq!(getrlimit(Resource::Nofile).maximum, before.maximum);
        set(before.current.unwrap_or(SERVER));
        assert_eq!(getrlimit(Resource::Nofile).current, before.current.or(Some(SERVER)));
    }
}
