//! Whether files can be kept beside the database: its log and its watermarks lie there.
//!
//! A file that is mounted by itself takes only its own bytes along. With the log the newest commits would be lost.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{Access, AtFlags, CWD, accessat};
use rustix::io::Errno;

use crate::error::OpenError;

/// The mounts of this process. Only Linux has it.
const MOUNTS: &str = "/proc/self/mountinfo";

/// Refuses a database that is a mount point, and one whose folder cannot be written. `path` has no links.
///
/// # Errors
/// Says which of both.
pub(crate) fn check(path: &Path) -> Result<(), OpenError> {
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    if is_of_another_device(path, folder)
        || fs::read(MOUNTS).is_ok_and(|mounts| is_mount_point(&mounts, path))
    {
        return Err(OpenError::Mounted(path.to_owned()));
    }
    let needed = Access::WRITE_OK | Access::EXEC_OK;
    match accessat(CWD, folder, needed, AtFlags::EACCESS) {
        Err(why @ (Errno::ACCESS | Errno::ROFS)) => {
            Err(OpenError::Folder(folder.to_owned(), io::Error::from(why)))
        }
        // Whatever else is wrong, such as a kernel without this question, opening the files tells.
        _ => Ok(()),
    }
}

fn is_of_another_device(path: &Path, folder: &Path) -> bool {
    let device = |path| fs::symlink_metadata(path).map(|file| file.dev()).ok();
    device(path).is_some_and(|of_file| device(folder).is_some_and(|device| of_file != device))
}

/// Whether a list of mounts, as Linux prints it, has one at this path.
fn is_mount_point(mounts: &[u8], path: &Path) -> bool {
    let at = |line: &[u8]| {
        let point = line.split(|byte| *byte == b' ').nth(4)?;
        Some(PathBuf::from(OsString::from_vec(unescaped(point))))
    };
    let mut lines = mounts.split(|byte| *byte == b'\n');
    lines.any(|line| at(line).is_some_and(|point| point == path))
}

/// `\040` is a space: blanks and backslashes are printed as three octal digits.
fn unescaped(text: &[u8]) -> Vec<u8> {
    let (mut plain, mut rest) = (Vec::with_capacity(text.len()), text);
    while let Some((first, behind)) = rest.split_first() {
        let octal = |digits: &[u8]| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 8).ok();
        match behind.split_at_checked(3) {
            Some((digits, behind)) if *first == b'\\' && octal(digits).is_some() => {
                plain.extend(octal(digits));
                rest = behind;
            }
            _ => {
                plain.push(*first);
                rest = behind;
            }
        }
    }
    plain
}

/// Whether the file is on NFS, SMB or 9P. Only Linux is asked.
pub(crate) fn on_network(path: &Path) -> bool {
    #[cfg(target_os = "linux")]
    {
        const NETWORK: [u32; 5] = [0x6969, 0x517b, 0xff53_4d42, 0xfe53_4d42, 0x0102_1997];
        let kind =
            rustix::fs::statfs(super::beside(path, ".lock")).map(|system| system.f_type as u32);
        kind.is_ok_and(|kind| NETWORK.contains(&kind))
    }
    #[cfg(not(target_os = "linux"))]
    {
        let _ = path;
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNTS: &[u8] = b"21 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw\n\
        36 21 8:1 /srv/kept.db /state/oncegate.db rw - ext4 /dev/sda1 rw\n\
        37 21 0:30 / /with\\040space/a\\134b.db rw - tmpfs tmpfs rw\n\
        38 21 0:31 / /volume rw - tmpfs tmpfs rw\n";

    #[test]
    fn a_mounted_file_is_found_by_its_whole_path() {
        for path in ["/state/oncegate.db", "/with space/a\\b.db", "/volume"] {
            assert!(is_mount_point(MOUNTS, Path::new(path)), "{path}");
        }
        for path in [
            "/state",
            "/state/oncegate.db-wal",
            "/oncegate.db",
            "/volume/oncegate.db",
            "/srv/kept.db",
        ] {
            assert!(!is_mount_point(MOUNTS, Path::new(path)), "{path}");
        }
    }

    #[test]
    fn a_file_of_another_device_than_its_folder_is_mounted() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("oncegate.db");
        assert!(!is_of_another_device(&file, folder.path()), "it is missing");
        fs::write(&file, "").expect("made");
        assert!(!is_of_another_device(&file, folder.path()));
        assert!(is_of_another_device(&file, Path::new("/dev")));
        check(&file).expect("it is in order");
    }
}
