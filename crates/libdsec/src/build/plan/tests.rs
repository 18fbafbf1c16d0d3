//! Configs, keys, and what is refused before anything runs.

use std::fs;

use tempfile::TempDir;

use super::*;
use crate::build::dockerfile::parse;

struct World {
    dir: TempDir,
    build: Build,
}

fn world() -> World {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("a"), "a").unwrap();
    fs::write(dir.path().join("b"), "b").unwrap();
    let build = Build::new(dir.path());
    World { dir, build }
}

fn base(layers: usize) -> ImageInfo {
    let config = json!({"env": {"PATH": "/bin"}, "user": "app", "labels": {"old": "1"}});
    let layers: Vec<String> = (0..layers).map(|n| format!("blake3:{n}")).collect();
    let image = json!({"name": "base", "version": "1", "kind": "base", "digest": "blake3:b", "layers": layers,
        "config": config, "files": 1, "size_bytes": 1, "created_ms": 1});
    serde_json::from_value(image).unwrap()
}

impl World {
    fn plan(&self, text: &str) -> Result<Plan> {
        let context = Context::open(self.dir.path(), "")?;
        plan(&parse(text, &self.build.skip)?, &base(1), &context, &self.build)
    }

    fn keys(&self, text: &str) -> Vec<String> {
        self.plan(text).unwrap().steps().map(|step| step.key.clone()).collect()
    }
}

fn argument(name: &str, value: &str) -> BTreeMapOf {
    [(name.to_owned(), value.to_owned())].into()
}

type BTreeMapOf = std::collections::BTreeMap<String, String>;

#[test]
fn the_config_grows_and_steps_see_what_it_is_then() {
    let text = "FROM base\nRUN one\nARG V=2\nENV A=$V B=${A:-none}\nWORKDIR /srv\nWORKDIR app\nUSER me:us\nRUN two\n\
                LABEL new=\"$A b\" old=2\nEXPOSE 80 90-91/udp\nENV A=3\nWORKDIR ..";
    let mut world = world();
    world.build.arguments = argument("V", "given");
    let plan = world.plan(text).unwrap();
    let env = |pairs: &[(&str, &str)]| -> Variables {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    };
    let steps: Vec<&Step> = plan.steps().collect();
    let [one, two, last] = steps.as_slice() else { panic!("{} steps", steps.len()) };
    let Work::Run { user, workdir, env: seen, .. } = &one.work else { panic!() };
    assert_eq!((user.as_str(), workdir.as_str(), seen), ("app", "/", &env(&[("PATH", "/bin")])));
    let Work::Run { user, workdir, env: seen, .. } = &two.work else { panic!() };
    let wanted = env(&[("PATH", "/bin"), ("V", "given"), ("A", "given"), ("B", "none")]);
    assert_eq!((user.as_str(), workdir.as_str(), seen), ("me:us", "/srv/app", &wanted));
    assert_eq!(two.directories, ["/srv", "/srv/app"]);
    assert!(matches!(last.work, Work::Nothing) && last.directories == ["/srv"]);
    let config = plan.config;
    assert_eq!(config.env, env(&[("PATH", "/bin"), ("A", "3"), ("B", "none")]));
    assert_eq!((config.user.as_deref(), config.workdir.as_deref()), (Some("me:us"), Some("/srv")));
    assert_eq!(config.labels, env(&[("old", "2"), ("new", "given b")]));
    assert_eq!(config.exposed_ports, ["80/tcp", "90/udp", "91/udp"].map(str::to_owned).into());
    // 11 instructions, and the one that makes the last directory.
    assert_eq!((plan.items.len(), plan.items[11].line, plan.notes.len()), (12, 12, 0));
}

#[test]
fn arguments_before_from_are_those_of_from() {
    let mut world = world();
    let file = |text: &str| parse(text, &BTreeSet::new()).unwrap();
    let text = "ARG IMAGE=base\nARG V=${IMAGE}-1\nFROM $IMAGE:$V\nRUN x\nARG V\nRUN y";
    assert_eq!(base_of(&file(text), &world.build).unwrap(), "base:base-1");
    world.build.arguments = argument("V", "2");
    assert_eq!(base_of(&file(text), &world.build).unwrap(), "base:2");
    let plan = world.plan(text).unwrap();
    let seen: Vec<bool> = plan
        .steps()
        .map(|step| matches!(&step.work, Work::Run { env, .. } if env.contains_key("V")))
        .collect();
    assert_eq!(seen, [false, true], "an ARG is there from its line on");
    for from in ["scratch", "registry.example.org/a:1", "a@sha256:00", "$NONE"] {
        let refused = base_of(&file(&format!("FROM {from}")), &world.build).unwrap_err();
        assert!(refused.message.starts_with("line 1: "), "{from}: {refused}");
    }
    world.build.arguments = argument("TYPO", "2");
    assert_eq!(world.plan(text).unwrap().notes.len(), 1);
}

