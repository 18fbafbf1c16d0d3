//! Archives of known make for the image section: copies of a real root file system that share no block, many small files,
//! layers of noise. The same each time.

use std::{
    fs::File,
    io::{self, BufWriter, Read, Write},
    path::{Path, PathBuf},
    sync::mpsc,
    thread::JoinHandle,
};

use anyhow::Result;
use bytes::Bytes;
use futures_util::{StreamExt, stream};
use libdsec::ByteStream;
use tar::{Builder, EntryType, Header};

/// What a layer keeps once where it is twice.
const CHUNK_BYTES: usize = 64 << 10;
const PIECES_WAITING_MAX: usize = 16;
const PIECE_BYTES: usize = 1 << 20;

/// Bytes that neither pack nor repeat.
struct Noise(u64);

impl Noise {
    fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
}

impl Read for Noise {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        for piece in out.chunks_mut(8) {
            piece.copy_from_slice(&self.next().to_le_bytes()[..piece.len()]);
        }
        Ok(out.len())
    }
}

fn header(bytes: usize) -> Header {
    let mut header = Header::new_gnu();
    header.set_mode(0o644);
    header.set_mtime(1_700_000_000);
    header.set_size(bytes as u64);
    header
}

fn noise(tar: &mut Builder<impl Write>, name: &str, bytes: usize, seed: u64) -> io::Result<()> {
    tar.append_data(&mut header(bytes), name, Noise::new(seed).take(bytes as u64))
}

fn create(path: &Path) -> io::Result<Builder<BufWriter<File>>> {
    Ok(Builder::new(BufWriter::with_capacity(PIECE_BYTES, File::create(path)?)))
}

/// `copies` of the tree in `tar`, each below a directory of its own and with noise of its own in each chunk of its files.
pub fn copies_of(tar: &Path, copies: usize, to: &Path) -> Result<()> {
    let mut out = create(to)?;
    for copy in 0..copies {
        let mut archive = tar::Archive::new(File::open(tar)?);
        for entry in archive.entries()? {
            let mut entry = entry?;
            let below = |path: &Path| PathBuf::from(format!("copy-{copy}")).join(path);
            let path = below(&entry.path()?);
            let mut header = entry.header().clone();
            match header.entry_type() {
                EntryType::Link | EntryType::Symlink => {
                    let link = entry.link_name()?.unwrap_or_default().into_owned();
                    let link = if header.entry_type() == EntryType::Link { below(&link) } else { link };
                    out.append_link(&mut header, path, link)?;
                }
                EntryType::Regular => {
                    let mut data = Vec::new();
                    entry.read_to_end(&mut data)?;
                    let mut noise = Noise::new(copy as u64 + 1);
                    data.chunks_mut(CHUNK_BYTES)
                        .filter(|chunk| chunk.len() > 8)
                        .try_for_each(|chunk| noise.read_exact(&mut chunk[..8]))?;
                    out.append_data(&mut header, path, &data[..])?;
                }
                _ => out.append_data(&mut header, path, io::empty())?,
            }
        }
    }
    Ok(out.into_inner()?.flush()?)
}

/// `count` files of 1 to 4 KiB, a hundred in a directory.
pub fn small_files(count: usize, to: &Path) -> Result<()> {
    let mut out = create(to)?;
    let mut sizes = Noise::new(7);
    for n in 0..count {
        let bytes = 1024 + (sizes.next() % 3072) as usize;
        noise(&mut out, &format!("d{}/f{n}", n / 100), bytes, n as u64)?;
    }
    Ok(out.into_inner()?.flush()?)
}

/// As `docker save` writes it: layers of files of 1 MB.
pub fn layers(count: usize, layer_bytes: usize, to: &Path) -> Result<()> {
    const FILE_BYTES: usize = 1_000_000;
    let mut out = create(to)?;
    let names: Vec<String> = (0..count).map(|n| format!("\"{n}/layer.tar\"")).collect();
    let manifest = format!("[{{\"Config\":\"c.json\",\"Layers\":[{}]}}]", names.join(","));
    let config = "{\"config\":{},\"rootfs\":{\"type\":\"layers\",\"diff_ids\":[]}}";
    for (name, text) in [("manifest.json", manifest.as_str()), ("c.json", config)] {
        out.append_data(&mut header(text.len()), name, text.as_bytes())?;
    }
    for n in 0..count {
        let mut layer = Builder::new(Vec::new());
        for file in 0..layer_bytes / FILE_BYTES {
            noise(&mut layer, &format!("l{n}/f{file}"), FILE_BYTES, (n * 1000 + file) as u64)?;
        }
        let layer = layer.into_inner()?;
        out.append_data(&mut header(layer.len()), format!("{n}/layer.tar"), &layer[..])?;
    }
    Ok(out.into_inner()?.flush()?)
}

/// The tree in `tar`, and files of noise under `/bench`.
pub fn over(tar: &Path, files: usize, file_bytes: usize, to: &Path) -> Result<()> {
    write_over(tar, files, file_bytes, BufWriter::with_capacity(PIECE_BYTES, File::create(to)?))
}

fn write_over(tar: &Path, files: usize, file_bytes: usize, to: impl Write) -> Result<()> {
    let mut out = Builder::new(to);
    let mut archive = tar::Archive::new(File::open(tar)?);
    for entry in archive.entries()?.raw(true) {
        let entry = entry?;
        out.append(&entry.header().clone(), entry)?;
    }
    for n in 0..files {
        noise(&mut out, &format!("bench/f{n}"), file_bytes, n as u64)?;
    }
    Ok(out.into_inner()?.flush()?)
}

/// The same as a stream, by a thread of its own, for what is too large to be kept.
pub fn stream_over(tar: &Path, files: usize, file_bytes: usize) -> (JoinHandle<Result<()>>, ByteStream) {
    let (to, from) = mpsc::sync_channel(PIECES_WAITING_MAX);
    let tar = tar.to_owned();
    let writer = std::thread::spawn(move || {
        write_over(&tar, files, file_bytes, BufWriter::with_capacity(PIECE_BYTES, Pieces(to)))
    });
    (writer, stream::iter(from).map(Ok).boxed())
}

struct Pieces(mpsc::SyncSender<Bytes>);

impl Write for Pieces {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let sent = self.0.send(Bytes::copy_from_slice(bytes));
        sent.map_err(|_| io::Error::from(io::ErrorKind::BrokenPipe))?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
