//! The state of one sandbox. It moves only as [`api::state::TABLE`] says; any other move is a bug of the edge, told
//! to the log and refused.

use api::{
    Error, Result, SandboxId,
    state::{Event, State},
};

#[derive(Debug)]
pub(crate) struct Machine {
    id: SandboxId,
    state: State,
}

impl Machine {
    pub(crate) fn new(id: SandboxId, state: State) -> Self {
        Self { id, state }
    }

    pub(crate) fn state(&self) -> State {
        self.state
    }

    /// Moves on. Errors: `internal` where the table has no such row; the state stays.
    pub(crate) fn apply(&mut self, event: Event) -> Result<State> {
        let Some(next) = self.state.after(event) else {
            tracing::error!(sandbox = %self.id, state = ?self.state, ?event, "illegal transition");
            return Err(Error::internal("the sandbox is in a state where this cannot happen"));
        };
        tracing::debug!(sandbox = %self.id, from = ?self.state, to = ?next, ?event, "state");
        self.state = next;
        Ok(next)
    }
}

#[cfg(test)]
mod tests {
    use api::{Code, state::TABLE};

    use super::*;

    #[test]
    fn every_pair_of_state_and_event_does_as_the_table_says() {
        let id = SandboxId::new(&"e1".parse().unwrap());
        let mut legal = 0;
        for state in State::ALL {
            for event in Event::ALL {
                let mut machine = Machine::new(id.clone(), *state);
                match machine.apply(*event) {
                    Ok(next) => {
                        legal += 1;
                        assert!(TABLE.contains(&(*state, *event, next)));
                        assert_eq!(machine.state(), next);
                    }
                    Err(error) => {
                        assert_eq!(error.code, Code::Internal);
                        assert_eq!(machine.state(), *state, "an illegal event changes nothing");
                        assert!(!TABLE.iter().any(|(s, e, _)| s == state && e == event));
                    }
                }
            }
        }
        assert_eq!(legal, TABLE.len());
    }
}