#[test]
fn a_key_changes_with_all_that_its_layer_depends_on() {
    let mut world = world();
    let text = "FROM base\nARG V=1\nRUN x\nCOPY a /a\nRUN y";
    let before = world.keys(text);
    assert_eq!(before, world.keys(text));
    assert!(before.iter().all(|key| spec::check_name("version", key).is_ok()));
    assert_eq!(
        before,
        world.keys(&text.replace("\nCOPY", "\n# comment\n\nLABEL a=b\nCOPY")),
        "labels cost nothing"
    );
    let changed = |world: &World, text: &str| {
        let after = world.keys(text);
        before.iter().zip(&after).position(|(before, after)| before != after)
    };
    fs::write(world.dir.path().join("b"), "other").unwrap();
    assert_eq!(changed(&world, text), None, "b is not copied");
    fs::write(world.dir.path().join("a"), "other").unwrap();
    assert_eq!(changed(&world, text), Some(1), "from the copy on");
    fs::write(world.dir.path().join("a"), "a").unwrap();
    assert_eq!(changed(&world, text), None);
    for (from, to, at) in [
        ("RUN y", "RUN z", 2),
        ("RUN y", "RUN [\"y\"]", 2),
        ("COPY a /a", "COPY a /b", 1),
        ("COPY a /a", "COPY --chmod=600 a /a", 1),
        ("COPY a /a", "COPY --chown=1 a /a", 1),
        ("COPY a /a", "USER me\nCOPY a /a", 2),
        ("COPY a /a", "ENV A=b\nCOPY a /a", 2),
        ("RUN x", "WORKDIR /w\nRUN x", 0),
        ("V=1", "V=2", 0),
    ] {
        assert_eq!(changed(&world, &text.replace(from, to)), Some(at), "{to}");
    }
    world.build.network = api::spec::Network::Egress;
    assert_eq!(changed(&world, text), Some(0), "a RUN that had no network");
    world.build.network = api::spec::Network::None;
    world.build.scrub.caches = true;
    assert_eq!(changed(&world, text), Some(0));
}

#[test]
fn what_cannot_be_is_refused_with_its_line() {
    let world = world();
    for (text, code) in [
        ("COPY nope /x", Code::NotFound),
        ("COPY ../x /x", Code::InvalidArgument),
        ("COPY a b /x", Code::InvalidArgument),
        ("COPY --chmod=u+x a /x", Code::InvalidArgument),
        ("COPY --chmod=77777 a /x", Code::InvalidArgument),
        ("EXPOSE 0", Code::InvalidArgument),
        ("EXPOSE 1-9999", Code::InvalidArgument),
        ("EXPOSE 80/icmp", Code::InvalidArgument),
        ("ENV A=${A#x}", Code::Unsupported),
        ("USER $NOBODY", Code::InvalidArgument),
        ("LABEL $NONE=x", Code::InvalidArgument),
        ("WORKDIR $NONE", Code::InvalidArgument),
    ] {
        let error = world.plan(&format!("FROM base\n{text}")).err().unwrap_or_else(|| panic!("{text}"));
        assert_eq!(error.code, code, "{text}: {error}");
        assert!(error.message.starts_with("line 2: "), "{text}: {error}");
    }
    let steps = |count: usize| format!("FROM base\n{}", "RUN x\n".repeat(count));
    assert_eq!(world.keys(&steps(63)).len(), 63);
    let many = world.plan(&steps(100)).err().unwrap();
    assert!(many.code == Code::InvalidArgument && many.message.contains("101 layers, at most 64"), "{many}");
    let labels = format!("FROM base\n{}", "LABEL a=b\n".repeat(500));
    assert_eq!(world.keys(&labels).len(), 0, "what makes no layer is not counted");
}

#[test]
fn the_environment_does_not_grow_without_bound() {
    let mut text = "FROM base\nENV A=0123456789".to_owned();
    text.extend((0..40).map(|_| "\nENV A=$A$A$A$A"));
    let error = world().plan(&text).err().unwrap();
    assert_eq!(error.code, Code::InvalidArgument, "{error}");
}

#[test]
fn path_is_there_though_the_base_names_none() {
    let world = world();
    let context = Context::open(world.dir.path(), "").unwrap();
    let base = ImageInfo { config: ImageConfig::default(), ..base(1) };
    let file = parse("FROM base\nENV PATH=/opt/x:$PATH\nRUN y", &BTreeSet::new()).unwrap();
    let plan = plan(&file, &base, &context, &world.build).unwrap();
    assert_eq!(plan.config.env["PATH"], format!("/opt/x:{PATH_DEFAULT}"));
}
