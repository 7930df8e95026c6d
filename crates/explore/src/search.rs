//! The search visits every state that can be reached, breadth first.
//!
//! A search of our own, and not the crate `stateright`: a hundred lines do it, and they tell a trace as a story, hash a
//! state without its histories, and decide whether every state can still come to rest. `stateright`'s `eventually` is
//! not checked on cycles, and there are cycles here: time passes, and nothing else happens.

use std::collections::HashMap;
use std::collections::VecDeque;
use std::fmt;
use std::hash::{BuildHasherDefault, Hasher};
use std::time::{Duration, Instant};

use super::model::Model;
use super::steps::Step;
use super::world::World;

/// The result of a search.
#[derive(Debug, Clone)]
pub(super) struct Found {
    pub(super) name: &'static str,
    pub(super) states: usize,
    pub(super) transitions: usize,
    pub(super) depth: u32,
    pub(super) took: Duration,
    /// Whether the search was ended before all states were visited.
    pub(super) is_cut: bool,
    /// How the promise is broken, and the shortest way there; `None`: the promise holds in all states.
    pub(super) broken: Option<(String, Vec<String>)>,
}

impl fmt::Display for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            name,
            states,
            transitions,
            depth,
            ..
        } = self;
        let seconds = self.took.as_secs_f64();
        let cut = if self.is_cut { "the first " } else { "" };
        write!(
            f,
            "{name}: {cut}{states} states, {transitions} transitions, depth {depth}, {seconds:.1} s"
        )?;
        if let Some((why, way)) = &self.broken {
            write!(f, "\n  {why}:")?;
            for (number, line) in (1..).zip(way) {
                write!(f, "\n  {number:3}. {line}")?;
            }
        }
        Ok(())
    }
}

/// A visited state: the step that led to it, and its depth.
struct Visited {
    from: u32,
    step: Step,
    depth: u32,
}

/// A hasher for values that are hashes already.
#[derive(Default)]
struct AsItIs(u64);

impl Hasher for AsItIs {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(*byte);
        }
    }

    fn write_u128(&mut self, hash: u128) {
        self.0 = (hash >> 64) as u64;
    }
}

/// Explores all states. Ends at the first state that breaks the promise or from which not everything can end.
pub(super) fn explore(model: &mut Model) -> Found {
    let began = Instant::now();
    let first = World::first(&model.scene);
    let mut visited = vec![Visited {
        from: 0,
        step: Step::Tick,
        depth: 0,
    }];
    // Only hashes of 128 bits are kept: among ten million states two hashes are equal once in 10^24 searches.
    let mut known: HashMap<u128, u32, BuildHasherDefault<AsItIs>> = HashMap::default();
    known.insert(model.hash(&first), 0);
    let mut helps: Vec<(u32, u32)> = Vec::new();
    let mut rests: Vec<bool> = vec![Model::is_rest(&first)];
    let mut waiting = VecDeque::from([(first, 0_u32)]);
    let (mut transitions, mut broken, mut is_cut) = (0, None, false);
    'all: while let Some((world, at)) = waiting.pop_front() {
        for step in model.steps(&world) {
            let next = match model.after(&world, step) {
                Ok(Some(next)) => next,
                Ok(None) => continue,
                Err(why) => {
                    let way = way_to(&visited, at, Some(step));
                    broken = Some((why, tell(model, &way)));
                    break 'all;
                }
            };
            transitions += 1;
            let new = u32::try_from(visited.len()).unwrap_or(u32::MAX);
            let to = *known.entry(model.hash(&next)).or_insert(new);
            if step.is_help() && to != at {
                helps.push((to, at));
            }
            if to == new {
                let depth = visited.get(at as usize).map_or(0, |visited| visited.depth) + 1;
                visited.push(Visited {
                    from: at,
                    step,
                    depth,
                });
                rests.push(Model::is_rest(&next));
                waiting.push_back((next, to));
            }
        }
        if model
            .scene
            .most_states
            .is_some_and(|most| visited.len() >= most)
        {
            is_cut = true;
            break;
        }
    }
    if broken.is_none()
        && !is_cut
        && let Some(at) = restless(rests, &helps)
    {
        let way = way_to(&visited, at, None);
        broken = Some((
            "nothing that time, gateways and operators do brings all to its end".into(),
            tell(model, &way),
        ));
    }
    Found {
        name: model.scene.name,
        states: visited.len(),
        transitions,
        depth: visited.last().map_or(0, |visited| visited.depth),
        took: began.elapsed(),
        is_cut,
        broken,
    }
}

/// The first state from which no help leads to rest. `helps`: each state with the states before it.
fn restless(mut rests: Vec<bool>, helps: &[(u32, u32)]) -> Option<u32> {
    let mut count = vec![0_u32; rests.len() + 1];
    for (to, _) in helps {
        count[*to as usize + 1] += 1;
    }
    for at in 1..count.len() {
        count[at] += count[at - 1];
    }
    let (mut place, mut before) = (count.clone(), vec![0_u32; helps.len()]);
    for (to, from) in helps {
        before[place[*to as usize] as usize] = *from;
        place[*to as usize] += 1;
    }
    let mut waiting: Vec<usize> = (0..rests.len()).filter(|at| rests[*at]).collect();
    while let Some(at) = waiting.pop() {
        for from in &before[count[at] as usize..count[at + 1] as usize] {
            let from = *from as usize;
            if !std::mem::replace(&mut rests[from], true) {
                waiting.push(from);
            }
        }
    }
    rests
        .iter()
        .position(|rests| !rests)
        .and_then(|at| u32::try_from(at).ok())
}

fn way_to(visited: &[Visited], mut at: u32, last: Option<Step>) -> Vec<Step> {
    let mut way: Vec<Step> = last.into_iter().collect();
    while let Some(here) = visited.get(at as usize).filter(|_| at > 0) {
        way.push(here.step);
        at = here.from;
    }
    way.reverse();
    way
}

/// Steps as a story, one line for each.
fn tell(model: &mut Model, way: &[Step]) -> Vec<String> {
    let mut world = World::first(&model.scene);
    model.tale = Some(Vec::new());
    let mut story = Vec::new();
    for step in way {
        let next = model.after(&world, *step);
        let lines = model.tale.replace(Vec::new()).unwrap_or_default();
        story.push(if lines.is_empty() {
            format!("{step:?}")
        } else {
            lines.join("; ")
        });
        if let Ok(Some(next)) = next {
            world = next;
        }
    }
    model.tale = None;
    story
}
