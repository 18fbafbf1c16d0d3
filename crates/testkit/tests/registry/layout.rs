//! OCI images made here: layers as tars, a layout in a tar, and skopeo to push it.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use serde_json::json;
use sha2::{Digest, Sha256};
use tar::{Builder, EntryType, Header};

use crate::server::Server;

pub fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A layer being written.
pub struct Layer(Builder<Vec<u8>>);

impl Layer {
    pub fn new() -> Self {
        Self(Builder::new(Vec::new()))
    }

    fn entry(
        mut self,
        kind: EntryType,
        name: &str,
        link: &str,
        mode: u32,
        owner: (u64, u64),
        data: &[u8],
    ) -> Self {
        let mut header = Header::new_gnu();
        header.set_entry_type(kind);
        header.set_mode(mode);
        header.set_uid(owner.0);
        header.set_gid(owner.1);
        header.set_mtime(1_700_000_000);
        header.set_size(data.len() as u64);
        match kind {
            EntryType::Symlink | EntryType::Link => self.0.append_link(&mut header, name, link).unwrap(),
            _ => self.0.append_data(&mut header, name, data).unwrap(),
        }
        self
    }

    pub fn dir(self, name: &str, mode: u32, owner: (u64, u64)) -> Self {
        self.entry(EntryType::Directory, name, "", mode, owner, b"")
    }
    pub fn file(self, name: &str, mode: u32, owner: (u64, u64), data: &[u8]) -> Self {
        self.entry(EntryType::Regular, name, "", mode, owner, data)
    }
    pub fn symlink(self, name: &str, target: &str) -> Self {
        self.entry(EntryType::Symlink, name, target, 0o777, (0, 0), b"")
    }
    pub fn hardlink(self, name: &str, target: &str) -> Self {
        self.entry(EntryType::Link, name, target, 0o640, (1000, 1000), b"")
    }
    /// Of the next entry.
    pub fn xattr(mut self, name: &str, value: &[u8]) -> Self {
        let record = format!("SCHILY.xattr.{name}");
        self.0.append_pax_extensions([(record.as_str(), value)]).unwrap();
        self
    }
    pub fn whiteout(self, name: &str) -> Self {
        let (parent, last) = name.rsplit_once('/').map_or(("", name), |(parent, last)| (parent, last));
        let separator = if parent.is_empty() { "" } else { "/" };
        self.file(&format!("{parent}{separator}.wh.{last}"), 0o600, (0, 0), b"")
    }
    pub fn opaque(self, name: &str) -> Self {
        self.file(&format!("{name}/.wh..wh..opq"), 0o600, (0, 0), b"")
    }
    pub fn bytes(self) -> Vec<u8> {
        self.0.into_inner().unwrap()
    }
}

/// An OCI layout of plain layers; skopeo packs them as it pushes.
pub struct Layout(Vec<(String, Vec<u8>)>);

impl Layout {
    pub fn of(layers: &[Vec<u8>]) -> Self {
        let mut files = Vec::new();
        let mut put = |media_type: &str, bytes: Vec<u8>| {
            let (hex, size) = (sha256(&bytes), bytes.len());
            files.push((format!("blobs/sha256/{hex}"), bytes));
            json!({"mediaType": media_type, "digest": format!("sha256:{hex}"), "size": size})
        };
        let diff_ids: Vec<_> = layers.iter().map(|layer| format!("sha256:{}", sha256(layer))).collect();
        let layers: Vec<_> =
            layers.iter().map(|l| put("application/vnd.oci.image.layer.v1.tar", l.clone())).collect();
        let config = json!({
            "architecture": "amd64", "os": "linux", "config": {"Env": ["PATH=/usr/sbin:/usr/bin:/sbin:/bin"]},
            "rootfs": {"type": "layers", "diff_ids": diff_ids},
        });
        let config = put("application/vnd.oci.image.config.v1+json", config.to_string().into_bytes());
        let manifest = json!({"schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "config": config, "layers": layers});
        let manifest = put("application/vnd.oci.image.manifest.v1+json", manifest.to_string().into_bytes());
        let index = json!({"schemaVersion": 2, "manifests": [manifest]});
        files.push(("index.json".into(), index.to_string().into_bytes()));
        files.push(("oci-layout".into(), br#"{"imageLayoutVersion": "1.0.0"}"#.to_vec()));
        Self(files)
    }

    /// The layout in one tar, written where it is not there yet.
    pub fn archive(&self, directory: &Path) -> PathBuf {
        fs::create_dir_all(directory).unwrap();
        let path = directory.join("image.tar");
        if !path.exists() {
            let mut tar = Builder::new(fs::File::create(&path).unwrap());
            for (name, bytes) in &self.0 {
                let mut header = Header::new_gnu();
                header.set_size(bytes.len() as u64);
                header.set_mode(0o644);
                tar.append_data(&mut header, name, &bytes[..]).unwrap();
            }
            tar.finish().unwrap();
        }
        path
    }

    /// `skopeo copy`. `directory`: for the archive.
    pub fn push(&self, server: &Server, name: &str, directory: &Path) {
        let mut skopeo = Command::new("skopeo");
        skopeo.args(["--insecure-policy", "copy", "--quiet", "--dest-tls-verify=false"]);
        if let Some((user, password)) = server.credentials {
            skopeo.arg(format!("--dest-creds={user}:{password}"));
        }
        skopeo.arg(format!("oci-archive:{}", self.archive(directory).display()));
        let out = skopeo.arg(format!("docker://{}/{name}", server.address)).output().unwrap();
        assert!(out.status.success(), "skopeo: {}", String::from_utf8_lossy(&out.stderr));
    }
}
