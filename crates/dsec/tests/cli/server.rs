//! `dsec up`, `down` and `status`, with the fake runtime: commands are imitated, all above is real.

use super::*;

struct Node {
    dir: tempfile::TempDir,
}

impl Node {
    fn new() -> Self {
        Self { dir: tempfile::tempdir_in("/var/tmp").unwrap() }
    }
    fn data(&self) -> String {
        self.dir.path().join("data").to_str().unwrap().to_owned()
    }
    fn dsec(&self) -> Command {
        with_context(&self.dir.path().join("context.toml"))
    }
    fn run(&self, args: &[&str]) -> Output {
        run(&mut self.dsec(), args)
    }
    fn up(&self) -> Output {
        self.run(&["up", "--fake", "--detach", "--data", &self.data(), "--listen", "127.0.0.1:0"])
    }
    fn down(&self, flags: &[&str]) -> Output {
        let mut command = self.dsec();
        command.args(flags);
        run(&mut command, &["down", "--data", &self.data()])
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        // A test that failed half way must leave no server.
        self.down(&[]);
    }
}

#[test]
fn a_node_goes_up_once_and_comes_down() {
    let node = Node::new();
    let none = node.down(&[]);
    assert_eq!(code(&none), 125);
    assert!(err(&none).contains("no server is running"), "{none:?}");

    let up = node.up();
    assert_eq!(code(&up), 0, "{up:?}");
    assert!(out(&up).contains("dsec is up: http://127.0.0.1:"), "{up:?}");
    let context = node.dir.path().join("context.toml");
    let mode = std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(&context).unwrap().permissions());
    assert_eq!(mode & 0o777, 0o600);

    let again = node.up();
    assert_eq!(code(&again), 125);
    assert!(err(&again).contains("already running (pid "), "{again:?}");
    let third = node.run(&["up", "--fake", "--data", &node.data(), "--listen", "127.0.0.1:0"]);
    assert!(err(&third).contains("already running (pid "), "{third:?}");

    assert_eq!(json(&node.run(&["--json", "status"]))["sandboxes"], 0);
    assert_eq!(code(&node.run(&["status", "--data", &node.data()])), 0);
    let down = node.down(&["--json"]);
    assert_eq!((code(&down), json(&down)["sandboxes_stopped"].as_u64()), (0, Some(0)));
    assert_eq!(code(&node.run(&["status"])), 125);
}

#[test]
fn a_sandbox_on_it_runs_commands_and_goes_with_it() {
    let node = Node::new();
    assert_eq!(code(&node.up()), 0);
    std::fs::create_dir(node.dir.path().join("root")).unwrap();
    std::fs::write(node.dir.path().join("root/f"), "x").unwrap();
    let root = node.dir.path().join("root");
    let imported = node.run(&["image", "import", "base", root.to_str().unwrap()]);
    assert_eq!(code(&imported), 0, "{imported:?}");
    let made = node.run(&["create", "base", "--name", "work"]);
    assert_eq!(code(&made), 0, "{made:?}");
    let ran = node.run(&["exec", "work", "--", "echo", "hi"]);
    assert_eq!((code(&ran), out(&ran).as_str()), (0, "hi\n"), "{ran:?}");
    assert_eq!(code(&node.run(&["exec", "work", "--sh", "exit 9"])), 9);
    assert_eq!(code(&node.run(&["image", "rm", "base"])), 125, "it is in use");
    let wrong = run(node.dsec().env("DSEC_API_KEY", "wrong"), &["ls"]);
    assert_eq!(code(&wrong), 125);
    assert!(err(&wrong).starts_with("error: unauthenticated: ") && err(&wrong).contains("(rq-"), "{wrong:?}");
    assert_eq!(json(&node.down(&["--json"]))["sandboxes_stopped"], 1);
    // The same data again: the key and the image are still there.
    let key = |node: &Node| std::fs::read_to_string(Path::new(&node.data()).join("key")).unwrap();
    let before = key(&node);
    assert_eq!(code(&node.up()), 0);
    assert_eq!(key(&node), before);
    assert_eq!(out(&node.run(&["image", "ls", "-q"])), "base:latest\n");
    assert_eq!(code(&node.down(&["--json"])), 0);
}

#[test]
fn a_start_that_fails_says_why() {
    let node = Node::new();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let failed = node.run(&["up", "--fake", "--detach", "--data", &node.data(), "--listen", &address]);
    assert_eq!(code(&failed), 125);
    assert!(err(&failed).contains(&address) && err(&failed).contains("dsec.log"), "{failed:?}");
    let config = node.dir.path().join("dsec.toml");
    std::fs::write(&config, "lisen = 'x'").unwrap();
    let failed = node.run(&["up", "--config", config.to_str().unwrap()]);
    assert_eq!(code(&failed), 125);
    assert!(err(&failed).contains("lisen"), "{failed:?}");
}
