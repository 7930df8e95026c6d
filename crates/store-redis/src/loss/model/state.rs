//! The state of the model: gateways, their files, and the store's servers.

pub(super) const GATEWAYS: usize = 3;
pub(super) const PARTS: usize = 2;
/// Names under which writes are counted: one for each gateway, and one for a gateway that was killed.
pub(super) const NAMES: [&str; 4] = ["a", "b", "c", "again"];
/// Stands in a partition instead of an epoch after a gateway has found a loss.
pub(super) const CLOSED: u8 = 8;

/// A count for each name.
pub(super) type Counts = [u8; NAMES.len()];
/// A count for each partition and name.
pub(super) type AllCounts = [Counts; PARTS];
/// A count of one name for each partition.
pub(super) type Counted = [u8; PARTS];
/// A bit for each write.
pub(super) type Data = u16;

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub(super) struct Part {
    pub(super) epoch: u8,
    pub(super) counts: Counts,
    /// An epoch, and the last counts of gateways that were forgotten in it.
    pub(super) last: (u8, Counts),
    pub(super) data: Data,
}

/// The manifest. Epoch 0: there is none.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub(super) struct Head {
    pub(super) epoch: u8,
    /// A bit for each epoch.
    pub(super) follows: u8,
    pub(super) is_complete: bool,
    pub(super) is_lost: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub(super) struct Store {
    pub(super) head: Head,
    pub(super) parts: [Part; PARTS],
}

/// The memory of a gateway, or the content of its file.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub(super) struct Memory {
    pub(super) name: u8,
    pub(super) epoch: u8,
    pub(super) writes: AllCounts,
    /// The writes that these counts stand for. Only the model has this, to check the promise.
    pub(super) knows: Data,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub(super) struct Gateway {
    pub(super) is_up: bool,
    /// The newest look has found everything whole, and the connection was not lost since.
    pub(super) is_open: bool,
    pub(super) is_lost: bool,
    pub(super) was_whole: bool,
    pub(super) was_stopped: bool,
    /// The connection was lost since the look began.
    pub(super) is_cut: bool,
    /// Whether the server of a partition has this gateway's scripts.
    pub(super) has_scripts: [bool; PARTS],
    pub(super) memory: Memory,
    pub(super) file: Memory,
    pub(super) look: Look,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub(super) enum Look {
    #[default]
    None,
    /// How many partitions are read; their content; and the counts that the gateway knew when the look began.
    Reads(usize, Store, AllCounts),
    /// The look has found everything whole, and the gateway acts.
    Acts(Acts),
}

/// What a gateway does after it has found everything whole.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub(super) struct Acts {
    /// The next act: first it comes back in each partition, if it was forgotten; then it forgets another name in each.
    pub(super) next: usize,
    /// Its own last counts. 0: it was not forgotten there.
    pub(super) own: Counted,
    pub(super) forgets: Option<usize>,
    /// The counts of that name, as the look has read them.
    pub(super) gone: Counted,
}

/// How often each kind of event may still happen.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub(super) struct Left {
    pub(super) writes: u8,
    pub(super) copies: u8,
    pub(super) losses: u8,
    pub(super) ends: u8,
    pub(super) forgets: u8,
    pub(super) accepts: u8,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct State {
    pub(super) store: Store,
    /// An older copy of each server: a snapshot, or a replica that lags.
    pub(super) copy: Store,
    pub(super) gateways: [Gateway; GATEWAYS],
    /// All acknowledged writes, and those of them that an operator has given up.
    pub(super) written: Data,
    pub(super) given_up: Data,
    pub(super) epochs: u8,
    pub(super) names: u8,
    /// The gateway at which a loss is being accepted.
    pub(super) accepting: Option<usize>,
    pub(super) had_loss: bool,
    pub(super) left: Left,
}

impl State {
    /// The first state: all gateways run and know the store, and nothing is written yet.
    pub(super) fn first(left: Left) -> Self {
        let mut store = Store::default();
        (store.head.epoch, store.head.is_complete) = (1, true);
        store.set_epochs(1);
        let gateway = |name| {
            let memory = Memory {
                name,
                epoch: 1,
                ..Memory::default()
            };
            Gateway {
                is_up: true,
                is_open: true,
                was_whole: true,
                has_scripts: [true; PARTS],
                memory,
                file: memory,
                ..Gateway::default()
            }
        };
        Self {
            store,
            copy: store,
            gateways: [0, 1, 2].map(gateway),
            written: 0,
            given_up: 0,
            epochs: 1,
            names: 3,
            accepting: None,
            had_loss: false,
            left,
        }
    }

    /// Whether no step can break the promise any more.
    pub(super) fn is_settled(&self) -> bool {
        let missing = self.written & !self.store.data() & !self.given_up;
        let know = |gateway: &Gateway| (gateway.memory.knows | gateway.file.knows) & missing != 0;
        let is_noticed = self.store.head.is_lost && self.left.accepts == 0;
        self.had_loss && self.left.losses == 0 && (is_noticed || !self.gateways.iter().any(know))
    }

    /// The same state without parts that cannot matter any more, so that fewer states differ.
    pub(super) fn plain(mut self) -> Self {
        if self.left.losses == 0 {
            (self.copy, self.left.copies) = (Store::default(), 0);
        }
        self
    }

    pub(super) fn new_epoch(&mut self) -> u8 {
        self.epochs += 1;
        self.epochs
    }
}

impl Store {
    pub(super) fn data(&self) -> Data {
        self.parts[0].data | self.parts[1].data
    }

    pub(super) fn counts(&self) -> AllCounts {
        self.parts.map(|part| part.counts)
    }

    pub(super) fn set_epochs(&mut self, epoch: u8) {
        self.parts.iter_mut().for_each(|part| part.epoch = epoch);
    }
}

impl Part {
    /// The last counts of gateways that were forgotten in this epoch.
    pub(super) fn last_counts(&self, epoch: u8) -> Counts {
        if self.last.0 == epoch {
            self.last.1
        } else {
            Counts::default()
        }
    }

    /// As `missing` of marks.lua.
    pub(super) fn is_missing_to(&self, memory: &Memory, at: usize) -> bool {
        let name = usize::from(memory.name);
        self.epoch != memory.epoch || self.counts[name] < memory.writes[at][name]
    }
}

pub(super) fn bit(epoch: u8) -> u8 {
    if epoch == 0 || epoch == CLOSED {
        0
    } else {
        1 << epoch
    }
}

/// The bits of a partition's writes, of which there are at most eight.
pub(super) fn of_part(at: usize) -> Data {
    0xff << (8 * at)
}
