//! Section E of the black-box cases: files, through the SDK over real HTTP. A test has the number of its case.
#![allow(clippy::unwrap_used)]

use std::process::ExitCode;

use bytes::Bytes;
use futures_util::{StreamExt, stream};
use libdsec::{Code, FileKind, Sandbox, SandboxSpec};
use sha2::{Digest, Sha256};
use testkit::{Node, tests};

fn main() -> ExitCode {
    testkit::suite::run(
        4,
        tests![
            case_49_success_means_written,
            case_50_binary_reads_are_exact,
            case_52_ownership_follows_the_user,
            case_53_tar_upload_cannot_escape,
            case_55_symlinks_stay_and_lead_inside,
            case_56_names_are_bytes,
            case_57_typed_errors,
            case_59_disk_full,
            a_move_across_file_systems_is_whole_or_not_at_all,
        ],
    )
}

async fn ok(sandbox: &Sandbox, user: &str, text: &str) -> String {
    let out = sandbox.sh(text).user(user).output().await.unwrap();
    assert!(out.success(), "{text}: {:?} {}{}", out.exit, out.stdout_text(), out.stderr_text());
    out.stdout_text()
}

/// Bytes that no compression or zero-page trick makes smaller.
fn noise(length: usize, seed: u64) -> Vec<u8> {
    let mut state = seed | 1;
    let next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    };
    std::iter::repeat_with(next).flatten().take(length).collect()
}

fn hex(data: &[u8]) -> String {
    Sha256::digest(data).iter().map(|b| format!("{b:02x}")).collect()
}

async fn case_49_success_means_written(node: &Node) {
    let sandbox = node.sandbox().await;
    const KIB: usize = 1 << 10;
    const MIB: usize = 1 << 20;
    let sizes = [0, 1, 17 * KIB, 18 * KIB, 19 * KIB, MIB, 16 * MIB, 17 * MIB, 31 * MIB, 33 * MIB, 101 * MIB];
    for (i, size) in sizes.into_iter().enumerate() {
        let data = noise(size, i as u64 + 1);
        let expected = hex(&data);
        let info = sandbox.files().write("up", data).await.unwrap();
        assert_eq!(info.size_bytes, size as u64);
        let sum = sandbox.exec(["sha256sum", "up"]).output().await.unwrap().stdout_text();
        assert!(sum.starts_with(&expected), "{size}: {sum}");
        assert_eq!(hex(&sandbox.files().read("up").await.unwrap()), expected, "{size} read back");
    }
    sandbox.stop().await.unwrap();
}

async fn case_50_binary_reads_are_exact(node: &Node) {
    let sandbox = node.sandbox().await;
    let every: Vec<u8> = b"\x89PNG\r\n\x1a\n".iter().copied().chain(0..=255).collect();
    sandbox.files().write("/tmp/b", every.clone()).await.unwrap();
    assert_eq!(sandbox.files().read("/tmp/b").await.unwrap(), every);
    assert_eq!(sandbox.files().read_range("/tmp/b", 8, 3).await.unwrap(), every[8..11]);
    let zip =
        "import zipfile; z=zipfile.ZipFile('/tmp/z','w'); z.writestr('a', bytes(range(256))); z.close()";
    assert!(sandbox.exec(["python3", "-c", zip]).output().await.unwrap().success());
    let file = sandbox.files().read("/tmp/z").await.unwrap();
    let out = sandbox.exec(["cat", "/tmp/z"]).output().await.unwrap();
    assert!(file.starts_with(b"PK\x03\x04"));
    assert_eq!(out.stdout.data.0, file);
    sandbox.stop().await.unwrap();
}

async fn case_52_ownership_follows_the_user(node: &Node) {
    let sandbox = node.sandbox_with(SandboxSpec { user: Some("10001".into()), ..node.spec() }).await;
    sandbox.files().write("/tmp/w/sub/a.txt", "1\n").await.unwrap();
    ok(&sandbox, "10001", "echo 2 >> /tmp/w/sub/a.txt; mkdir /tmp/w/sub/d; rmdir /tmp/w/sub/d").await;
    let owners = ok(&sandbox, "root", "stat -c %u /tmp/w /tmp/w/sub /tmp/w/sub/a.txt").await;
    assert_eq!(owners, "10001\n10001\n10001\n");
    ok(&sandbox, "10001", "rm -r /tmp/w").await;
    sandbox.files().as_user("root").write("/srv/x/y", "r").await.unwrap();
    assert_eq!(ok(&sandbox, "root", "stat -c %u:%g /srv/x /srv/x/y").await, "0:0\n0:0\n");
    let e = sandbox.files().write("/srv/x/y", "no").await.unwrap_err();
    assert_eq!(e.code, Code::PermissionDenied);
    sandbox.stop().await.unwrap();
}

