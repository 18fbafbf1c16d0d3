//! Thin typed wrappers over kernel facilities; the only home of `unsafe`.
//!
//! Each module is one facility. A wrapper adds types, a SAFETY argument and nothing else: policy lives above.
#![allow(unsafe_code)]

pub mod btrfs;
pub mod clone;
pub mod confine;
pub mod cred;
pub mod descriptors;
pub mod exits;
pub mod fork;
pub mod init;
pub mod loopdev;
pub mod mount;
pub mod netif;
pub mod privilege;
pub mod pty;
pub mod scm;
pub mod sealed;
