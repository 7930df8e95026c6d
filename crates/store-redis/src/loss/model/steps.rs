//! Carries out the steps of the model.

use std::collections::HashMap;

use super::judge::{Break, Found, Judged, judge, warn_others};
use super::scene::Step::*;
use super::scene::{Scene, Step};
use super::state::{
    Acts, AllCounts, Gateway, Head, Look as Looks, Memory, NAMES, PARTS, Part, State, Store, bit,
    of_part,
};

/// The state after a step, or why the promise is broken. `None`: the step cannot be made.
type After = Option<Result<State, String>>;

pub(super) struct Model {
    scene: Scene,
    broken: Break,
    judged: HashMap<(Store, AllCounts, Memory), Judged>,
}

impl Model {
    pub(super) fn new(scene: Scene, broken: Break) -> Self {
        Self {
            scene,
            broken,
            judged: HashMap::new(),
        }
    }

    fn is(&self, broken: Break) -> bool {
        self.broken == broken
    }

    fn server_of(&self, part: usize) -> usize {
        if self.scene.is_cluster { part } else { 0 }
    }

    /// Copies what one server holds from `from` to `to`.
    fn set(&self, to: &mut Store, from: &Store, server: usize) {
        if server == 0 {
            to.head = from.head;
        }
        for at in (0..PARTS).filter(|at| self.server_of(*at) == server) {
            to.parts[at] = from.parts[at];
        }
    }

    pub(super) fn after(&mut self, mut state: State, step: Step) -> After {
        let left = &mut state.left;
        match step {
            Claim(by, at) => {
                let gateway = &mut state.gateways[by];
                if !gateway.is_open || !gateway.has_scripts[at] || left.writes == 0 {
                    return None;
                }
                if state.store.parts[at].is_missing_to(&gateway.memory, at) {
                    (gateway.is_open, gateway.is_cut) = (false, true);
                } else {
                    let missing = gateway.memory.knows & of_part(at) & !state.store.data();
                    if missing & !state.given_up != 0 {
                        return Some(Err(
                            "a claim goes through, and a write that is known is not there".into(),
                        ));
                    }
                    self.write(&mut state, by, at);
                }
            }
            End(by, at) => {
                let gateway = &state.gateways[by];
                let has_begun = gateway.memory.writes[at][usize::from(gateway.memory.name)] > 0;
                if !gateway.is_up || gateway.is_lost || !has_begun || left.writes == 0 {
                    return None;
                }
                self.write(&mut state, by, at);
            }
            Look(by) => return self.look(state, by, None),
            LookToForget(by, name) => {
                if left.forgets == 0 || usize::from(state.gateways[by].memory.name) == name {
                    return None;
                }
                return self.look(state, by, Some(name));
            }
            Act(by) => return self.act(&mut state, by).then_some(Ok(state)),
            Rest(by) => match state.gateways[by].look {
                Looks::Acts(acts) if acts.next >= PARTS => rest(&mut state.gateways[by]),
                _ => return None,
            },
            Crash(by) | Stop(by) => {
                let gateway = &mut state.gateways[by];
                let was_stopped = step == Stop(by);
                if !gateway.is_up || left.ends == 0 || was_stopped && gateway.look != Looks::None {
                    return None;
                }
                left.ends -= 1;
                let file = if was_stopped {
                    gateway.memory
                } else {
                    gateway.file
                };
                *gateway = Gateway {
                    file,
                    was_stopped,
                    ..Gateway::default()
                };
                state.accepting = state.accepting.filter(|one| *one != by);
            }
            Start(by) => {
                let gateway = &mut state.gateways[by];
                if gateway.is_up || usize::from(state.names) == NAMES.len() && !gateway.was_stopped
                {
                    return None;
                }
                // memory.rs: open
                if !gateway.was_stopped && !self.is(Break::AKilledGatewayGoesOnCounting) {
                    gateway.file.name = state.names;
                    state.names += 1;
                }
                (gateway.is_up, gateway.memory) = (true, gateway.file);
            }
            Copy(server) => {
                left.copies = left.copies.checked_sub(1)?;
                self.set(&mut state.copy, &state.store, server);
            }
            SetBack(server) | SwitchBack(server) | Empty(server) => {
                left.losses = left.losses.checked_sub(1)?;
                let from = if step == Empty(server) {
                    Store::default()
                } else {
                    state.copy
                };
                self.set(&mut state.store, &from, server);
                state.had_loss = true;
                for gateway in &mut state.gateways {
                    if !self.is(Break::NoLookAfterALoss) {
                        (gateway.is_cut, gateway.is_open) = (gateway.is_up, false);
                    }
                    for at in (0..PARTS).filter(|at| self.server_of(*at) == server) {
                        gateway.has_scripts[at] &= step == SwitchBack(server);
                    }
                }
            }
            Prepare(by) => {
                let gateway = &mut state.gateways[by];
                if !gateway.is_lost || gateway.look != Looks::None || left.accepts == 0 {
                    return None;
                }
                left.accepts -= 1;
                // epoch.rs: prepare
                let before = state.store.head;
                let follows = before.follows | bit(before.epoch) | bit(gateway.memory.epoch);
                let epoch = state.new_epoch();
                state.store.head = Head {
                    epoch,
                    follows,
                    ..Head::default()
                };
                state.store.set_epochs(epoch);
                state.gateways[by].memory.epoch = epoch;
                state.gateways[by].memory.writes = state.store.counts();
                state.accepting = Some(by);
            }
            Accept(by) => {
                let memory = state.gateways[by].memory;
                let head = &mut state.store.head;
                if state.accepting != Some(by) || head.epoch != memory.epoch || head.is_lost {
                    return None;
                }
                // epoch.rs: accept
                head.is_complete = true;
                state.accepting = None;
                if self.judge(&state.store, &memory.writes, &memory).0 == Found::Whole {
                    state.given_up |= state.written & !state.store.data();
                    adopt(&mut state, by);
                } else {
                    state.store.head.is_complete = false;
                }
            }
        }
        Some(Ok(state))
    }

