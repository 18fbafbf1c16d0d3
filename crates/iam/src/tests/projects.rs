//! Projects: what a child has is never more than what its parent has.

use proptest::{prelude::*, test_runner::TestRunner};

use super::*;

#[tokio::test]
async fn they_nest_and_are_found_by_path_and_id() {
    let directory = tempfile::tempdir().unwrap();
    let (iam, owner) = owned(&directory).await;
    iam.project_create(&owner, &project("team", "root")).await.unwrap();
    let run = iam.project_create(&owner, &project("run", "root/team")).await.unwrap();
    assert_eq!(run.path, "root/team/run");
    assert_eq!(iam.project_inspect(&owner, &run.id).await.unwrap(), run);
    assert_eq!(iam.project_inspect(&owner, "root/team/run").await.unwrap(), run);
    let paths: Vec<String> = iam.project_list(&owner).await.unwrap().into_iter().map(|p| p.path).collect();
    assert_eq!(paths, ["root", "root/team", "root/team/run"]);
    let again = iam.project_create(&owner, &project("run", "root/team")).await.unwrap_err();
    assert_eq!(again.code, Code::AlreadyExists);
    iam.project_create(&owner, &project("run", "root")).await.unwrap();
    let nowhere = iam.project_create(&owner, &project("x", "root/nope")).await.unwrap_err();
    assert_eq!(nowhere.code, Code::NotFound);

    let admin =
        key(&iam, &owner, KeyRequest { project: Some("root/team".into()), ..KeyRequest::new("admin") }).await;
    let paths: Vec<String> = iam.project_list(&admin).await.unwrap().into_iter().map(|p| p.path).collect();
    assert_eq!(paths, ["root/team", "root/team/run"], "what is above and beside is not seen");
    assert_eq!(iam.project_inspect(&admin, "root").await.unwrap_err().code, Code::NotFound);
    assert_eq!(iam.project_create(&admin, &project("x", "root")).await.unwrap_err().code, Code::NotFound);

    assert_eq!(
        iam.project_remove(&owner, "root/team").await.unwrap_err().code,
        Code::Conflict,
        "it has children"
    );
    iam.project_remove(&owner, "root/team/run").await.unwrap();
    assert_eq!(
        iam.project_remove(&owner, "root/team").await.unwrap_err().code,
        Code::Conflict,
        "it has a key"
    );
    iam.key_revoke(&owner, "admin").await.unwrap();
    iam.project_remove(&owner, "root/team").await.unwrap();
    assert_eq!(iam.project_inspect(&owner, "root/team").await.unwrap_err().code, Code::NotFound);
}

