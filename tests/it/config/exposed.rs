//! A configuration file that other users may read.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use crate::support::binary::run;

#[test]
fn a_file_with_secrets_that_others_may_read_is_warned_about() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("oncegate.toml");
    let said = |config: &str, mode: u32| {
        fs::write(&path, config).expect("written");
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("set");
        let checked = run(folder.path(), &["check", "--config", "oncegate.toml"]);
        assert!(checked.status.success(), "{checked:?}");
        String::from_utf8(checked.stdout).expect("text")
    };
    let key = "0".repeat(64);
    let sealed = |key: &str| {
        format!("[store]\nurl = \"sqlite:oncegate.db\"\nencryption_keys = [\"{key}\"]\n")
    };
    let with_header = "[store]\nurl = \"sqlite:oncegate.db\"\n[tools.act]\nurl = \"https://a.example/\"\n\
                       headers = { Authorization = \"Bearer x\" }\n";
    for (config, named) in [
        (sealed(&key).as_str(), "store.encryption_keys"),
        (with_header, "tools.act.headers.Authorization"),
        (
            "[store]\nurl = \"redis://gate:hidden@127.0.0.1:6379\"\n",
            "store.url",
        ),
    ] {
        for mode in [0o644, 0o604, 0o602] {
            let said = said(config, mode);
            assert!(
                said.contains("other users may read or write it") && said.contains(named),
                "{said}"
            );
            assert!(!said.contains("hidden") && !said.contains(&key), "{said}");
        }
        for mode in [0o600, 0o640] {
            let said = said(config, mode);
            assert!(!said.contains("other users"), "{said}");
        }
    }
    let without = said("[store]\nurl = \"sqlite:oncegate.db\"\n", 0o644);
    assert!(!without.contains("other users"), "{without}");
}
