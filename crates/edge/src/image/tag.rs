//! tag: another name for the layers of an image.

use api::{
    Result,
    image::{ImageInfo, TagRequest},
};

use super::sweep;
use crate::{fetch, node::EdgeNode, publish};

impl EdgeNode {
    pub(super) async fn tag(&self, reference: &str, request: TagRequest) -> Result<ImageInfo> {
        request.validate()?;
        self.parts.check_open()?;
        fetch::ensure(&self.parts, [reference]).await?;
        let named = reference.to_owned();
        let image = self.ask(move |layers| layers.tag(&named, &request)).await?;
        publish::later(&self.parts, &image);
        // It may have taken another's name.
        sweep(&self.parts).await;
        Ok(self.counted(image))
    }
}
