//! COPY and ADD in a step's sandbox: a tar stream, made while it is sent.
//!
//! Invariant: what is sent is what was hashed for the key. A file that changed since is an error, never a layer under the
//! wrong key.

use std::{
    ffi::OsStr,
    fs::File,
    io::{self, Read, Write},
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
};

use api::{Code, Error, Result, file::FileKind};

use super::{
    add,
    context::{Entry, Source, What},
    plan::Copying,
};
use crate::{
    image::pack::{self, Chunks},
    sandbox::{Sandbox, files::Files, tree::local},
};

/// Of `/etc/passwd` and `/etc/group` of an image, which may be anything.
const TABLE_BYTES_MAX: u64 = 1 << 20;

/// One source, and where it goes.
struct Load {
    source: Source,
    /// The name of a file in its directory.
    name: Vec<u8>,
    owner: (u64, u64),
    chmod: Option<u32>,
}

pub(crate) async fn copy(sandbox: &Sandbox, copying: &Copying) -> Result<()> {
    let files = sandbox.files().as_user("0");
    let owner = match &copying.chown {
        Some(text) => owner(&files, text).await?,
        None => (0, 0),
    };
    for source in &copying.sources {
        if copying.unpacks && add::is_archive(source)? {
            let path = source.entries[0].path.clone();
            files.upload_tar(&copying.to, archive(path)).await?;
            continue;
        }
        let (directory, name) = if source.is_directory {
            (copying.to.clone(), Vec::new())
        } else {
            place(&files, copying, source).await?
        };
        let load = Load { source: source.clone(), name, owner, chmod: copying.chmod };
        files.upload_tar(&directory, pack::chunks(move |chunks| load.write(chunks))).await?;
    }
    Ok(())
}

/// The directory and the name of a file that is copied.
async fn place(files: &Files, copying: &Copying, source: &Source) -> Result<(String, Vec<u8>)> {
    let is_there = match files.stat(&copying.to).await {
        Ok(info) => info.kind == FileKind::Directory,
        Err(e) if e.code == Code::NotFound => false,
        Err(e) => return Err(e),
    };
    if copying.is_directory || is_there || copying.to == "/" {
        return Ok((copying.to.clone(), source.name.clone()));
    }
    let (directory, name) = copying.to.rsplit_once('/').unwrap_or(("", &copying.to));
    let directory = if directory.is_empty() { "/" } else { directory };
    Ok((directory.to_owned(), name.as_bytes().to_vec()))
}

/// The bytes of an archive.
fn archive(path: PathBuf) -> api::arrow::ByteStream {
    pack::chunks(move |mut chunks| {
        let at = |e: io::Error| local("unpacking", &path, &e);
        io::copy(&mut add::open(&path).map_err(at)?, &mut chunks).map_err(at)?;
        chunks.flush().map_err(at)
    })
}

impl Load {
    fn write(&self, chunks: io::BufWriter<Chunks>) -> Result<()> {
        let mut tar = tar::Builder::new(chunks);
        for entry in &self.source.entries {
            self.append(&mut tar, entry).map_err(|e| local("sending", &entry.path, &e))?;
        }
        let done = tar.into_inner().and_then(|mut chunks| chunks.flush());
        done.map_err(|e| Error::internal(format!("sending what is copied: {e}")))
    }

    fn append(&self, tar: &mut tar::Builder<impl Write>, entry: &Entry) -> io::Result<()> {
        let name = if self.source.is_directory { &entry.name } else { &self.name };
        let name = Path::new(OsStr::from_bytes(name));
        let mut header = tar::Header::new_gnu();
        header.set_uid(self.owner.0);
        header.set_gid(self.owner.1);
        header.set_mode(self.chmod.unwrap_or(entry.mode));
        header.set_mtime(entry.modified);
        header.set_size(0);
        match &entry.what {
            What::Directory => {
                header.set_entry_type(tar::EntryType::Directory);
                tar.append_data(&mut header, name, io::empty())
            }
            What::Symlink(target) => {
                header.set_entry_type(tar::EntryType::Symlink);
                header.set_mode(0o777);
                tar.append_link(&mut header, name, target)
            }
            What::File { size, hash } => {
                header.set_entry_type(tar::EntryType::Regular);
                header.set_size(*size);
                let file = File::open(&entry.path)?.take(*size);
                let mut same = Same { file, hasher: blake3::Hasher::new(), hash: *hash };
                tar.append_data(&mut header, name, &mut same)
            }
        }
    }
}

