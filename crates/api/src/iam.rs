//! Who may do what, and how much of a node a project may have. See docs/rfd/0006-iam.md.

mod project;
mod quota;
mod rights;
mod tally;

pub use project::{
    AuditEntry, AuditQuery, DEPTH_MAX, KEY_MS_MAX, KeyInfo, KeyMade, KeyRequest, PATH_SEPARATOR,
    PrincipalKind, ProjectInfo, ProjectRequest, ProjectUpdate, check_reference,
};
pub use quota::{Amount, Dimension, Quota};
pub use rights::{Action, Rights};
pub use tally::{Tally, TallyQuery};

/// The id of the project above all.
pub const ROOT_PROJECT: &str = "pr-root";
