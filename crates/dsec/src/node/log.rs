//! `<data>/dsec.log`, where a detached server, forge and the agents write: bounded, since a caller can make them write.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Seek, SeekFrom},
    path::{Path, PathBuf},
    time::Duration,
};

/// The log, and the older part beside it.
const BYTES_MAX: u64 = 64 << 20;
const LOOK_PERIOD: Duration = Duration::from_secs(10);

pub(crate) fn path(data: &Path) -> PathBuf {
    data.join("dsec.log")
}

/// Looks now and then, for as long as the server runs.
pub(crate) fn keep_bounded(data: &Path) {
    let path = path(data);
    tokio::spawn(async move {
        loop {
            tokio::time::sleep(LOOK_PERIOD).await;
            let path = path.clone();
            let cut = tokio::task::spawn_blocking(move || bound(&path, BYTES_MAX)).await;
            if let Ok(Err(error)) = cut {
                tracing::warn!(%error, "the log cannot be cut");
            }
        }
    });
}

/// Moves what is over `bytes_max` to `<log>.1`, of which as much is kept. Its writers hold it open in append mode, so it is
/// copied and emptied, not renamed; what they write between the two is lost.
fn bound(path: &Path, bytes_max: u64) -> io::Result<()> {
    let length = match fs::metadata(path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
        found => found?.len(),
    };
    if length <= bytes_max {
        return Ok(());
    }
    let mut log = OpenOptions::new().read(true).write(true).open(path)?;
    log.seek(SeekFrom::Start(length - bytes_max))?;
    let older = path.with_extension("log.1");
    let partial = path.with_extension("log.partial");
    io::copy(&mut log, &mut File::create(&partial)?)?;
    fs::rename(partial, older)?;
    log.set_len(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_over_its_bound_is_cut_and_its_tail_is_kept() {
        let dir = tempfile::tempdir().unwrap();
        let log = path(dir.path());
        bound(&log, 10).unwrap();
        fs::write(&log, "0123456789").unwrap();
        bound(&log, 10).unwrap();
        assert_eq!(fs::read(&log).unwrap().len(), 10);
        let mut writer = OpenOptions::new().append(true).open(&log).unwrap();
        io::Write::write_all(&mut writer, b"abc").unwrap();
        bound(&log, 10).unwrap();
        assert_eq!(fs::read(dir.path().join("dsec.log.1")).unwrap(), b"3456789abc");
        io::Write::write_all(&mut writer, b"new").unwrap();
        assert_eq!(fs::read(&log).unwrap(), b"new");
    }
}