    /// An acknowledged write. One that `count` of marks.lua does not count is not part of the promise.
    fn write(&self, state: &mut State, by: usize, at: usize) {
        state.left.writes -= 1;
        let number = (state.written & of_part(at)).count_ones();
        let (memory, part) = (&mut state.gateways[by].memory, &mut state.store.parts[at]);
        if self.count(part, memory, at) {
            let write = (1 << number) << (8 * at);
            memory.knows |= write;
            part.data |= write;
            state.written |= write;
        }
    }

    fn count(&self, part: &mut Part, memory: &mut Memory, at: usize) -> bool {
        let name = usize::from(memory.name);
        let is_short = part.counts[name] < memory.writes[at][name];
        if is_short && !self.is(Break::CountsHealThemselves) {
            return false;
        }
        part.counts[name] += 1;
        memory.writes[at][name] = part.counts[name].max(memory.writes[at][name]);
        true
    }

    /// As `sight` and `compare_once` of epoch.rs. Last counts are read after the counts.
    fn look(&mut self, mut state: State, by: usize, forgets: Option<usize>) -> After {
        let gateway = &mut state.gateways[by];
        if !gateway.is_up {
            return None;
        }
        let reads_last = |seen: &mut Store| {
            for (seen, there) in seen.parts.iter_mut().zip(&state.store.parts) {
                seen.last = there.last;
            }
        };
        loop {
            gateway.look = match gateway.look {
                Looks::None => {
                    gateway.is_cut = false;
                    let mut seen = Store {
                        head: state.store.head,
                        ..Store::default()
                    };
                    if self.is(Break::LastCountsAreReadFirst) {
                        reads_last(&mut seen);
                    }
                    Looks::Reads(0, seen, gateway.memory.writes)
                }
                Looks::Reads(PARTS, mut seen, known) => {
                    if !self.is(Break::LastCountsAreReadFirst) {
                        reads_last(&mut seen);
                    }
                    gateway.look = Looks::None;
                    return self.compared(state, by, (&seen, &known), forgets);
                }
                Looks::Reads(at, mut seen, known) => {
                    seen.parts[at] = Part {
                        last: seen.parts[at].last,
                        ..state.store.parts[at]
                    };
                    Looks::Reads(at + 1, seen, known)
                }
                Looks::Acts(_) => return None,
            };
            if self.scene.is_split {
                return forgets.is_none().then_some(Ok(state));
            }
        }
    }

