//! `cargo xtask deny`: what may be in Cargo.lock. Reads `deny.toml` in cargo-deny's own format (the parts used here),
//! so that whoever has that tool can run it too.
//!
//! Three checks: banned crates, licences (an SPDX expression must be satisfiable by the allowed ones), sources (the
//! registry and this tree only).

use std::{collections::BTreeSet, fs};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::step;

/// The parts of deny.toml that are read.
struct Policy {
    banned: BTreeSet<String>,
    licences: BTreeSet<String>,
    /// (crate, licence) pairs allowed beyond `licences`.
    exceptions: BTreeSet<(String, String)>,
}

/// A package of the dependency tree.
struct Package {
    name: String,
    version: String,
    licence: Option<String>,
    source: Option<String>,
}

pub fn run() -> Result<()> {
    let policy =
        parse_policy(&fs::read_to_string(step::root().join("deny.toml")).context("cannot read deny.toml")?)?;
    let mut metadata =
        step::cargo(["metadata", "--locked", "--format-version", "1", "--filter-platform", step::TRIPLE]);
    let json: Value = serde_json::from_str(&step::output(&mut metadata)?).context("cargo metadata")?;
    // Metadata and the lock also list what no feature and no platform builds: a dependency that is asked for only if
    // something else asks for it (`ring?/alloc`). The tree does not; a ban holds for every platform and feature.
    let mut tree = step::cargo(["tree", "--locked", "--workspace", "--all-features", "--target", "all"]);
    tree.args(["--edges", "all", "--prefix", "none", "--format", "{p}"]);
    let reachable = parse_tree(&step::output(&mut tree)?);
    let packages = parse_packages(&json);
    let packages: Vec<_> = packages.into_iter().filter(|p| reachable.contains(&p.name)).collect();
    let mut findings: Vec<String> = packages.iter().flat_map(|p| judge(&policy, p)).collect();
    let in_tree: BTreeSet<&str> = packages.iter().map(|p| p.name.as_str()).collect();
    findings.extend(
        reachable
            .iter()
            .filter(|n| !in_tree.contains(n.as_str()) && policy.banned.contains(*n))
            .map(|n| format!("{n}: banned, yet another platform or feature builds it")),
    );
    for finding in &findings {
        println!("{finding}");
    }
    if !findings.is_empty() {
        bail!("deny: {} findings", findings.len());
    }
    println!("deny: {} packages, nothing to say", packages.len());
    Ok(())
}

fn parse_policy(text: &str) -> Result<Policy> {
    let table: toml::Table = text.parse().context("deny.toml")?;
    let list = |section: &str, key: &str| {
        let found = table.get(section).and_then(|s| s.get(key)).and_then(toml::Value::as_array);
        found.with_context(|| format!("deny.toml has no list {section}.{key}"))
    };
    let name = |v: &toml::Value, key: &str| {
        v.as_str().or_else(|| v.get(key).and_then(toml::Value::as_str)).map(str::to_owned)
    };
    let banned =
        list("bans", "deny")?.iter().filter_map(|v| name(v, "crate").or_else(|| name(v, "name"))).collect();
    let licences = list("licenses", "allow")?.iter().filter_map(|v| name(v, "")).collect();
    let mut exceptions = BTreeSet::new();
    for exception in list("licenses", "exceptions").map(Vec::as_slice).unwrap_or_default() {
        let of = name(exception, "crate").context("deny.toml: an exception names no crate")?;
        for allow in
            exception.get("allow").and_then(toml::Value::as_array).map(Vec::as_slice).unwrap_or_default()
        {
            exceptions.extend(allow.as_str().map(|licence| (of.clone(), licence.to_owned())));
        }
    }
    Ok(Policy { banned, licences, exceptions })
}

fn parse_packages(metadata: &Value) -> Vec<Package> {
    let text = |v: &Value| v.as_str().map(str::to_owned);
    let packages = metadata["packages"].as_array().map(Vec::as_slice).unwrap_or_default();
    let package = |p: &Value| Package {
        name: text(&p["name"]).unwrap_or_default(),
        version: text(&p["version"]).unwrap_or_default(),
        licence: text(&p["license"]),
        source: text(&p["source"]),
    };
    packages.iter().map(package).collect()
}

/// The first word of each line.
fn parse_tree(text: &str) -> BTreeSet<String> {
    text.lines().filter_map(|line| line.split_whitespace().next().map(str::to_owned)).collect()
}

