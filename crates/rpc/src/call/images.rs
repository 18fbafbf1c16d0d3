//! `Images` over HTTP.

use api::{
    Result,
    arrow::{ByteStream, Images},
    image::{ExportQuery, ImageInfo, ImportQuery, MergeRequest},
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

    async fn image_merge(&self, reference: &str, request: MergeRequest) -> Result<ImageInfo> {
        request.validate()?;
        let path = format!("/v1/images/{}/merge", encode(reference));
        // As long as its layers are.
        self.origin.json(self.origin.request_json(Method::POST, path, &request)?, NO_DEADLINE).await
    }

    async fn image_export(&self, reference: &str, query: ExportQuery) -> Result<ByteStream> {
        let path = format!("/v1/images/{}/export{}", encode(reference), query_of(&query)?);
        let response = self.origin.send(self.origin.request(Method::GET, path), DEADLINE).await?;
        Ok(response.into_body().bytes())
    }
}
