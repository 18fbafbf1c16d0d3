//! Two trees compared by others than ourselves: GNU diff for the bytes, a walk in Python for all else. One is a directory,
//! the other what a process in a sandbox sees, by its root in /proc.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use libdsec::Sandbox;
use testkit::host;

/// A word of a command line that nothing else has.
const SLEEP: &str = "31416";
/// What a sandbox mounts over, or writes itself.
const OWN: [&str; 7] = ["proc", "sys", "dev", "run", "tmp", "lost+found", "var/tmp"];
const WRITTEN: [&str; 4] = ["etc/hosts", "etc/hostname", "etc/resolv.conf", "etc/mtab"];

const WALK: &str = r#"
import json, os, stat, sys
root, base, skip = os.fsencode(sys.argv[1]), [int(n) for n in sys.argv[2:4]], set(os.fsencode(s) for s in sys.argv[4:])
files = {}
def walk(name):
    path = os.path.join(root, name) if name else root
    s = os.lstat(path)
    kind = stat.S_IFMT(s.st_mode)
    # Who unpacks a directory, and what is mounted in it, leave their time in these.
    times = name not in (b"", b"etc", b"var")
    attributes = {a: os.getxattr(path, a, follow_symlinks=False).hex() for a in sorted(os.listxattr(path, follow_symlinks=False))}
    first = files.setdefault((s.st_dev, s.st_ino), name.hex()) if kind != stat.S_IFDIR and s.st_nlink > 1 else ""
    print(json.dumps([name.hex(), dict(
        kind=kind, mode=stat.S_IMODE(s.st_mode), uid=s.st_uid - base[0], gid=s.st_gid - base[1],
        size=s.st_size if kind in (stat.S_IFREG, stat.S_IFLNK) else 0, mtime=s.st_mtime_ns if times else 0,
        rdev=s.st_rdev if kind in (stat.S_IFCHR, stat.S_IFBLK) else 0, names=s.st_nlink if kind != stat.S_IFDIR else 0,
        first=first, target=os.readlink(path).hex() if kind == stat.S_IFLNK else "", attributes=attributes,
        text=name.decode("utf-8", "replace"))]))
    if kind == stat.S_IFDIR:
        for child in sorted(os.listdir(path)):
            below = os.path.join(name, child)
            if below not in skip: walk(below)
sys.setrecursionlimit(10000)
walk(b"")
"#;

type Tree = BTreeMap<String, serde_json::Value>;

fn walk(root: &str, base: (u32, u32)) -> Tree {
    let mut python = Command::new("python3");
    python.args(["-c", WALK, root]).args([base.0.to_string(), base.1.to_string()]);
    let out = python.args(OWN).args(WRITTEN).output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let lines = out.stdout.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
    lines.map(|line| serde_json::from_slice::<(String, serde_json::Value)>(line).unwrap()).collect()
}

