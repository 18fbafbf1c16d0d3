//! The commands that call a server.

use super::*;

#[test]
fn create_prints_ids_and_stop_takes_names() {
    let server = Server::start();
    let made = out(&server.run(&["create", "base", "-n", "3", "--label", "job=7"]));
    let ids: Vec<&str> = made.lines().collect();
    assert_eq!(ids.len(), 3);
    assert!(ids.iter().all(|id| id.starts_with("sb-e1-")));
    assert_eq!(code(&server.run(&["create", "base", "--name", "work"])), 0);
    assert_eq!(out(&server.run(&["ls", "-q", "--label", "job=7"])).lines().count(), 3);
    assert_eq!(out(&server.run(&["stop", "work", ids[0]])), format!("work\n{}\n", ids[0]));
    let gone = server.run(&["stop", "work"]);
    assert_eq!(code(&gone), 125);
    assert_eq!(err(&gone), "error: not_found: no sandbox is named `work`\n");
    assert_eq!(out(&server.run(&["stop", "--all"])).lines().count(), 2);
    assert_eq!(out(&server.run(&["ls", "--json"])), "[]\n");
}

#[test]
fn json_has_stable_shapes() {
    let server = Server::with_work();
    let listed = json(&server.run(&["ls", "--json"]));
    assert_eq!(listed[0]["spec"]["name"], "work");
    assert_eq!(listed[0]["state"], "running");
    let made = json(&server.run(&["create", "base", "--json"]));
    assert!(made["id"].as_str().unwrap().starts_with("sb-"));
    assert_eq!(json(&server.run(&["inspect", "work"]))["spec"]["image"], "base");
    let ran = server.run(&["--json", "exec", "work", "--sh", "printf o; printf e >&2; exit 3"]);
    assert_eq!(code(&ran), 3);
    let ran = json(&ran);
    assert_eq!((&ran["stdout"]["data"], &ran["stderr"]["data"]), (&"o".into(), &"e".into()));
    assert_eq!((&ran["exit"]["code"], &ran["exit"]["reason"]), (&3.into(), &"exited".into()));
    let detached = json(&server.run(&["--json", "exec", "--detach", "work", "--", "true"]));
    assert!(detached["exec_id"].as_str().unwrap().starts_with("ex-"));
    let failed = server.run(&["--json", "exec", "play", "--", "true"]);
    assert_eq!(code(&failed), 125);
    let error: serde_json::Value = serde_json::from_str(&err(&failed)).unwrap();
    assert_eq!(error["error"]["code"], "not_found");
    assert_eq!(json(&server.run(&["--json", "stop", "work"]))["stopped"], listed[0]["id"]);
    let status = json(&server.run(&["--json", "status"]));
    assert_eq!((&status["sandboxes"], &status["images"]), (&1.into(), &1.into()));
}

#[test]
fn exec_is_the_command() {
    let server = Server::with_work();
    let ran = server.run(&["exec", "work", "--", "sh", "-c", "echo out; echo err >&2; exit 7"]);
    assert_eq!((code(&ran), out(&ran).as_str(), err(&ran).as_str()), (7, "out\n", "err\n"));
    let ran = server.run(&["exec", "work", "printf", "%s|", "-n", "--json", "a b"]);
    assert_eq!(out(&ran), "-n|--json|a b|", "flags after the command are the command's");
    assert_eq!(code(&server.run(&["exec", "work", "--", "no-such-command"])), 127);
    assert_eq!(code(&server.run(&["exec", "work", "--sh", "kill -TERM $$"])), 143);
    let ran = server.run(&["exec", "work", "-e", "A=b c", "-e", "B=", "--sh", "printf \"$A|$B|\""]);
    assert_eq!(out(&ran), "b c||");
    // Long enough that a busy machine has run the echo.
    let late = server.run(&["exec", "work", "--timeout", "3s", "--sh", "echo A; sleep 60"]);
    assert_eq!((code(&late), out(&late).as_str()), (124, "A\n"));
    assert!(err(&late).contains("timeout"), "{late:?}");
}

#[test]
fn exec_reads_input_only_when_asked() {
    let server = Server::with_work();
    let ran = feed(&mut server.dsec(), &["exec", "work", "--sh", "cat; echo done"], b"unread");
    assert_eq!(out(&ran), "done\n");
    let input: Vec<u8> = (0..3_000_000).map(|i| (i % 256) as u8).collect();
    let ran = feed(&mut server.dsec(), &["exec", "-i", "work", "--", "cat"], &input);
    assert!(ran.stdout == input, "{} bytes of {}", ran.stdout.len(), input.len());
    let ran = feed(&mut server.dsec(), &["exec", "-i", "work", "--sh", "head -c 1"], &input);
    assert_eq!((code(&ran), ran.stdout.len()), (0, 1), "a command need not read all");
}

