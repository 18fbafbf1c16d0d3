//! Layers: the EROFS writer and reader, the importers (directory, tar, OCI archive), merging,
//! exports, and the catalogue on disk.
//!
//! ```text
//! archive --decompress--> tar reader --\                     /-> meta.erofs  (tree, inodes, names, xattrs)
//!                                       > import -> erofs --<
//! registry --pull--> blobs -------------/
//! directory ---------------------------/                     \-> data.blob   (file bytes, deduplicated)
//!                                                  catalogue publishes both under one digest
//! layers --reader--> union (as overlayfs shows them) --> merge -> erofs
//!                                                    \-> export -> OCI or docker archive, tar
//! ```
//! Read in this order: [`erofs`], [`tar`], [`import`], [`union`], [`merge`], [`export`], [`catalogue`], [`pull`].
//!
//! Invariants: an archive is hostile until it has been read to its end; memory grows with the number of entries,
//! never with the bytes of files; a failed import leaves nothing behind; nothing here mounts anything.

pub mod bench;
pub mod catalogue;
pub mod erofs;
pub mod error;
pub mod export;
pub mod import;
pub mod merge;
pub mod pull;
mod scrub;
pub mod tar;
pub mod union;

pub use catalogue::{Arrived, Catalogue, LayerFiles, Manifest, Resolved, Scratch, Under};
pub use erofs::Limits;
pub use error::Error;
