//! Walks through the trees of the file, and finds pages that do not belong where they are. Must not know what rows mean.
//!
//! The walk finds what SQLite's `quick_check` finds in pages: each is of its tree, is used once and is as deep as its sisters,
//! and none is lost. It finds two things more. The keys of the trees that tell which calls are known are in order over the
//! whole tree; so no page stands for another one of its tree. And the pages that are said to be free are free.

use rusqlite::{Connection, ErrorCode};

use super::pages::{Kind, Page, Pages, four};
use crate::query::all;
use oncegate_rules::key::Lookup;

/// The deepest tree that SQLite reads.
const DEEPEST: usize = 20;
/// The table of the lookup keys, by which a call is found to be known or new.
pub(super) const NAMES: &str = "names";
/// Small tables that also tell whether a call may begin. They are read before it.
const FIRST: [&str; 8] = [
    "sqlite_schema",
    "ledger",
    "paused_tools",
    "documents",
    "sessions",
    "line",
    "places",
    "tools",
];
/// Tables of which each row is a key of 16 bytes and the number of a call.
const KEYED: [&str; 2] = [NAMES, "ids"];

/// Which trees are read together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Group {
    First,
    Names,
    Rest,
}

/// A tree of the file.
#[derive(Debug, Clone)]
pub(super) struct Tree {
    table: String,
    root: u32,
    kind: Kind,
}

impl Tree {
    pub(super) fn group(&self) -> Group {
        match &*self.table {
            NAMES => Group::Names,
            table if FIRST.contains(&table) => Group::First,
            _ => Group::Rest,
        }
    }

    /// The key of a row, if the rows of the tree are in order by such keys.
    fn key(&self, content: &[u8]) -> Option<Result<Key, ()>> {
        KEYED
            .contains(&&*self.table)
            .then(|| key(content).ok_or(()))
    }
}

pub(super) type Key = [u8; 16];

/// The key of a row of 16 bytes and a number. `None`: the row has another form.
fn key(content: &[u8]) -> Option<Key> {
    let (head, rest) = content.split_first_chunk::<3>()?;
    let length = match head {
        [3, 44, kind @ 1..=4] => usize::from(*kind),
        [3, 44, 5] => 6,
        [3, 44, 6] => 8,
        [3, 44, 8 | 9] => 0,
        _ => return None,
    };
    let (key, number) = rest.split_first_chunk()?;
    (number.len() == length).then_some(*key)
}

/// All trees, those of the first group first.
pub(super) fn trees(connection: &Connection) -> rusqlite::Result<Vec<Tree>> {
    let sql =
        "SELECT tbl_name, rootpage, type = 'index' OR sql LIKE '%WITHOUT ROWID' FROM sqlite_schema
         WHERE rootpage > 0 ORDER BY rootpage";
    let mut trees = all(connection, sql, [], |row| {
        let kind = if row.get(2)? { Kind::Keys } else { Kind::Rows };
        Ok(Tree {
            table: row.get(0)?,
            root: row.get(1)?,
            kind,
        })
    })?;
    trees.push(Tree {
        table: "sqlite_schema".to_owned(),
        root: 1,
        kind: Kind::Rows,
    });
    trees.sort_by_key(Tree::group);
    Ok(trees)
}

/// The keys or numbers between which all of a page lie. The upper number may be on the page itself.
#[derive(Debug, Clone, Copy, Default)]
struct Bounds {
    keys: (Option<Key>, Option<Key>),
    numbers: (Option<i64>, Option<i64>),
}

/// A walk through the file.
pub(super) struct Walk<'a> {
    pages: &'a Pages,
    seen: Vec<u64>,
    /// Is asked at each page; false: the walk ends.
    goes_on: &'a mut dyn FnMut() -> bool,
}

/// Why a check ended early.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Ended {
    Stopped,
    /// It is not known whether the rest is whole.
    Failed(String),
    Damaged(String),
}

impl Ended {
    /// By an error of SQLite.
    pub(super) fn of(error: &rusqlite::Error) -> Self {
        match error.sqlite_error_code() {
            Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => {
                Self::Damaged(error.to_string())
            }
            Some(ErrorCode::OperationInterrupted) => Self::Stopped,
            _ => Self::Failed(error.to_string()),
        }
    }
}

