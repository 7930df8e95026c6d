//! What every page has: its address, its head and menu, its files, and how times, states and texts are shown.

pub(crate) mod address; // addresses of pages, and their parameters
pub(crate) mod assets; // the script, the stylesheet and their addresses
pub(crate) mod page; // head, menu and footer
pub(crate) mod things; // lists of what needs an operator
pub(crate) mod words; // times, states and texts, as people read them
