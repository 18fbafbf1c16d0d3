//! What can go wrong with a store, and how it reads on the wire.

/// A failed call.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The configuration.
    #[error("{0}")]
    Config(String),
    /// It does not answer, or not in time. Worth another try.
    #[error("the store cannot be reached: {0}")]
    Unavailable(String),
    /// No such object.
    #[error("the store has no {0}")]
    Missing(String),
    /// What came is not what was asked for.
    #[error("the store's {0} is damaged")]
    Damaged(String),
    /// Something else rests on it.
    #[error("{0}")]
    InUse(String),
    /// A file of this node.
    #[error("{what}")]
    Disk {
        what: &'static str,
        #[source]
        source: std::io::Error,
    },
}

pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    pub(crate) fn disk(what: &'static str) -> impl FnOnce(std::io::Error) -> Self {
        move |source| Self::Disk { what, source }
    }
}

impl From<object_store::Error> for Error {
    fn from(error: object_store::Error) -> Self {
        match error {
            object_store::Error::NotFound { path, .. } => Self::Missing(path),
            other => Self::Unavailable(other.to_string()),
        }
    }
}

impl From<Error> for api::Error {
    fn from(error: Error) -> Self {
        match error {
            Error::Config(text) => api::Error::invalid(text),
            Error::Unavailable(cause) => {
                tracing::warn!(cause, "the store cannot be reached");
                let text = "the store cannot be reached: the node's log says why";
                api::Error::new(api::Code::NoCapacity, text).retry_after_ms(5_000)
            }
            Error::Missing(what) => api::Error::not_found(format!("the store has no {what}")),
            Error::Damaged(what) => {
                tracing::error!(what, "damaged in the store");
                api::Error::internal(format!("the store's {what} is damaged: publish it again"))
            }
            Error::InUse(text) => api::Error::new(api::Code::Conflict, text),
            Error::Disk { what, source } if source.kind() == std::io::ErrorKind::StorageFull => {
                tracing::warn!(what, %source, "no room for what the store has");
                api::Error::new(api::Code::DiskFull, "the node has no disk space left for this layer")
            }
            Error::Disk { what, source } => {
                tracing::error!(what, %source, "store");
                api::Error::internal("the node could not read or write a layer")
            }
        }
    }
}
