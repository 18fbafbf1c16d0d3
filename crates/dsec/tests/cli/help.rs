//! What a person reads first.

use super::*;

#[test]
fn help_is_grouped_and_has_examples() {
    let help = run(&mut bare(), &["--help"]);
    assert_eq!(code(&help), 0);
    let text = out(&help);
    let order = ["Usage: dsec", "Sandboxes:", "Images:", "Server:", "Examples:", "Exit status:", "--json"];
    let places: Vec<usize> =
        order.iter().map(|word| text.find(word).unwrap_or_else(|| panic!("{word}: {text}"))).collect();
    assert!(places.is_sorted(), "{places:?}");
    assert!(!text.contains("fake"));
}

#[test]
fn each_command_explains_itself() {
    for verb in [
        "create",
        "run",
        "exec",
        "ls",
        "inspect",
        "cp",
        "logs",
        "port",
        "ttl",
        "stop",
        "image",
        "up",
        "down",
        "status",
        "systemd-unit",
    ] {
        let help = run(&mut bare(), &[verb, "--help"]);
        assert_eq!(code(&help), 0, "{verb}");
        assert!(out(&help).contains("Usage: dsec"), "{verb}");
        assert!(!out(&help).contains("--fake") && !out(&help).contains("--session"), "{verb}");
    }
}

#[test]
fn a_line_that_does_not_parse_exits_2() {
    for args in [
        &["frobnicate"][..],
        &["create"],
        &["exec", "work"],
        &["exec", "work", "--sh", "a", "--", "b"],
        &["create", "base", "--memory", "lots"],
        &["ttl", "work", "soon"],
        &["stop"],
        &["port", "work", "0"],
        &["logs", "work", "not-an-id"],
    ] {
        let refused = run(&mut bare(), args);
        assert_eq!(code(&refused), 2, "{args:?} {refused:?}");
        assert!(out(&refused).is_empty());
    }
}

#[test]
fn without_a_server_the_way_to_one_is_named() {
    let lost = run(&mut bare(), &["ls"]);
    assert_eq!(code(&lost), 125);
    assert!(err(&lost).starts_with("error: unauthenticated: ") && err(&lost).contains("dsec up"), "{lost:?}");
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let dead = run(bare().env("DSEC_URL", format!("http://{free}")).env("DSEC_API_KEY", "k"), &["ls"]);
    assert_eq!(code(&dead), 125);
    assert!(err(&dead).contains(&free.to_string()) && err(&dead).contains("is it up?"), "{dead:?}");
}

#[test]
fn a_unit_kills_the_server_alone() {
    let unit = out(&run(&mut bare(), &["systemd-unit", "--data", "/srv/d e"]));
    for line in ["KillMode=process", "Restart=on-failure", "[Install]"] {
        assert!(unit.lines().any(|l| l == line), "{line}: {unit}");
    }
    assert!(unit.contains(" up --data \"/srv/d e\" --listen 127.0.0.1:3732"), "{unit}");
}
