//! What is told of a file, in their form: names of its owners, and for a link what it leads to.

use std::sync::Arc;

use api::{
    arrow::Chronus,
    file::{FileInfo, FileKind, StatQuery},
};
use futures_util::{StreamExt, stream};
use serde_json::{Value, json};

use super::accounts::Names;
use crate::{fault::Fault, inside::Inside, time};

/// Links of one list that are followed, and how many at once; the rest are told as links.
const LINKS_MAX: usize = 1000;
const LINKS_AT_ONCE: usize = 8;

pub(super) async fn one(call: &Inside, info: &FileInfo) -> Result<Value, Fault> {
    Ok(all(call, std::slice::from_ref(info)).await?.pop().unwrap_or_default())
}

pub(super) async fn all(call: &Inside, infos: &[FileInfo]) -> Result<Vec<Value>, Fault> {
    let ids: Vec<(u32, u32)> = infos.iter().map(|info| (info.uid, info.gid)).collect();
    let names = call.face.accounts.names(&call.id, &call.chronus, &ids).await;
    let links: Vec<_> = infos
        .iter()
        .filter(|info| info.kind == FileKind::Symlink)
        .take(LINKS_MAX)
        .map(|link| target(call.chronus.clone(), call.user.clone(), link.path.to_text()))
        .collect();
    let mut targets = stream::iter(links).buffered(LINKS_AT_ONCE);
    let mut entries = Vec::with_capacity(infos.len());
    for info in infos {
        let followed = if info.kind == FileKind::Symlink { targets.next().await.flatten() } else { None };
        entries.push(describe(info, followed.as_ref(), &names));
    }
    Ok(entries)
}

/// What a link leads to. None where it leads nowhere, or is not the user's to follow.
async fn target(chronus: Arc<dyn Chronus>, user: Option<String>, path: String) -> Option<FileInfo> {
    let query = StatQuery { path, user, follow: true };
    chronus.file_stat(query).await.ok()
}

fn describe(info: &FileInfo, followed: Option<&FileInfo>, names: &Names) -> Value {
    let told = followed.unwrap_or(info);
    let mut entry = json!({
        "name": info.name.to_text(),
        "path": info.path.to_text(),
        "type": kind(told.kind),
        // 64-bit numbers are text in JSON of protobuf.
        "size": told.size_bytes.to_string(),
        "mode": told.mode & 0o777,
        "permissions": permissions(told),
        "owner": names.user(info.uid),
        "group": names.group(info.gid),
        "modifiedTime": time::format(told.modified_ms),
    });
    if let Some(target) = &info.symlink_target {
        entry["symlinkTarget"] = json!(target.to_text());
        entry["isSymlink"] = json!(true);
    }
    entry
}

fn kind(kind: FileKind) -> &'static str {
    match kind {
        FileKind::File => "FILE_TYPE_FILE",
        FileKind::Directory => "FILE_TYPE_DIRECTORY",
        FileKind::Symlink => "FILE_TYPE_SYMLINK",
        _ => "FILE_TYPE_UNSPECIFIED",
    }
}

/// As Go prints a mode, since their agent does: what it is, then nine letters.
fn permissions(info: &FileInfo) -> String {
    let mut text = String::new();
    match info.kind {
        FileKind::Directory => text.push('d'),
        FileKind::Symlink => text.push('L'),
        FileKind::Fifo => text.push('p'),
        FileKind::Socket => text.push('S'),
        FileKind::BlockDevice => text.push('D'),
        FileKind::CharDevice => text.push_str("Dc"),
        FileKind::File => {}
    }
    for (bit, letter) in [(0o4000, 'u'), (0o2000, 'g'), (0o1000, 't')] {
        if info.mode & bit != 0 {
            text.push(letter);
        }
    }
    if text.is_empty() {
        text.push('-');
    }
    for (at, letter) in "rwxrwxrwx".chars().enumerate() {
        text.push(if info.mode & (0o400 >> at) != 0 { letter } else { '-' });
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use api::payload::Payload;

    fn info(kind: FileKind, mode: u32) -> FileInfo {
        FileInfo {
            name: Payload::from(&b"a"[..]),
            path: Payload::from(&b"/x/a"[..]),
            kind,
            size_bytes: 5,
            mode,
            uid: 1000,
            gid: 0,
            modified_ms: 0,
            symlink_target: None,
        }
    }

    #[test]
    fn modes_as_go_prints_them() {
        for (kind, mode, text) in [
            (FileKind::File, 0o644, "-rw-r--r--"),
            (FileKind::Directory, 0o1777, "dtrwxrwxrwx"),
            (FileKind::File, 0o4755, "urwxr-xr-x"),
            (FileKind::Symlink, 0o777, "Lrwxrwxrwx"),
            (FileKind::CharDevice, 0o600, "Dcrw-------"),
        ] {
            assert_eq!(permissions(&info(kind, mode)), text);
        }
    }

    #[test]
    fn an_entry_names_its_owners_and_a_link_what_it_leads_to() {
        let names = Names::parse(b"user:x:1000:1000::/home/user:/bin/sh\n", b"root:x:0:\n");
        let entry = describe(&info(FileKind::File, 0o644), None, &names);
        assert_eq!(
            (&entry["owner"], &entry["group"], &entry["size"]),
            (&json!("user"), &json!("root"), &json!("5"))
        );
        assert_eq!(entry["modifiedTime"], "1970-01-01T00:00:00.000Z");
        let mut link = info(FileKind::Symlink, 0o777);
        link.symlink_target = Some(Payload::from(&b"/b"[..]));
        let entry = describe(&link, Some(&info(FileKind::Directory, 0o755)), &names);
        assert_eq!((&entry["type"], &entry["symlinkTarget"]), (&json!("FILE_TYPE_DIRECTORY"), &json!("/b")));
        assert_eq!(describe(&link, None, &names)["type"], "FILE_TYPE_SYMLINK");
    }
}
