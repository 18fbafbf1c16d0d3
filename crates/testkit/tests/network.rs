//! `network: none` has loopback alone; `egress` goes out by NAT and nowhere else. The outside is a network namespace
//! of the test's own behind a veth pair, with an address of the range for documentation and a small HTTP server.
#![allow(clippy::unwrap_used)]

use std::{
    net::TcpListener,
    process::{Child, Command, ExitCode, Stdio},
    time::Duration,
};

use libdsec::{Network, Sandbox, SandboxSpec};
use testkit::{Node, host, tests};

const NODE_SIDE: &str = "198.51.100.1";
const OUTSIDE: &str = "198.51.100.2";

fn main() -> ExitCode {
    // The outside is one for the machine.
    testkit::suite::run(
        1,
        tests![
            none_has_loopback_alone,
            egress_goes_out_by_nat_and_reaches_nothing_of_the_node,
            egress_survives_a_restart_and_leaves_no_link,
        ],
    )
}

/// A host on the other side; it goes when dropped.
struct Outside {
    netns: String,
    link: String,
    server: Child,
}

fn run(line: &str) {
    let words: Vec<&str> = line.split(' ').collect();
    let out = Command::new(words[0]).args(&words[1..]).output().unwrap_or_else(|e| panic!("{line}: {e}"));
    assert!(out.status.success(), "{line}: {}", String::from_utf8_lossy(&out.stderr));
}

impl Outside {
    fn new() -> Self {
        let id = std::process::id();
        let (netns, link) = (format!("dsec-testkit-{id}"), format!("tk{id}"));
        run(&format!("ip netns add {netns}"));
        run(&format!("ip link add {link} type veth peer name far netns {netns}"));
        run(&format!("ip addr add {NODE_SIDE}/24 dev {link}"));
        run(&format!("ip link set {link} up"));
        run(&format!("ip -n {netns} addr add {OUTSIDE}/24 dev far"));
        run(&format!("ip -n {netns} link set far up"));
        run(&format!("ip -n {netns} link set lo up"));
        // Answers with the address that it sees.
        let script = "import http.server as h\nclass H(h.BaseHTTPRequestHandler):\n def do_GET(s):\n  s.send_response(200); s.end_headers(); s.wfile.write(s.client_address[0].encode())\n def log_message(*a): pass\nh.HTTPServer(('198.51.100.2',8080),H).serve_forever()";
        let server = Command::new("ip")
            .args(["netns", "exec", &netns, "python3", "-c", script])
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("ip netns exec");
        Self { netns, link, server }
    }
}

impl Drop for Outside {
    fn drop(&mut self) {
        let _ = self.server.kill();
        let _ = self.server.wait();
        let _ = Command::new("ip").args(["link", "delete", &self.link]).output();
        let _ = Command::new("ip").args(["netns", "delete", &self.netns]).output();
    }
}

async fn egress(node: &Node) -> Sandbox {
    node.sandbox_with(SandboxSpec { network: Network::Egress, ..node.spec() }).await
}

/// What a GET gives, or `no`.
async fn get(sandbox: &Sandbox, url: &str, tries: u32) -> String {
    let script = format!(
        "import time,urllib.request as u\nfor i in range({tries}):\n try: print(u.urlopen({url:?},timeout=3).read().decode()); break\n except OSError: time.sleep(0.2)\nelse: print('no')"
    );
    let out =
        sandbox.exec(["python3", "-c", &script]).timeout(Duration::from_secs(100)).output().await.unwrap();
    out.stdout_text().trim().to_owned()
}

async fn address(sandbox: &Sandbox) -> String {
    let script =
        format!("import socket; s=socket.socket(2,2); s.connect(({OUTSIDE:?},9)); print(s.getsockname()[0])");
    let out = sandbox.exec(["python3", "-c", &script]).output().await.unwrap();
    assert!(out.success(), "{}", out.stderr_text());
    out.stdout_text().trim().to_owned()
}

