//! Files of a sandbox. Paths are the sandbox's own: nothing outside it can be named. A relative path starts at the
//! sandbox's working directory. Each verb acts as `user` (default: the sandbox's), with that user's rights.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Result, octal, payload::Payload, spec};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum FileKind {
    File,
    Directory,
    Symlink,
    Fifo,
    Socket,
    CharDevice,
    BlockDevice,
}

/// lstat of one name. `name` is the last component: bytes that need not be UTF-8.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct FileInfo {
    pub name: Payload,
    pub path: Payload,
    pub kind: FileKind,
    pub size_bytes: u64,
    /// Permission bits, with setuid, setgid and sticky; on the wire octal text, `"0644"`.
    #[serde(with = "octal")]
    #[schemars(with = "String")]
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    pub modified_ms: i64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub symlink_target: Option<Payload>,
}

macro_rules! path_query {
    ($(#[$doc:meta])* $name:ident { $($(#[$fdoc:meta])* $field:ident : $ty:ty,)* }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
        #[serde(deny_unknown_fields)]
        pub struct $name {
            pub path: String,
            #[serde(default, skip_serializing_if = "Option::is_none")]
            pub user: Option<String>,
            $($(#[$fdoc])* #[serde(default)] pub $field: $ty,)*
        }
        impl $name {
            pub fn new(path: impl Into<String>) -> Self {
                Self { path: path.into(), ..Self::default() }
            }
            /// Errors: `invalid_argument`.
            pub fn validate(&self) -> Result<()> {
                spec::check_path("path", &self.path)
            }
        }
    };
}

path_query!(
    /// `GET .../files`: a file's bytes.
    ReadQuery {
        offset: u64,
        length: Option<u64>,
    }
);
path_query!(
    /// `PUT .../files`: the body becomes the file, whole or not at all; parents are made, owned by the user.
    WriteQuery {
        /// Permission bits of a new file, as octal text: `0644`.
        #[serde(with = "octal::option", skip_serializing_if = "Option::is_none")]
        #[schemars(with = "Option<String>")]
        mode: Option<u32>,
        append: bool,
    }
);
path_query!(
    /// `GET .../files/stat`: of the name itself unless `follow`.
    StatQuery {
        follow: bool,
    }
);
path_query!(
    /// `GET .../files/list`: a directory, `depth` levels down (0 and 1 are its own entries).
    FileListQuery {
        depth: u32,
    }
);
path_query!(
    /// `POST .../files/mkdir`: with its parents; one that is there already is no error.
    MkdirRequest {
        /// Permission bits, as octal text: `"0755"`.
        #[serde(with = "octal::option", skip_serializing_if = "Option::is_none")]
        #[schemars(with = "Option<String>")]
        mode: Option<u32>,
    }
);
path_query!(
    /// `DELETE .../files`: a file, or a directory with `recursive`.
    RemoveQuery {
        recursive: bool,
    }
);
path_query!(
    /// `GET .../files/watch`: events of a directory, one JSON object a line, until the client leaves.
    WatchQuery {
        recursive: bool,
    }
);
path_query!(
    /// `GET .../tar` and `PUT .../tar`: a tree as a tar stream, out of or into the directory `path`.
    TarQuery {}
);

/// `POST .../files/move`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MoveRequest {
    pub from: String,
    pub to: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
}

impl MoveRequest {
    /// Errors: `invalid_argument`.
    pub fn validate(&self) -> Result<()> {
        spec::check_path("from", &self.from)?;
        spec::check_path("to", &self.to)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum WatchKind {
    Created,
    Modified,
    Removed,
    MovedFrom,
    MovedTo,
    /// The kernel dropped events: list again.
    Overflow,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct WatchEvent {
    pub kind: WatchKind,
    /// Relative to the watched directory.
    pub name: Payload,
}

/// What a tar upload did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TarReport {
    pub entries: u64,
    pub bytes: u64,
}
