use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use super::*;

fn parsed(url: &str) -> Target {
    Target::parse(url).expect(url)
}

#[test]
fn a_url_is_read_and_shown_without_its_password() {
    let target =
        parsed("postgres://gate:s3cret@db1.internal:6432,db2.internal/money?sslmode=verify-full");
    assert_eq!(
        target.to_string(),
        "postgres://gate@db1.internal:6432,db2.internal/money"
    );
    assert_eq!(target.config.get_ports(), [6_432, 5_432]);
    assert_eq!(target.config.get_password(), Some(&b"s3cret"[..]));
    assert_eq!(target.user(), "gate");
    assert!(!format!("{target:?}").contains("s3cret"));
    let local = parsed("postgresql://gate@%2Frun%2Fpostgresql/money");
    assert!(
        matches!(&local.config.get_hosts()[0], Host::Unix(path) if path == Path::new("/run/postgresql"))
    );
    assert_eq!(parsed("postgres://g@[::1]:5/d").config.get_ports(), [5]);
}

#[test]
fn a_certificate_is_verified_unless_the_server_is_on_this_machine_or_the_url_says_otherwise() {
    for (url, has_tls) in [
        ("postgres://g@db/d", true),
        ("postgres://g@127.0.0.1/d", false),
        ("postgres://g@localhost/d?sslmode=verify-full", true),
        ("postgres://g@localhost,db/d", true),
        ("postgres://g@db/d?sslmode=disable", false),
        (
            "postgres://g@db/d?sslmode=require&sslrootcert=/ca.pem",
            true,
        ),
    ] {
        assert_eq!(parsed(url).has_tls, has_tls, "{url}");
    }
    assert!(parsed("postgres://g@db/d?sslmode=disable").is_plain_and_remote());
    assert!(!parsed("postgres://g@localhost/d").is_plain_and_remote());
    let why = Target::parse("postgres://g@db/d?sslmode=require").expect_err("refused");
    assert!(why.contains("checks no certificate"), "{why}");
}

#[test]
fn a_wrong_url_is_refused_without_repeating_it() {
    for url in [
        "postgres",
        "mysql://g:s3cret@h/d",
        "postgres://h/d",
        "postgres://g:s3cret@h",
        "postgres://g:s3cret@/d",
        "postgres://:s3cret@h/d",
        "postgres://g:s3cret@h:x/d",
        "postgres://g:s3cret@h/d/e",
        "postgres://g:s3#cret@h/d",
        "postgres://g:s3cret@h/d?sslmode=prefer",
        "postgres://g:s3cret@h/d?target_session_attrs=any",
        "postgres://g:s3cret@h/d?options=s3cret",
    ] {
        let why = Target::parse(url).err();
        assert!(why.is_some_and(|why| !why.contains("s3")), "{url}");
    }
}

#[test]
fn the_first_line_of_a_passfile_that_fits_has_the_password() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("pass");
    let lines = "# h:*:*:*:no\nother:*:*:*:no\nh:5432:d:g:a\\:b:c\\\\\n*:*:*:*:no\n";
    fs::write(&file, lines).expect("written");
    let url = format!("postgres://g@h/d?passfile={}", file.display());
    assert_eq!(parsed(&url).config.get_password(), Some(&b"a:b:c\\"[..]));
    fs::set_permissions(&file, fs::Permissions::from_mode(0o666)).expect("set");
    let why = Target::parse(&url).expect_err("others may write it");
    assert!(why.contains("is not used"), "{why}");
}

#[test]
fn a_schema_is_a_plain_word() {
    for name in ["oncegate", "_a", "a1_b"] {
        assert!(Schema::parse(name).is_ok(), "{name}");
    }
    for name in ["", "1a", "A", "a b", "a\"", "pg_x", &"a".repeat(41)] {
        assert!(Schema::parse(name).is_err(), "{name}");
    }
}