/// What is wrong with a package.
fn judge(policy: &Policy, package: &Package) -> Vec<String> {
    let Package { name, version, licence, source } = package;
    let mut findings = Vec::new();
    if policy.banned.contains(name) {
        findings.push(format!(
            "{name} {version}: banned by deny.toml; `cargo tree -i {name}` shows who asks for it"
        ));
    }
    if source.as_ref().is_some_and(|s| !s.starts_with("registry+") && !s.starts_with("sparse+")) {
        findings.push(format!(
            "{name} {version}: comes from {}, not from the registry",
            source.as_deref().unwrap_or_default()
        ));
    }
    let allowed =
        |id: &str| policy.licences.contains(id) || policy.exceptions.contains(&(name.clone(), id.to_owned()));
    match licence.as_deref() {
        None => findings.push(format!("{name} {version}: names no licence")),
        Some(expression) if satisfied(expression, &allowed) => {}
        Some(expression) => {
            findings.push(format!("{name} {version}: licence {expression:?} is not allowed by deny.toml"))
        }
    }
    findings
}

/// Whether an SPDX expression can be met with allowed licences. `A/B`, the old form, means `A OR B`.
fn satisfied(expression: &str, allowed: &dyn Fn(&str) -> bool) -> bool {
    let spaced = expression.replace('(', " ( ").replace(')', " ) ").replace('/', " OR ");
    let tokens: Vec<&str> = spaced.split_whitespace().collect();
    let mut at = 0;
    let met = any_of(&tokens, &mut at, allowed);
    met && at == tokens.len()
}

fn any_of(tokens: &[&str], at: &mut usize, allowed: &dyn Fn(&str) -> bool) -> bool {
    let mut met = all_of(tokens, at, allowed);
    while tokens.get(*at) == Some(&"OR") {
        *at += 1;
        met |= all_of(tokens, at, allowed);
    }
    met
}

fn all_of(tokens: &[&str], at: &mut usize, allowed: &dyn Fn(&str) -> bool) -> bool {
    let mut met = one(tokens, at, allowed);
    while tokens.get(*at) == Some(&"AND") {
        *at += 1;
        met &= one(tokens, at, allowed);
    }
    met
}

fn one(tokens: &[&str], at: &mut usize, allowed: &dyn Fn(&str) -> bool) -> bool {
    let Some(token) = tokens.get(*at) else { return false };
    *at += 1;
    if *token == "(" {
        let met = any_of(tokens, at, allowed);
        let closed = tokens.get(*at) == Some(&")");
        *at += usize::from(closed);
        return met && closed;
    }
    if tokens.get(*at) == Some(&"WITH") {
        let with = format!("{token} WITH {}", tokens.get(*at + 1).unwrap_or(&""));
        *at += 2;
        // An exception only gives more rights: what is allowed without it is allowed with it.
        return allowed(&with) || allowed(token);
    }
    allowed(token)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expressions_are_met_by_what_is_allowed() {
        let allowed = |id: &str| matches!(id, "MIT" | "Apache-2.0" | "Unicode-3.0");
        for yes in [
            "MIT",
            "MIT OR GPL-3.0",
            "MIT/Apache-2.0",
            "(MIT OR Apache-2.0) AND Unicode-3.0",
            "GPL-2.0 OR (MIT AND Apache-2.0)",
            "Apache-2.0 WITH LLVM-exception OR GPL-3.0",
        ] {
            assert!(satisfied(yes, &allowed), "{yes}");
        }
        for no in [
            "GPL-3.0",
            "MIT AND GPL-3.0",
            "",
            "(MIT",
            "GPL-2.0 WITH Classpath-exception-2.0",
            "MIT AND",
            "MIT BSD",
        ] {
            assert!(!satisfied(no, &allowed), "{no}");
        }
    }

    #[test]
    fn each_check_finds_its_breach() {
        let policy = parse_policy(
            "[bans]\ndeny = [{ crate = \"ring\" }, \"openssl-sys\"]\n[licenses]\nallow = [\"MIT\"]\n\
             exceptions = [{ crate = \"odd\", allow = [\"Zlib\"] }]\n",
        )
        .unwrap();
        let package = |name: &str, licence: Option<&str>, source: Option<&str>| Package {
            name: name.into(),
            version: "1.0.0".into(),
            licence: licence.map(str::to_owned),
            source: source.map(str::to_owned),
        };
        assert!(judge(&policy, &package("a", Some("MIT"), Some("registry+x"))).is_empty());
        assert!(judge(&policy, &package("odd", Some("Zlib"), None)).is_empty());
        for bad in [
            package("ring", Some("MIT"), None),
            package("openssl-sys", Some("MIT"), None),
            package("b", Some("Zlib"), None),
            package("c", None, None),
            package("d", Some("MIT"), Some("git+x")),
        ] {
            assert_eq!(judge(&policy, &bad).len(), 1, "{}", bad.name);
        }
    }

    #[test]
    fn the_policy_of_this_tree_bans_what_it_should() {
        let policy = parse_policy(include_str!("../../../deny.toml")).unwrap();
        for name in ["ring", "openssl-sys", "native-tls"] {
            assert!(policy.banned.contains(name), "{name}");
        }
        assert!(policy.licences.iter().all(|l| !l.contains("GPL")));
    }
}