/// An entry whose name is taken as it is: the tar crate would refuse to write most of these.
fn entry(tar: &mut tar::Builder<Vec<u8>>, name: &str, kind: tar::EntryType, link: &str, data: &[u8]) {
    let mut header = tar::Header::new_gnu();
    header.as_gnu_mut().unwrap().name[..name.len()].copy_from_slice(name.as_bytes());
    header.as_gnu_mut().unwrap().linkname[..link.len()].copy_from_slice(link.as_bytes());
    header.set_entry_type(kind);
    header.set_mode(0o644);
    header.set_size(data.len() as u64);
    header.set_cksum();
    tar.append(&header, data).unwrap();
}

async fn case_53_tar_upload_cannot_escape(node: &Node) {
    use tar::EntryType::{Link, Regular, Symlink};
    let sandbox = node.sandbox_with(SandboxSpec { user: Some("root".into()), ..node.spec() }).await;
    let mark = format!("dsec-escape-{}", std::process::id());
    ok(&sandbox, "root", "mkdir -p /t/in; ln -s /outside /t/in/there; mkdir /outside").await;
    type Entries<'a> = &'a [(&'a str, tar::EntryType, &'a str)];
    let up = format!("../../../../../../../../tmp/{mark}");
    let absolute = format!("/tmp/{mark}");
    let archives: [Entries; 5] = [
        &[(&up, Regular, "")],
        &[(&absolute, Regular, "")],
        &[("d", Symlink, "/outside"), ("d/f", Regular, "")],
        &[("h", Link, "../../etc/shadow"), ("h", Regular, "")],
        &[("there/f", Regular, "")],
    ];
    for entries in archives {
        let shadow = ok(&sandbox, "root", "sha256sum /etc/shadow").await;
        let mut tar = tar::Builder::new(Vec::new());
        entries.iter().for_each(|(name, kind, link)| entry(&mut tar, name, *kind, link, b""));
        let body = Bytes::from(tar.into_inner().unwrap());
        let done = sandbox.files().upload_tar("/t/in", Box::pin(stream::iter([Ok(body)]))).await;
        if let Err(e) = &done {
            assert!(e.code.status() < 500, "{entries:?}: {e}");
        }
        assert_eq!(ok(&sandbox, "root", "ls -A /outside").await, "", "{entries:?}: through a symlink");
        assert_eq!(ok(&sandbox, "root", "ls /t").await, "in\n", "{entries:?}");
        assert_eq!(ok(&sandbox, "root", "sha256sum /etc/shadow").await, shadow, "{entries:?}: hard link");
        assert!(!std::path::Path::new("/tmp").join(&mark).exists(), "{entries:?}: on the host!");
    }
    sandbox.stop().await.unwrap();
}

async fn case_55_symlinks_stay_and_lead_inside(node: &Node) {
    let sandbox = node.sandbox_with(SandboxSpec { user: Some("root".into()), ..node.spec() }).await;
    let local = node.scratch().join("links");
    std::fs::create_dir_all(local.join("d")).unwrap();
    std::fs::write(local.join("d/f"), "f").unwrap();
    std::os::unix::fs::symlink("d/f", local.join("relative")).unwrap();
    std::os::unix::fs::symlink("nowhere/at/all", local.join("dangling")).unwrap();
    sandbox.files().upload_dir(&local, "/t").await.unwrap();
    let links = ok(&sandbox, "root", "readlink /t/relative /t/dangling; cat /t/relative").await;
    assert_eq!(links, "d/f\nnowhere/at/all\nf");
    let back = node.scratch().join("links-back");
    sandbox.files().download_dir("/t", &back).await.unwrap();
    assert_eq!(std::fs::read_link(back.join("dangling")).unwrap().to_str(), Some("nowhere/at/all"));
    ok(&sandbox, "root", "ln -s /etc/hostname /t/abs; ln -s ../../../../../../etc/hostname /t/up").await;
    let own = ok(
        &sandbox,
        "root",
        "cat /etc/hostname 2>/dev/null || { echo inside > /etc/hostname; echo inside; }",
    )
    .await;
    for link in ["/t/abs", "/t/up"] {
        assert_eq!(sandbox.files().read(link).await.unwrap(), own, "{link}");
        assert_eq!(sandbox.files().lstat(link).await.unwrap().kind, FileKind::Symlink);
        assert_eq!(sandbox.files().stat(link).await.unwrap().kind, FileKind::File);
    }
    sandbox.stop().await.unwrap();
}

async fn case_56_names_are_bytes(node: &Node) {
    let sandbox = node.sandbox().await;
    let long = "n".repeat(255);
    let names = [
        "文件 报告.txt",
        "🦀",
        " lead and trail ",
        "a'b\"c`d$e",
        "new\nline",
        "-rf",
        "%2e%2e?&=#+",
        &*long,
        "caf\u{e9}",
        "cafe\u{301}",
    ];
    for name in names {
        sandbox.files().write(&format!("/tmp/names/{name}"), name.to_owned()).await.unwrap();
    }
    let script = "import os,sys; sys.stdout.buffer.write(b'\\0'.join(sorted(os.listdir(b'/tmp/names'))))";
    let out = sandbox.exec(["python3", "-c", script]).output().await.unwrap();
    let mut sorted: Vec<&[u8]> = names.iter().map(|n| n.as_bytes()).collect();
    sorted.sort();
    assert_eq!(out.stdout.data.0, sorted.join(&0));
    let mut listed: Vec<Bytes> =
        sandbox.files().list("/tmp/names").await.unwrap().into_iter().map(|f| f.name.0).collect();
    listed.sort();
    assert_eq!(listed, sorted);
    for name in names {
        assert_eq!(sandbox.files().read(&format!("/tmp/names/{name}")).await.unwrap(), name.as_bytes());
    }
    sandbox.stop().await.unwrap();
}

