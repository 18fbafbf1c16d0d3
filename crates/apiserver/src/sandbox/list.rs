//! List: all edges at once. An edge that does not answer fails the list: half a list would look whole.

use api::{
    Result,
    spec::{ListQuery, SandboxInfo},
};
use futures_util::future::try_join_all;

use crate::Session;

impl Session {
    pub(crate) async fn sandbox_list(&self, query: ListQuery) -> Result<Vec<SandboxInfo>> {
        let lists = try_join_all(self.shared.edges.values().map(|edge| edge.list(query.clone()))).await?;
        self.seen(lists.into_iter().flatten().collect()).await
    }
}
