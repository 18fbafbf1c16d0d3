//! From layers to an archive, in one stream: an OCI layout, what `docker load` takes, or the union as one tar.
//!
//! ```text
//! layer --walk--> tar with .wh. names --> gzip --> scratch file, its size and digests known --> archive
//! layers --union--> tar
//! ```
//! Invariants: memory grows with the number of files, never with their bytes; on disk there is one packed layer at a
//! time; the same image makes the same bytes; a reader that goes away is noticed within a few files' bytes; what no
//! archive can hold is known before its first byte.

mod layer;
mod oci;
mod order;
mod tar;

use std::io::Write;

use api::image::{ExportFormat, ImageInfo};

use crate::{
    catalogue::Scratch,
    erofs::{Limits, read::Reader},
    error::{Error, Result},
    union::{Hides, Union},
};
use tar::TarWriter;

/// An image whose layers are open, to be written once.
pub struct Export {
    pub(crate) info: ImageInfo,
    /// Lowest first.
    pub(crate) layers: Vec<Reader>,
    pub(crate) limits: Limits,
    pub(crate) format: ExportFormat,
    /// For the layer that is being packed.
    pub(crate) scratch: Scratch,
}

impl Export {
    /// Walks all names: whether the format can hold them. Errors: [`Error::Refused`], which names the one it cannot.
    pub fn check(&self) -> Result<()> {
        match self.format {
            ExportFormat::Tar => {
                let mut union = Union::new(&self.layers, Hides::None, &self.limits);
                while let Some(item) = union.next_item()? {
                    layer::check(&item.entry)?;
                }
            }
            ExportFormat::Oci | ExportFormat::Docker => {
                for reader in &self.layers {
                    layer::check_layer(reader, &self.limits)?;
                }
            }
        }
        Ok(())
    }

    /// Writes the archive. `out` tells at a flush whether anybody still reads, which is asked while a layer is packed.
    pub fn write(self, out: &mut dyn Write) -> Result<()> {
        match self.format {
            ExportFormat::Tar => {
                let mut tar = TarWriter::new(out);
                layer::write_union(Union::new(&self.layers, Hides::None, &self.limits), &mut tar)?;
                tar.finish()?.flush().map_err(Error::of_writer)
            }
            ExportFormat::Oci => oci::write_layout(&self, out),
            ExportFormat::Docker => oci::write_docker(&self, out),
        }
    }
}
