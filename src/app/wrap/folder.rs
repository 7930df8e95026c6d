//! Where files of calls lie, and that they are their user's.

use std::path::{Path, PathBuf};

use crate::app::Error;
use crate::config::Environment;
use crate::store::distrust;

/// Where the files of wrapped servers lie; `None`: nothing says where the user's files are.
pub fn data_folder(environment: &Environment) -> Option<PathBuf> {
    let of_user = if cfg!(target_os = "macos") {
        "Library/Application Support"
    } else {
        ".local/share"
    };
    let data = environment.get("XDG_DATA_HOME").map(PathBuf::from);
    let data = data.filter(|folder| folder.is_absolute());
    let home = environment.get("HOME").map(Path::new);
    let data = data.or_else(|| Some(home?.join(of_user)));
    data.map(|data| data.join("oncegate/wrap"))
}

/// # Errors
/// One of these is another user's, or others may write there: they would decide which calls count as executed.
pub(super) fn must_be_ours<'a>(paths: impl Iterator<Item = &'a Path>) -> Result<(), Error> {
    for path in paths {
        if let Some(why) = distrust(path) {
            return Err(Error::Other(why));
        }
    }
    Ok(())
}
