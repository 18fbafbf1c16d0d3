//! Layers: the EROFS writer, the importers (directory, tar, OCI archive), and the catalogue on disk.
//!
//! ```text
//! archive --decompress--> tar reader --\                     /-> meta.erofs  (tree, inodes, names, xattrs)
//!                                       > import -> erofs --<
//! directory ---------------------------/                     \-> data.blob   (file bytes, deduplicated)
//!                                                  catalogue publishes both under one digest
//! ```
//! Read in this order: [`erofs`], [`tar`], [`import`], [`catalogue`].
//!
//! Invariants: an archive is hostile until it has been read to its end; memory grows with the number of entries,
//! never with the bytes of files; a failed import leaves nothing behind; nothing here mounts anything.

pub mod bench;
pub mod catalogue;
pub mod erofs;
pub mod error;
pub mod import;
mod scrub;
pub mod tar;

pub use catalogue::{Arrived, Catalogue, LayerFiles, Manifest, Resolved, Scratch, Under};
pub use erofs::Limits;
pub use error::Error;
