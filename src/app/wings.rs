//! The wings of this build: what they read of the configuration, and their services over one gateway.
//!
//! Each is left out by its feature. A configuration with a section of a wing that is left out is refused.

#[cfg(not(feature = "reconcile"))]
use std::marker::PhantomData;
#[cfg(any(feature = "mcp", feature = "reconcile"))]
use std::mem::take;
#[cfg(any(
    feature = "console",
    feature = "mcp",
    feature = "proxy",
    feature = "reconcile"
))]
use std::sync::Arc;

// By their own names: `crate::config`, in `lib.rs`, needs this file.
#[cfg(feature = "console")]
use oncegate_console::{self as console, Console};
use oncegate_engine::{Gateway, ToolAt};
use oncegate_http::{Http, Routes};
#[cfg(feature = "mcp")]
use oncegate_mcp::{self as mcp, Mcp, Upstreams};
#[cfg(feature = "proxy")]
use oncegate_proxy::{self as proxy, Proxies, Proxy};
#[cfg(feature = "reconcile")]
use oncegate_reconcile::{self as reconcile, Reconciler, Reconciliation};
use oncegate_settings::reader::Section;
use oncegate_settings::{Known, Wings};
use oncegate_tools::UpstreamAt;

#[cfg(not(feature = "mcp"))]
const NO_MCP: &str = "this build has no MCP: build it with the feature \"mcp\"";

#[cfg(not(feature = "postgres"))]
const NO_POSTGRES: &str = "this build has no PostgreSQL: build it with the feature \"postgres\"";

/// The configuration of this build, with the settings of its wings.
pub type Config = oncegate_settings::Config<WingSettings>;

/// What wings have read of a configuration.
#[derive(Debug, Default)]
pub struct WingSettings {
    #[cfg(feature = "mcp")]
    pub mcp: mcp::Settings,
    #[cfg(feature = "reconcile")]
    pub reconciliations: Vec<Reconciliation>,
}

impl Wings for WingSettings {
    const LEFT_OUT: &[(&str, &str)] = &[
        #[cfg(not(feature = "mcp"))]
        ("mcp", NO_MCP),
        #[cfg(not(feature = "mcp"))]
        ("upstreams", NO_MCP),
        #[cfg(not(feature = "proxy"))]
        (
            "proxies",
            "this build has no proxies: build it with the feature \"proxy\"",
        ),
        #[cfg(not(feature = "reconcile"))]
        (
            "reconciliations",
            "this build has no reconciliation: build it with the feature \"reconcile\"",
        ),
    ];

    const NO_STORES: &[(&str, &str)] = &[
        #[cfg(not(feature = "sqlite"))]
        (
            "sqlite",
            "this build has no SQLite: build it with the feature \"sqlite\"",
        ),
        #[cfg(not(feature = "postgres"))]
        ("postgres", NO_POSTGRES),
        #[cfg(not(feature = "postgres"))]
        ("postgresql", NO_POSTGRES),
    ];

    #[cfg(feature = "proxy")]
    fn tools(root: &mut Section<'_, '_>, known: &Known<'_>) -> Vec<ToolAt> {
        proxy::settings(root, known)
    }

    #[cfg(not(feature = "proxy"))]
    fn tools(_: &mut Section<'_, '_>, _: &Known<'_>) -> Vec<ToolAt> {
        Vec::new()
    }

    #[cfg_attr(
        not(feature = "reconcile"),
        expect(unused_variables, reason = "a wing is left out")
    )]
    fn read(root: &mut Section<'_, '_>, tools: &[ToolAt], has_webhook: bool) -> Self {
        Self {
            #[cfg(feature = "mcp")]
            mcp: mcp::settings(root.defaulted("mcp")),
            #[cfg(feature = "reconcile")]
            reconciliations: reconcile::settings(root, tools, has_webhook),
        }
    }
}

impl WingSettings {
    /// Whether a reload may take over the value of this setting, if nothing else hinders it.
    #[cfg(feature = "reconcile")]
    pub(super) fn may_take_over(&self, key: &str) -> bool {
        let mut all = self.reconciliations.iter();
        all.any(|of| of.may_take_over(key))
    }

    #[cfg(not(feature = "reconcile"))]
    pub(super) fn may_take_over(&self, _: &str) -> bool {
        false
    }
}

/// The services of the wings, over one gateway.
pub struct WingServices {
    #[cfg(feature = "mcp")]
    upstreams: Arc<Upstreams>,
    #[cfg(feature = "mcp")]
    mcp: Arc<mcp::Settings>,
    #[cfg(feature = "proxy")]
    proxies: Arc<Proxies>,
    #[cfg(feature = "reconcile")]
    pub reconciler: Arc<Reconciler>,
    #[cfg(feature = "console")]
    pub(super) console: Arc<Console>,
}

