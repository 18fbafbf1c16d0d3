//! Sandboxes: one file a verb.

pub(crate) mod attach;
pub(crate) mod checkpoint;
pub(crate) mod copy;
pub(crate) mod create;
pub(crate) mod exec;
pub(crate) mod fork;
pub(crate) mod inspect;
pub(crate) mod list;
pub(crate) mod logs;
pub(crate) mod pack;
pub(crate) mod port;
pub(crate) mod run;
pub(crate) mod spec;
pub(crate) mod stop;
pub(crate) mod ttl;
