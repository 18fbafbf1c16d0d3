//! An import is relayed as it comes.

use api::{
    Result,
    arrow::ByteStream,
    iam::Action,
    image::{ImageInfo, ImportQuery},
};

use crate::Session;

impl Session {
    pub(crate) async fn image_import(&self, query: ImportQuery, body: ByteStream) -> Result<ImageInfo> {
        query.validate()?;
        let name = format!("{}:{}", query.name, query.version);
        self.noted("image.import", &name, async {
            self.image_edge(Action::ImageWrite)?.import(query, body).await
        })
        .await
    }
}