#[cfg_attr(
    not(all(
        feature = "console",
        feature = "mcp",
        feature = "proxy",
        feature = "reconcile"
    )),
    allow(
        unused_variables,
        clippy::needless_pass_by_value,
        clippy::unused_self,
        reason = "a wing is left out"
    )
)]
impl WingServices {
    /// The services over a gateway. Takes what they need out of the settings.
    pub fn new(gateway: &Gateway, upstreams: Vec<UpstreamAt>, settings: &mut WingSettings) -> Self {
        #[cfg(feature = "reconcile")]
        let reconciler = Arc::new(Reconciler::new(
            gateway,
            take(&mut settings.reconciliations),
        ));
        #[cfg(all(feature = "console", feature = "reconcile"))]
        let console = Console::new(gateway, reconciler.clone());
        #[cfg(all(feature = "console", not(feature = "reconcile")))]
        let console = Console::new(gateway, ());
        Self {
            #[cfg(feature = "mcp")]
            upstreams: Arc::new(Upstreams::new(gateway, upstreams)),
            #[cfg(feature = "mcp")]
            mcp: Arc::new(take(&mut settings.mcp)),
            #[cfg(feature = "proxy")]
            proxies: Arc::new(Proxies::new(gateway)),
            #[cfg(feature = "reconcile")]
            reconciler,
            #[cfg(feature = "console")]
            console: Arc::new(console),
        }
    }

    /// Takes up what an earlier run has left, once the gateway has.
    pub async fn take_up(&self) {
        #[cfg(feature = "mcp")]
        self.upstreams.remember();
        #[cfg(feature = "reconcile")]
        self.reconciler.anomalies.free_anomalies().await;
    }

    /// What a reload can take over of the settings of wings. `changed`: the settings of the file that differ.
    pub(super) fn reloadable<'a>(&self, new: &'a WingSettings, changed: &[&str]) -> Reloadable<'a> {
        Reloadable {
            #[cfg(feature = "reconcile")]
            reconciliations: self.reconciler.reloadable(&new.reconciliations, changed),
            #[cfg(not(feature = "reconcile"))]
            of: PhantomData,
        }
    }

    /// Takes it over.
    pub(super) fn take_over(&self, new: &Reloadable<'_>) {
        #[cfg(feature = "reconcile")]
        self.reconciler.take_over(&new.reconciliations);
    }

    /// Replaces the gateway's tools, and the MCP servers behind it.
    ///
    /// # Errors
    /// A client for one of them cannot be built; then nothing has changed.
    pub fn set_tools(
        &self,
        gateway: &Gateway,
        tools: Vec<ToolAt>,
        upstreams: Vec<UpstreamAt>,
    ) -> Result<(), String> {
        let endpoints: Vec<_> = upstreams.iter().map(|at| at.endpoint.clone()).collect();
        let set_tools = || gateway.set_tools(tools, &endpoints);
        #[cfg(feature = "mcp")]
        self.upstreams.set(upstreams, set_tools)?;
        #[cfg(not(feature = "mcp"))]
        set_tools()?;
        #[cfg(feature = "proxy")]
        self.proxies.renew();
        Ok(())
    }

    /// Adds the routes of every wing but proxies.
    pub(super) fn add_routes(&self, routes: Routes, http: &Http) -> Routes {
        #[cfg(feature = "mcp")]
        let routes = mcp::add_to(routes, self.mcp(http));
        #[cfg(feature = "reconcile")]
        let routes = routes.with(reconcile::routes(&self.reconciler));
        #[cfg(feature = "console")]
        let routes = self.add_console(routes);
        routes
    }

    /// Adds the pages. They answer with HTML, so the document has none of them.
    #[cfg(feature = "console")]
    pub(super) fn add_console(&self, routes: Routes) -> Routes {
        routes.with_others(console::routes(self.console.clone()))
    }

    /// Adds the routes of proxies.
    pub(super) fn add_proxies(&self, routes: Routes, http: &Http) -> Routes {
        #[cfg(feature = "proxy")]
        let routes = proxy::add_to(
            routes,
            &Proxy {
                http: http.clone(),
                proxies: self.proxies.clone(),
            },
        );
        routes
    }

    /// What the handlers of MCP share.
    #[cfg(feature = "mcp")]
    pub(super) fn mcp(&self, http: &Http) -> Mcp {
        Mcp {
            http: http.clone(),
            settings: self.mcp.clone(),
            upstreams: self.upstreams.clone(),
        }
    }
}

/// What a reload takes over of the settings of wings.
pub(super) struct Reloadable<'a> {
    #[cfg(feature = "reconcile")]
    reconciliations: Vec<&'a Reconciliation>,
    #[cfg(not(feature = "reconcile"))]
    of: PhantomData<&'a WingSettings>,
}

impl Reloadable<'_> {
    /// Whether the value of this setting is taken over.
    #[cfg(feature = "reconcile")]
    pub(super) fn takes_over(&self, key: &str) -> bool {
        let mut taken_over = self.reconciliations.iter();
        taken_over.any(|of| of.setting_in(key).is_some())
    }

    #[cfg(not(feature = "reconcile"))]
    pub(super) fn takes_over(&self, _: &str) -> bool {
        false
    }
}
