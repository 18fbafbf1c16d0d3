//! A web server inside a sandbox that has no network, and its page fetched here, through `dsec port`.

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::TcpStream,
    process::{Child, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};

use super::node::Node;
use crate::step;

/// Python takes a moment to listen.
const READY: Duration = Duration::from_secs(20);
const ANSWER: Duration = Duration::from_secs(10);

pub fn fetch(node: &Node, sandbox: &str) -> Result<()> {
    let server = ["python3", "-m", "http.server", "8000", "--bind", "127.0.0.1"];
    step::run(node.cli(["exec", "--detach", sandbox, "--"]).args(server))?;
    let mut forward = node.cli(["--json", "port", sandbox, "8000", "--listen", "127.0.0.1:0"]);
    let mut child =
        forward.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().context("cannot start dsec port")?;
    let fetched = page(&mut child);
    // Our own child: dsec port runs until it is told to end.
    let _ = child.kill();
    child.wait()?;
    let page = fetched?;
    println!("{}", page.lines().take(4).collect::<Vec<_>>().join("\n"));
    Ok(())
}

fn page(child: &mut Child) -> Result<String> {
    let mut line = String::new();
    BufReader::new(child.stdout.take().context("no pipe")?).read_line(&mut line)?;
    let json: serde_json::Value =
        serde_json::from_str(&line).with_context(|| format!("dsec port said {line:?}"))?;
    let address = json["listen"].as_str().context("dsec port did not say where it listens")?;
    let start = Instant::now();
    loop {
        match get(address, "/README.rst") {
            Ok(page) if page.contains("Toolz") => return Ok(page),
            Ok(page) => bail!("not the page that it should be: {page}"),
            Err(error) if start.elapsed() > READY => return Err(error),
            Err(_) => std::thread::sleep(Duration::from_millis(100)),
        }
    }
}

/// The body of a 200.
fn get(address: &str, path: &str) -> Result<String> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(ANSWER))?;
    write!(stream, "GET {path} HTTP/1.0\r\nHost: sandbox\r\n\r\n")?;
    let mut answer = Vec::new();
    // The server closes when it has answered, and that must reach us: no content length is looked at.
    let read = stream.take(1 << 20).read_to_end(&mut answer);
    read.with_context(|| format!("{} bytes came, but not the end of the connection", answer.len()))?;
    body_of(&String::from_utf8_lossy(&answer))
}

fn body_of(answer: &str) -> Result<String> {
    let (head, body) = answer.split_once("\r\n\r\n").context("no HTTP answer")?;
    let status = head.split_whitespace().nth(1).unwrap_or_default();
    if status != "200" {
        bail!("HTTP status {status:?}");
    }
    Ok(body.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_200_has_a_body() {
        assert_eq!(body_of("HTTP/1.0 200 OK\r\nA: b\r\n\r\nhello").unwrap(), "hello");
        assert!(body_of("HTTP/1.0 404 Not Found\r\n\r\nx").is_err());
        assert!(body_of("").is_err());
    }
}
