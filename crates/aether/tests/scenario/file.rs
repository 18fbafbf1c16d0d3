//! Scenarios of files.

use api::{
    Code, Error,
    arrow::Chronus,
    exec::ExecRequest,
    file::{
        FileKind, FileListQuery, MkdirRequest, MoveRequest, ReadQuery, RemoveQuery, StatQuery, WatchKind,
        WatchQuery, WriteQuery,
    },
};
use bytes::Bytes;

use crate::lab::{Lab, assert_error, gather, stream};

fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|i| (i * 7 + i / 251) as u8).collect()
}

pub async fn case_49_50_write_and_read(lab: &Lab) {
    for kib in [0, 17, 18, 19, 1024, 16 << 10, 17 << 10, 33 << 10, 101 << 10] {
        let data = pattern(kib << 10);
        let info = lab.write("/tmp/big", None, &data).await.unwrap();
        assert_eq!(info.size_bytes, data.len() as u64);
        assert!(lab.read("/tmp/big").await.unwrap() == data, "{kib} KiB");
    }
    lab.write("/tmp/png", None, b"\x89PNG\r\n\0").await.unwrap();
    assert_eq!(lab.ok("od -An -tx1 /tmp/png").await.trim(), "89 50 4e 47 0d 0a 00");
    let query = ReadQuery { offset: 3, length: Some(2), ..ReadQuery::new("/tmp/png") };
    let part = lab.service.file_read(query).await.unwrap();
    assert_eq!(part.info.size_bytes, 7);
    assert_eq!(gather(part.body).await.unwrap(), b"G\r");
    assert!(lab.read("/proc/meminfo").await.unwrap().starts_with(b"MemTotal"), "no size, but bytes");
    let append = WriteQuery { append: true, ..WriteQuery::new("/tmp/log") };
    for _ in 0..2 {
        lab.service.file_write(append.clone(), crate::lab::body(b"line\n")).await.unwrap();
    }
    assert_eq!(lab.read("/tmp/log").await.unwrap(), b"line\nline\n");
    assert_eq!(lab.ok("ls -A /tmp | grep -c dsec-upload; true").await, "0\n");
}

pub async fn case_52_ownership(lab: &Lab) {
    lab.write("/home/ann/w/deep/a.txt", Some("ann"), b"a").await.unwrap();
    lab.write("relative.txt", Some("ann"), b"a").await.unwrap();
    let out = lab.as_user("ann", "cd; stat -c '%U %a' w w/deep w/deep/a.txt relative.txt; echo b >> w/deep/a.txt && mkdir w/beside && rm -r w && echo ok").await;
    assert_eq!(out.text(), "ann 755\nann 755\nann 644\nann 644\nok\n", "{}", out.errors());
    let info = lab.write("/home/ann/root.txt", Some("root"), b"").await.unwrap();
    assert_eq!((info.uid, info.gid), (0, 0));
    // Mode and owner of what is there stay; a new file's mode is as asked, whatever the umask.
    lab.ok("echo old > /tmp/kept; chown 1000:1234 /tmp/kept; chmod 4770 /tmp/kept").await;
    lab.write("/tmp/kept", None, b"new").await.unwrap();
    assert_eq!(lab.ok("stat -c '%u %g %a' /tmp/kept; cat /tmp/kept").await, "1000 1234 4770\nnew");
    let query = WriteQuery { mode: Some(0o777), ..WriteQuery::new("/tmp/script") };
    assert_eq!(lab.service.file_write(query, crate::lab::body(b"")).await.unwrap().mode, 0o777);
    // A file of a directory that is not the user's.
    lab.ok("mkdir /srv; echo x > /srv/f; chown ann /srv/f").await;
    lab.write("/srv/f", Some("ann"), b"in place").await.unwrap();
    assert_eq!(lab.ok("cat /srv/f; ls -A /srv").await, "in placef\n");
    let made = MkdirRequest { mode: Some(0o700), user: Some("ann".into()), ..MkdirRequest::new("~/x/y") };
    let made = lab.service.file_mkdir(made).await.unwrap();
    assert_eq!((made.kind, made.uid, made.mode), (FileKind::Directory, 1000, 0o700));
}