#[tokio::test]
async fn a_parent_that_shrinks_takes_its_children_along_at_once() {
    let directory = tempfile::tempdir().unwrap();
    let (iam, owner) = owned(&directory).await;
    iam.project_create(&owner, &project("team", "root")).await.unwrap();
    let child = ProjectRequest { quota: quota(r#"{"sandboxes":10}"#), ..project("run", "root/team") };
    iam.project_create(&owner, &child).await.unwrap();
    let made = KeyRequest { project: Some("root/team/run".into()), ..KeyRequest::new("worker") };
    let made = iam.key_create(&owner, &made).await.unwrap();
    assert!(iam.authenticate(&made.key).await.unwrap().rights.has(Action::ImageWrite));
    let narrower = ProjectUpdate { rights: Some(rights("user")), quota: Some(quota(r#"{"sandboxes":4}"#)) };
    iam.project_update(&owner, "root/team", &narrower).await.unwrap();
    let worker = iam.authenticate(&made.key).await.unwrap();
    assert_eq!(worker.rights, rights("user"), "the key's own are all");
    let run = iam.project_inspect(&worker, "root/team/run").await.unwrap();
    assert_eq!((run.quota, run.quota_effective), (child.quota, quota(r#"{"sandboxes":4}"#)));
    assert_eq!((run.rights, run.rights_effective), (Rights::all(), rights("user")));
    // More than the parent has is refused when it is asked for.
    let wider =
        iam.project_update(&owner, "root/team/run", &bounded(r#"{"sandboxes":5}"#)).await.unwrap_err();
    assert_eq!(wider.code, Code::InvalidArgument);
    assert!(wider.message.contains("at most 4 sandboxes"), "{wider}");
    let more = ProjectUpdate { rights: Some(rights("image.write")), quota: None };
    assert_eq!(
        iam.project_update(&owner, "root/team/run", &more).await.unwrap_err().code,
        Code::InvalidArgument
    );
}

#[tokio::test]
async fn nobody_widens_himself() {
    let directory = tempfile::tempdir().unwrap();
    let (iam, owner) = owned(&directory).await;
    let team = ProjectRequest { quota: quota(r#"{"sandboxes":1}"#), ..project("team", "root") };
    iam.project_create(&owner, &team).await.unwrap();
    let admin =
        key(&iam, &owner, KeyRequest { project: Some("root/team".into()), ..KeyRequest::new("admin") }).await;
    let refused = iam.project_update(&admin, "root/team", &bounded("{}")).await.unwrap_err();
    assert_eq!(refused.code, Code::PermissionDenied);
    let viewer = KeyRequest { rights: Some(rights("viewer")), ..KeyRequest::new("viewer") };
    let viewer = key(&iam, &admin, viewer).await;
    for refused in [
        iam.project_create(&viewer, &project("x", "root/team")).await.unwrap_err(),
        iam.project_update(&viewer, "root/team", &bounded("{}")).await.unwrap_err(),
        iam.project_remove(&viewer, "root/team").await.unwrap_err(),
        iam.key_create(&viewer, &KeyRequest::new("x")).await.unwrap_err(),
        iam.key_revoke(&viewer, "admin").await.unwrap_err(),
        iam.audit_list(&viewer, 10).await.unwrap_err(),
    ] {
        assert_eq!(refused.code, Code::PermissionDenied, "{refused}");
    }
    iam.project_update(&owner, "root", &bounded(r#"{"sandboxes":100}"#)).await.unwrap();
    let less = ProjectUpdate { rights: Some(Rights::NONE), quota: None };
    assert_eq!(iam.project_update(&owner, "root", &less).await.unwrap_err().code, Code::InvalidArgument);
}

#[tokio::test]
async fn calls_are_noted_and_seen_from_above() {
    let directory = tempfile::tempdir().unwrap();
    let (iam, owner) = owned(&directory).await;
    iam.project_create(&owner, &project("team", "root")).await.unwrap();
    iam.project_create(&owner, &project("team-2", "root")).await.unwrap();
    let admin =
        key(&iam, &owner, KeyRequest { project: Some("root/team".into()), ..KeyRequest::new("admin") }).await;
    let other =
        key(&iam, &owner, KeyRequest { project: Some("root/team-2".into()), ..KeyRequest::new("admin") })
            .await;
    iam.note(&admin, "project.create", "run", &Ok(())).await;
    let failed: Result<()> = Err(Error::not_found("x"));
    iam.note(&admin, "key.revoke", &"k".repeat(1000), &failed).await;
    let seen = iam.audit_list(&owner, 10).await.unwrap();
    assert_eq!((seen.len(), seen[0].code, seen[1].code), (2, Some(Code::NotFound), None));
    assert_eq!((seen[1].verb.as_str(), seen[1].target.as_str()), ("project.create", "run"));
    assert_eq!(seen[0].target.len(), 200);
    assert_eq!(iam.audit_list(&admin, 1).await.unwrap().len(), 1);
    assert_eq!(iam.audit_list(&other, 10).await.unwrap().len(), 0, "team-2 is not below team");
}

/// Any tree, any bounds, in memory.
#[test]
fn what_a_child_has_is_a_part_of_what_its_parent_has() {
    let node = || {
        (any::<u64>(), prop::collection::btree_map(0..8_usize, 0..50_u64, 0..4), any::<prop::sample::Index>())
    };
    let mut runner = TestRunner::default();
    runner
        .run(&prop::collection::vec(node(), 1..20), |nodes| {
            let mut projects: Vec<tree::Project> = Vec::new();
            for (n, (bits, bounds, parent)) in nodes.into_iter().enumerate() {
                let parent_id = (n > 0).then(|| projects[parent.index(n)].id.clone());
                let bound =
                    |quota: Quota, (at, bound): (usize, u64)| quota.with(api::iam::Dimension::ALL[at], bound);
                projects.push(tree::Project {
                    id: format!("p{n}"),
                    name: format!("n{n}"),
                    parent_id,
                    rights: Rights::from_bits(bits),
                    quota: bounds.into_iter().fold(Quota::NONE, bound),
                    used: Default::default(),
                    created_ms: 0,
                });
            }
            let tree = tree::Tree::new(projects.clone());
            for project in &projects {
                let Some(parent) = &project.parent_id else { continue };
                prop_assert!(tree.rights(parent).contains(tree.rights(&project.id)));
                prop_assert_eq!(tree.quota(&project.id).wider_than(&tree.quota(parent)), None);
                prop_assert!(tree.is_below(&project.id, parent) && !tree.is_below(parent, &project.id));
                prop_assert_eq!(tree.find(&tree.path(&project.id)).unwrap(), project);
            }
            Ok(())
        })
        .unwrap();
}