async fn case_57_typed_errors(node: &Node) {
    let sandbox = node.sandbox().await;
    let files = sandbox.files();
    ok(&sandbox, "root", "install -m 600 /dev/null /tmp/secret; install -m 444 /dev/null /tmp/readonly")
        .await;
    let cases = [
        (files.read("/tmp/none").await.unwrap_err(), Code::NotFound, "/tmp/none"),
        (files.read("/tmp").await.unwrap_err(), Code::IsDirectory, "/tmp"),
        (files.read("/tmp/secret").await.unwrap_err(), Code::PermissionDenied, "/tmp/secret"),
        (files.write("/tmp", "x").await.unwrap_err(), Code::IsDirectory, "/tmp"),
        (files.append("/tmp/readonly", "x").await.unwrap_err(), Code::PermissionDenied, "/tmp/readonly"),
        (files.list("/tmp/none").await.unwrap_err(), Code::NotFound, "/tmp/none"),
        (files.remove("/tmp/none").await.unwrap_err(), Code::NotFound, "/tmp/none"),
    ];
    for (error, code, path) in cases {
        assert_eq!(error.code, code, "{path}: {error}");
        assert!(error.message.contains(path), "{error}");
    }
    sandbox.stop().await.unwrap();
}

async fn case_59_disk_full(node: &Node) {
    let sandbox = node.sandbox_with(SandboxSpec { disk_bytes_max: 100 << 20, ..node.spec() }).await;
    let neighbour = node.sandbox().await;
    // Noise: a file system may fold zeros.
    let out = sandbox.sh("head -c 200M /dev/urandom > /var/tmp/big").output().await.unwrap();
    assert!(!out.success());
    let said = out.stderr_text();
    assert!(said.contains("quota") || said.contains("No space"), "{said}");
    let body = stream::iter(0..200).map(|i| Ok(Bytes::from(noise(1 << 20, i + 1))));
    let e = sandbox.files().write_stream("/var/tmp/api", Box::pin(body)).await.unwrap_err();
    assert_eq!(e.code, Code::DiskFull, "{e}");
    assert_eq!(ok(&neighbour, "user", "head -c 20M /dev/urandom > /var/tmp/f && echo fine").await, "fine\n");
    ok(&sandbox, "user", "rm -f /var/tmp/big /var/tmp/api").await;
    let mut freed = false;
    for _ in 0..100 {
        // The file system gives the space back with its next commit.
        freed =
            sandbox.sh("sync; head -c 20M /dev/urandom > /var/tmp/again").output().await.unwrap().success();
        if freed {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(200)).await;
    }
    assert!(freed, "rm did not free it");
    sandbox.stop().await.unwrap();
    neighbour.stop().await.unwrap();
}

async fn a_move_across_file_systems_is_whole_or_not_at_all(node: &Node) {
    let spec = SandboxSpec { user: Some("root".into()), memory_bytes_max: 64 << 20, ..node.spec() };
    let sandbox = node.sandbox_with(spec).await;
    let files = sandbox.files();
    files.write("/dev/shm/a", "kept").await.unwrap();
    let busy = files.rename("/dev/shm", "/moved").await.unwrap_err();
    assert_eq!(busy.code, Code::Conflict, "{busy}");
    assert_eq!(files.read_text("/dev/shm/a").await.unwrap(), "kept");
    // More than there is room for: nothing of it stays, and the source is whole.
    let large = noise(100 << 20, 3);
    files.write("/large", large.clone()).await.unwrap();
    let full = files.rename("/large", "/dev/shm/large").await.unwrap_err();
    assert!(matches!(full.code, Code::DiskFull | Code::OomKilled), "{full}");
    assert_eq!(ok(&sandbox, "root", "ls -A /dev/shm").await, "a\n");
    assert_eq!(hex(&files.read("/large").await.unwrap()), hex(&large));
    // Onto a file that has another name too: that name keeps what it had.
    ok(&sandbox, "root", "echo old > /dev/shm/one; ln /dev/shm/one /dev/shm/two; echo new > /new").await;
    files.rename("/new", "/dev/shm/one").await.unwrap();
    assert_eq!(
        ok(&sandbox, "root", "cat /dev/shm/one /dev/shm/two; ls /new 2>&1 | wc -l").await,
        "new\nold\n1\n"
    );
    assert_eq!(files.write("/tmp/dir/", "x").await.unwrap_err().code, Code::IsDirectory);
    sandbox.stop().await.unwrap();
}