pub async fn case_55_links_and_races(lab: &Lab) {
    lab.ok("ln -s /etc/shadow /tmp/link; ln -s nowhere /tmp/dangling").await;
    assert_eq!(lab.read("/tmp/link").await.unwrap(), b"root:the sandbox's own:::::::\n");
    let info = lab.service.file_stat(StatQuery::new("/tmp/dangling")).await.unwrap();
    assert_eq!((info.kind, info.symlink_target.unwrap().to_text().as_str()), (FileKind::Symlink, "nowhere"));
    let followed = StatQuery { follow: true, ..StatQuery::new("/tmp/dangling") };
    assert_error(lab.service.file_stat(followed).await, Code::NotFound, "/tmp/dangling");
    // Written through, where it leads.
    lab.write("/tmp/dangling", None, b"through").await.unwrap();
    assert_eq!(lab.ok("cat /tmp/nowhere; readlink /tmp/dangling").await, "throughnowhere\n");
    // The kernel's magic links lead to what the agent or its child holds: refused.
    for path in [
        "/proc/self/fd/3",
        "/proc/self/root/etc/passwd",
        "/dev/fd/3",
        "/proc/1/root/etc/passwd",
        "/proc/1/exe",
    ] {
        assert!(lab.read(path).await.is_err(), "{path}");
        assert!(lab.write(path, None, b"x").await.is_err(), "{path}");
    }
    // A directory that is swapped for a link all the time: what is read is always of the sandbox, as the user.
    lab.ok("mkdir -p /tmp/race/real; echo inside > /tmp/race/real/shadow; chmod -R a+rX /tmp/race").await;
    let swap = "cd /tmp/race; while :; do ln -sfn real dir; ln -sfn /etc dir; ln -sfn ../../../../../../etc dir; done";
    let swapper = lab.service.exec(ExecRequest::shell(swap)).await.unwrap();
    for _ in 0..150 {
        let query = ReadQuery { user: Some("ann".into()), ..ReadQuery::new("/tmp/race/dir/shadow") };
        match lab.service.file_read(query).await {
            Ok(file) => assert_eq!(gather(file.body).await.unwrap(), b"inside\n"),
            Err(e) => assert!(matches!(e.code, Code::PermissionDenied | Code::NotFound), "{e}"),
        }
    }
    lab.service
        .exec_signal(swapper.exec_id.clone(), api::exec::SignalRequest { signal: 9, tree: true })
        .await
        .unwrap();
    // Removal does not follow.
    lab.ok("mkdir -p /tmp/keep /tmp/tree; echo x > /tmp/keep/file; ln -s /tmp/keep /tmp/tree/link").await;
    let remove = RemoveQuery { recursive: true, ..RemoveQuery::new("/tmp/tree") };
    lab.service.file_remove(remove).await.unwrap();
    assert_eq!(lab.ok("cat /tmp/keep/file; ls -d /tmp/tree || true").await, "x\n");
}

pub async fn case_56_names(lab: &Lab) {
    let long = "n".repeat(255);
    for name in [
        "文件 报告.txt",
        "🦀",
        "a b",
        "q'\"",
        "new\nline",
        "-dash",
        "caf\u{e9}",
        "cafe\u{301}",
        long.as_str(),
    ] {
        let path = format!("/tmp/names/{name}");
        lab.write(&path, None, name.as_bytes()).await.unwrap();
        assert_eq!(lab.read(&path).await.unwrap(), name.as_bytes());
        let found = lab.service.file_list(FileListQuery::new("/tmp/names")).await.unwrap();
        assert!(found.iter().any(|f| f.name.0 == name.as_bytes()), "{name}");
    }
    lab.ok("cd /tmp/names && touch \"$(printf '\\377\\376')\"").await;
    let found = lab.service.file_list(FileListQuery::new("/tmp/names")).await.unwrap();
    assert!(found.iter().any(|f| f.name.0 == b"\xff\xfe"[..]), "bytes that are no text");
    let over = format!("/tmp/{}", "n".repeat(256));
    assert_error(lab.write(&over, None, b"").await, Code::InvalidArgument, "255 bytes");
}

