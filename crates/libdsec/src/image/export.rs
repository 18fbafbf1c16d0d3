//! export: an image as an archive, streamed.

use std::path::{Path, PathBuf};

use api::{
    Result,
    arrow::ByteStream,
    image::{ExportFormat, ExportQuery},
};

use futures_util::StreamExt;
use tokio::io::AsyncWriteExt;

use super::Images;
use crate::sandbox::tree::local;

impl Images {
    /// An image as an archive: an OCI layout, what `docker load` takes, or its root file system as one tar. The bytes come
    /// as they are made; a stream that ends without an error is whole. Dropped before, it ends the export.
    /// Errors: `not_found`; `invalid_argument` where the format cannot hold the image.
    ///
    /// ```no_run
    /// # async fn demo(client: libdsec::Client) -> libdsec::Result<()> {
    /// use futures_util::StreamExt;
    /// use libdsec::ExportFormat;
    /// let mut archive = client.images().export("debian", ExportFormat::Oci).await?;
    /// let mut bytes = 0;
    /// while let Some(part) = archive.next().await {
    ///     bytes += part?.len();
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn export(&self, reference: &str, format: ExportFormat) -> Result<ByteStream> {
        self.front.image_export(reference, ExportQuery { format }).await
    }

    /// The same into a file, which appears under its name when it is whole; what is there and no file (a pipe, a device) is
    /// written to as it is. `progress` is told the bytes so far. Returns their number.
    pub async fn export_path(
        &self,
        reference: &str,
        format: ExportFormat,
        path: impl AsRef<Path>,
        progress: impl FnMut(u64),
    ) -> Result<u64> {
        let path = path.as_ref();
        let archive = self.export(reference, format).await?;
        if std::fs::metadata(path).is_ok_and(|found| !found.is_file()) {
            return write(archive, path, progress).await;
        }
        let partial = Partial::of(path);
        let bytes = write(archive, &partial.0, progress).await?;
        tokio::fs::rename(&partial.0, path).await.map_err(|e| local("writing", path, &e))?;
        Ok(bytes)
    }
}

/// Removed where it has not got its name, also when the call is dropped.
struct Partial(PathBuf);

impl Partial {
    fn of(path: &Path) -> Self {
        let mut partial = path.as_os_str().to_owned();
        partial.push(".partial");
        Self(partial.into())
    }
}

impl Drop for Partial {
    fn drop(&mut self) {
        // Gone where all went well.
        let _ = std::fs::remove_file(&self.0);
    }
}

async fn write(mut archive: ByteStream, path: &Path, mut progress: impl FnMut(u64)) -> Result<u64> {
    let failed = |e| local("writing", path, &e);
    let mut file = tokio::fs::File::create(path).await.map_err(failed)?;
    let mut bytes = 0;
    while let Some(part) = archive.next().await {
        let part = part?;
        file.write_all(&part).await.map_err(failed)?;
        bytes += part.len() as u64;
        progress(bytes);
    }
    file.flush().await.map_err(failed)?;
    Ok(bytes)
}
