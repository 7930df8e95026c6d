//! The pages of the file as bytes, and whether one page is whole. Must not know what is in them.
//!
//! The rules are those of SQLite's own check, and of its description of the file format: every cell lies on its page, no byte
//! is used twice, and the bytes that nothing uses are as many as the page says.

use std::io;
use std::ops::Range;
use std::sync::Arc;

use rusqlite::Connection;

use crate::files::Files;
use crate::query::pragma;

/// The byte that SQLite locks, whose page is never used.
const LOCKED_BYTE: usize = 1 << 30;

/// The two kinds of trees: rows by their numbers, or keys alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Rows,
    Keys,
}

/// The file, whose pages do not change while they are read.
#[derive(Clone)]
pub(super) struct Pages {
    files: Arc<Files>,
    size: usize,
    /// Bytes of a page that SQLite uses.
    pub(super) usable: usize,
    pub(super) count: u32,
    /// Whether maps say what each page is for. Only files that become shorter by themselves have them.
    pub(super) has_maps: bool,
    pub(super) free: u32,
    pub(super) first_free: u32,
}

/// A cell of a page.
#[derive(Debug, Clone)]
pub(super) struct Cell {
    at: usize,
    size: usize,
    /// The page with what comes before it; 0 on a leaf.
    pub(super) child: u32,
    /// The number of a row.
    pub(super) number: i64,
    /// The bytes of the content that are on this page.
    pub(super) content: Range<usize>,
    /// The first of the further pages of the content, and how many there are.
    pub(super) further: Option<(u32, usize)>,
}

/// A page whose own bytes are in order.
#[derive(Debug, Default)]
pub(super) struct Page {
    pub(super) is_leaf: bool,
    /// The page with what comes after all cells; 0 on a leaf.
    pub(super) last_child: u32,
    pub(super) cells: Vec<Cell>,
}

pub(super) fn two(bytes: &[u8], at: usize) -> usize {
    usize::from(u16::from_be_bytes([bytes[at], bytes[at + 1]]))
}

