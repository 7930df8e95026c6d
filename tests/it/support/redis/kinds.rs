//! Redis behind TLS, as a cluster, and watched by a sentinel.

use super::*;

/// A server that also listens with TLS, with a certificate for `localhost` and 127.0.0.1.
pub struct TlsRedis {
    pub redis: Redis,
    pub tls_port: u16,
    /// The certificate of those who signed the server's, as a file.
    pub ca: PathBuf,
    _certificates: TempDir,
}

impl TlsRedis {
    pub async fn start() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let file = |name: &str| folder.path().join(name);
        certify(&file("ca.pem"), &file("server.pem"), &file("server.key"));
        let path = |name: &str| file(name).to_str().expect("a path in UTF-8").to_owned();
        let (ca, certificate, key) = (path("ca.pem"), path("server.pem"), path("server.key"));
        let with_tls = |tls_port: u16| {
            let tls_port = tls_port.to_string();
            let listener = [("tls-port", tls_port.as_str()), ("tls-auth-clients", "no")];
            let files = [
                ("tls-ca-cert-file", &*ca),
                ("tls-cert-file", &*certificate),
                ("tls-key-file", &*key),
            ];
            changed(&changed(&owned(&STRICT), &listener), &files)
        };
        let redis = Redis::start(with_tls, &[], &[]).await;
        let tls_port = redis
            .setting("tls-port")
            .expect("a port")
            .parse()
            .expect("a port");
        Self {
            redis,
            tls_port,
            ca: file("ca.pem"),
            _certificates: folder,
        }
    }

    pub fn url(&self) -> String {
        format!("rediss://localhost:{}", self.tls_port)
    }
}

/// Three masters without replicas that share all slots. With one of them gone, none serves for long.
pub struct Cluster {
    pub nodes: Vec<Redis>,
}

impl Cluster {
    pub async fn start() -> Self {
        Self::with_first(&[]).await
    }

    /// The first of its masters goes by this clock.
    #[cfg(target_os = "linux")]
    pub async fn start_by(clock: &super::super::clock::Clock) -> Self {
        Self::with_first(&owned(&clock.environment())).await
    }

    /// With this in the environment of the first of them.
    async fn with_first(environment: &[(String, String)]) -> Self {
        let mut nodes = Vec::new();
        for (epoch, slots) in [
            ("1", ["0", "5460"]),
            ("2", ["5461", "10922"]),
            ("3", ["10923", "16383"]),
        ] {
            let environment = if nodes.is_empty() { environment } else { &[] };
            let node = Redis::start(Self::settings, &[], environment).await;
            node.ask(&["CLUSTER", "SET-CONFIG-EPOCH", epoch]).await;
            node.ask(&["CLUSTER", "ADDSLOTSRANGE", slots[0], slots[1]])
                .await;
            nodes.push(node);
        }
        for node in &nodes[1..] {
            let bus_port = node.setting("cluster-port").expect("a port");
            nodes[0]
                .ask(&[
                    "CLUSTER",
                    "MEET",
                    "127.0.0.1",
                    &node.port.to_string(),
                    bus_port,
                ])
                .await;
        }
        let cluster = Self { nodes };
        cluster.until_whole().await;
        cluster
    }

    fn settings(bus_port: u16) -> Vec<(String, String)> {
        let bus_port = bus_port.to_string();
        let cluster = [
            ("cluster-enabled", "yes"),
            ("cluster-port", bus_port.as_str()),
            ("cluster-node-timeout", "3000"),
            ("cluster-require-full-coverage", "yes"),
        ];
        changed(&owned(&STRICT), &cluster)
    }

    /// A replica for each master, which from now on takes no write without it.
    pub async fn replicas(&self) -> Vec<Redis> {
        let mut replicas = Vec::new();
        for master in &self.nodes {
            let replica = Redis::start(Self::settings, &[], &[]).await;
            let bus_port = master.setting("cluster-port").expect("a port");
            replica
                .ask(&[
                    "CLUSTER",
                    "MEET",
                    "127.0.0.1",
                    &master.port.to_string(),
                    bus_port,
                ])
                .await;
            let id = text(&master.ask(&["CLUSTER", "MYID"]).await);
            until("it may be a replica", async || {
                replica
                    .try_ask(&["CLUSTER", "REPLICATE", &id])
                    .await
                    .is_ok()
            })
            .await;
            until("its link is up", async || {
                master.info("replication").await.contains("state=online")
            })
            .await;
            master
                .ask(&["CONFIG", "SET", "min-replicas-to-write", "1"])
                .await;
            replica
                .ask(&["CONFIG", "SET", "min-replicas-to-write", "1"])
                .await;
            replicas.push(replica);
        }
        replicas
    }

    /// Waits until every node knows all three and takes commands.
    pub async fn until_whole(&self) {
        for node in &self.nodes {
            until("the node is in the cluster", async || {
                let info = text(&node.ask(&["CLUSTER", "INFO"]).await);
                info.contains("cluster_state:ok") && info.contains("cluster_size:3")
            })
            .await;
        }
    }

