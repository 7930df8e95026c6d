//! Files of one gateway. Only its user may read them, and links are not followed.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, ErrorKind};
use std::ops::Deref;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::OFlags;
use rustix::io::Errno;

use super::Reason;

const MODE: u32 = 0o600;
/// The permissions of other users to write.
const OTHERS_WRITE: u32 = 0o022;
const STICKY: u32 = 0o1000;
/// The permissions of other users.
const OTHERS: u32 = 0o077;

/// Opens a file for reading and writing, and makes it if it is missing. Never truncates it.
///
/// # Errors
/// It cannot be opened, or is a symbolic link, no regular file, or one with a second name (a hard link).
pub fn open(path: &Path) -> io::Result<File> {
    alone(open_by_any_name(path)?)
}

/// The same, but the file may have several names.
///
/// # Errors
/// As [`open`].
pub fn open_by_any_name(path: &Path) -> io::Result<File> {
    opened(
        path,
        File::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false),
    )
}

/// Opens a file that exists.
///
/// # Errors
/// As [`open`], or the file is missing.
pub fn open_existing(path: &Path) -> io::Result<File> {
    alone(opened(path, File::options().read(true).write(true))?)
}

/// Makes a new file. Unlinks an old one of the same name first.
///
/// # Errors
/// It cannot be made, or the name belongs to something other than a file.
pub fn make_anew(path: &Path) -> io::Result<File> {
    match fs::symlink_metadata(path) {
        Ok(old) if old.is_file() => fs::remove_file(path)?,
        Ok(_) => return Err(refused("it is a symbolic link, or no regular file")),
        // It is missing. Or it cannot be looked at: then it cannot be made either, and that error is returned.
        Err(_) => {}
    }
    opened(path, File::options().write(true).create_new(true))
}

fn opened(path: &Path, options: &mut OpenOptions) -> io::Result<File> {
    // `NONBLOCK`, because opening a pipe would wait for another process.
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits();
    let file = options
        .mode(MODE)
        .custom_flags(flags.cast_signed())
        .open(path)
        .map_err(
            |error| match error.raw_os_error().map(Errno::from_raw_os_error) {
                Some(Errno::LOOP) => refused("it is a symbolic link, which is not followed"),
                _ => error,
            },
        )?;
    if !file.metadata()?.is_file() {
        return Err(refused("it is not a regular file"));
    }
    Ok(file)
}

fn alone(file: File) -> io::Result<File> {
    if file.metadata()?.nlink() > 1 {
        return Err(refused("it has another name (a hard link)"));
    }
    Ok(file)
}

fn refused(why: &str) -> io::Error {
    io::Error::new(ErrorKind::InvalidInput, why)
}

/// A file that no other process can lock until this is dropped.
///
/// Closing the file alone would not unlock it at once: a child process that is just being started has a copy of it until it
/// runs its own program (flock(2)).
pub struct Locked(File);

impl Locked {
    /// Locks a file.
    ///
    /// # Errors
    /// It is locked already, or this file system has no locks.
    pub fn new(file: File) -> Result<Self, TryLockError> {
        file.try_lock()?;
        Ok(Self(file))
    }
}

impl Deref for Locked {
    type Target = File;

    fn deref(&self) -> &File {
        &self.0
    }
}

impl Drop for Locked {
    fn drop(&mut self) {
        // If this fails, the file is unlocked when its last copy is closed.
        self.0.unlock().ok();
    }
}

/// Whether the path is a symbolic link.
pub fn is_link(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|file| file.is_symlink())
}

/// The warning about files that others may read or write.
pub fn exposed<'a>(paths: impl Iterator<Item = &'a Path>) -> Option<Reason> {
    let is_exposed =
        |path: &&Path| fs::symlink_metadata(path).is_ok_and(|file| file.mode() & OTHERS != 0);
    let names: Vec<String> = paths
        .filter(is_exposed)
        .map(|path| path.display().to_string())
        .collect();
    if names.is_empty() {
        return None;
    }
    let text = format!(
        "other users may read or write {}; chmod 600",
        names.join(", ")
    );
    Some(Reason::new("files_exposed", text))
}

