//! `Images` over HTTP.

use api::{
    Result,
    arrow::{ByteStream, Images},
    image::{ImageInfo, ImportQuery},
    store::{ImageListQuery, LayerStatus, PublishReport},
};
use async_trait::async_trait;
use http::Method;

use super::{
    EdgeClient, body, encode,
    origin::{DEADLINE, NO_DEADLINE},
    query_of,
};

#[async_trait]
impl Images for EdgeClient {
    async fn import(&self, query: ImportQuery, bytes: ByteStream) -> Result<ImageInfo> {
        query.validate()?;
        let path = format!("/v1/images/import{}", query_of(&query)?);
        let request = self.origin.request(Method::POST, path).map(|_| body::stream(bytes));
        // As long as the archive is.
        self.origin.json(request, NO_DEADLINE).await
    }

    async fn image_list(&self) -> Result<Vec<ImageInfo>> {
        self.origin.json(self.origin.request(Method::GET, "/v1/images".into()), DEADLINE).await
    }

    async fn image_inspect(&self, reference: &str) -> Result<ImageInfo> {
        let path = format!("/v1/images/{}", encode(reference));
        self.origin.json(self.origin.request(Method::GET, path), DEADLINE).await
    }

    async fn image_remove(&self, reference: &str) -> Result<()> {
        let path = format!("/v1/images/{}", encode(reference));
        self.origin.done(self.origin.request(Method::DELETE, path), DEADLINE).await
    }

    async fn image_publish(&self, reference: &str) -> Result<PublishReport> {
        let path = format!("/v1/images/{}/publish", encode(reference));
        // As long as the image is.
        self.origin.json(self.origin.request(Method::POST, path), NO_DEADLINE).await
    }

    async fn store_list(&self) -> Result<Vec<ImageInfo>> {
        let path = format!("/v1/images{}", query_of(&ImageListQuery { store: true })?);
        self.origin.json(self.origin.request(Method::GET, path), DEADLINE).await
    }

    async fn image_layers(&self, reference: &str) -> Result<Vec<LayerStatus>> {
        let path = format!("/v1/images/{}/layers", encode(reference));
        self.origin.json(self.origin.request(Method::GET, path), DEADLINE).await
    }
}