    fn compared(
        &mut self,
        mut state: State,
        by: usize,
        (seen, known): (&Store, &AllCounts),
        forgets: Option<usize>,
    ) -> After {
        let (found, writes) = self.judge(seen, known, &state.gateways[by].memory);
        let there = state.store.data();
        let gateway = &mut state.gateways[by];
        let missing = gateway.memory.knows & !there & !state.given_up;
        if found == Found::Lost && !state.had_loss {
            return Some(Err("a loss is found where there was none".into()));
        }
        if found != Found::Lost && missing != 0 && !gateway.is_cut {
            return Some(Err(format!(
                "a look finds {found:?}, and a write that is known is not there"
            )));
        }
        match found {
            Found::Whole => {
                // memory.rs: saw_all
                let memory = &mut gateway.memory;
                memory.writes = writes;
                memory.knows |= seen.data();
                (gateway.was_whole, gateway.is_lost) = (true, false);
                let name = usize::from(memory.name);
                let own = |part: Part| match part.counts[name] {
                    0 => part.last_counts(memory.epoch)[name],
                    _ => 0,
                };
                let gone = |part: Part| forgets.map_or(0, |name| part.counts[name]);
                let acts = Acts {
                    next: 0,
                    own: seen.parts.map(own),
                    forgets,
                    gone: seen.parts.map(gone),
                };
                if forgets.is_some() {
                    if acts.gone == [0; PARTS] {
                        return None;
                    }
                    state.left.forgets -= 1;
                }
                state.gateways[by].look = Looks::Acts(acts);
                if !self.scene.is_split || acts.own == [0; PARTS] {
                    while self.is_coming_back(&state, by) {
                        self.act(&mut state, by);
                    }
                    if forgets.is_none() {
                        rest(&mut state.gateways[by]);
                    }
                }
            }
            Found::Adopt => {
                adopt(&mut state, by);
                rest(&mut state.gateways[by]);
            }
            Found::Fresh => {
                // epoch.rs: begin
                if state.store.head.epoch == 0 {
                    state.store.head.epoch = state.new_epoch();
                }
                let Store { head, parts } = &mut state.store;
                head.is_complete = true;
                for part in parts.iter_mut().filter(|part| part.epoch == 0) {
                    part.epoch = head.epoch;
                }
            }
            Found::Lost => {
                (gateway.is_open, gateway.is_lost) = (false, true);
                if seen.head == state.store.head {
                    warn_others(&mut state, by);
                }
            }
        }
        // Only a gateway that finds everything whole forgets another one.
        (forgets.is_none() || found == Found::Whole).then_some(Ok(state))
    }

    fn is_coming_back(&self, state: &State, by: usize) -> bool {
        matches!(state.gateways[by].look, Looks::Acts(acts) if acts.next < PARTS)
    }

    /// The next act; false if there is none.
    fn act(&self, state: &mut State, by: usize) -> bool {
        let gateway = &mut state.gateways[by];
        let Looks::Acts(acts) = &mut gateway.look else {
            return false;
        };
        let at = acts.next % PARTS;
        let (part, memory) = (&mut state.store.parts[at], &mut gateway.memory);
        acts.next += 1;
        if acts.next <= PARTS {
            // come_back.lua
            let name = usize::from(memory.name);
            let own = if self.is(Break::AComebackTakesWhatItHasRead) {
                acts.own[at]
            } else {
                part.last_counts(memory.epoch)[name]
            };
            if acts.own[at] > 0 && part.counts[name] == 0 && part.epoch == memory.epoch {
                part.counts[name] = own;
            }
            return true;
        }
        let Some(name) = acts.forgets.filter(|_| acts.next <= 2 * PARTS) else {
            return false;
        };
        // forget_gateways.lua
        if !gateway.has_scripts[at] || part.is_missing_to(memory, at) {
            // The script refuses, and the gateway forgets in no further partition.
            acts.next = 2 * PARTS;
            return true;
        }
        part.last = (memory.epoch, part.last_counts(memory.epoch));
        if self.is(Break::LastCountsAreWhatWasRead) {
            part.last.1[name] = acts.gone[at];
        }
        if part.counts[name] > 0 && part.counts[name] == acts.gone[at] {
            if !self.is(Break::LastCountsAreNotStored) {
                part.last.1[name] = part.counts[name];
            }
            part.counts[name] = 0;
            if !self.is(Break::TakingOutIsNotCounted) {
                self.count(part, memory, at);
            }
        }
        true
    }

    /// The finding of a look, and the counts that are known after it. Remembers earlier results.
    fn judge(&mut self, seen: &Store, known: &AllCounts, memory: &Memory) -> Judged {
        let (mut seen, mut memory) = (*seen, *memory);
        // The rules do not see the data itself.
        memory.knows = 0;
        seen.parts.iter_mut().for_each(|part| part.data = 0);
        let broken = self.broken;
        *self
            .judged
            .entry((seen, *known, memory))
            .or_insert_with(|| judge(&seen, known, &memory, broken))
    }
}

/// Ends a look, as `inspect` of checks.rs. Loads the scripts, writes the file, and opens the store for claims unless the
/// connection was lost meanwhile.
fn rest(gateway: &mut Gateway) {
    gateway.look = Looks::None;
    gateway.has_scripts = [true; PARTS];
    gateway.file = gateway.memory;
    gateway.is_open = !gateway.is_cut;
}

/// As `Memory::adopt`: the gateway takes over the store's epoch and counts.
fn adopt(state: &mut State, by: usize) {
    let gateway = &mut state.gateways[by];
    gateway.memory.epoch = state.store.head.epoch;
    gateway.memory.writes = state.store.counts();
    gateway.memory.knows = state.store.data();
    (gateway.was_whole, gateway.is_lost) = (true, false);
}
