//! The image's bytes, by place, through a window: neighbours are read together, as the writer laid them out.

use std::{cell::RefCell, fs::File, os::unix::fs::FileExt, path::Path};

use crate::error::{Error, Result};

const WINDOW_BYTES: u64 = 16 << 10;

pub struct Meta {
    file: File,
    bytes: u64,
    window: RefCell<Window>,
}

#[derive(Default)]
struct Window {
    start: u64,
    bytes: Vec<u8>,
}

impl Meta {
    pub fn open(path: &Path) -> Result<Self> {
        let file = File::open(path).map_err(Error::disk("open a layer"))?;
        let bytes = file.metadata().map_err(Error::disk("open a layer"))?.len();
        Ok(Self { file, bytes, window: RefCell::default() })
    }

    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Errors, before any memory is taken, where `len` bytes from `at` are not all there.
    pub fn check(&self, at: u64, len: u64) -> Result<()> {
        match at.checked_add(len) {
            Some(end) if end <= self.bytes => Ok(()),
            _ => Err(Error::Damaged("something lies past its end")),
        }
    }

    /// `len` bytes from `at`.
    pub fn take(&self, at: u64, len: usize) -> Result<Vec<u8>> {
        self.check(at, len as u64)?;
        let mut window = self.window.borrow_mut();
        let is_there = at >= window.start && at + len as u64 <= window.start + window.bytes.len() as u64;
        if !is_there {
            let wanted = (self.bytes - at).min(WINDOW_BYTES.max(len as u64)) as usize;
            // Not believed until it is read in full.
            window.bytes.clear();
            let mut bytes = vec![0; wanted];
            self.file.read_exact_at(&mut bytes, at).map_err(Error::disk("read a layer"))?;
            *window = Window { start: at, bytes };
        }
        let from = (at - window.start) as usize;
        Ok(window.bytes[from..from + len].to_vec())
    }
}
