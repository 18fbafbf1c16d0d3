//! The store on a real file.

mod keys;
mod projects;
mod usage;

use api::iam::{KeyRequest, ProjectRequest, ProjectUpdate, Quota};

use super::*;

async fn open(directory: &tempfile::TempDir) -> Iam {
    Iam::open(directory.path().join("iam.db")).await.unwrap()
}

/// A store, and who owns it.
async fn owned(directory: &tempfile::TempDir) -> (Iam, Principal) {
    let iam = open(directory).await;
    let key = iam.create_key("owner").await.unwrap();
    let owner = iam.authenticate(&key).await.unwrap();
    (iam, owner)
}

async fn key(iam: &Iam, by: &Principal, request: KeyRequest) -> Principal {
    let made = iam.key_create(by, &request).await.unwrap();
    iam.authenticate(&made.key).await.unwrap()
}

fn project(name: &str, parent: &str) -> ProjectRequest {
    ProjectRequest { name: name.into(), parent: Some(parent.into()), rights: None, quota: Quota::NONE }
}

fn rights(text: &str) -> Rights {
    text.parse().unwrap()
}

fn quota(json: &str) -> Quota {
    serde_json::from_str(json).unwrap()
}

fn bounded(json: &str) -> ProjectUpdate {
    ProjectUpdate { quota: Some(quota(json)), rights: None }
}
