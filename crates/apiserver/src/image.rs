//! What concerns images, one verb a file.

mod import;
mod pull;
