//! Every instruction, all that is refused, and texts that nobody wrote.

use proptest::prelude::*;

use super::*;

fn file(text: &str) -> Result<Dockerfile> {
    parse(text, &BTreeSet::new())
}

fn verbs(text: &str) -> Vec<Verb> {
    file(&format!("FROM a\n{text}")).unwrap().instructions.into_iter().map(|one| one.verb).collect()
}

fn copied(sources: &[&str], to: &str) -> Copy {
    let sources = sources.iter().map(|source| (*source).to_owned()).collect();
    Copy { sources, to: to.into(), chown: None, chmod: None, unpacks: false }
}

#[test]
fn every_instruction_is_read() {
    let pair = |key: &str, value: &str| (key.to_owned(), value.to_owned());
    assert_eq!(
        verbs("ENV A=1 B=\"2 3\"\nenv C the rest = all\nLABEL \"a.b\"=c"),
        [
            Verb::Env(vec![pair("A", "1"), pair("B", "\"2 3\"")]),
            Verb::Env(vec![pair("C", "the rest = all")]),
            Verb::Label(vec![pair("\"a.b\"", "c")]),
        ]
    );
    assert_eq!(
        verbs("ARG X Y=1\nEXPOSE 80 53/udp\nUSER a:b\nWORKDIR /a b"),
        [
            Verb::Arg(vec![("X".into(), None), ("Y".into(), Some("1".into()))]),
            Verb::Expose("80 53/udp".into()),
            Verb::User("a:b".into()),
            Verb::Workdir("/a b".into()),
        ]
    );
    let argv = |parts: &[&str]| Run::Argv(parts.iter().map(|part| (*part).to_owned()).collect());
    assert_eq!(
        verbs("RUN echo $A > /b\nRUN [\"/bin/x\", \"y z\"]\nRUN [ -e /x ]\nRUN cat <<< x; echo $((1<<2))"),
        [
            Verb::Run(Run::Shell("echo $A > /b".into())),
            Verb::Run(argv(&["/bin/x", "y z"])),
            Verb::Run(Run::Shell("[ -e /x ]".into())),
            Verb::Run(Run::Shell("cat <<< x; echo $((1<<2))".into())),
        ]
    );
    let owned = Copy { chown: Some("a:b".into()), chmod: Some("0640".into()), ..copied(&["x"], "/y") };
    let added = Copy { unpacks: true, ..copied(&["a.tar"], "/") };
    assert_eq!(
        verbs("COPY a b /c/\nCOPY --chown=a:b --chmod=0640 x /y\nCOPY [\"a b\", \"c\"]\nADD a.tar /"),
        [copied(&["a", "b"], "/c/"), owned, copied(&["a b"], "c"), added].map(Verb::Copy)
    );
}

#[test]
fn what_is_before_from_and_from_itself() {
    let parsed = file("ARG V=1\n\nFROM base:$V AS one\nUSER x").unwrap();
    assert_eq!((parsed.from, parsed.arguments.len()), ((3, "base:$V".into()), 1));
    assert_eq!((parsed.instructions[0].line, parsed.instructions[0].text.as_str()), (4, "USER x"));
    for text in ["", "# nothing", "ARG A", "RUN x\nFROM a", "FROM", "FROM a b", "FROM a AS"] {
        assert_eq!(file(text).unwrap_err().code, Code::InvalidArgument, "{text}");
    }
}

#[test]
fn what_is_not_supported_is_refused_by_name_and_line() {
    for (text, said) in [
        ("CMD [\"x\"]", "CMD"),
        ("ENTRYPOINT x", "ENTRYPOINT"),
        ("HEALTHCHECK NONE", "HEALTHCHECK"),
        ("STOPSIGNAL 9", "STOPSIGNAL"),
        ("VOLUME /x", "VOLUME"),
        ("MAINTAINER x", "MAINTAINER"),
        ("SHELL [\"x\"]", "SHELL"),
        ("ONBUILD RUN x", "ONBUILD"),
        ("FROM b", "several stages"),
        ("COPY --from=0 a b", "COPY --from"),
        ("COPY --link a b", "COPY --link"),
        ("COPY --parents a b", "COPY --parents"),
        ("ADD --checksum=x a b", "ADD --checksum"),
        ("ADD https://example.org/x /y", "https://example.org/x"),
        ("ADD git@example.org:x /y", "git@"),
        ("RUN --mount=type=cache,target=/x y", "RUN --mount"),
        ("RUN --network=none y", "RUN --network"),
        ("RUN <<EOF", "heredoc"),
        ("RUN python3 <<-'EOF'", "heredoc"),
        ("COPY <<EOF /x", "heredoc"),
    ] {
        let error = file(&format!("FROM a\n\n{text}\n")).unwrap_err();
        assert_eq!(error.code, Code::Unsupported, "{text}");
        assert!(error.message.starts_with("line 3: ") && error.message.contains(said), "{text}: {error}");
    }
    for text in [
        "NOPE x",
        "RUN",
        "RUN []",
        "RUN [\"\"]",
        "COPY a",
        "COPY",
        "ENV A",
        "ENV A=1 B",
        "ENV =x",
        "LABEL a",
        "ARG 1a",
        "COPY --chown=a --chown=b x y",
        "\u{1b}[2J x",
    ] {
        let error = file(&format!("FROM a\n{text}\n")).unwrap_err();
        assert_eq!(error.code, Code::InvalidArgument, "{text}");
        assert!(
            error.message.starts_with("line 2: ") && !error.message.contains('\u{1b}'),
            "{text}: {error}"
        );
    }
    let platform = file("FROM --platform=linux/arm64 a").unwrap_err();
    assert!(platform.message.starts_with("line 1: FROM --platform"), "{platform}");
}

#[test]
fn what_starts_containers_is_left_out_where_asked() {
    let skip = BTreeSet::from(["CMD".to_owned(), "ENTRYPOINT".to_owned()]);
    let parsed = parse("FROM a\nCMD x\nENTRYPOINT y\nUSER z", &skip).unwrap();
    assert_eq!(parsed.instructions.len(), 1);
    assert!(parse("FROM a\nVOLUME x", &skip).is_err());
    let refused = parse("FROM a", &BTreeSet::from(["RUN".to_owned()])).unwrap_err();
    assert!(refused.message.contains("`RUN`"), "{refused}");
}

#[test]
fn sizes_are_bounded() {
    assert!(file(&format!("FROM a\n{}", "USER x\n".repeat(999))).is_ok());
    assert!(file(&format!("FROM a\n{}", "USER x\n".repeat(1001))).is_err());
    assert!(file(&"#".repeat(2 << 20)).is_err());
}

proptest! {
    #[test]
    fn no_text_makes_it_panic(text in "(FROM a\n)?((ENV|LABEL|ARG|RUN|COPY|ADD|EXPOSE|# escape=|USER) ?[ -~\u{e9}\n\\\\\"'\\[\\]$`<-]{0,40}\n?){0,6}") {
        if let Err(error) = file(&text) {
            prop_assert!([Code::InvalidArgument, Code::Unsupported].contains(&error.code), "{}", error);
        }
    }

    #[test]
    fn no_bytes_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        let _ = file(&String::from_utf8_lossy(&bytes));
    }
}
