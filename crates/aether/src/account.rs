//! Who `user` is inside the sandbox: its own `/etc/passwd` and `/etc/group`, which may be hostile.
//!
//! Only bytes of regular files are read, at most [`FILE_BYTES_MAX`] of each. A user is a name or `uid[:gid]`; a
//! number needs no entry.

use std::os::fd::OwnedFd;

use api::{Code, Error, Result};
use rustix::fs::{CWD, FileType, Mode, OFlags, ResolveFlags, fstat, openat2};

/// The most that is read of a table.
pub const FILE_BYTES_MAX: usize = 1 << 20;
/// The kernel takes 65,536; no real user has more than a few dozen.
const GROUPS_MAX: usize = 256;

/// One user, resolved.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Account {
    pub uid: u32,
    pub gid: u32,
    pub groups: Vec<u32>,
    pub name: String,
    pub home: String,
    pub shell: String,
}

impl Account {
    pub fn root() -> Self {
        let (name, home, shell) = ("root".into(), "/".into(), "/bin/sh".into());
        Self { uid: 0, gid: 0, groups: vec![0], name, home, shell }
    }
}

/// Resolves `user` (None: root) against the tables of the current root.
pub fn resolve(user: Option<&str>) -> Result<Account> {
    let user = user.filter(|u| !u.is_empty()).unwrap_or("0");
    resolve_in(user, &table("/etc/passwd"), &table("/etc/group"))
}

/// A missing, strange or unreadable table is an empty one.
fn table(path: &str) -> String {
    open_table(path).map(|fd| read_bounded(&fd)).unwrap_or_default()
}

fn open_table(path: &str) -> Option<OwnedFd> {
    // O_NONBLOCK: a FIFO put there must not hang us.
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let fd = openat2(CWD, path, flags, Mode::empty(), ResolveFlags::NO_MAGICLINKS).ok()?;
    let is_file = FileType::from_raw_mode(fstat(&fd).ok()?.st_mode) == FileType::RegularFile;
    is_file.then_some(fd)
}

fn read_bounded(fd: &OwnedFd) -> String {
    let mut bytes = Vec::new();
    let mut chunk = [0; 16 << 10];
    while bytes.len() < FILE_BYTES_MAX {
        match rustix::io::read(fd, &mut chunk) {
            Ok(n) if n > 0 => bytes.extend_from_slice(&chunk[..n]),
            _ => break,
        }
    }
    bytes.truncate(FILE_BYTES_MAX);
    String::from_utf8_lossy(&bytes).into_owned()
}

struct Entry<'a> {
    name: &'a str,
    uid: u32,
    gid: u32,
    home: &'a str,
    shell: &'a str,
}

fn entries(passwd: &str) -> impl Iterator<Item = Entry<'_>> {
    passwd.lines().filter_map(|line| {
        let mut f = line.split(':');
        let (name, _, uid, gid) = (f.next()?, f.next()?, f.next()?.parse().ok()?, f.next()?.parse().ok()?);
        let (_, home, shell) = (f.next(), f.next().unwrap_or(""), f.next().unwrap_or(""));
        Some(Entry { name, uid, gid, home, shell })
    })
}

/// (name, gid, members)
fn groups(group: &str) -> impl Iterator<Item = (&str, u32, &str)> {
    group.lines().filter_map(|line| {
        let mut f = line.split(':');
        let (name, _, gid) = (f.next()?, f.next()?, f.next()?.parse().ok()?);
        Some((name, gid, f.next().unwrap_or("")))
    })
}

fn resolve_in(user: &str, passwd: &str, group: &str) -> Result<Account> {
    let (who, group_part) = match user.split_once(':') {
        Some((who, group)) => (who, Some(group)),
        None => (user, None),
    };
    let entry = match who.parse::<u32>() {
        Ok(uid) => entries(passwd).find(|e| e.uid == uid),
        Err(_) => entries(passwd).find(|e| e.name == who),
    };
    // root is 0 with or without an /etc/passwd: an image may have none, or its owner may have deleted it.
    let number = who.parse::<u32>().ok().or((who == "root").then_some(0));
    let (Some(uid), name) =
        (entry.as_ref().map(|e| e.uid).or(number), entry.as_ref().map_or(who, |e| e.name))
    else {
        return Err(Error::invalid(format!("user: there is no `{who}` in the sandbox's /etc/passwd")));
    };
    let gid = match group_part {
        None => entry.as_ref().map_or(if uid == 0 { 0 } else { uid }, |e| e.gid),
        Some(g) => g
            .parse()
            .ok()
            .or_else(|| groups(group).find(|(n, _, _)| *n == g).map(|(_, gid, _)| gid))
            .ok_or_else(|| {
                Error::invalid(format!("user: there is no group `{g}` in the sandbox's /etc/group"))
            })?,
    };
    if uid > 65_535 || gid > 65_535 {
        return Err(Error::new(
            Code::InvalidArgument,
            format!("user: `{user}`: ids inside are at most 65535"),
        ));
    }
    let mut members: Vec<u32> = match &entry {
        // An explicit group means that one alone, as in Docker.
        Some(e) if group_part.is_none() => groups(group)
            .filter(|(_, _, members)| members.split(',').any(|m| m == e.name))
            .map(|(_, gid, _)| gid)
            .filter(|gid| *gid <= 65_535)
            .take(GROUPS_MAX)
            .collect(),
        _ => Vec::new(),
    };
    members.insert(0, gid);
    members.sort_unstable();
    members.dedup();
    let or = |text: &str, default: &str| if text.is_empty() { default.to_owned() } else { text.to_owned() };
    Ok(Account {
        uid,
        gid,
        groups: members,
        name: name.to_owned(),
        home: entry.as_ref().map_or("/".to_owned(), |e| or(e.home, "/")),
        shell: entry.as_ref().map_or("/bin/sh".to_owned(), |e| or(e.shell, "/bin/sh")),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const PASSWD: &str = "root:x:0:0:root:/root:/bin/bash\nbad line\nann:x:1000:1001::/home/ann:\n";
    const GROUP: &str = "root:x:0:\nann:x:1001:\nwheel:x:10:bob,ann\nsudo:x:27:annie\n";

    #[test]
    fn names_numbers_and_groups() {
        let ann = resolve_in("ann", PASSWD, GROUP).unwrap();
        assert_eq!((ann.uid, ann.gid, ann.groups.as_slice()), (1000, 1001, &[10, 1001][..]));
        assert_eq!((ann.home.as_str(), ann.shell.as_str()), ("/home/ann", "/bin/sh"));
        assert_eq!(resolve_in("1000", PASSWD, GROUP).unwrap(), ann);
        let stranger = resolve_in("4242", PASSWD, GROUP).unwrap();
        assert_eq!((stranger.uid, stranger.home.as_str(), stranger.name.as_str()), (4242, "/", "4242"));
        let mixed = resolve_in("ann:wheel", PASSWD, GROUP).unwrap();
        assert_eq!((mixed.gid, mixed.groups.as_slice()), (10, &[10][..]));
        assert_eq!(resolve_in("7:8", "", "").unwrap().gid, 8);
    }

    #[test]
    fn what_is_not_there_is_refused_by_name() {
        for user in ["nobody", "ann:nogroup", "70000", "-1", ":", "0:70000"] {
            let e = resolve_in(user, PASSWD, GROUP).unwrap_err();
            assert!(e.message.starts_with("user:"), "{user}: {e}");
        }
    }
}
