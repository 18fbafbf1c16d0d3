//! The server of this machine: start, stop, look.

pub(crate) mod down;
pub(crate) mod forge;
pub(crate) mod layerd;
pub(crate) mod lock;
pub(crate) mod log;
pub(crate) mod open_files;
pub(crate) mod status;
pub(crate) mod systemd_unit;
pub(crate) mod up;