/// A file that has the bytes that it had, or an error at its end.
struct Same {
    file: io::Take<File>,
    hasher: blake3::Hasher,
    hash: blake3::Hash,
}

impl Read for Same {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.file.read(buffer)?;
        self.hasher.update(&buffer[..read]);
        if read == 0 && !buffer.is_empty() && self.hasher.finalize() != self.hash {
            return Err(io::Error::other("it changed while the build went on"));
        }
        Ok(read)
    }
}

/// `user[:group]` as numbers, by the image's own tables. A number alone is its group, too.
async fn owner(files: &Files, text: &str) -> Result<(u64, u64)> {
    let (user, group) = text.split_once(':').map_or((text, None), |(user, group)| (user, Some(group)));
    let (passwd, groups) = (table(files, "/etc/passwd").await?, table(files, "/etc/group").await?);
    resolve(user, group, &passwd, &groups)
}

async fn table(files: &Files, path: &str) -> Result<String> {
    match files.read_range(path, 0, TABLE_BYTES_MAX).await {
        Ok(bytes) => Ok(String::from_utf8_lossy(&bytes).into_owned()),
        Err(e) if e.code == Code::NotFound => Ok(String::new()),
        Err(e) => Err(e),
    }
}

fn resolve(user: &str, group: Option<&str>, passwd: &str, groups: &str) -> Result<(u64, u64)> {
    let no = |what: &str, name: &str| Error::invalid(format!("--chown: the image has no {what} `{name}`"));
    let id = |text: &str| text.parse::<u16>().ok().map(u64::from);
    let of = |table: &str, name: &str| -> Option<(u64, Option<u64>)> {
        let line = table.lines().find(|line| line.split(':').next() == Some(name))?;
        let mut fields = line.split(':').skip(2);
        Some((id(fields.next()?)?, fields.next().and_then(id)))
    };
    let (uid, primary) = match id(user) {
        Some(uid) => (uid, uid),
        None => match of(passwd, user) {
            Some((uid, gid)) => (uid, gid.unwrap_or(uid)),
            None if user == "root" => (0, 0),
            None => return Err(no("user", user)),
        },
    };
    let gid = match group {
        None => primary,
        Some(group) => match id(group).or_else(|| of(groups, group).map(|(gid, _)| gid)) {
            Some(gid) => gid,
            None if group == "root" => 0,
            None => return Err(no("group", group)),
        },
    };
    Ok((uid, gid))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owners_are_those_of_the_image() {
        let (passwd, groups) =
            ("root:x:0:0::/:\nbad\nann:x:1000:1001::/home/ann:\n", "wheel:x:10:ann\nx:y\n");
        let of = |user, group| resolve(user, group, passwd, groups);
        assert_eq!(of("ann", None).unwrap(), (1000, 1001));
        assert_eq!(of("ann", Some("wheel")).unwrap(), (1000, 10));
        assert_eq!(of("7", None).unwrap(), (7, 7));
        assert_eq!(of("7", Some("8")).unwrap(), (7, 8));
        assert_eq!(resolve("root", Some("root"), "", "").unwrap(), (0, 0));
        for (user, group) in
            [("bob", None), ("ann", Some("none")), ("70000", None), ("", None), ("bad", None)]
        {
            assert!(of(user, group).unwrap_err().message.starts_with("--chown:"), "{user}");
        }
    }
}