impl From<String> for Ended {
    fn from(why: String) -> Self {
        Self::Damaged(why)
    }
}

impl<'a> Walk<'a> {
    pub(super) fn new(pages: &'a Pages, goes_on: &'a mut dyn FnMut() -> bool) -> Self {
        Self {
            pages,
            seen: vec![0; pages.count as usize / 64 + 1],
            goes_on,
        }
    }

    /// Notes that a page is used.
    fn use_page(&mut self, number: u32) -> Result<(), Ended> {
        if !(self.goes_on)() {
            return Err(Ended::Stopped);
        }
        if number == 0 || number > self.pages.count || self.pages.is_special(number) {
            return Err(format!("page {number} is used, and is not one for use").into());
        }
        let (slot, bit) = (number as usize / 64, 1 << (number % 64));
        if self.seen[slot] & bit != 0 {
            return Err(format!("page {number} is used twice").into());
        }
        self.seen[slot] |= bit;
        Ok(())
    }

    /// Reads the list of free pages. A page that is in use and on it would be overwritten.
    pub(super) fn free_pages(&mut self) -> Result<(), Ended> {
        let (mut bytes, mut all) = (Vec::new(), Vec::new());
        let mut next = self.pages.first_free;
        while next != 0 {
            self.use_page(next)?;
            all.push(next);
            self.pages.read(next, &mut bytes)?;
            let count = four(&bytes, 4) as usize;
            if count > self.pages.usable / 4 - 2 {
                return Err("the list of free pages is damaged".to_owned().into());
            }
            for n in 0..count {
                let page = four(&bytes, 8 + 4 * n);
                self.use_page(page)?;
                all.push(page);
            }
            next = four(&bytes, 0);
        }
        if all.len() != self.pages.free as usize {
            return Err("some free pages are lost".to_owned().into());
        }
        if self.pages.has_maps {
            all.sort_unstable();
            let mut map = (0, Vec::new());
            for page in all {
                if self.pages.purpose(page, &mut map)? != 2 {
                    return Err(format!("page {page} is said to be free, and is not").into());
                }
            }
        }
        Ok(())
    }

    /// Reads a tree.
    pub(super) fn tree(&mut self, tree: &Tree) -> Result<(), Ended> {
        self.subtree(tree, tree.root, Bounds::default(), 0)
            .map(drop)
            .map_err(|ended| match ended {
                Ended::Damaged(why) => Ended::Damaged(format!("table {}: {why}", tree.table)),
                other => other,
            })
    }

    /// Reads a part of a tree. Answers how deep it is.
    fn subtree(
        &mut self,
        tree: &Tree,
        number: u32,
        bounds: Bounds,
        above: usize,
    ) -> Result<usize, Ended> {
        if above > DEEPEST {
            return Err("it is too deep".to_owned().into());
        }
        self.use_page(number)?;
        let (mut bytes, mut page) = (Vec::new(), Page::default());
        self.pages.read(number, &mut bytes)?;
        self.pages.parse(number, &bytes, tree.kind, &mut page)?;
        if page.cells.is_empty() && above > 0 {
            return Err(format!("page {number} is empty").into());
        }
        let children = parts(tree, number, &bytes, &page, bounds)?;
        for (first, pages) in page.cells.iter().filter_map(|cell| cell.further) {
            self.further(first, pages)?;
        }
        if page.is_leaf {
            return Ok(0);
        }
        drop(bytes);
        self.pages.expect(children.iter().map(|(child, _)| *child));
        let mut deep = None;
        for (child, bounds) in children {
            let depth = self.subtree(tree, child, bounds, above + 1)?;
            if *deep.get_or_insert(depth) != depth {
                return Err(format!("page {child} is not as deep as its sisters").into());
            }
        }
        Ok(deep.unwrap_or_default() + 1)
    }

