//! export: an image as an archive, streamed.

use api::{
    Result,
    arrow::ByteStream,
    image::{ExportFormat, ExportQuery},
};

use super::Images;

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
}
