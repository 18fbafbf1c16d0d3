//! The archives of images: an OCI layout, and docker's. Both name their parts `blobs/sha256/<hex>`; they differ in the
//! documents at the end.
//!
//! Why gzip: every reader of either form takes it. Why a fixed date: the same content makes the same archive on any
//! node, whenever it was imported there.

use std::{
    collections::HashSet,
    fs::File,
    io::{self, BufWriter, Seek, Write},
};

use api::image::ImageConfig;
use flate2::{Compression, write::GzEncoder};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::{
    Export, layer,
    tar::{Header, TarWriter},
};
use crate::{
    erofs::read::Reader,
    error::{Error, Result},
};

const CREATED: &str = "1970-01-01T00:00:00Z";
const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const CONFIG: &str = "application/vnd.oci.image.config.v1+json";
const LAYER: &str = "application/vnd.oci.image.layer.v1.tar+gzip";
const INDEX: &str = "application/vnd.oci.image.index.v1+json";
const BUFFER_BYTES: usize = 256 << 10;
/// Of gzip, which takes nearly all of an export's time: half as long again as 3 is 6, for a layer that is 3% smaller.
const LEVEL: u32 = 3;

/// An OCI layout in a tar.
pub fn write_layout(export: &Export, out: &mut dyn Write) -> Result<()> {
    let mut tar = TarWriter::new(out);
    tar.file(b"oci-layout", br#"{"imageLayoutVersion":"1.0.0"}"#)?;
    let Parts { config, layers } = write_parts(export, &mut tar)?;
    let manifest = encode(&json!({
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "config": config.descriptor(CONFIG),
        "layers": layers.iter().map(|layer| layer.descriptor(LAYER)).collect::<Vec<_>>(),
    }))?;
    let manifest = write_document(&mut tar, &manifest)?;
    let mut about = manifest.descriptor(MANIFEST);
    about["platform"] = json!({"architecture": architecture(), "os": "linux"});
    about["annotations"] = json!({"org.opencontainers.image.ref.name": export.info.version});
    let index = json!({"schemaVersion": 2, "mediaType": INDEX, "manifests": [about]});
    tar.file(b"index.json", &encode(&index)?)?;
    tar.finish()?.flush().map_err(Error::of_writer)
}

/// What `docker load` takes.
pub fn write_docker(export: &Export, out: &mut dyn Write) -> Result<()> {
    let mut tar = TarWriter::new(out);
    let Parts { config, layers } = write_parts(export, &mut tar)?;
    let name = repository(&export.info.name).map(|name| format!("{name}:{}", export.info.version));
    let images = json!([{
        "Config": config.path(),
        "RepoTags": name.into_iter().collect::<Vec<_>>(),
        "Layers": layers.iter().map(Part::path).collect::<Vec<_>>(),
    }]);
    tar.file(b"manifest.json", &encode(&images)?)?;
    tar.finish()?.flush().map_err(Error::of_writer)
}

/// The name as docker takes it: lower case, single separators between letters or digits. None where there is no such.
fn repository(name: &str) -> Option<String> {
    let is_name = name.split(['.', '_', '-']).all(|part| !part.is_empty());
    is_name.then(|| name.to_ascii_lowercase())
}

/// A part of the archive.
struct Part {
    hex: String,
    size: u64,
}

impl Part {
    fn path(&self) -> String {
        format!("blobs/sha256/{}", self.hex)
    }

    fn descriptor(&self, media_type: &str) -> Value {
        json!({"mediaType": media_type, "digest": format!("sha256:{}", self.hex), "size": self.size})
    }
}

struct Parts {
    config: Part,
    /// Lowest first.
    layers: Vec<Part>,
}

/// Layers and config, which both forms have.
fn write_parts(export: &Export, tar: &mut TarWriter<&mut dyn Write>) -> Result<Parts> {
    tar.directory(b"blobs/")?;
    tar.directory(b"blobs/sha256/")?;
    let (mut layers, mut diff_ids, mut written) = (Vec::new(), Vec::new(), HashSet::new());
    for reader in &export.layers {
        // So the first bytes leave before the first layer is packed.
        tar.inner().flush().map_err(Error::of_writer)?;
        let (part, diff_id, mut file) = pack(export, reader, tar.inner())?;
        if written.insert(part.hex.clone()) {
            let path = part.path();
            let header = Header {
                path: path.as_bytes(),
                flag: b'0',
                mode: 0o644,
                size: part.size,
                ..Header::default()
            };
            tar.header(&header)?;
            tar.data(&mut file, part.size)?;
        }
        diff_ids.push(format!("sha256:{diff_id}"));
        layers.push(part);
    }
    let history = export.info.layers.iter().map(|digest| {
        json!({"created": CREATED, "created_by": "dsec image export", "comment": format!("EROFS layer {digest}")})
    });
    let config = encode(&json!({
        "architecture": architecture(),
        "os": "linux",
        "created": CREATED,
        "config": run_config(&export.info.config),
        "rootfs": {"type": "layers", "diff_ids": diff_ids},
        "history": history.collect::<Vec<_>>(),
    }))?;
    Ok(Parts { config: write_document(tar, &config)?, layers })
}

fn run_config(config: &ImageConfig) -> Value {
    let env: Vec<String> = config.env.iter().map(|(key, value)| format!("{key}={value}")).collect();
    let mut run = json!({"Env": env});
    if let Some(workdir) = &config.workdir {
        run["WorkingDir"] = json!(workdir);
    }
    if let Some(user) = &config.user {
        run["User"] = json!(user);
    }
    if !config.labels.is_empty() {
        run["Labels"] = json!(config.labels);
    }
    if !config.exposed_ports.is_empty() {
        let ports = config.exposed_ports.iter().map(|port| (port.clone(), json!({})));
        run["ExposedPorts"] = Value::Object(ports.collect());
    }
    run
}

/// As images call it.
fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

fn encode(value: &Value) -> Result<Vec<u8>> {
    serde_json::to_vec(value).map_err(|e| Error::disk("encode a document of an export")(e.into()))
}

fn write_document(tar: &mut TarWriter<&mut dyn Write>, bytes: &[u8]) -> Result<Part> {
    let part = Part { hex: hex(Sha256::digest(bytes).as_slice()), size: bytes.len() as u64 };
    tar.file(part.path().as_bytes(), bytes)?;
    Ok(part)
}

/// Packs a layer into a file without a name: a tar's header tells the size of what follows. Gives the part, the hash of
/// the tar within, and the file at its beginning.
fn pack(export: &Export, layer: &Reader, reader_of_export: &mut dyn Write) -> Result<(Part, String, File)> {
    let path = export.scratch.path().join("layer.tar.gz");
    let file = File::options().read(true).write(true).create_new(true).open(&path);
    let file = file.map_err(Error::disk("create a packed layer"))?;
    std::fs::remove_file(&path).map_err(Error::disk("unlink a packed layer"))?;
    let packed = Hashing::new(BufWriter::with_capacity(BUFFER_BYTES, OnDisk(file)));
    let plain = Hashing::new(GzEncoder::new(packed, Compression::new(LEVEL)));
    let mut tar = TarWriter::new(BufWriter::with_capacity(BUFFER_BYTES, plain));
    let mut alive = || reader_of_export.flush().map_err(Error::of_writer);
    layer::write_layer(layer, &export.limits, &mut tar, &mut alive)?;
    let plain = tar.finish()?.into_inner().map_err(|e| Error::of_writer(e.into_error()))?;
    let (diff_id, gzip) = (hex(&plain.hash.finalize()), plain.out);
    let packed = gzip.finish().map_err(Error::of_writer)?;
    let (digest, size) = (hex(&packed.hash.finalize()), packed.bytes);
    let OnDisk(mut file) = packed.out.into_inner().map_err(|e| Error::of_writer(e.into_error()))?;
    file.rewind().map_err(Error::disk("read a packed layer"))?;
    Ok((Part { hex: digest, size }, diff_id, file))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Hashes and counts all that passes.
struct Hashing<W> {
    out: W,
    hash: Sha256,
    bytes: u64,
}

impl<W> Hashing<W> {
    fn new(out: W) -> Self {
        Self { out, hash: Sha256::new(), bytes: 0 }
    }
}

impl<W: Write> Write for Hashing<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let n = self.out.write(bytes)?;
        self.hash.update(&bytes[..n]);
        self.bytes += n as u64;
        Ok(n)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

/// A file whose trouble is the node's, not that of the export's reader.
struct OnDisk(File);

impl Write for OnDisk {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes).map_err(|e| Error::disk("write a packed layer")(e).into_io())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