/// The first id outside that is the sandbox's 0.
fn base(pid: u32, map: &str) -> u32 {
    let map = fs::read_to_string(format!("/proc/{pid}/{map}")).unwrap();
    map.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// `tree` is what `sandbox` shows. `entries_min`: so many it has at least.
pub async fn assert_equal(tree: &Path, sandbox: &Sandbox, entries_min: usize) {
    sandbox.exec(["sleep", SLEEP]).detach().await.unwrap();
    let pid = host::find(SLEEP).unwrap().pid;
    let root = format!("/proc/{pid}/root/");
    let expected = walk(&tree.display().to_string(), (0, 0));
    let found = walk(&root, (base(pid, "uid_map"), base(pid, "gid_map")));
    assert!(expected.len() >= entries_min, "{} entries", expected.len());
    let names: std::collections::BTreeSet<_> = expected.keys().chain(found.keys()).collect();
    let differences: Vec<_> = names
        .into_iter()
        .filter(|name| expected.get(*name) != found.get(*name))
        .map(|name| format!("\n  expected {:?}\n  found    {:?}", expected.get(name), found.get(name)))
        .collect();
    assert!(
        differences.is_empty(),
        "{} differences{}",
        differences.len(),
        differences[..differences.len().min(10)].concat()
    );
    diff(tree, &root);
}

/// The bytes of all files, by GNU diff.
fn diff(tree: &Path, root: &str) {
    let mut tops = 0;
    for top in fs::read_dir(tree).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()) {
        // A device or a FIFO is no file to diff, even beside its equal.
        if OWN.contains(&top.as_str()) || top == ODD {
            continue;
        }
        tops += 1;
        let mut command = Command::new("diff");
        command.args(["--recursive", "--no-dereference", "--brief"]);
        let out = command.arg(tree.join(&top)).arg(format!("{root}{top}")).output().unwrap();
        let said = String::from_utf8_lossy(&out.stdout);
        let written = |line: &&str| {
            let names = ["hosts", "hostname", "resolv.conf", "mtab"];
            names.iter().any(|name| {
                line.ends_with(&format!("/etc: {name}")) || line.contains(&format!("/etc/{name} "))
            })
        };
        let left: Vec<&str> = said.lines().filter(|line| !written(line)).collect();
        assert!(
            left.is_empty() && out.stderr.is_empty(),
            "{left:#?}{}",
            String::from_utf8_lossy(&out.stderr)
        );
    }
    assert!(tops >= 10, "{tops} directories at the top");
}

/// Where the oddities are.
const ODD: &str = "odd";

const ODDITIES: &str = r#"
import os, sys
os.mkdir("odd"); os.chdir("odd")
def file(name, data=b"data"):
    with open(name, "wb") as f: f.write(data)
file("a"); os.link("a", "b"); os.link("a", "z-c")
os.mknod("null", 0o20666, os.makedev(1, 3)); os.mknod("loop", 0o60640, os.makedev(7, 200)); os.mkfifo("fifo")
file("set"); os.chown("set", 0, 65534); os.chmod("set", 0o6755)
file(b"\xff\xfe not text"); file("n" * 255); file("new\nline"); file("umlaut-\u00e4"); file(" "); file("-rf")
with open("hole", "wb") as f: f.seek(3 << 20); f.write(b"end"); f.truncate(5 << 20)
file("noted"); os.setxattr("noted", "user.note", b"\x00\xff"); os.setxattr("noted", "user.empty", b"")
file("large-note"); os.setxattr("large-note", "user.large", b"v" * 3000)
os.symlink("t" * 1000, "long-link"); os.symlink("../../../../etc/passwd", "out"); os.symlink("out", "again")
deep = "/".join(["d" * 50] * 20); os.makedirs(deep); file(deep + "/end")
os.mkdir("sticky"); os.chown("sticky", 65533, 1); os.chmod("sticky", 0o7777)
file("old"); os.utime("old", ns=(1, 1)); file("far"); os.utime("far", ns=(4102444800_123456789, 4102444800_123456789))
file("none"); os.chmod("none", 0)
"#;

/// A copy of `tar` in `scratch`, with what no package has added by GNU tar.
pub fn with_oddities(tar: &Path, scratch: &Path) -> PathBuf {
    let (copy, dir) = (scratch.join("with-oddities.tar"), scratch.join("oddities"));
    fs::copy(tar, &copy).unwrap();
    fs::create_dir(&dir).unwrap();
    super::run(Command::new("python3").args(["-c", ODDITIES]).current_dir(&dir));
    // Added to an archive, it would be in the archive's older format.
    let odd = scratch.join("odd.tar");
    let mut create = Command::new("tar");
    create.args([
        "--create",
        "--format=posix",
        "--xattrs",
        "--xattrs-include=*",
        "--numeric-owner",
        "--sparse",
    ]);
    super::run(create.arg("--file").arg(&odd).arg("--directory").arg(&dir).arg("./odd"));
    super::run(Command::new("tar").arg("--concatenate").arg("--file").arg(&copy).arg(&odd));
    copy
}
