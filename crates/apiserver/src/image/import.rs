//! An import is relayed as it comes.

use api::{
    Result,
    arrow::ByteStream,
    image::{ImageInfo, ImportQuery},
};

use crate::Apiserver;

impl Apiserver {
    pub(crate) async fn image_import(&self, query: ImportQuery, body: ByteStream) -> Result<ImageInfo> {
        query.validate()?;
        self.any_edge()?.import(query, body).await
    }
}
