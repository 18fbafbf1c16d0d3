//! What can go wrong while a layer is made, and how it reads on the wire.
//!
//! Invariant: a fault of the archive is `invalid_argument` with a text that names the entry; a fault of this node
//! is `internal` (or `disk_full`), and its cause goes to the log only.

use std::io;

/// A failed import, merge or export.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The archive or directory holds something that cannot become a layer.
    #[error("{0}")]
    Refused(String),
    /// The bytes stopped coming.
    #[error("the archive could not be read to its end")]
    Source(#[source] io::Error),
    /// A layer on this node's disk is not what the writer makes.
    #[error("a layer is damaged: {0}")]
    Damaged(&'static str),
    /// Whoever asked for an export reads no further.
    #[error("nobody reads the export any more")]
    Unread(#[source] io::Error),
    /// A registry; it says itself what it means.
    #[error("{0}")]
    Registry(api::Error),
    /// This node's disk.
    #[error("{what}")]
    Disk {
        what: &'static str,
        #[source]
        source: io::Error,
    },
}

pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    pub(crate) fn refused(text: impl Into<String>) -> Self {
        Self::Refused(text.into())
    }

    pub(crate) fn disk(what: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Disk { what, source }
    }

    /// An error of a reader: our own if one travelled inside it, else the source's.
    pub(crate) fn of_reader(error: io::Error) -> Self {
        if error.get_ref().is_some_and(|inner| inner.is::<Error>()) {
            let inner = error.into_inner().and_then(|inner| inner.downcast::<Error>().ok());
            return inner.map_or_else(|| Self::refused("the archive could not be read"), |inner| *inner);
        }
        match error.kind() {
            io::ErrorKind::UnexpectedEof => Self::refused(
                "the archive is truncated: it ends in the middle of an entry or before its end mark",
            ),
            io::ErrorKind::InvalidData | io::ErrorKind::InvalidInput | io::ErrorKind::Other => {
                Self::refused(format!("the archive is damaged: {error}"))
            }
            _ => Self::Source(error),
        }
    }

    /// An error of what is written to: our own if one travelled inside it, else its reader has gone.
    pub(crate) fn of_writer(error: io::Error) -> Self {
        match error.downcast::<Error>() {
            Ok(ours) => ours,
            Err(other) => Self::Unread(other),
        }
    }

    /// To let one of ours travel through `io::Read`.
    pub(crate) fn into_io(self) -> io::Error {
        io::Error::other(self)
    }
}

impl From<Error> for api::Error {
    fn from(error: Error) -> Self {
        match error {
            Error::Refused(text) => api::Error::invalid(text),
            Error::Registry(error) => error,
            Error::Source(cause) => {
                tracing::info!(%cause, "an import's source failed");
                api::Error::invalid("the archive could not be read to its end: send it again")
            }
            Error::Damaged(what) => {
                tracing::error!(what, "a layer is damaged");
                api::Error::internal(
                    "a layer of the image is damaged on the node's disk: import the image again",
                )
            }
            Error::Unread(cause) => {
                tracing::info!(%cause, "an export's reader has gone");
                api::Error::new(api::Code::DeadlineExceeded, "the export was not read to its end")
            }
            Error::Disk { what, source } if is_full(&source) => {
                tracing::warn!(what, cause = %source, "no room for a layer");
                api::Error::new(api::Code::DiskFull, "the node has no disk space left for this layer")
            }
            Error::Disk { what, source } => {
                tracing::error!(what, cause = %source, "a layer could not be stored");
                api::Error::internal("the node could not store the layer")
            }
        }
    }
}

fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

/// A path for a message: printable, and short enough not to flood a log.
pub(crate) fn show(path: &[u8]) -> String {
    let text = path.escape_ascii().to_string();
    match text.char_indices().nth(120) {
        Some((end, _)) => format!("`{}...`", &text[..end]),
        None => format!("`{text}`"),
    }
}
