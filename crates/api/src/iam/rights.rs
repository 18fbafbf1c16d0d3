//! Rights: a set of actions, as a word and as text.

use std::{collections::BTreeSet, fmt, str::FromStr};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Error, Result, spec::Kind};

/// What one right allows. Those of sandboxes are counted for each kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Action {
    SandboxCreate(Kind),
    /// List, inspect, read what commands have written.
    SandboxRead(Kind),
    SandboxExec(Kind),
    SandboxFiles(Kind),
    SandboxPorts(Kind),
    /// Stop it, move its deadline.
    SandboxStop(Kind),
    /// Checkpoint, rollback, fork, pack.
    SandboxDisk(Kind),
    ImageRead,
    /// Import, pull, merge, remove, publish; environments.
    ImageWrite,
    ProjectRead,
    /// Make and remove those below, and bound them.
    ProjectWrite,
    KeyRead,
    KeyWrite,
    AuditRead,
    NodeRead,
    NodeWrite,
}

const KINDS: [Kind; 4] = [Kind::Container, Kind::MicroVm, Kind::FullVm, Kind::FnCall];
type OfKind = fn(Kind) -> Action;
const OF_SANDBOXES: [(&str, OfKind); 7] = [
    ("sandbox.create", Action::SandboxCreate),
    ("sandbox.read", Action::SandboxRead),
    ("sandbox.exec", Action::SandboxExec),
    ("sandbox.files", Action::SandboxFiles),
    ("sandbox.ports", Action::SandboxPorts),
    ("sandbox.stop", Action::SandboxStop),
    ("sandbox.disk", Action::SandboxDisk),
];
const OTHERS: [(&str, Action); 9] = [
    ("image.read", Action::ImageRead),
    ("image.write", Action::ImageWrite),
    ("project.read", Action::ProjectRead),
    ("project.write", Action::ProjectWrite),
    ("key.read", Action::KeyRead),
    ("key.write", Action::KeyWrite),
    ("audit.read", Action::AuditRead),
    ("node.read", Action::NodeRead),
    ("node.write", Action::NodeWrite),
];
/// Sets that have names.
const ROLES: [(&str, &[&str]); 4] = [
    ("viewer", &["sandbox.read", "image.read", "project.read"]),
    ("user", &["sandbox.*", "image.read", "project.read", "key.read"]),
    ("builder", &["sandbox.*", "image.*", "project.read", "key.read"]),
    ("admin", &["*"]),
];

impl Action {
    fn bit(self) -> u32 {
        let place = |of: usize, kind: Kind| (of * KINDS.len() + place_of(kind)) as u32;
        match self {
            Self::SandboxCreate(kind) => place(0, kind),
            Self::SandboxRead(kind) => place(1, kind),
            Self::SandboxExec(kind) => place(2, kind),
            Self::SandboxFiles(kind) => place(3, kind),
            Self::SandboxPorts(kind) => place(4, kind),
            Self::SandboxStop(kind) => place(5, kind),
            Self::SandboxDisk(kind) => place(6, kind),
            other => {
                let at = OTHERS.iter().position(|(_, action)| *action == other).unwrap_or_default();
                (OF_SANDBOXES.len() * KINDS.len() + at) as u32
            }
        }
    }
}

fn place_of(kind: Kind) -> usize {
    KINDS.iter().position(|one| *one == kind).unwrap_or_default()
}

fn name_of(kind: Kind) -> &'static str {
    match kind {
        Kind::Container => "container",
        Kind::MicroVm => "micro_vm",
        Kind::FullVm => "full_vm",
        Kind::FnCall => "fn_call",
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, of) in OF_SANDBOXES {
            if let Some(kind) = KINDS.into_iter().find(|kind| of(*kind) == *self) {
                return write!(f, "{name}:{}", name_of(kind));
            }
        }
        OTHERS.iter().filter(|(_, action)| action == self).try_for_each(|(name, _)| f.write_str(name))
    }
}

/// A set of actions. As text, words: `sandbox.exec:container`, `sandbox.exec` (of all kinds), `sandbox.*`, `*`, or a role:
/// `viewer`, `user`, `builder`, `admin`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "BTreeSet<String>", into = "BTreeSet<String>")]
#[schemars(with = "BTreeSet<String>")]
pub struct Rights(u64);

impl Rights {
    pub const NONE: Self = Self(0);

    pub fn all() -> Self {
        let others = OTHERS.iter().map(|(_, action)| *action);
        of_sandboxes().chain(others).fold(Self::NONE, |rights, action| rights.with(action))
    }

    #[must_use]
    pub fn with(self, action: Action) -> Self {
        Self(self.0 | 1 << action.bit())
    }

