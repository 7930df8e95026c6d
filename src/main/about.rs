//! What the program says of itself: its version, manual pages, and completions for shells.

use std::path::Path;

use clap::CommandFactory;
use clap_complete::Shell;

use super::{Arguments, Failure};

/// The version. `make install` and `make dist` put the commit behind it.
pub(super) const VERSION: &str = match option_env!("ONCEGATE_VERSION") {
    Some(version) => version,
    None => env!("CARGO_PKG_VERSION"),
};

/// The script that makes this shell complete the commands.
pub(super) fn completions(shell: Shell) -> String {
    let mut script = Vec::new();
    clap_complete::generate(
        shell,
        &mut Arguments::command(),
        env!("CARGO_PKG_NAME"),
        &mut script,
    );
    String::from_utf8_lossy(&script).into_owned()
}

/// Writes `oncegate.1`, and a page for each command, into an existing folder.
///
/// # Errors
/// A page cannot be written.
pub(super) fn manual(folder: &Path) -> Result<(), Failure> {
    let written = clap_mangen::generate_to(Arguments::command(), folder);
    written.map_err(|error| format!("{}: {error}", folder.display()).into())
}
