//! Environments in the catalogue: what they mean, what they keep, and what a restart finds.

use std::fs;

use api::{
    Code,
    environment::EnvironmentRequest,
    image::{ExportFormat, ImageInfo, MergeRequest},
};
use image::Catalogue;

use crate::{archive::Tar, *};

fn import(catalogue: &Catalogue, name: &str, kind: LayerKind, file: &str, content: &str) -> ImageInfo {
    let mut query = ImportQuery::new(name, kind);
    if kind == LayerKind::Base {
        query.env = Some("PATH=/bin\nOF=base".into());
        query.workdir = Some("/base".into());
    }
    catalogue.import_reader(&query, &Tar::new().file(file, content).bytes()[..]).unwrap()
}

/// base, work, tool v1.
fn three(catalogue: &Catalogue) -> [ImageInfo; 3] {
    [
        import(catalogue, "base", LayerKind::Base, "b", "1"),
        import(catalogue, "work", LayerKind::Workspace, "w", "1"),
        import(catalogue, "tool", LayerKind::Toolkit, "t", "1"),
    ]
}

fn request(name: &str) -> EnvironmentRequest {
    EnvironmentRequest {
        workspaces: vec!["work".into()],
        toolkits: vec!["tool".into()],
        ..EnvironmentRequest::new(name, "base")
    }
}

fn following(name: &str) -> EnvironmentRequest {
    EnvironmentRequest { follow: vec![LayerKind::Toolkit], ..request(name) }
}

fn layers(images: &[&ImageInfo]) -> Vec<String> {
    images.iter().flat_map(|image| image.layers.clone()).collect()
}

fn layers_on_disk(dir: &Path) -> usize {
    fs::read_dir(dir.join("layers")).unwrap().count()
}

#[test]
fn an_exact_one_stays_what_it_was_and_one_that_follows_goes_along() {
    let dir = scratch();
    let catalogue = Catalogue::open(dir.path()).unwrap();
    let [base, work, tool] = three(&catalogue);
    let exact = catalogue.environment_create(&request("exact")).unwrap();
    let follows = catalogue.environment_create(&following("follows")).unwrap();
    assert_eq!(exact.layers, layers(&[&base, &work, &tool]));
    assert_eq!((&follows.layers, &follows.digest), (&exact.layers, &exact.digest), "alike so far");
    assert_eq!(exact.parts.iter().map(|part| part.follow).collect::<Vec<_>>(), [false; 3]);
    assert_eq!(follows.parts.iter().map(|part| part.follow).collect::<Vec<_>>(), [false, false, true]);

    let newer = import(&catalogue, "tool", LayerKind::Toolkit, "t", "2");
    catalogue.sweep(&|_| false).unwrap();
    for restarted in [false, true] {
        let catalogue = match restarted {
            true => &Catalogue::open(dir.path()).unwrap(),
            false => &catalogue,
        };
        assert_eq!(catalogue.environment_inspect("exact").unwrap(), exact);
        let image = catalogue.resolve("exact", Some(LayerKind::Base)).unwrap();
        assert_eq!((&image.info.layers, &Some(image.info.digest.clone())), (&exact.layers, &exact.digest));
        assert_eq!(image.parts, [&base, &work, &tool].map(|image| image.digest.clone()));
        assert_eq!(catalogue.inspect(&image.info.digest).unwrap().name, "exact");
        let now = catalogue.resolve("follows", Some(LayerKind::Base)).unwrap();
        assert_eq!(now.info.layers, layers(&[&base, &work, &newer]));
        let mounted = kernel::mount(&now.layers[2].meta, now.layers[2].blob.as_deref());
        assert_eq!(fs::read_to_string(mounted.path().join("t")).unwrap(), "2");
    }
}

#[test]
fn the_same_again_is_answered_and_another_refused() {
    let dir = scratch();
    let catalogue = Catalogue::open(dir.path()).unwrap();
    three(&catalogue);
    let made = catalogue.environment_create(&request("task")).unwrap();
    assert_eq!(catalogue.environment_create(&request("task")).unwrap(), made);
    let mut by_version = request("task");
    by_version.workspaces = vec!["work:latest".into()];
    assert_eq!(catalogue.environment_create(&by_version).unwrap(), made, "it means the same");
    let others = [
        following("task"),
        EnvironmentRequest { toolkits: Vec::new(), ..request("task") },
        EnvironmentRequest { user: Some("root".into()), ..request("task") },
        EnvironmentRequest { env: [("A".to_owned(), "b".to_owned())].into(), ..request("task") },
    ];
    for other in others {
        assert_eq!(catalogue.environment_create(&other).unwrap_err().code, Code::AlreadyExists);
    }
    import(&catalogue, "tool", LayerKind::Toolkit, "t", "2");
    let error = catalogue.environment_create(&request("task")).unwrap_err();
    assert_eq!(error.code, Code::AlreadyExists, "the same words, another meaning");
    assert_eq!(catalogue.environment_inspect("task").unwrap(), made);
}

