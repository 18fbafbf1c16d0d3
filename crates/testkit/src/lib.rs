//! A real node for tests, and the check that nothing of it is left.
//!
//! A test binary has its own `main`, which gives its tests to [`suite::run`]: one node serves them all, is stopped at
//! the end, and must leave the machine as it was. Invariant: a missing binary or image is a failure with a message,
//! never a pass.

pub mod artifact;
pub mod host;
pub mod leak;
pub mod node;
pub mod s3;
pub mod suite;
pub mod tree;

pub use leak::Leak;
pub use node::Node;
