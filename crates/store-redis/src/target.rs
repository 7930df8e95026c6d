//! The address of a Redis, and the demands on it.

use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;

use redis::io::tcp::TcpSettings;
use redis::{ConnectionInfo, IntoConnectionInfo, ProtocolVersion};

use oncegate_rules::timings::Timings;
use oncegate_store::Durability;

/// The settings of a Redis store.
#[derive(Debug, Clone)]
pub struct Settings {
    pub target: Target,
    /// The least durability; below it nothing is claimed.
    pub durability: Durability,
    /// The declared durability, where CONFIG is not allowed.
    pub declared: Option<Durability>,
    /// A certificate authority to trust instead of the system's, in PEM.
    pub ca: Option<PathBuf>,
    /// The gateway's file of watermarks.
    pub watermarks: PathBuf,
    /// Whether the streams of changes are written.
    pub stream: bool,
    /// Not set by operators.
    pub timings: Timings,
    /// The newest format that the gateway knows. Not set by operators: with an older one than [`FORMAT`](crate::FORMAT) a
    /// gateway is as one of an earlier release.
    pub newest_format: u32,
}

/// The address of a Redis. Printed without its password.
#[derive(Clone)]
pub struct Target {
    pub(super) kind: Kind,
    pub(super) nodes: Vec<ConnectionInfo>,
    shown: String,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Kind {
    /// One master at a fixed address.
    One,
    /// The master of this name, at the address that sentinels give.
    Sentinel {
        name: String,
        db: i64,
    },
    Cluster,
}

impl Target {
    /// Reads a URL `redis://`, `redis+sentinel://` or `redis+cluster://`, or the same with `rediss`
    /// for TLS.
    ///
    /// `redis[+KIND]://[USER:PASSWORD@]HOST[:PORT][,HOST…][/NAME][/DB]`.
    ///
    /// # Errors
    /// A sentence that does not repeat the URL, for it may hold a password.
    pub fn parse(url: &str) -> Result<Self, String> {
        let (scheme, rest) = url.split_once("://").ok_or("this is not a URL")?;
        let (transport, kind) = scheme.split_once('+').unwrap_or((scheme, ""));
        if !matches!(transport, "redis" | "rediss") || !matches!(kind, "" | "sentinel" | "cluster")
        {
            return Err("this is not a Redis scheme".into());
        }
        if rest.contains(['?', '#']) {
            return Err("it cannot have options".into());
        }
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        let at = authority.rfind('@').map_or(0, |at| at + 1);
        let (credentials, hosts) = authority.split_at(at);
        let (kind, db) = match kind {
            "sentinel" => {
                let (name, db) = path.split_once('/').unwrap_or((path, ""));
                if name.is_empty() {
                    let why =
                        "behind the sentinels stands the name of the master, as in …:26379/main";
                    return Err(why.into());
                }
                let (name, db) = (name.to_owned(), number(db)?);
                (Kind::Sentinel { name, db }, 0)
            }
            "cluster" if !matches!(path, "" | "0") => {
                return Err("a cluster has one database only".into());
            }
            "cluster" => (Kind::Cluster, 0),
            _ if hosts.contains(',') => {
                return Err("several hosts are a redis+sentinel:// or a redis+cluster://".into());
            }
            _ => (Kind::One, number(path)?),
        };
        let default_port = match kind {
            Kind::Sentinel { .. } => ":26379",
            Kind::One | Kind::Cluster => "",
        };
        let node = |host: &str| {
            let has_port = host
                .rsplit_once(':')
                .is_some_and(|(_, port)| port.parse::<u16>().is_ok());
            let port = if has_port { "" } else { default_port };
            let info =
                format!("{transport}://{credentials}{host}{port}/{db}").into_connection_info();
            let info = info.map_err(|_| "one of its hosts is not a HOST:PORT".to_owned())?;
            let settings = info.redis_settings().clone();
            let settings = settings.set_protocol(ProtocolVersion::RESP3);
            let settings = settings.set_skip_set_lib_name();
            Ok(info
                .set_redis_settings(settings)
                .set_tcp_settings(no_delay()))
        };
        let nodes: Result<_, String> = hosts.split(',').map(node).collect();
        let slash = if path.is_empty() { "" } else { "/" };
        Ok(Self {
            kind,
            nodes: nodes?,
            shown: format!("{scheme}://{hosts}{slash}{path}"),
        })
    }

    /// Whether the data is on several masters.
    pub fn is_cluster(&self) -> bool {
        self.kind == Kind::Cluster
    }

    /// Whether a connection without TLS leads to another machine.
    pub fn is_plain_and_remote(&self) -> bool {
        self.nodes.iter().any(|node| match node.addr() {
            redis::ConnectionAddr::Tcp(host, _) => {
                let address: Result<IpAddr, _> = host.trim_matches(['[', ']']).parse();
                host != "localhost" && !address.is_ok_and(|address| address.is_loopback())
            }
            _ => false,
        })
    }
}

pub(super) fn no_delay() -> TcpSettings {
    TcpSettings::default().set_nodelay(true)
}

fn number(db: &str) -> Result<i64, String> {
    match db {
        "" => Ok(0),
        db => db
            .parse()
            .map_err(|_| "what stands after the host is not a number of a database; a / in a password is written %2F".into()),
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.shown.fmt(f)
    }
}

impl fmt::Debug for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_of_url_is_read_and_shown_without_its_password() {
        let shown = |url| Target::parse(url).expect(url).to_string();
        assert_eq!(shown("redis://localhost"), "redis://localhost");
        assert_eq!(
            shown("rediss://gate:s3cret@redis.internal:6380/2"),
            "rediss://redis.internal:6380/2"
        );
        let sentinel =
            Target::parse("redis+sentinel://:s3cret@a,b:26380/main/1").expect("a target");
        assert_eq!(
            sentinel.kind,
            Kind::Sentinel {
                name: "main".into(),
                db: 1
            }
        );
        assert_eq!(sentinel.nodes[0].addr().to_string(), "a:26379");
        assert_eq!(format!("{sentinel:?}"), "redis+sentinel://a,b:26380/main/1");
        assert_eq!(
            Target::parse("redis+cluster://a:1,b:2")
                .expect("a target")
                .nodes
                .len(),
            2
        );
        assert!(
            Target::parse("redis://10.0.0.1")
                .expect("a target")
                .is_plain_and_remote()
        );
        assert!(
            !Target::parse("rediss://10.0.0.1")
                .expect("a target")
                .is_plain_and_remote()
        );
    }

    #[test]
    fn a_wrong_url_is_refused_without_repeating_it() {
        for url in [
            "redis",
            "http://h",
            "redis+x://h",
            "redis://a,b",
            "redis+sentinel://a:1",
            "redis://h/x",
            "redis://h/0?x=y",
            "redis+cluster://a/3",
            "redis://:ab/s3cret@h:1",
            "redis://:/s3cret@h",
            "redis+sentinel://:a/s3cret/s3cret@h/main",
        ] {
            let why = Target::parse(url).err();
            assert!(why.is_some_and(|why| !why.contains("s3cret")), "{url}");
        }
        assert!(
            !Target::parse("redis://u:s3cret@h/x")
                .expect_err("no number")
                .contains("s3cret")
        );
    }
}