pub(super) fn four(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

impl Pages {
    /// `None`: the file by itself is not what this connection sees; part of it is in the log.
    ///
    /// The connection has begun to read, with a log of which everything is in the file.
    ///
    /// # Errors
    /// The file cannot be read.
    pub(super) fn of(files: Arc<Files>, connection: &Connection) -> io::Result<Option<Self>> {
        let mut head = [0; 100];
        files.read_at(&mut head, 0)?;
        let size = match two(&head, 16) {
            1 => 1 << 16,
            size => size,
        };
        let pages = Self {
            files,
            size,
            usable: size.saturating_sub(head[20].into()),
            count: four(&head, 28),
            has_maps: four(&head, 52) != 0,
            free: four(&head, 36),
            first_free: four(&head, 32),
        };
        let says = |name, number: u64| {
            let said = pragma::<i64>(connection, name).ok().flatten();
            said.is_some_and(|said| said.unsigned_abs() == number)
        };
        let is_alone = pages.usable >= 480
            && four(&head, 24) == four(&head, 92)
            && says("page_size", size as u64)
            && says("page_count", pages.count.into())
            && says("freelist_count", pages.free.into());
        Ok(is_alone.then_some(pages))
    }

    /// Reads a page.
    ///
    /// # Errors
    /// It is not there, or the disk does not give it.
    pub(super) fn read(&self, number: u32, bytes: &mut Vec<u8>) -> Result<(), String> {
        bytes.resize(self.size, 0);
        self.read_beginning(number, bytes)
    }

    /// Reads the first bytes of a page.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub(super) fn read_beginning(&self, number: u32, bytes: &mut [u8]) -> Result<(), String> {
        if number == 0 || number > self.count {
            return Err(format!("there is no page {number}"));
        }
        let at = u64::from(number - 1) * self.size as u64;
        let read = self.files.read_at(bytes, at);
        read.map_err(|error| format!("page {number} cannot be read: {error}"))
    }

    /// Tells the system that these pages are read soon.
    pub(super) fn expect(&self, numbers: impl Iterator<Item = u32>) {
        for number in numbers {
            let at = u64::from(number.saturating_sub(1)) * self.size as u64;
            self.files.expect(at, self.size as u64);
        }
    }

    /// Whether the page is of no tree by its number alone.
    pub(super) fn is_special(&self, number: u32) -> bool {
        number == self.locked_page() || (self.has_maps && self.map_of(number) == number)
    }

    fn locked_page(&self) -> u32 {
        u32::try_from(LOCKED_BYTE / self.size + 1).unwrap_or(u32::MAX)
    }

    /// The page whose map has this page.
    fn map_of(&self, number: u32) -> u32 {
        let each = u32::try_from(self.usable / 5 + 1).unwrap_or(u32::MAX);
        let map = number.saturating_sub(2) / each * each + 2;
        map + u32::from(map == self.locked_page())
    }

    /// What the map says that a page is for: 2 means that nothing uses it. `map`: the map that was read last.
    pub(super) fn purpose(&self, number: u32, map: &mut (u32, Vec<u8>)) -> Result<u8, String> {
        let of = self.map_of(number);
        if map.0 != of {
            self.read(of, &mut map.1)?;
            map.0 = of;
        }
        let at = 5 * number.saturating_sub(of + 1) as usize;
        let purpose = map.1.get(at).copied().filter(|_| number > of);
        purpose.ok_or_else(|| format!("no map has page {number}"))
    }

    /// Takes a page apart.
    ///
    /// # Errors
    /// Its bytes contradict each other.
    pub(super) fn parse(
        &self,
        number: u32,
        bytes: &[u8],
        kind: Kind,
        page: &mut Page,
    ) -> Result<(), String> {
        page.cells.clear();
        let trouble = |why: &str| Err(format!("page {number}: {why}"));
        let head = if number == 1 { 100 } else { 0 };
        page.is_leaf = match (kind, bytes[head]) {
            (Kind::Rows, 0x0d) | (Kind::Keys, 0x0a) => true,
            (Kind::Rows, 0x05) | (Kind::Keys, 0x02) => false,
            _ => return trouble("it is not of this tree"),
        };
        let count = two(bytes, head + 3);
        let begins = match two(bytes, head + 5) {
            0 => 1 << 16,
            begins => begins,
        };
        let pointers = head + if page.is_leaf { 8 } else { 12 };
        if pointers + 2 * count > begins || begins > self.usable {
            return trouble("its head is damaged");
        }
        page.last_child = if page.is_leaf {
            0
        } else {
            four(bytes, head + 8)
        };
        for n in 0..count {
            let at = two(bytes, pointers + 2 * n);
            if at < begins || at > self.usable - 4 {
                return trouble("a cell is not on it");
            }
            match self.cell(bytes, at, kind, page.is_leaf) {
                Some(cell) if cell.at + cell.size <= self.usable => page.cells.push(cell),
                _ => return trouble("a cell is longer than it"),
            }
        }
        if self.unused(bytes, head, begins, &page.cells) != Some(bytes[head + 7].into()) {
            return trouble("its bytes are used twice, or lost");
        }
        Ok(())
    }

    /// A cell. `None`: it is damaged.
    fn cell(&self, bytes: &[u8], at: usize, kind: Kind, is_leaf: bool) -> Option<Cell> {
        let child = if is_leaf { 0 } else { four(bytes, at) };
        let mut next = if is_leaf { at } else { at + 4 };
        let has_content = is_leaf || kind == Kind::Keys;
        let length = if has_content {
            usize::try_from(varint(bytes, &mut next)?).ok()?
        } else {
            0
        };
        let number = match kind {
            Kind::Rows => varint(bytes, &mut next)?.cast_signed(),
            Kind::Keys => 0,
        };
        // How much of a long content is on the page itself follows from its length.
        let least = (self.usable - 12) * 32 / 255 - 23;
        let most = match kind {
            Kind::Rows => self.usable - 35,
            Kind::Keys => (self.usable - 12) * 64 / 255 - 23,
        };
        let here = if length <= most {
            length
        } else {
            let here = least + (length - least) % (self.usable - 4);
            if here <= most { here } else { least }
        };
        let content = next..next + here;
        if content.end > self.usable || (length > 0 && bytes[next] < 2) {
            return None;
        }
        let (mut end, mut further) = (content.end, None);
        if here < length {
            if end + 4 > self.usable {
                return None;
            }
            let pages = (length - here).div_ceil(self.usable - 4);
            further = Some((four(bytes, end), pages));
            end += 4;
        }
        Some(Cell {
            at,
            size: (end - at).max(4),
            child,
            number,
            content,
            further,
        })
    }

    /// How many bytes between the cells nothing uses and no list has. `None`: some are used twice.
    fn unused(&self, bytes: &[u8], head: usize, begins: usize, cells: &[Cell]) -> Option<usize> {
        let mut used: Vec<(usize, usize)> = cells.iter().map(|cell| (cell.at, cell.size)).collect();
        let mut free = two(bytes, head + 1);
        let mut before = 0;
        while free > 0 {
            if free <= before || free > self.usable - 4 {
                return None;
            }
            let size = two(bytes, free + 2);
            if size < 4 {
                return None;
            }
            used.push((free, size));
            before = free;
            free = two(bytes, free);
        }
        used.sort_unstable();
        let (mut unused, mut end) = (0, begins);
        for (at, size) in used {
            unused += at.checked_sub(end)?;
            end = at + size;
        }
        Some(unused + self.usable.checked_sub(end)?)
    }
}

/// A number of one to nine bytes.
fn varint(bytes: &[u8], at: &mut usize) -> Option<u64> {
    let mut number = 0_u64;
    for n in 0..9 {
        let byte = *bytes.get(*at)?;
        *at += 1;
        if n == 8 {
            return Some(number << 8 | u64::from(byte));
        }
        number = number << 7 | u64::from(byte & 0x7f);
        if byte < 0x80 {
            break;
        }
    }
    Some(number)
}