#[test]
fn a_reader_that_leaves_ends_the_command() {
    let server = Server::with_work();
    let piped = format!("{} exec work -- yes | head -n 1", env!("CARGO_BIN_EXE_dsec"));
    let ran = server.dsec();
    let mut shell = Command::new("sh");
    shell.arg("-c").arg(piped);
    for (key, value) in ran.get_envs() {
        if let Some(value) = value {
            shell.env(key, value);
        }
    }
    assert_eq!(out(&shell.output().unwrap()), "y\n");
    // The listing says so when the command has ended.
    for _ in 0..500 {
        let listed = json(&server.run(&["--json", "logs", "work"]));
        if listed[0]["exit"]["code"] == 141 {
            return;
        }
    }
    panic!("`yes` goes on");
}

#[test]
fn interrupting_exec_interrupts_the_command() {
    let server = Server::with_work();
    let text = "trap 'echo caught; exit 5' INT; echo ready; while :; do sleep 0.05; done";
    let mut child =
        server.dsec().args(["exec", "work", "--sh", text]).stdout(Stdio::piped()).spawn().unwrap();
    let mut stdout = std::io::BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    std::io::BufRead::read_line(&mut stdout, &mut line).unwrap();
    assert_eq!(line, "ready\n");
    assert!(Command::new("/bin/kill").args(["-INT", &child.id().to_string()]).status().unwrap().success());
    std::io::Read::read_to_string(&mut stdout, &mut line).unwrap();
    assert_eq!(line, "ready\ncaught\n");
    assert_eq!(child.wait().unwrap().code(), Some(5));
}

