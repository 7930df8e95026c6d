//! What the tools have seen and done: the truth that the promise is held against.

use std::collections::BTreeMap;

use super::plan::Kind;

/// An execution of a call.
#[derive(Debug, Clone)]
pub(super) struct Effect {
    pub(super) number: u64,
    pub(super) call: String,
    pub(super) key: String,
    pub(super) tool: String,
    /// The call that it undoes; empty: none.
    pub(super) undoes: String,
    pub(super) at: u64,
}

/// A request that has left its gateway.
#[derive(Debug, Clone)]
pub(super) struct Flight {
    pub(super) call: String,
    /// Its key at the tool.
    pub(super) key: String,
    /// Its name in the history.
    pub(super) name: String,
    pub(super) tool: &'static str,
    pub(super) session: String,
    pub(super) undoes: String,
    /// From then on it is not executed any more.
    pub(super) until: u64,
}

/// What a request has led to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Done {
    /// This is its effect.
    Now(u64),
    /// The tool knew its key already: the effect of the first one.
    Before(u64),
}

impl Done {
    pub(super) fn number(self) -> u64 {
        match self {
            Self::Now(number) | Self::Before(number) => number,
        }
    }
}

#[derive(Default)]
pub(super) struct Books {
    effects: Vec<Effect>,
    flights: BTreeMap<u64, Flight>,
    sent: u64,
    /// The calls that tools have seen, each with its name, and whether it is forgotten after a while.
    seen: BTreeMap<String, (String, bool)>,
}

impl Books {
    /// A request has left. Answers with its number.
    pub(super) fn sent(&mut self, flight: Flight) -> u64 {
        self.sent += 1;
        let is_forgotten = Kind::named(flight.tool).is_forgotten();
        self.seen
            .insert(flight.call.clone(), (flight.name.clone(), is_forgotten));
        self.flights.insert(self.sent, flight);
        self.sent
    }

    /// The request is over: it was executed, or never will be.
    pub(super) fn over(&mut self, number: u64) {
        self.flights.remove(&number);
    }

    /// The tool executes a request.
    pub(super) fn execute(&mut self, flight: &Flight, deduplicates: bool, now: u64) -> Done {
        let mut known = self.effects.iter();
        let known = known.find(|effect| effect.key == flight.key && effect.tool == flight.tool);
        if let Some(known) = known
            && deduplicates
        {
            return Done::Before(known.number);
        }
        let number = self.effects.len() as u64 + 1;
        self.effects.push(Effect {
            number,
            call: flight.call.clone(),
            key: flight.key.clone(),
            tool: flight.tool.to_owned(),
            undoes: flight.undoes.clone(),
            at: now,
        });
        Done::Now(number)
    }

    /// The effect of the call with this key at its tool.
    pub(super) fn known(&self, key: &str) -> Option<u64> {
        let mut effects = self.effects.iter();
        Some(effects.find(|effect| effect.key == key)?.number)
    }

    /// Whether an effect was there before this time.
    pub(super) fn was_made_before(&self, number: u64, time: u64) -> bool {
        let mut effects = self.effects.iter();
        effects.any(|effect| effect.number == number && effect.at < time)
    }

    pub(super) fn of_call(&self, call: &str) -> impl Iterator<Item = &Effect> {
        self.effects
            .iter()
            .filter(move |effect| effect.call == call)
    }

    /// What undoes a call.
    pub(super) fn undoing(&self, call: &str) -> impl Iterator<Item = &Effect> {
        self.effects
            .iter()
            .filter(move |effect| effect.undoes == call)
    }

    /// Until when a request of this call may be executed; `None`: it is over.
    pub(super) fn comes_until(&self, call: &str) -> Option<u64> {
        let flights = self.flights.values();
        let of_call = flights.filter(|flight| flight.call == call);
        of_call.map(|flight| flight.until).max()
    }

    /// Whether a request of this call may still be executed.
    pub(super) fn may_come(&self, call: &str, now: u64) -> bool {
        self.flights
            .values()
            .any(|flight| flight.call == call && now < flight.until)
    }

    /// Other calls of this session that may still be executed.
    pub(super) fn beside(&self, flight: &Flight, now: u64) -> impl Iterator<Item = &Flight> {
        self.flights.values().filter(move |other| {
            other.call != flight.call
                && other.tool == flight.tool
                && other.session == flight.session
                && now < other.until
        })
    }

    /// The calls that tools have seen.
    pub(super) fn seen(&self) -> &BTreeMap<String, (String, bool)> {
        &self.seen
    }

    pub(super) fn effects(&self) -> usize {
        self.effects.len()
    }
}
