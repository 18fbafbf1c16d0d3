//! The one state table of a sandbox. Who may do what, and when, is written here and nowhere else.
//!
//! ```text
//!            Started            Stop             Reaped
//! creating ----------> running -------> stopping -------> (gone)
//!     |                   |                ^
//!     | Failed            | Broke          |
//!     +-----> stopping    +------> broken -+ Stop
//!     ^                   |
//!     +-------------------+ RolledBack
//! ```

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Where a sandbox is in its life. A sandbox that is gone has no state: its id is unknown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum State {
    Creating,
    Running,
    /// Its processes or its agent are lost; only stop works.
    Broken,
    Stopping,
    Gone,
}

/// What can happen to a sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Event {
    /// The runtime has it up and aether answers.
    Started,
    /// A create step failed; its undo runs.
    Failed,
    /// Its first process or its agent died.
    Broke,
    /// Its processes end and its disk is replaced; it is made again.
    RolledBack,
    /// A caller stops it, or its TTL ran out.
    Stop,
    /// Every trace is removed.
    Reaped,
}

use Event::*;
use State::*;

/// Every legal transition. What is not here is illegal.
pub const TABLE: &[(State, Event, State)] = &[
    (Creating, Started, Running),
    (Creating, Failed, Stopping),
    (Creating, Stop, Stopping),
    (Running, Broke, Broken),
    (Running, RolledBack, Creating),
    (Running, Stop, Stopping),
    (Broken, Stop, Stopping),
    (Stopping, Stop, Stopping),
    (Stopping, Reaped, Gone),
];

impl State {
    pub const ALL: &'static [State] = &[Creating, Running, Broken, Stopping, Gone];

    /// The state after `event`, or None where the table has no such row.
    pub fn after(self, event: Event) -> Option<State> {
        TABLE.iter().find(|(from, on, _)| *from == self && *on == event).map(|(_, _, to)| *to)
    }
}

impl Event {
    pub const ALL: &'static [Event] = &[Started, Failed, Broke, RolledBack, Stop, Reaped];
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_pair_is_decided_once() {
        for state in State::ALL {
            for event in Event::ALL {
                let rows: Vec<_> = TABLE.iter().filter(|(s, e, _)| s == state && e == event).collect();
                assert!(rows.len() <= 1, "{state:?} {event:?}");
                assert_eq!(state.after(*event), rows.first().map(|r| r.2));
            }
        }
    }

    #[test]
    fn illegal_transitions_are_refused() {
        assert_eq!(Gone.after(Stop), None);
        assert_eq!(Stopping.after(Started), None);
        assert_eq!(Running.after(Reaped), None);
        assert_eq!(Broken.after(Started), None);
        assert_eq!(Creating.after(Broke), None);
        assert_eq!(Broken.after(RolledBack), None);
        assert_eq!(Creating.after(RolledBack), None);
        assert_eq!(TABLE.len(), 9, "a new row needs a test");
    }

    #[test]
    fn a_rollback_goes_the_way_of_a_create() {
        assert_eq!(Running.after(RolledBack).and_then(|s| s.after(Started)), Some(Running));
        assert_eq!(Running.after(RolledBack).and_then(|s| s.after(Failed)), Some(Stopping));
    }

    #[test]
    fn stop_leads_to_gone_from_every_state_but_gone() {
        for state in State::ALL.iter().filter(|s| **s != Gone) {
            assert_eq!(state.after(Stop).and_then(|s| s.after(Reaped)), Some(Gone));
        }
    }
}