async fn none_has_loopback_alone(node: &Node) {
    let sandbox = node.sandbox().await;
    let script = "import socket; print([n for _, n in socket.if_nameindex()])";
    let out = sandbox.exec(["python3", "-c", script]).output().await.unwrap();
    assert_eq!(out.stdout_text(), "['lo']\n");
    assert_eq!(get(&sandbox, &format!("http://{OUTSIDE}:8080/"), 1).await, "no");
    sandbox.stop().await.unwrap();
}

async fn egress_goes_out_by_nat_and_reaches_nothing_of_the_node(node: &Node) {
    let outside = Outside::new();
    let (a, b) = (egress(node).await, egress(node).await);
    assert_eq!(get(&a, &format!("http://{OUTSIDE}:8080/"), 50).await, NODE_SIDE, "by NAT");
    assert_eq!(get(&b, &format!("http://{OUTSIDE}:8080/"), 50).await, NODE_SIDE);
    // Another sandbox: the server answers its own, not the neighbour.
    let (address_a, address_b) = (address(&a).await, address(&b).await);
    assert_ne!(address_a, address_b);
    a.sh("cd /tmp && python3 -m http.server 8081 >/dev/null 2>&1 &").output().await.unwrap();
    assert_ne!(get(&a, &format!("http://{address_a}:8081/"), 50).await, "no", "control");
    assert_eq!(get(&b, &format!("http://{address_a}:8081/"), 1).await, "no", "between sandboxes");
    // The node, at each address that it has.
    let server = TcpListener::bind("0.0.0.0:0").unwrap();
    let port = server.local_addr().unwrap().port();
    std::net::TcpStream::connect((NODE_SIDE, port)).expect("control: the node reaches itself");
    let connect = |to: &str, port: u16| {
        let script = format!(
            "import socket\ntry: socket.create_connection(({to:?},{port}),timeout=2); print('yes')\nexcept OSError: print('no')"
        );
        a.exec(["python3".to_owned(), "-c".to_owned(), script])
    };
    let api: u16 = node.access().url.rsplit(':').next().unwrap().trim_end_matches('/').parse().unwrap();
    for (to, port) in [(NODE_SIDE, port), ("169.254.1.1", port), ("127.0.0.1", api), ("169.254.169.254", 80)]
    {
        let out = connect(to, port).timeout(Duration::from_secs(60)).output().await.unwrap();
        assert_eq!(out.stdout_text(), "no\n", "{to}:{port}");
    }
    let hosts = Command::new("hostname").arg("-I").output().map(|o| o.stdout).unwrap_or_default();
    for to in String::from_utf8_lossy(&hosts).split_whitespace().filter(|a| a.contains('.')) {
        let out = connect(to, port).timeout(Duration::from_secs(60)).output().await.unwrap();
        assert_eq!(out.stdout_text(), "no\n", "the node at {to}");
    }
    // From outside nothing comes in.
    let inward = format!(
        "import socket\ntry: socket.create_connection(({address_a:?},8081),timeout=2); print('yes')\nexcept OSError: print('no')"
    );
    run(&format!("ip -n {} route add 10.213.0.0/16 via {NODE_SIDE}", outside.netns));
    let out = Command::new("ip")
        .args(["netns", "exec", &outside.netns, "python3", "-c", &inward])
        .output()
        .unwrap();
    assert_eq!(String::from_utf8_lossy(&out.stdout), "no\n");
    a.stop().await.unwrap();
    b.stop().await.unwrap();
}

async fn egress_survives_a_restart_and_leaves_no_link(node: &Node) {
    let _outside = Outside::new();
    let sandbox = egress(node).await;
    sandbox.exec(["sleep", "3195"]).detach().await.unwrap();
    let link = format!("/sys/class/net/dsec{}", host::find("3195").unwrap().slot);
    assert!(std::path::Path::new(&link).exists());
    node.restart_kill9().unwrap();
    let sandbox = node.client().get(sandbox.id().as_str()).await.unwrap();
    assert_eq!(get(&sandbox, &format!("http://{OUTSIDE}:8080/"), 50).await, NODE_SIDE);
    sandbox.stop().await.unwrap();
    assert!(!std::path::Path::new(&link).exists());
}