    /// Begins to move the slot of this hash tag to the next master. Returns the slot and the number of its master.
    pub async fn begin_to_move_slot_of(&self, tag: &str) -> (String, usize) {
        let slot = self.nodes[0].ask(&["CLUSTER", "KEYSLOT", tag]).await;
        let slot: u16 = redis::from_redis_value(slot).expect("a slot");
        // In the order of the nodes.
        let owner = usize::from(slot > 5_460) + usize::from(slot > 10_922);
        let slot = slot.to_string();
        let (from, to) = (&self.nodes[owner], &self.nodes[(owner + 1) % 3]);
        let (from_id, to_id) = (id_of(from).await, id_of(to).await);
        to.ask(&["CLUSTER", "SETSLOT", &slot, "IMPORTING", &from_id])
            .await;
        from.ask(&["CLUSTER", "SETSLOT", &slot, "MIGRATING", &to_id])
            .await;
        (slot, owner)
    }

    /// Moves the slot of this hash tag to another master, a few keys at a time, as `redis-cli --cluster reshard` does.
    pub async fn move_slot_of(&self, tag: &str) {
        let (slot, owner) = self.begin_to_move_slot_of(tag).await;
        let (from, to) = (&self.nodes[owner], &self.nodes[(owner + 1) % 3]);
        let to_id = id_of(to).await;
        let port = to.port.to_string();
        loop {
            let names = from.ask(&["CLUSTER", "GETKEYSINSLOT", &slot, "20"]).await;
            let names: Vec<Vec<u8>> = redis::from_redis_value(names).expect("names");
            if names.is_empty() {
                break;
            }
            let mut command = redis::cmd("MIGRATE");
            command.arg(("127.0.0.1", &port, "", 0, 5_000, "KEYS", names));
            let mut connection = connect(&from.url()).await;
            let () = command.query_async(&mut connection).await.expect("moved");
            // Others ask meanwhile.
            sleep(Duration::from_millis(5)).await;
        }
        for node in [to, from, &self.nodes[(owner + 2) % 3]] {
            node.ask(&["CLUSTER", "SETSLOT", &slot, "NODE", &to_id])
                .await;
        }
    }

    pub fn url(&self) -> String {
        let places = self
            .nodes
            .iter()
            .map(|node| format!("127.0.0.1:{}", node.port));
        format!("redis+cluster://{}", places.collect::<Vec<_>>().join(","))
    }
}

/// The name of a node of a cluster.
async fn id_of(node: &Redis) -> String {
    text(&node.ask(&["CLUSTER", "MYID"]).await)
}

/// A sentinel that alone decides to promote a replica, soon after the master named `main` is gone.
pub struct Sentinel {
    pub port: u16,
    redis: Redis,
}

impl Sentinel {
    /// Knows the replicas that the master has now; later ones it finds within about a second.
    pub async fn of(master: &Redis) -> Self {
        let watched = format!("monitor main 127.0.0.1 {} 1", master.port);
        let settings = [
            ("sentinel", &*watched),
            ("sentinel", "down-after-milliseconds main 1000"),
            ("sentinel", "failover-timeout main 2000"),
        ];
        let redis = Redis::start(|_| owned(&settings), &["--sentinel"], &[]).await;
        // With its own periods, of one to ten seconds, it would depose masters that are well. A ping
        // period below a fifth of a second would make it hold what it knows of replicas for outdated.
        let periods = [
            "ping-period",
            "300",
            "info-period",
            "500",
            "publish-period",
            "500",
        ];
        redis
            .ask(&[&["SENTINEL", "DEBUG"], &periods[..]].concat())
            .await;
        let replication = master.info("replication").await;
        let replicas = replication
            .lines()
            .find_map(|line| line.strip_prefix("connected_slaves:"));
        let place = format!("status=ok,address=127.0.0.1:{}", master.port);
        let known = format!("{place},slaves={},", replicas.expect("a number"));
        until("the sentinel knows all", async || {
            redis.info("sentinel").await.contains(&known)
        })
        .await;
        Self {
            port: redis.port,
            redis,
        }
    }

    /// The port of the master that it names to clients.
    pub async fn master_port(&self) -> u16 {
        let named = self
            .redis
            .ask(&["SENTINEL", "GET-MASTER-ADDR-BY-NAME", "main"])
            .await;
        let (_, port): (String, u16) = redis::from_redis_value(named).expect("an address");
        port
    }

    pub fn url(&self) -> String {
        format!("redis+sentinel://127.0.0.1:{}/main", self.port)
    }
}

/// Writes a new authority's certificate, and one for a local server that it signed, with its key.
fn certify(ca: &Path, certificate: &Path, key: &Path) {
    let mut authority = rcgen::CertificateParams::new([]).expect("parameters");
    authority.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    authority
        .distinguished_name
        .push(rcgen::DnType::CommonName, "the tests' authority");
    let authority_key = rcgen::KeyPair::generate().expect("a key");
    let authority =
        rcgen::CertifiedIssuer::self_signed(authority, authority_key).expect("a certificate");
    let names = ["localhost".to_owned(), "127.0.0.1".to_owned()];
    let server_key = rcgen::KeyPair::generate().expect("a key");
    let server = rcgen::CertificateParams::new(names)
        .expect("parameters")
        .signed_by(&server_key, &authority);
    fs::write(ca, authority.pem()).expect("a file");
    fs::write(certificate, server.expect("a certificate").pem()).expect("a file");
    fs::write(key, server_key.serialize_pem()).expect("a file");
}
