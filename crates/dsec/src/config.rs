//! What `dsec up` runs with: flags over the file of `--config` over defaults. Read once, checked, passed as a value.

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
};

use anyhow::{Context, bail};
use libdsec::Context as Access;
use serde::{Deserialize, Serialize};

use crate::serve::capacity::CapacityPart;

/// Spells DSEC on a telephone.
pub(crate) const PORT: u16 = 3732;

/// Each husk costs about a megabyte.
const POOL_MAX: usize = 1024;

/// The validated configuration of one node.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Config {
    /// All that the node keeps.
    pub(crate) data: PathBuf,
    /// Where the API answers. Port 0: any free one.
    pub(crate) listen: SocketAddr,
    /// The edge's code in the ids of its sandboxes.
    pub(crate) edge: String,
    /// What is logged: `tracing` directives such as `info` or `info,edge=debug`.
    pub(crate) log: String,
    /// Log as one JSON object a line.
    pub(crate) log_json: bool,
    /// Log each span of a request when it ends, with its times. Below `rpc` they are at level `debug`.
    pub(crate) log_spans: bool,
    /// The context file that tells the CLI and the SDK of this server; empty: none but the one in `data`.
    pub(crate) context: PathBuf,
    /// The static aether binary. Empty: `aether` beside this program.
    pub(crate) aether: PathBuf,
    /// Husks that wait for a sandbox to become.
    pub(crate) pool_size: usize,
    /// What the node gives away, where that is not its memory and cores, oversold as usual.
    pub(crate) capacity: CapacityPart,
    /// The store of layers and images that nodes share.
    pub(crate) store: storage::StoreConfig,
    /// The API for clients of E2B.
    pub(crate) e2b: e2b::Config,
    /// The runtime of tests: nothing is isolated.
    #[serde(skip)]
    pub(crate) fake: bool,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            data: data_default(),
            listen: SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), PORT),
            edge: "e1".into(),
            log: "info".into(),
            log_json: false,
            log_spans: false,
            context: libdsec::default_context_path().unwrap_or_default(),
            aether: std::env::var_os("DSEC_AETHER").map(PathBuf::from).unwrap_or_default(),
            pool_size: 8,
            capacity: CapacityPart::default(),
            store: storage::StoreConfig::default(),
            e2b: e2b::Config::default(),
            fake: false,
        }
    }
}

/// `/var/lib/dsec` for root, else below the home directory.
pub(crate) fn data_default() -> PathBuf {
    if rustix::process::geteuid().is_root() {
        return "/var/lib/dsec".into();
    }
    let home = std::env::var_os("HOME").map(PathBuf::from).unwrap_or_else(|| "/tmp".into());
    home.join(".local/share/dsec")
}

impl Config {
    /// Reads a TOML file. What it leaves out has its default.
    pub(crate) fn load(path: &Path) -> anyhow::Result<Self> {
        let text = std::fs::read_to_string(path)
            .with_context(|| format!("reading the configuration {}", path.display()))?;
        toml::from_str(&text).with_context(|| format!("the configuration {}", path.display()))
    }

    /// Absolute paths and sound values, or which one is not.
    pub(crate) fn validated(mut self) -> anyhow::Result<Self> {
        if self.data.as_os_str().is_empty() {
            bail!("data: the path is empty");
        }
        self.data = std::path::absolute(&self.data).context("data")?;
        if !self.context.as_os_str().is_empty() {
            self.context = std::path::absolute(&self.context).context("context")?;
        }
        if !self.aether.as_os_str().is_empty() {
            self.aether = std::path::absolute(&self.aether).context("aether")?;
        }
        if !(1..=POOL_MAX).contains(&self.pool_size) {
            bail!("pool_size: {} is outside 1..={POOL_MAX}", self.pool_size);
        }
        self.capacity.capacity()?;
        self.store.validate().context("store")?;
        self.e2b.validate().map_err(anyhow::Error::msg).context("e2b")?;
        self.edge_id()?;
        tracing_subscriber::EnvFilter::try_new(&self.log).with_context(|| format!("log: `{}`", self.log))?;
        Ok(self)
    }

    pub(crate) fn edge_id(&self) -> anyhow::Result<api::EdgeId> {
        self.edge.parse().context("edge")
    }

    /// Says where this server is, once it answers: in `<data>/context.toml`, and in the caller's context file.
    /// `serve::run` calls it with the address that it got.
    pub(crate) fn announce(&self, address: SocketAddr, api_key: &str) -> anyhow::Result<()> {
        let access = Access {
            url: format!("http://{}", reachable(address)),
            api_key: api_key.to_owned(),
            data: Some(self.data.clone()),
        };
        let own = data_context(&self.data);
        for path in [&own, &self.context].into_iter().filter(|p| !p.as_os_str().is_empty()) {
            access.save(path).with_context(|| format!("writing {}", path.display()))?;
        }
        Ok(())
    }
}

/// The context file of the server that keeps this data.
pub(crate) fn data_context(data: &Path) -> PathBuf {
    data.join("context.toml")
}

/// A wildcard address is no address to call.
fn reachable(address: SocketAddr) -> SocketAddr {
    match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => SocketAddr::new(Ipv4Addr::LOCALHOST.into(), address.port()),
        IpAddr::V6(ip) if ip.is_unspecified() => {
            SocketAddr::new(std::net::Ipv6Addr::LOCALHOST.into(), address.port())
        }
        _ => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(text: &str) -> anyhow::Result<Config> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("dsec.toml");
        std::fs::write(&path, text).unwrap();
        Config::load(&path)?.validated()
    }

    #[test]
    fn an_empty_file_is_the_defaults_and_a_field_overrides_one() {
        assert_eq!(load("").unwrap(), Config::default().validated().unwrap());
        assert_eq!(load("listen = '0.0.0.0:80'").unwrap().listen.port(), 80);
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (text, word) in [
            ("lisen = 'x'", "lisen"),
            ("listen = 'x'", "listen"),
            ("edge = 'E 1'", "edge"),
            ("log = 'a=b=c'", "log"),
            ("data = ''", "data"),
            ("pool_size = 0", "pool_size"),
            ("[e2b]\ndomain = 'a b'", "domain"),
            ("[e2b]\ntemplate = 'x'", "template"),
            ("[store]\nurl = 'x'", "url"),
            ("[store]\ncache_bytes_max = 5", "cache_bytes_max"),
            ("fake = true", "fake"),
        ] {
            let e = format!("{:#}", load(text).unwrap_err());
            assert!(e.contains(word), "{text}: {e}");
        }
    }

    #[test]
    fn an_announced_address_can_be_called() {
        let dir = tempfile::tempdir().unwrap();
        let config = Config { data: dir.path().into(), context: PathBuf::new(), ..Config::default() };
        config.announce("0.0.0.0:99".parse().unwrap(), "k").unwrap();
        let access = Access::load(&data_context(dir.path())).unwrap().unwrap();
        let data = Some(config.data.clone());
        assert_eq!(access, Access { url: "http://127.0.0.1:99".into(), api_key: "k".into(), data });
    }
}
