//! Scenarios of tar streams.

use api::{Code, Error, arrow::Chronus, exec::ExecRequest, exec::Stdin, file::TarQuery};
use tar::{Builder, EntryType, Header};

use crate::lab::{Lab, assert_error, body, gather};

/// One entry with a name that the library itself would refuse to write.
fn entry(kind: EntryType, name: &str, link: &str, data: &[u8]) -> Vec<u8> {
    let mut header = Header::new_gnu();
    header.as_gnu_mut().unwrap().name[..name.len()].copy_from_slice(name.as_bytes());
    header.set_entry_type(kind);
    header.set_mode(0o644);
    header.set_size(data.len() as u64);
    header.set_link_name_literal(link).unwrap();
    header.set_cksum();
    let mut bytes = header.as_bytes().to_vec();
    bytes.extend_from_slice(data);
    bytes.resize(bytes.len().next_multiple_of(512), 0);
    bytes
}

async fn put(lab: &Lab, user: &str, path: &str, entries: &[Vec<u8>]) -> Result<api::file::TarReport, Error> {
    let mut archive = entries.concat();
    archive.resize(archive.len() + 1024, 0);
    let query = TarQuery { user: Some(user.into()), ..TarQuery::new(path) };
    lab.service.tar_put(query, body(&archive)).await
}

pub async fn case_53_nothing_escapes(lab: &Lab) {
    lab.ok("mkdir /tmp/out /tmp/in; ln -s /tmp/out /tmp/in/old; ln -s ../out /tmp/in/up; ln -s sub /tmp/in/within; echo s > /tmp/secret").await;
    let file = |name: &str| entry(EntryType::Regular, name, "", b"x");
    for bad in [
        vec![file("../escaped")],
        vec![file("a/../../escaped")],
        vec![file("/tmp/out/absolute")],
        vec![entry(EntryType::Symlink, "link", "/tmp/out", b""), file("link/through")],
        vec![entry(EntryType::Symlink, "link2", "../out", b""), file("link2/through")],
        vec![file("old/through")],
        vec![file("up/through")],
        vec![entry(EntryType::Link, "hard", "../secret", b"")],
        vec![entry(EntryType::Link, "hard", "/tmp/secret", b"")],
        vec![entry(EntryType::Link, "hard", "up/../secret", b"")],
        vec![entry(EntryType::Char, "device", "", b"")],
        vec![entry(EntryType::Block, "device", "", b"")],
        vec![entry(EntryType::Fifo, "pipe", "", b"")],
    ] {
        assert_error(put(lab, "root", "/tmp/in", &bad).await, Code::InvalidArgument, "tar:");
    }
    assert_eq!(
        lab.ok("ls -A /tmp/out; ls -A / | grep escaped; ls /tmp/in/hard /tmp/in/device 2>/dev/null; true")
            .await,
        ""
    );
    // A link that stays within is followed; one that is there is replaced, not written through.
    put(lab, "root", "/tmp/in", &[file("sub/a"), file("within/b"), file("old")]).await.unwrap();
    assert_eq!(
        lab.ok("cat /tmp/in/sub/b; ls -A /tmp/out; test -L /tmp/in/old || echo file").await,
        "xfile\n"
    );
    assert_error(
        put(lab, "root", "/tmp/in", &[b"no tar at all".repeat(100)]).await,
        Code::InvalidArgument,
        "tar:",
    );
    let cut = entry(EntryType::Regular, "cut", "", &[1; 5000])[..2000].to_vec();
    let query = TarQuery::new("/tmp/in");
    assert_error(lab.service.tar_put(query, body(&cut)).await, Code::InvalidArgument, "tar");
}

pub async fn round_trip(lab: &Lab) {
    let long = "l".repeat(200);
    lab.ok(&format!(
        "mkdir -p /tmp/t/d/{long}; cd /tmp/t; echo 1 > d/{long}/{long}; ln d/{long}/{long} hard; ln -s /etc/shadow abs; ln -s nowhere/{long} dangling; \
         printf x > \"$(printf 'n\\377\\n')\"; echo own > own; chown 1000:1234 own; chmod 6751 own; mkdir closed; echo c > closed/c; chmod 500 closed; touch -d @1000000 own; mkfifo pipe"
    )).await;
    let packed = gather(lab.service.tar_get(TarQuery::new("/tmp/t")).await.unwrap()).await.unwrap();
    // The sandbox's own tar understands it.
    let request =
        ExecRequest { stdin: Stdin::Data(packed.clone().into()), ..ExecRequest::shell("tar -tf - | wc -l") };
    assert_eq!(lab.run(request).await.text().trim(), "10");
    let report = lab.service.tar_put(TarQuery::new("/tmp/u"), body(&packed)).await.unwrap();
    assert_eq!(report.entries, 10);
    let tree = "find . ! -type p -printf '%P %y %m %U %G %l\\n' | sort | tail -n +2";
    assert_eq!(lab.ok(&format!("cd /tmp/t; {tree}")).await, lab.ok(&format!("cd /tmp/u; {tree}")).await);
    assert_eq!(
        lab.ok("stat -c '%h %Y' /tmp/u/hard /tmp/u/own").await.lines().collect::<Vec<_>>()[1],
        "1 1000000"
    );
    assert_eq!(lab.ok("stat -c %h /tmp/u/hard").await, "2\n");
    // As a user, all is the user's.
    let mut archive = Builder::new(Vec::new());
    let mut header = Header::new_gnu();
    header.set_size(1);
    header.set_mode(0o600);
    header.set_uid(0);
    archive.append_data(&mut header, "f", &b"x"[..]).unwrap();
    let query = TarQuery { user: Some("ann".into()), ..TarQuery::new("/home/ann/up/load") };
    lab.service.tar_put(query, body(&archive.into_inner().unwrap())).await.unwrap();
    assert_eq!(lab.ok("stat -c %U /home/ann/up /home/ann/up/load/f").await, "ann\nann\n");
    let closed = TarQuery { user: Some("ann".into()), ..TarQuery::new("/root") };
    assert_error(lab.service.tar_get(closed).await.map(drop), Code::PermissionDenied, "`/root`");
    assert_error(
        lab.service.tar_get(TarQuery::new("/tmp/none")).await.map(drop),
        Code::NotFound,
        "`/tmp/none`",
    );
    // What is deep inside and closed is said before a byte is sent.
    let half = TarQuery { user: Some("ann".into()), ..TarQuery::new("/tmp/t") };
    assert_error(lab.service.tar_get(half).await.map(drop), Code::PermissionDenied, "closed");
}