#[test]
fn images_and_environments_share_their_names() {
    let dir = scratch();
    let catalogue = Catalogue::open(dir.path()).unwrap();
    let [base, ..] = three(&catalogue);
    assert_eq!(catalogue.environment_create(&request("base")).unwrap_err().code, Code::AlreadyExists);
    catalogue.environment_create(&request("task")).unwrap();
    let query = ImportQuery::new("task", LayerKind::Base);
    let tar = Tar::new().file("f", "x").bytes();
    assert_eq!(catalogue.import_reader(&query, &tar[..]).unwrap_err().code, Code::AlreadyExists);
    assert_eq!(layers_on_disk(dir.path()), 3, "nothing of the refused one stays");
    assert_eq!(catalogue.environment_inspect("base").unwrap_err().code, Code::NotFound);
    assert_eq!(catalogue.remove("task", &|_| false).unwrap_err().code, Code::NotFound);
    assert_eq!(catalogue.inspect("base").unwrap(), base);
    // No environment of environments.
    let nested = EnvironmentRequest::new("nested", "task");
    assert_eq!(catalogue.environment_create(&nested).unwrap_err().code, Code::NotFound);
}

#[test]
fn what_it_is_made_of_must_fit() {
    let dir = scratch();
    let catalogue = Catalogue::open(dir.path()).unwrap();
    three(&catalogue);
    let missing = EnvironmentRequest { workspaces: vec!["nope".into()], ..request("x") };
    assert_eq!(catalogue.environment_create(&missing).unwrap_err().code, Code::NotFound);
    let mut other_kind = request("x");
    other_kind.workspaces = vec!["tool".into()];
    assert_eq!(catalogue.environment_create(&other_kind).unwrap_err().code, Code::InvalidArgument);
    let names = (0..64).map(|n| format!("w{n}"));
    let many: Vec<String> = names
        .inspect(|name| drop(import(&catalogue, name, LayerKind::Workspace, name, name)))
        .take(63)
        .collect();
    let fits = EnvironmentRequest { workspaces: many.clone(), ..EnvironmentRequest::new("fits", "base") };
    assert_eq!(catalogue.environment_create(&fits).unwrap().layers.len(), 64);
    import(&catalogue, "w0", LayerKind::Workspace, "more", "more");
    let twice =
        EnvironmentRequest { workspaces: vec!["work".into(); 5], ..EnvironmentRequest::new("twice", "base") };
    assert_eq!(catalogue.environment_create(&twice).unwrap().layers.len(), 2, "a layer is there once");
    assert_eq!(catalogue.environment_list().len(), 2);
    assert_eq!(fs::read_dir(dir.path().join("tmp")).unwrap().count(), 0);
}

#[test]
fn its_config_is_the_bases_with_its_own_over_it() {
    let dir = scratch();
    let catalogue = Catalogue::open(dir.path()).unwrap();
    three(&catalogue);
    let plain = catalogue.environment_create(&request("plain")).unwrap();
    assert_eq!((plain.config.env["OF"].as_str(), plain.config.workdir.as_deref()), ("base", Some("/base")));
    let own = EnvironmentRequest {
        env: [("OF".to_owned(), "own".to_owned())].into(),
        user: Some("user".into()),
        workdir: Some("/own".into()),
        ..request("own")
    };
    let own = catalogue.environment_create(&own).unwrap();
    let env: Vec<_> = own.config.env.iter().map(|(k, v)| format!("{k}={v}")).collect();
    assert_eq!(env, ["OF=own", "PATH=/bin"]);
    assert_eq!((own.config.user.as_deref(), own.config.workdir.as_deref()), (Some("user"), Some("/own")));
    assert_ne!(own.digest, plain.digest);
}

