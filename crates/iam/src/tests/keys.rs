//! Keys: made, narrowed, revoked, over.

use std::os::unix::fs::PermissionsExt;

use super::*;

#[tokio::test]
async fn a_key_works_until_it_is_revoked_and_across_a_restart() {
    let directory = tempfile::tempdir().unwrap();
    let iam = open(&directory).await;
    let key = iam.create_key("laptop").await.unwrap();
    assert!(key.starts_with("dsec_") && key.len() == 5 + 43, "{key}");
    let principal = iam.authenticate(&key).await.unwrap();
    assert_eq!((principal.project_id.as_str(), principal.key_name.as_str()), (ROOT_PROJECT, "laptop"));
    assert_eq!(iam.authenticate(&key).await.unwrap(), principal, "from the cache, the same");

    let again = open(&directory).await;
    assert_eq!(again.authenticate(&key).await.unwrap(), principal);

    iam.revoke_key("laptop").await.unwrap();
    assert_eq!(iam.authenticate(&key).await.unwrap_err().code, Code::Unauthenticated);
    assert_eq!(iam.revoke_key("laptop").await.unwrap_err().code, Code::NotFound);
    let keys = iam.list_keys().await.unwrap();
    assert_eq!(keys.len(), 1);
    assert!(keys[0].revoked_ms.is_some());
}

#[tokio::test]
async fn a_secret_is_made_once_and_stays() {
    let directory = tempfile::tempdir().unwrap();
    let iam = open(&directory).await;
    let secret = iam.secret("e2b").await.unwrap();
    assert_ne!(secret, [0; 32]);
    assert_ne!(iam.secret("other").await.unwrap(), secret);
    assert_eq!(open(&directory).await.secret("e2b").await.unwrap(), secret);
}

#[tokio::test]
async fn near_misses_are_refused_with_one_text() {
    let directory = tempfile::tempdir().unwrap();
    let iam = open(&directory).await;
    let key = iam.create_key("a").await.unwrap();
    let mut flipped = key.clone().into_bytes();
    let last = flipped.len() - 1;
    flipped[last] = if flipped[last] == b'A' { b'B' } else { b'A' };
    let flipped = String::from_utf8(flipped).unwrap();
    let longer = format!("{key}A");
    let other_case = key.to_uppercase();
    for text in
        ["", "dsec_", "x", &flipped, &longer, &key[..key.len() - 1], &other_case, "' OR 1=1 --", "dsec_é"]
    {
        let error = iam.authenticate(text).await.unwrap_err();
        assert_eq!(error, crate::keys::refused(), "{text:?}");
    }
}

#[tokio::test]
async fn names_are_one_key_each_while_they_work() {
    let directory = tempfile::tempdir().unwrap();
    let iam = open(&directory).await;
    let first = iam.create_key("ci").await.unwrap();
    assert_eq!(iam.create_key("ci").await.unwrap_err().code, Code::AlreadyExists);
    assert_eq!(iam.create_key("../x").await.unwrap_err().code, Code::InvalidArgument);
    let id = iam.list_keys().await.unwrap()[0].id.clone();
    iam.revoke_key(&id).await.unwrap();
    let second = iam.create_key("ci").await.unwrap();
    assert_ne!(first, second);
    assert!(iam.authenticate(&second).await.is_ok());
    assert!(iam.authenticate(&first).await.is_err());
}

#[tokio::test]
async fn the_file_holds_no_key_and_only_its_owner_reads_it() {
    let directory = tempfile::tempdir().unwrap();
    let iam = open(&directory).await;
    let key = iam.create_key("a").await.unwrap();
    let mut files = 0;
    for entry in std::fs::read_dir(directory.path()).unwrap() {
        let entry = entry.unwrap();
        files += 1;
        assert_eq!(entry.metadata().unwrap().permissions().mode() & 0o077, 0, "{:?}", entry.file_name());
        let bytes = std::fs::read(entry.path()).unwrap();
        assert!(!bytes.windows(20).any(|window| window == &key.as_bytes()[5..25]), "{:?}", entry.file_name());
    }
    assert!(files >= 1);
}