    /// What both have.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    pub fn has(self, action: Action) -> bool {
        self.0 & 1 << action.bit() != 0
    }

    pub fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// What `self` has and `other` has not.
    #[must_use]
    pub fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// The actions, in order.
    pub fn actions(self) -> impl Iterator<Item = Action> {
        let others = OTHERS.iter().map(|(_, action)| *action);
        of_sandboxes().chain(others).filter(move |action| self.has(*action))
    }

    /// For a store.
    pub fn to_bits(self) -> u64 {
        self.0
    }

    /// Of a store; bits that mean nothing here are dropped.
    pub fn from_bits(bits: u64) -> Self {
        Self(bits).and(Self::all())
    }

    /// Errors: `invalid_argument` for a word that is none.
    pub fn parse(words: impl IntoIterator<Item = impl AsRef<str>>) -> Result<Self> {
        words.into_iter().try_fold(Self::NONE, |rights, word| Ok(Self(rights.0 | word_of(word.as_ref())?.0)))
    }

    /// As few words as say it.
    pub fn words(self) -> BTreeSet<String> {
        if self == Self::all() {
            return BTreeSet::from(["*".to_owned()]);
        }
        let mut words = BTreeSet::new();
        for (name, of) in OF_SANDBOXES {
            let held: Vec<Kind> = KINDS.into_iter().filter(|kind| self.has(of(*kind))).collect();
            match held.len() {
                n if n == KINDS.len() => drop(words.insert(name.to_owned())),
                _ => words.extend(held.into_iter().map(|kind| of(kind).to_string())),
            }
        }
        words.extend(
            OTHERS.iter().filter(|(_, action)| self.has(*action)).map(|(name, _)| (*name).to_owned()),
        );
        words
    }
}

fn of_sandboxes() -> impl Iterator<Item = Action> {
    OF_SANDBOXES.into_iter().flat_map(|(_, of)| KINDS.into_iter().map(of))
}

fn word_of(word: &str) -> Result<Rights> {
    if let Some((_, words)) = ROLES.iter().find(|(role, _)| *role == word) {
        return Rights::parse(*words);
    }
    let every = Rights::all();
    let says = |action: &Action| {
        let full = action.to_string();
        let short = full.split(':').next().unwrap_or_default();
        let family = full.split('.').next().unwrap_or_default();
        word == "*" || word == full || word == short || word.strip_suffix(".*").is_some_and(|of| of == family)
    };
    let rights = every.actions().filter(says).fold(Rights::NONE, Rights::with);
    if rights == Rights::NONE {
        let word: String = word.chars().take(64).collect();
        return Err(Error::invalid(format!(
            "rights: `{}` is none: expected as `sandbox.exec`, `sandbox.exec:container`, `image.*`, or a role: viewer, user, \
             builder, admin",
            word.escape_default()
        )));
    }
    Ok(rights)
}

impl TryFrom<BTreeSet<String>> for Rights {
    type Error = Error;
    fn try_from(words: BTreeSet<String>) -> Result<Self> {
        Self::parse(words)
    }
}

impl From<Rights> for BTreeSet<String> {
    fn from(rights: Rights) -> Self {
        rights.words()
    }
}

impl FromStr for Rights {
    type Err = Error;
    /// Words, with commas between.
    fn from_str(text: &str) -> Result<Self> {
        Self::parse(text.split(',').map(str::trim).filter(|word| !word.is_empty()))
    }
}

impl fmt::Debug for Rights {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Rights({self})")
    }
}

impl fmt::Display for Rights {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.words().into_iter().collect::<Vec<_>>().join(","))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn every_action_has_a_bit_and_a_name_of_its_own() {
        let all: Vec<Action> = Rights::all().actions().collect();
        assert_eq!(all.len(), 37);
        let bits: BTreeSet<u32> = all.iter().map(|action| action.bit()).collect();
        let names: BTreeSet<String> = all.iter().map(ToString::to_string).collect();
        assert_eq!((bits.len(), names.len()), (37, 37));
        for action in all {
            assert_eq!(Rights::parse([action.to_string()]).unwrap(), Rights::NONE.with(action));
        }
    }

    #[test]
    fn words_mean_what_they_say() {
        let rights = |text: &str| text.parse::<Rights>().unwrap();
        assert!(rights("sandbox.exec").has(Action::SandboxExec(Kind::FullVm)));
        assert!(!rights("sandbox.exec:container").has(Action::SandboxExec(Kind::FullVm)));
        assert!(rights("user").contains(rights("viewer")) && !rights("viewer").contains(rights("user")));
        assert_eq!(rights("admin"), Rights::all());
        assert_eq!(rights("image.*, key.read").to_string(), "image.read,image.write,key.read");
        assert_eq!(rights("").actions().count(), 0);
        for bad in ["sandbox", "sandbox.fly", "sandbox.exec:pod", "image.read:container", ".*", "root\n"] {
            assert!(bad.parse::<Rights>().is_err(), "{bad}");
        }
        assert!(serde_json::from_str::<Rights>(r#"["user"]"#).is_ok());
        assert!(serde_json::from_str::<Rights>(r#"["fly"]"#).is_err());
    }

    proptest! {
        #[test]
        fn words_come_back(bits: u64, other: u64) {
            let (rights, other) = (Rights::from_bits(bits), Rights::from_bits(other));
            prop_assert_eq!(Rights::parse(rights.words()).unwrap(), rights);
            let json = serde_json::to_string(&rights).unwrap();
            prop_assert_eq!(serde_json::from_str::<Rights>(&json).unwrap(), rights);
            let both = rights.and(other);
            prop_assert!(rights.contains(both) && other.contains(both));
            prop_assert_eq!(rights.without(other).and(other), Rights::NONE);
        }
    }
}