pub async fn case_57_typed_errors(lab: &Lab) {
    assert_error(lab.read("/tmp/missing").await, Code::NotFound, "`/tmp/missing`");
    assert_error(lab.read("/etc/passwd/x").await, Code::NotFound, "`/etc/passwd/x`");
    assert_error(lab.read("/etc").await, Code::IsDirectory, "`/etc`");
    assert_error(lab.write("/etc", None, b"").await, Code::IsDirectory, "`/etc`");
    assert_error(lab.write("/", None, b"").await, Code::IsDirectory, "`/`");
    lab.ok("echo x > /tmp/ro; chmod 444 /tmp/ro; mkfifo /tmp/fifo").await;
    assert_error(lab.write("/tmp/ro", Some("ann"), b"").await, Code::PermissionDenied, "`/tmp/ro`");
    assert_error(lab.write("/usr/new", None, b"").await, Code::PermissionDenied, "`/usr/new`");
    let secret = ReadQuery { user: Some("ann".into()), ..ReadQuery::new("/etc/shadow") };
    assert_error(lab.service.file_read(secret).await.map(drop), Code::PermissionDenied, "`/etc/shadow`");
    assert_error(lab.read("/tmp/fifo").await, Code::InvalidArgument, "Fifo");
    assert_error(lab.write("/tmp/fifo", None, b"").await, Code::InvalidArgument, "Fifo");
    assert_error(lab.read("/dev/zero").await, Code::InvalidArgument, "CharDevice");
    assert_error(lab.service.file_remove(RemoveQuery::new("/tmp")).await, Code::IsDirectory, "recursive");
    assert_error(
        lab.service.file_list(FileListQuery::new("/etc/passwd")).await,
        Code::InvalidArgument,
        "not a directory",
    );
    assert_error(
        lab.service.file_mkdir(MkdirRequest::new("/etc/passwd")).await,
        Code::AlreadyExists,
        "`/etc/passwd`",
    );
    lab.service.file_mkdir(MkdirRequest::new("/tmp")).await.expect("there already");
}

pub async fn case_59_disk_full(lab: &Lab) {
    assert_error(lab.write("/small/big", None, &pattern(20 << 20)).await, Code::DiskFull, "`/small/big`");
    assert_eq!(lab.ok("ls -A /small").await, "", "nothing is left of it");
    lab.write("/small/fits", None, &pattern(1 << 20)).await.unwrap();
    assert_ne!(lab.sh("head -c 20000000 /dev/zero > /small/x").await.code(), 0);
    lab.ok("rm /small/x").await;
}

pub async fn whole_or_not_at_all(lab: &Lab) {
    lab.write("/tmp/f", None, b"before").await.unwrap();
    let broken = || stream(vec![Ok(Bytes::from_static(b"half")), Err(Error::invalid("the client left"))]);
    let result = lab.service.file_write(WriteQuery::new("/tmp/f"), broken()).await;
    assert_error(result, Code::InvalidArgument, "the client left");
    let append = WriteQuery { append: true, ..WriteQuery::new("/tmp/f") };
    assert!(lab.service.file_write(append, broken()).await.is_err());
    lab.sleep(200).await;
    assert_eq!(lab.read("/tmp/f").await.unwrap(), b"before");
    assert_eq!(lab.ok("ls -A /tmp").await, "f\n", "no temporary file");
}