#[test]
fn run_leaves_nothing_however_it_ends() {
    let server = Server::start();
    let left = |server: &Server| server.host.sandboxes.lock().unwrap().len();
    let ran = server.run(&["run", "base", "--", "sh", "-c", "echo hi; exit 4"]);
    assert_eq!((code(&ran), out(&ran).as_str()), (4, "hi\n"));
    assert_eq!(left(&server), 0);
    assert_eq!(code(&server.run(&["run", "nosuch", "--", "true"])), 125);
    let too_long = "x".repeat(200_000);
    assert!(
        Command::new("true").arg(&too_long).status().is_err()
            || code(&server.run(&["run", "base", "--", &too_long])) == 125
    );
    assert_eq!(left(&server), 0);
    let mut child = server
        .dsec()
        .args(["run", "base", "--sh", "echo ready; sleep 60"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut ready = [0; 6];
    std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut ready).unwrap();
    assert_eq!(left(&server), 1);
    assert!(Command::new("/bin/kill").args(["-INT", &child.id().to_string()]).status().unwrap().success());
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert_eq!(left(&server), 0);
    let kept = server.run(&["run", "--keep", "base", "--", "true"]);
    assert!(err(&kept).contains("is kept"), "{kept:?}");
    assert_eq!(left(&server), 1);
}

#[test]
fn logs_show_what_was_and_follow_what_comes() {
    let server = Server::with_work();
    let detached = out(&server.run(&["exec", "-d", "work", "--sh", "echo one; sleep 0.3; echo two; exit 6"]));
    let id = detached.trim();
    let followed = server.run(&["logs", "work", id, "--follow"]);
    assert_eq!((code(&followed), out(&followed).as_str()), (6, "one\ntwo\n"));
    let shown = server.run(&["logs", "work", id]);
    assert_eq!((code(&shown), out(&shown).as_str()), (0, "one\ntwo\n"));
    assert!(out(&server.run(&["logs", "work"])).contains("sleep 0.3"));
    let endless = out(&server.run(&["exec", "-d", "work", "--sh", "echo now; sleep 60"]));
    loop {
        // Ends though the command does not.
        let shown = server.run(&["logs", "work", endless.trim()]);
        assert_eq!(code(&shown), 0);
        if out(&shown) == "now\n" {
            break;
        }
    }
    let unknown = server.run(&["logs", "work", "ex-01arz3ndektsv4rrffq69g5fav"]);
    assert_eq!(code(&unknown), 125);
    server.run(&["stop", "work"]);
}

#[test]
fn cp_goes_both_ways() {
    let server = Server::with_work();
    let here = tempfile::tempdir().unwrap();
    let at = |name: &str| here.path().join(name).to_str().unwrap().to_owned();
    std::fs::create_dir_all(at("in/sub")).unwrap();
    std::fs::write(at("in/sub/f"), "deep").unwrap();
    std::fs::write(at("file"), vec![7; 100_000]).unwrap();
    let ok = |args: &[&str]| {
        let done = server.run(args);
        assert_eq!(code(&done), 0, "{args:?} {done:?}");
    };
    ok(&["cp", &at("file"), "work:/a/b"]);
    ok(&["cp", "work:/a/b", &at("back")]);
    assert_eq!(std::fs::read(at("back")).unwrap(), vec![7; 100_000]);
    ok(&["cp", &at("file"), "work:/a"]);
    ok(&["cp", "work:/a/file", &at("in")]);
    assert_eq!(std::fs::metadata(at("in/file")).unwrap().len(), 100_000);
    ok(&["cp", &at("in"), "work:/new"]);
    ok(&["cp", &at("in"), "work:/new"]);
    ok(&["cp", "work:/new", &at("out")]);
    assert_eq!(std::fs::read_to_string(at("out/sub/f")).unwrap(), "deep");
    assert_eq!(std::fs::read_to_string(at("out/in/sub/f")).unwrap(), "deep", "into what was there");
    assert_eq!(code(&feed(&mut server.dsec(), &["cp", "-", "work:/p"], b"piped")), 0);
    assert_eq!(out(&server.run(&["cp", "work:/p", "-"])), "piped");
    for (args, word) in [
        (["cp", "work:/nosuch", &at("x")], "not_found"),
        (["cp", &at("nosuch"), "work:/x"], "nosuch"),
        (["cp", &at("file"), &at("x")], "SANDBOX:PATH"),
        (["cp", &at("file"), "play:/x"], "play"),
    ] {
        let failed = server.run(&args);
        assert_eq!(code(&failed), 125);
        assert!(err(&failed).contains(word), "{args:?} {failed:?}");
    }
    assert!(!Path::new(&at("x")).exists(), "a failed copy leaves nothing");
}

#[test]
fn port_forwards_to_a_server_inside() {
    let server = Server::with_work();
    let inside = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = inside.local_addr().unwrap().port().to_string();
    let mut child = server
        .dsec()
        .args(["--json", "port", "work", &port, "--listen", "127.0.0.1:0"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(child.stdout.take().unwrap()), &mut line)
        .unwrap();
    let told: serde_json::Value = serde_json::from_str(&line).unwrap();
    let mut outside = std::net::TcpStream::connect(told["listen"].as_str().unwrap()).unwrap();
    let (mut served, _) = inside.accept().unwrap();
    outside.set_read_timeout(Some(std::time::Duration::from_secs(20))).unwrap();
    outside.write_all(b"ping").unwrap();
    let mut got = [0; 4];
    std::io::Read::read_exact(&mut served, &mut got).unwrap();
    served.write_all(b"pong").unwrap();
    drop(served);
    let mut back = String::new();
    // The server inside closes first, and the client hears of it.
    let ended = std::io::Read::read_to_string(&mut outside, &mut back);
    assert!(Command::new("/bin/kill").args(["-TERM", &child.id().to_string()]).status().unwrap().success());
    assert_eq!(child.wait().unwrap().code(), Some(0));
    assert_eq!((&got, back.as_str()), (b"ping", "pong"));
    ended.unwrap();
}

#[test]
fn images_are_imported_listed_and_removed() {
    let server = Server::start();
    let here = tempfile::tempdir().unwrap();
    std::fs::write(here.path().join("f"), "x").unwrap();
    let dir = here.path().to_str().unwrap();
    let made = json(&server.run(&[
        "--json", "image", "import", "mine:2", dir, "--kind", "toolkit", "--user", "u", "--env", "A=b",
    ]));
    assert_eq!(
        (&made["name"], &made["version"], &made["kind"]),
        (&"mine".into(), &"2".into(), &"toolkit".into())
    );
    assert!(out(&server.run(&["image", "ls"])).contains("mine:2"));
    assert_eq!(out(&server.run(&["image", "ls", "-q"])), "base:latest\nmine:2\n");
    assert_eq!(json(&server.run(&["image", "inspect", "mine"]))["config"]["user"], "u");
    assert_eq!(code(&server.run(&["image", "rm", "mine"])), 0);
    assert_eq!(code(&server.run(&["image", "rm", "mine"])), 125);
    assert_eq!(code(&server.run(&["image", "import", "../x", dir])), 125);
    assert_eq!(code(&server.run(&["image", "import", "x", "/nosuch"])), 125);
}

#[test]
fn ttl_is_moved() {
    let server = Server::with_work();
    let moved = json(&server.run(&["--json", "ttl", "work", "90s"]));
    assert_eq!(moved["expires_ms"], 91_000);
    assert_eq!(code(&server.run(&["ttl", "work", "30d"])), 125);
}
