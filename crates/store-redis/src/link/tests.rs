use std::io;

use redis::make_extension_error;

use super::*;

const fn server(kind: ServerErrorKind) -> ErrorKind {
    ErrorKind::Server(kind)
}

fn failure(kind: ErrorKind) -> RedisError {
    (kind, "a test").into()
}

/// All else may have run: after a refusal a caller begins anew, and would do twice what ran.
#[test]
fn only_what_surely_did_not_run_is_refused() {
    let target = Target::parse("redis://127.0.0.1:6379").expect("a target");
    let link = Link::new(target, None);
    let is_refused = |error: RedisError| matches!(link.judge(&error), Error::Refused(_));
    for kind in [
        server(ServerErrorKind::BusyLoading),
        server(ServerErrorKind::NoScript),
        server(ServerErrorKind::Moved),
        server(ServerErrorKind::Ask),
        server(ServerErrorKind::TryAgain),
        server(ServerErrorKind::ClusterDown),
        server(ServerErrorKind::CrossSlot),
        server(ServerErrorKind::MasterDown),
        server(ServerErrorKind::ReadOnly),
        ErrorKind::AuthenticationFailed,
        ErrorKind::ClusterConnectionNotFound,
        ErrorKind::InvalidClientConfig,
        ErrorKind::MasterNameNotFoundBySentinel,
        ErrorKind::EmptySentinelList,
    ] {
        assert!(is_refused(failure(kind)), "{kind:?}");
    }
    for kind in [
        server(ServerErrorKind::ResponseError),
        server(ServerErrorKind::ExecAbort),
        ErrorKind::Parse,
        ErrorKind::UnexpectedReturnType,
        ErrorKind::Client,
        ErrorKind::Io,
    ] {
        assert!(!is_refused(failure(kind)), "{kind:?}");
    }
    for code in [
        "OOM",
        "NOREPLICAS",
        "MISCONF",
        "BUSY",
        "NOAUTH",
        "WRONGPASS",
    ] {
        assert!(
            is_refused(make_extension_error(code.into(), None)),
            "{code}"
        );
    }
    assert!(!is_refused(make_extension_error("ELSE".into(), None)));
    assert!(is_refused(
        io::Error::from(io::ErrorKind::ConnectionRefused).into()
    ));
    for kind in [io::ErrorKind::BrokenPipe, io::ErrorKind::TimedOut] {
        assert!(!is_refused(io::Error::from(kind).into()), "{kind:?}");
    }
}

#[test]
fn only_what_surely_did_not_run_is_sent_again() {
    for kind in [
        server(ServerErrorKind::Moved),
        server(ServerErrorKind::Ask),
        server(ServerErrorKind::TryAgain),
        ErrorKind::ClusterConnectionNotFound,
    ] {
        assert!(has_not_run(&failure(kind)), "{kind:?}");
    }
    for kind in [
        server(ServerErrorKind::ResponseError),
        server(ServerErrorKind::NoScript),
        server(ServerErrorKind::ClusterDown),
        ErrorKind::Io,
    ] {
        assert!(!has_not_run(&failure(kind)), "{kind:?}");
    }
    assert!(lacks_script(&failure(server(ServerErrorKind::NoScript))));
    assert!(!lacks_script(&failure(server(
        ServerErrorKind::ResponseError
    ))));
    assert!(!lacks_script(&failure(ErrorKind::Io)));
}

#[test]
fn only_while_a_slot_moves_a_command_goes_elsewhere() {
    let redirect =
        |kind, to: &str| -> RedisError { (server(kind), "a test", to.to_owned()).into() };
    let there = SingleNodeRoutingInfo::ByAddress {
        host: "127.0.0.1".into(),
        port: 7_001,
    };
    let moving = redirect(ServerErrorKind::Ask, "9 127.0.0.1:7001");
    assert_eq!(asks_elsewhere(&moving), Some(there));
    let moved = redirect(ServerErrorKind::Moved, "9 127.0.0.1:7001");
    assert_eq!(asks_elsewhere(&moved), None, "it is sent again by itself");
    for nowhere in ["", "9", "9 127.0.0.1", "9 127.0.0.1:none"] {
        let nowhere = redirect(ServerErrorKind::Ask, nowhere);
        assert_eq!(asks_elsewhere(&nowhere), None, "{nowhere}");
    }
}