pub async fn list_move_remove(lab: &Lab) {
    lab.ok("mkdir -p /tmp/d/e/f; echo 1 > /tmp/d/one; echo 2 > /tmp/d/e/two; ln -s e /tmp/d/link").await;
    let names = |found: Vec<api::file::FileInfo>| found.iter().map(|f| f.path.to_text()).collect::<Vec<_>>();
    let one = lab.service.file_list(FileListQuery::new("/tmp/d")).await.unwrap();
    assert_eq!(names(one), ["/tmp/d/e", "/tmp/d/link", "/tmp/d/one"]);
    let deep = FileListQuery { depth: 9, ..FileListQuery::new("/tmp/d") };
    assert_eq!(
        names(lab.service.file_list(deep).await.unwrap()),
        ["/tmp/d/e", "/tmp/d/e/f", "/tmp/d/e/two", "/tmp/d/link", "/tmp/d/one"]
    );
    let rename = |from: &str, to: &str| MoveRequest { from: from.into(), to: to.into(), user: None };
    lab.service.file_move(rename("/tmp/d/one", "/tmp/new/place")).await.unwrap();
    assert_eq!(lab.read("/tmp/new/place").await.unwrap(), b"1\n");
    // Across file systems, a tree too.
    lab.ok("chown 1000 /tmp/d/e/two; chmod 640 /tmp/d/e/two").await;
    lab.service.file_move(rename("/tmp/d", "/small/d")).await.unwrap();
    assert_eq!(
        lab.ok(
            "cat /small/d/e/two; stat -c '%u %a' /small/d/e/two; readlink /small/d/link; ls -d /tmp/d || true"
        )
        .await,
        "2\n1000 640\ne\n"
    );
    assert_error(lab.service.file_move(rename("/tmp/none", "/tmp/x")).await, Code::NotFound, "`/tmp/none`");
    assert_error(
        lab.service.file_move(rename("/small/d", "/small/d/e/inside")).await,
        Code::InvalidArgument,
        "itself",
    );
    lab.service.file_remove(RemoveQuery { recursive: true, ..RemoveQuery::new("/small/d") }).await.unwrap();
    assert_error(lab.service.file_remove(RemoveQuery::new("/small/d")).await, Code::NotFound, "`/small/d`");
    // 100 levels, and more names than one read of a directory.
    lab.ok("cd /tmp; i=0; while [ $i -lt 100 ]; do mkdir d; cd d; i=$((i+1)); done; seq 3000 | xargs touch")
        .await;
    lab.service.file_remove(RemoveQuery { recursive: true, ..RemoveQuery::new("/tmp/d") }).await.unwrap();
}

pub async fn watch(lab: &Lab) {
    lab.ok("mkdir -p /tmp/w/sub").await;
    let query = WatchQuery { recursive: true, ..WatchQuery::new("/tmp/w") };
    let mut events = lab.service.file_watch(query).await.unwrap();
    lab.ok(
        "cd /tmp/w; echo x > a; mv a b; mkdir -p n/m; echo y > n/m/deep; echo z > sub/c; rm b; touch last",
    )
    .await;
    let mut seen = Vec::new();
    loop {
        let next = std::future::poll_fn(|cx| events.as_mut().poll_next(cx)).await.unwrap().unwrap();
        let done = next.name.to_text() == "last";
        seen.push((next.kind, next.name.to_text()));
        if done {
            break;
        }
    }
    for (kind, name) in [
        (WatchKind::Created, "a"),
        (WatchKind::Modified, "a"),
        (WatchKind::MovedFrom, "a"),
        (WatchKind::MovedTo, "b"),
        (WatchKind::Created, "n"),
        (WatchKind::Created, "n/m"),
        (WatchKind::Created, "n/m/deep"),
        (WatchKind::Created, "sub/c"),
        (WatchKind::Removed, "b"),
    ] {
        assert!(seen.contains(&(kind, name.to_owned())), "{kind:?} {name} in {seen:?}");
    }
    drop(events);
    let missing = lab.service.file_watch(WatchQuery::new("/tmp/none")).await;
    assert_error(missing.map(drop), Code::NotFound, "`/tmp/none`");
}
