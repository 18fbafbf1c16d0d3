//! import: a directory, a tar or an OCI archive becomes an image. Never sent twice: a stream cannot be rewound.

use std::path::Path;

use api::{
    Result,
    arrow::ByteStream,
    image::{ImageInfo, ImportQuery},
};
use futures_util::StreamExt;

use super::{Images, pack};
use crate::sandbox::tree::{local, stream_of};

/// How far an import is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    pub bytes_sent: u64,
    /// None for a directory: it is packed while it is sent.
    pub bytes_total: Option<u64>,
}

impl Images {
    /// Imports a file (tar, `docker save`, OCI archive) or a directory, which is packed on the fly with its owners,
    /// hard links, devices and extended attributes.
    ///
    /// ```no_run
    /// # async fn demo(client: libdsec::Client) -> libdsec::Result<()> {
    /// use libdsec::{ImportQuery, LayerKind};
    /// let query = ImportQuery::new("debian", LayerKind::Base);
    /// client.images().import_path("rootfs.tar", query, |p| eprintln!("{} bytes", p.bytes_sent)).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn import_path(
        &self,
        path: impl AsRef<Path>,
        query: ImportQuery,
        progress: impl FnMut(Progress) + Send + 'static,
    ) -> Result<ImageInfo> {
        let path = path.as_ref();
        let metadata = tokio::fs::metadata(path).await.map_err(|e| local("reading", path, &e))?;
        if metadata.is_dir() {
            let body = pack::stream(path, pack::Pack { metadata: true });
            return self.import(query, counted(body, None, progress)).await;
        }
        let file = tokio::fs::File::open(path).await.map_err(|e| local("reading", path, &e))?;
        // A pipe has no size.
        let total = metadata.is_file().then_some(metadata.len());
        self.import(query, counted(stream_of(file), total, progress)).await
    }

    /// Imports an archive out of a stream.
    pub async fn import(&self, query: ImportQuery, body: ByteStream) -> Result<ImageInfo> {
        query.validate()?;
        self.front.import(query, body).await
    }
}

fn counted(
    body: ByteStream,
    bytes_total: Option<u64>,
    mut progress: impl FnMut(Progress) + Send + 'static,
) -> ByteStream {
    let mut bytes_sent = 0;
    body.inspect(move |chunk| {
        bytes_sent += chunk.as_ref().map_or(0, |c| c.len() as u64);
        progress(Progress { bytes_sent, bytes_total });
    })
    .boxed()
}
