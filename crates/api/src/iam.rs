//! Who may do what, and how much of a node a project may have. See docs/rfd/0006-iam.md.

mod quota;
mod rights;

pub use quota::{Amount, Dimension, Quota};
pub use rights::{Action, Rights};