    /// Reads the further pages of a long content.
    fn further(&mut self, first: u32, pages: usize) -> Result<(), Ended> {
        let mut next = first;
        for _ in 0..pages {
            self.use_page(next)?;
            let mut link = [0; 4];
            self.pages.read_beginning(next, &mut link)?;
            next = u32::from_be_bytes(link);
        }
        if next != 0 {
            return Err(format!("what begins at page {first} is too long").into());
        }
        Ok(())
    }

    /// Whether every page was seen, at the end of the walk.
    pub(super) fn nothing_is_lost(&self) -> Result<(), Ended> {
        let is_seen = |number: u32| self.seen[number as usize / 64] & (1 << (number % 64)) != 0;
        let lost = (1..=self.pages.count)
            .find(|number| !is_seen(*number) && !self.pages.is_special(*number));
        lost.map_or(Ok(()), |number| {
            Err(format!("nothing leads to page {number}").into())
        })
    }
}

/// The children of a page, each with its bounds, after the page's own order was compared.
fn parts(
    tree: &Tree,
    number: u32,
    bytes: &[u8],
    page: &Page,
    bounds: Bounds,
) -> Result<Vec<(u32, Bounds)>, String> {
    let order = || format!("page {number}: its rows are not in order");
    let (mut before, mut children) = (bounds, Vec::new());
    for cell in &page.cells {
        let mut here = before;
        match tree.kind {
            Kind::Rows => {
                here.numbers.1 = Some(cell.number);
                let (lower, upper) = (before.numbers.0, bounds.numbers.1);
                if lower.is_some_and(|lower| cell.number <= lower)
                    || upper.is_some_and(|upper| cell.number > upper)
                {
                    return Err(order());
                }
            }
            Kind::Keys => {
                let content = if cell.further.is_some() {
                    &[]
                } else {
                    &bytes[cell.content.clone()]
                };
                match tree.key(content) {
                    Some(Err(())) => return Err(format!("page {number}: a row is damaged")),
                    Some(Ok(key)) => {
                        let (lower, upper) = (before.keys.0, bounds.keys.1);
                        if lower.is_some_and(|lower| key <= lower)
                            || upper.is_some_and(|upper| key >= upper)
                        {
                            return Err(order());
                        }
                        here.keys.1 = Some(key);
                    }
                    None => {}
                }
            }
        }
        if !page.is_leaf {
            children.push((cell.child, here));
        }
        before.numbers.0 = here.numbers.1;
        before.keys.0 = here.keys.1;
    }
    if !page.is_leaf {
        before.numbers.1 = bounds.numbers.1;
        before.keys.1 = bounds.keys.1;
        children.push((page.last_child, before));
    }
    Ok(children)
}

/// Whether the pages are whole on which this lookup key would be, and their neighbours. Then its absence can be believed.
///
/// A new key may be moved together with rows of its neighbours.
pub(super) fn is_whole_around(pages: &Pages, names: &Tree, lookup: &Lookup) -> Result<(), String> {
    let (mut bytes, mut page) = (Vec::new(), Page::default());
    let mut level = vec![(names.root, Bounds::default())];
    for above in 0..DEEPEST {
        let mut next = None;
        for (number, bounds) in level {
            pages.read(number, &mut bytes)?;
            pages.parse(number, &bytes, names.kind, &mut page)?;
            if page.cells.is_empty() && above > 0 {
                return Err(format!("page {number} is empty"));
            }
            let children = parts(names, number, &bytes, &page, bounds)?;
            let is_on_it = bounds.keys.0.is_none_or(|lower| lookup.0 > lower)
                && bounds.keys.1.is_none_or(|upper| lookup.0 < upper);
            if is_on_it && !page.is_leaf {
                let is_in = |(_, bounds): &(u32, Bounds)| {
                    bounds.keys.1.is_none_or(|upper| lookup.0 <= upper)
                };
                let place = children.iter().position(is_in).unwrap_or_default();
                let last = (place + 2).min(children.len());
                next = Some(children[place.saturating_sub(1)..last].to_vec());
            }
        }
        match next {
            Some(children) => level = children,
            None => return Ok(()),
        }
    }
    Err("it is too deep".to_owned())
}
