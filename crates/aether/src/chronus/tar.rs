//! Trees as tar streams, packed and unpacked by a child inside, through a pipe.

pub mod get;
pub mod put;
