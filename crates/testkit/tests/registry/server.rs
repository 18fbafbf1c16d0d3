//! A registry process on loopback, its data in a directory of the test; and a slow road to it.

use std::{
    fs,
    io::{Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    path::Path,
    process::{Child, Command, Stdio},
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Result, bail};

/// bcrypt of `secret`, the one password.
const HASH_OF_SECRET: &str = "$2b$05$uIkZB7GzxmuM8Zw7vliOF.1C7kTRoTlxp14dr53CwlF3jZ2Cpo8Ii";
const START_WITHIN: Duration = Duration::from_secs(20);

/// Ends with its value.
pub struct Server {
    pub address: SocketAddr,
    pub credentials: Option<(&'static str, &'static str)>,
    child: Child,
    log: std::path::PathBuf,
    /// Where the log stood when requests were last forgotten.
    mark: Mutex<usize>,
}

impl Server {
    /// None, and a word about it, where a program is missing.
    pub fn start(directory: &Path, credentials: Option<(&'static str, &'static str)>) -> Option<Self> {
        for (program, argument) in [("docker-registry", "--version"), ("skopeo", "--version")] {
            if Command::new(program).arg(argument).output().is_err() {
                eprintln!("skipped: {program}");
                return None;
            }
        }
        Some(Self::try_start(directory, credentials).unwrap())
    }

    fn try_start(directory: &Path, credentials: Option<(&'static str, &'static str)>) -> Result<Self> {
        fs::create_dir_all(directory.join("data"))?;
        // Free now; whoever takes it in between makes the registry fail, loudly.
        let address = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
        let mut config = format!(
            "version: 0.1\nlog: {{level: info, formatter: json}}\nstorage:\n  filesystem: {{rootdirectory: {}}}\n\
             http: {{addr: '{address}'}}\n",
            directory.join("data").display()
        );
        if let Some((user, _)) = credentials {
            fs::write(directory.join("htpasswd"), format!("{user}:{HASH_OF_SECRET}\n"))?;
            let path = directory.join("htpasswd");
            config.push_str(&format!("auth:\n  htpasswd: {{realm: test, path: {}}}\n", path.display()));
        }
        fs::write(directory.join("config.yml"), config)?;
        let log = directory.join("log");
        let file = fs::File::options().append(true).create(true).open(&log)?;
        let mut command = Command::new("docker-registry");
        command.arg("serve").arg(directory.join("config.yml")).stdin(Stdio::null());
        let child = command.stdout(file.try_clone()?).stderr(file);
        let server = Self { address, credentials, child: child.spawn()?, log, mark: Mutex::new(0) };
        let start = Instant::now();
        while TcpStream::connect(address).is_err() {
            if start.elapsed() > START_WITHIN {
                bail!("the registry does not start: {}", fs::read_to_string(&server.log)?);
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(server)
    }

    fn lines(&self) -> Vec<String> {
        fs::read_to_string(&self.log).unwrap().lines().map(str::to_owned).collect()
    }

    pub fn forget_requests(&self) {
        std::thread::sleep(Duration::from_millis(300));
        *self.mark.lock().unwrap() = self.lines().len();
    }

    /// Blobs that it has given since.
    pub fn blobs_given(&self) -> usize {
        // It logs a request when it is over, a moment after its last byte.
        std::thread::sleep(Duration::from_millis(300));
        let lines = self.lines();
        let since = &lines[*self.mark.lock().unwrap()..];
        since.iter().filter(|line| line.contains("\"GET /v2/") && line.contains("/blobs/sha256:")).count()
    }

    pub fn stop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop();
    }
}

/// A relay that gives one layer slowly: the connection whose turn among those for blobs it is.
pub struct Slow {
    pub address: SocketAddr,
}

impl Slow {
    /// `slow`: which blob, counted from 1 without the config.
    pub fn before(server: &Server, slow: usize) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (address, to) = (listener.local_addr().unwrap(), server.address);
        let blobs = Arc::new(AtomicUsize::new(0));
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let blobs = blobs.clone();
                std::thread::spawn(move || relay(client, to, &blobs, slow));
            }
        });
        Self { address }
    }
}

fn relay(mut client: TcpStream, to: SocketAddr, blobs: &AtomicUsize, slow: usize) -> Option<()> {
    let mut registry = TcpStream::connect(to).ok()?;
    let mut head = vec![0; 16 << 10];
    // Its requests are short: one piece each.
    let n = client.read(&mut head).ok()?;
    registry.write_all(&head[..n]).ok()?;
    let is_blob = String::from_utf8_lossy(&head[..n]).contains("/blobs/");
    // The config is the first.
    let is_slow = is_blob && blobs.fetch_add(1, Ordering::SeqCst) == slow;
    let mut piece = vec![0; 64 << 10];
    loop {
        let n = registry.read(&mut piece).ok().filter(|n| *n > 0)?;
        client.write_all(&piece[..n]).ok()?;
        if is_slow {
            std::thread::sleep(Duration::from_millis(150));
        }
    }
}