#[test]
fn it_keeps_what_it_needs_and_no_more() {
    let dir = scratch();
    let catalogue = Catalogue::open(dir.path()).unwrap();
    let [_, work, tool] = three(&catalogue);
    catalogue.environment_create(&request("exact")).unwrap();
    catalogue.environment_create(&following("follows")).unwrap();
    let error = catalogue.remove("tool", &|_| false).unwrap_err();
    assert_eq!(error.code, Code::Conflict);
    assert!(error.message.contains("follows:latest"), "{error}");
    assert_eq!(catalogue.remove(&tool.digest, &|_| false).unwrap_err().code, Code::Conflict);
    let other = ImportQuery::new("tool", LayerKind::Base);
    let tar = Tar::new().file("t", "base").bytes();
    let error = catalogue.import_reader(&other, &tar[..]).unwrap_err();
    assert_eq!(error.code, Code::Conflict, "another kind under a name that is followed");
    // Its name is not followed, and its layer is kept.
    catalogue.remove("work", &|_| false).unwrap();
    assert_eq!(catalogue.sweep(&|_| false).unwrap(), 0);
    let catalogue = {
        drop(catalogue);
        Catalogue::open(dir.path()).unwrap()
    };
    assert_eq!(catalogue.sweep(&|_| false).unwrap(), 0, "after a restart as well");
    assert!(catalogue.resolve("exact", None).unwrap().info.layers.contains(&work.layers[0]));

    let digest = catalogue.environment_inspect("exact").unwrap().digest.unwrap();
    let error = catalogue.environment_remove("exact", &|used| used == digest).unwrap_err();
    assert_eq!(error.code, Code::Conflict);
    catalogue.environment_remove("follows", &|_| false).unwrap();
    assert_eq!(layers_on_disk(dir.path()), 3);
    // A sandbox that forked from one of it has the layer still.
    catalogue.environment_remove("exact", &|layer| layer == work.layers[0]).unwrap();
    assert_eq!(layers_on_disk(dir.path()), 3);
    assert_eq!(catalogue.sweep(&|_| false).unwrap(), 1);
    assert_eq!(catalogue.environment_remove("exact", &|_| false).unwrap_err().code, Code::NotFound);
    catalogue.remove("tool", &|_| false).unwrap();
    assert_eq!(layers_on_disk(dir.path()), 1, "base");
    assert_eq!(fs::read_dir(dir.path().join("environments")).unwrap().count(), 0);
}

#[test]
fn it_goes_out_and_is_merged_as_an_image() {
    let dir = scratch();
    let catalogue = Catalogue::open(dir.path()).unwrap();
    three(&catalogue);
    catalogue.environment_create(&request("task")).unwrap();
    let merged = catalogue.merge("task", &MergeRequest::new("flat")).unwrap();
    assert_eq!((merged.name.as_str(), merged.version.as_str(), merged.layers.len()), ("task", "flat", 1));
    let taken = catalogue.merge("task", &MergeRequest::new("latest")).unwrap_err();
    assert_eq!(taken.code, Code::AlreadyExists);
    let mut tars = Vec::new();
    for reference in ["task", "task:flat"] {
        let mut tar = Vec::new();
        catalogue.export(reference, ExportFormat::Tar).unwrap().write(&mut tar).unwrap();
        tars.push(tar);
    }
    assert!(tars[0] == tars[1], "the same files");
    let names = tar_names(&tars[0]);
    assert_eq!(names, ["./", "b", "t", "w"]);
}

fn tar_names(bytes: &[u8]) -> Vec<String> {
    let mut archive = tar::Archive::new(bytes);
    let entries = archive.entries().unwrap();
    entries.map(|entry| entry.unwrap().path().unwrap().to_string_lossy().into_owned()).collect()
}

#[test]
fn a_damaged_record_is_left_out() {
    let dir = scratch();
    let catalogue = Catalogue::open(dir.path()).unwrap();
    three(&catalogue);
    catalogue.environment_create(&request("good")).unwrap();
    catalogue.environment_create(&request("bad")).unwrap();
    drop(catalogue);
    fs::write(dir.path().join("environments/bad/latest.json"), "{").unwrap();
    let catalogue = Catalogue::open(dir.path()).unwrap();
    assert_eq!(catalogue.environment_list().len(), 1);
    assert_eq!(catalogue.resolve("bad", None).unwrap_err().code, Code::NotFound);
    catalogue.environment_create(&request("bad")).unwrap();
}