/// Why a file or a folder of this user alone is not to be trusted; `None`: it is in order, or missing.
///
/// A link to it is followed.
pub fn distrust(path: &Path) -> Option<String> {
    let found = fs::metadata(path).ok()?;
    let who = rustix::process::geteuid().as_raw();
    let why = distrusted(found.is_dir(), found.uid(), found.mode(), who)?;
    Some(format!("{}: {why}", path.display()))
}

fn distrusted(is_folder: bool, owner: u32, mode: u32, who: u32) -> Option<&'static str> {
    let is_roots_folder = is_folder && owner == 0;
    // In a folder like /tmp each user may change the own files only.
    let is_sticky = is_folder && mode & STICKY != 0;
    if owner != who && !is_roots_folder {
        Some("it belongs to another user")
    } else if mode & OTHERS_WRITE != 0 && !is_sticky {
        Some("other users may write there; chmod go-w")
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn a_file_with_a_second_name_is_opened_only_where_several_names_are_allowed() {
        let folder = tempfile::tempdir().expect("a folder");
        let (path, second) = (folder.path().join("file"), folder.path().join("second"));
        drop(open(&path).expect("made"));
        drop(open_existing(&path).expect("it has one name"));
        fs::hard_link(&path, &second).expect("a second name");
        for name in [&path, &second] {
            for opened in [open(name), open_existing(name)] {
                let why = opened.expect_err("refused").to_string();
                assert!(why.contains("hard link"), "{why}");
            }
            open_by_any_name(name).expect("opened");
        }
        fs::remove_file(&second).expect("removed");
        open(&path).expect("it has one name again");
    }

    /// A child process that is being started has a copy of each open file.
    #[test]
    fn a_lock_ends_when_it_is_dropped_though_a_copy_of_its_file_is_open() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("file");
        let lock = || Locked::new(open(&path).expect("opened"));
        let first = lock().expect("locked");
        let copy = first.try_clone().expect("a copy");
        assert!(matches!(lock(), Err(TryLockError::WouldBlock)));
        drop(first);
        lock().expect("locked again");
        drop(copy);
    }

    #[test]
    fn what_belongs_to_others_or_may_be_written_by_them_is_not_trusted() {
        let (me, root, other) = (1_000, 0, 1_001);
        for mode in [0o600, 0o700, 0o755, 0o644] {
            assert_eq!(distrusted(false, me, mode, me), None, "{mode:o}");
            assert_eq!(distrusted(true, me, mode, me), None, "{mode:o}");
            assert!(distrusted(false, other, mode, me).is_some(), "{mode:o}");
            assert!(distrusted(true, other, mode, me).is_some(), "{mode:o}");
            assert!(distrusted(false, root, mode, me).is_some(), "{mode:o}");
            assert!(distrusted(true, other, mode, root).is_some(), "{mode:o}");
        }
        for mode in [0o720, 0o702, 0o777, 0o1666] {
            assert!(distrusted(false, me, mode, me).is_some(), "{mode:o}");
        }
        assert!(distrusted(true, me, 0o770, me).is_some());
        assert_eq!(distrusted(true, root, 0o1777, me), None, "as /tmp");
        assert!(distrusted(true, root, 0o777, me).is_some());
    }

    #[test]
    fn a_link_is_refused_with_the_reason() {
        let folder = tempfile::tempdir().expect("a folder");
        let (file, link) = (folder.path().join("file"), folder.path().join("link"));
        drop(open(&file).expect("made"));
        symlink(&file, &link).expect("a link");
        for opened in [open(&link), open_existing(&link), open_by_any_name(&link)] {
            let why = opened.expect_err("refused").to_string();
            assert_eq!(why, "it is a symbolic link, which is not followed");
        }
        make_anew(&link).expect_err("refused");
        assert!(is_link(&link) && file.exists());
    }

    #[test]
    fn a_file_is_made_anew_in_the_place_of_an_old_one_or_of_none() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("file");
        drop(make_anew(&path).expect("made"));
        fs::write(&path, "old").expect("written");
        drop(make_anew(&path).expect("made anew"));
        assert_eq!(fs::read(&path).expect("read"), b"");
        let beneath = make_anew(&path.join("beneath")).expect_err("a file is not a folder");
        assert_eq!(beneath.kind(), ErrorKind::NotADirectory);
    }
}
