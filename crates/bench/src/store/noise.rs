//! A workspace of files that nobody can compress, the same in every run, as a tar that is made while it is sent.

use std::fmt::Write;

use anyhow::Result;
use bytes::Bytes;
use futures_util::stream;
use libdsec::{Client, ImageInfo, ImportQuery, LayerKind};

/// The name of the image, and where its files are in a sandbox.
pub const IMAGE: &str = "bench-noise";
pub const AT: &str = "/srv/noise";
/// Of the files that `Noise::start_list` names, one to a line.
pub const START_LIST: &str = "start.list";

const FILES_IN_DIR: u64 = 60;
/// Directories that a start reads, each as a whole: about 100 MB of 5 GB.
const START_DIRS: u64 = 20;

/// What is in it.
#[derive(Debug, Clone, Copy)]
pub struct Noise {
    pub files: u64,
    pub bytes: u64,
}

fn mix(mut x: u64) -> u64 {
    x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

impl Noise {
    /// 60,000 files in 5,000 MB, or as many fewer as that is smaller.
    pub fn of_mb(mb: u64) -> Self {
        Self { files: (mb * 12).next_multiple_of(FILES_IN_DIR), bytes: mb * 1_000_000 }
    }

    /// From nothing to twice the mean.
    fn size(self, file: u64) -> u64 {
        mix(file) % (self.bytes / self.files * 2)
    }

    fn name(file: u64) -> String {
        format!("d{}/f{}", file / FILES_IN_DIR, file % FILES_IN_DIR)
    }

    /// Files as a program's start finds them: some directories, all of each, in no order that a disk knows.
    fn start_list(self) -> String {
        let dirs = self.files / FILES_IN_DIR;
        let mut list = String::new();
        for nth in 0..START_DIRS.min(dirs) {
            let dir = nth * 7 % START_DIRS.min(dirs) * (dirs / START_DIRS).max(1);
            for file in 0..FILES_IN_DIR {
                let name = Self::name(dir * FILES_IN_DIR + file * 37 % FILES_IN_DIR);
                let _ = writeln!(list, "{AT}/{name}");
            }
        }
        list
    }

    /// One entry of the tar.
    fn entry(self, file: u64) -> Bytes {
        let size = self.size(file);
        let words = (0..size.div_ceil(8)).flat_map(|word| mix(file << 32 | word).to_le_bytes());
        let mut content: Vec<u8> = words.collect();
        content.truncate(size as usize);
        entry(&Self::name(file), &content)
    }

    pub async fn import(self, client: &Client) -> Result<ImageInfo> {
        let list = entry(START_LIST, self.start_list().as_bytes());
        let files = (0..self.files).map(move |file| Ok(self.entry(file)));
        let end = Bytes::from_static(&[0; 1024]);
        let tar = std::iter::once(Ok(list)).chain(files).chain([Ok(end)]);
        let query = ImportQuery { prefix: Some(AT.into()), ..ImportQuery::new(IMAGE, LayerKind::Workspace) };
        Ok(client.images().import(query, Box::pin(stream::iter(tar))).await?)
    }
}

fn entry(name: &str, content: &[u8]) -> Bytes {
    let mut header = tar::Header::new_ustar();
    // Our own names: short, relative.
    let named = header.set_path(name);
    debug_assert!(named.is_ok());
    header.set_mode(0o644);
    header.set_size(content.len() as u64);
    header.set_cksum();
    let mut bytes = header.as_bytes().to_vec();
    bytes.extend_from_slice(content);
    bytes.resize(bytes.len().next_multiple_of(512), 0);
    bytes.into()
}
