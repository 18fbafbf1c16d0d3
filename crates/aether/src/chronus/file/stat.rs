//! stat: of the name itself, or of what it leads to.

use api::{
    Result,
    file::{FileInfo, StatQuery},
};
use rustix::fs::OFlags;

use super::{describe_fd, failed, open};
use crate::{
    inside::{Depth, Inside},
    worker::Worker,
};

pub async fn stat(inside: &Inside, query: StatQuery) -> Result<FileInfo> {
    Worker::call(inside, Depth::Files, query.user.as_deref(), |job| {
        let path = job.absolute(&query.path);
        let follow = if query.follow { OFlags::empty() } else { OFlags::NOFOLLOW };
        let fd = open(path.as_str(), OFlags::PATH | follow, 0).map_err(|e| failed(&path, e))?;
        describe_fd(&path, &fd)
    })
    .await
}