#[tokio::test]
async fn a_broken_store_is_an_error_not_a_new_store() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("iam.db"), b"this is no database, and far too short to be one")
        .unwrap();
    let error = Iam::open(directory.path().join("iam.db")).await.err().unwrap();
    assert_eq!(error.code, Code::Internal);
    assert!(!error.message.contains("iam.db"), "no private path: {error}");
}

#[tokio::test]
async fn a_key_makes_narrower_keys_and_no_wider_ones() {
    let directory = tempfile::tempdir().unwrap();
    let (iam, owner) = owned(&directory).await;
    iam.project_create(&owner, &project("team", "root")).await.unwrap();
    iam.project_create(&owner, &project("other", "root")).await.unwrap();
    let request = KeyRequest {
        project: Some("root/team".into()),
        kind: PrincipalKind::Agent,
        rights: Some(rights("user,key.write")),
        ttl_ms: Some(60_000),
        ..KeyRequest::new("agent")
    };
    let agent = key(&iam, &owner, request).await;
    assert_eq!((agent.project.as_str(), agent.kind), ("root/team", PrincipalKind::Agent));
    let narrow = KeyRequest { rights: Some(rights("sandbox.exec")), ..KeyRequest::new("narrow") };
    let made = iam.key_create(&agent, &narrow).await.unwrap();
    assert_eq!(made.info.made_by.as_deref(), Some(agent.key_id.as_str()));
    assert_eq!(made.info.expires_ms, agent.expires_ms, "it ends with what made it");
    let narrow = iam.authenticate(&made.key).await.unwrap();
    assert_eq!(narrow.rights, rights("sandbox.exec"));
    assert_eq!(narrow.may(Action::ImageRead).unwrap_err().code, Code::PermissionDenied);
    for (wide, code) in [
        (KeyRequest { rights: Some(rights("image.write")), ..KeyRequest::new("x") }, Code::PermissionDenied),
        (KeyRequest { rights: Some(rights("*")), ..KeyRequest::new("x") }, Code::PermissionDenied),
        (KeyRequest { ttl_ms: Some(3_600_000), ..KeyRequest::new("x") }, Code::PermissionDenied),
        (KeyRequest { project: Some("root".into()), ..KeyRequest::new("x") }, Code::NotFound),
        (KeyRequest { project: Some("root/other".into()), ..KeyRequest::new("x") }, Code::NotFound),
    ] {
        assert_eq!(iam.key_create(&agent, &wide).await.unwrap_err().code, code, "{wide:?}");
    }
    let refused = iam.key_create(&narrow, &KeyRequest::new("y")).await.unwrap_err();
    assert_eq!(refused.code, Code::PermissionDenied, "it may make none");
    let names: Vec<String> = iam.key_list(&agent).await.unwrap().into_iter().map(|key| key.name).collect();
    assert_eq!(names, ["agent", "narrow"]);
    assert_eq!(iam.key_revoke(&agent, "owner").await.unwrap_err().code, Code::NotFound);
    iam.key_revoke(&agent, "narrow").await.unwrap();
    assert!(iam.authenticate(&made.key).await.is_err());
}

#[tokio::test]
async fn a_key_that_is_over_is_refused_in_memory_too() {
    let directory = tempfile::tempdir().unwrap();
    let (iam, owner) = owned(&directory).await;
    let request = KeyRequest { ttl_ms: Some(200), ..KeyRequest::new("short") };
    let made = iam.key_create(&owner, &request).await.unwrap();
    iam.authenticate(&made.key).await.unwrap();
    tokio::time::sleep(std::time::Duration::from_millis(210)).await;
    assert_eq!(iam.authenticate(&made.key).await.unwrap_err().code, Code::Unauthenticated);
    assert!(open(&directory).await.authenticate(&made.key).await.is_err());
}
