//! The script, the stylesheet and the icon. Their names change with their contents, so browsers keep them.

use std::sync::LazyLock;

use axum::extract::Path;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::response::{IntoResponse, Response};
use sha2::{Digest, Sha256};

use oncegate_http::problem::{self, Problem};

/// Kept for a year: another content has another name.
const KEEP: &str = "public, max-age=31536000, immutable";

/// A file that pages load.
struct Asset {
    name: String,
    kind: &'static str,
    bytes: &'static [u8],
}

impl Asset {
    fn new(stem: &str, ending: &str, bytes: &'static [u8]) -> Self {
        let digest = hex::encode(&Sha256::digest(bytes)[..6]);
        let kind = match ending {
            "css" => "text/css; charset=utf-8",
            "js" => "text/javascript; charset=utf-8",
            _ => "image/svg+xml",
        };
        Self {
            name: format!("{stem}-{digest}.{ending}"),
            kind,
            bytes,
        }
    }
}

static ASSETS: LazyLock<[Asset; 4]> = LazyLock::new(|| {
    [
        Asset::new("style", "css", include_bytes!("assets/style.css")),
        Asset::new("htmx", "js", include_bytes!("assets/htmx-2.0.11.min.js")),
        Asset::new("live", "js", include_bytes!("assets/live.js")),
        Asset::new("icon", "svg", include_bytes!("assets/icon.svg")),
    ]
});

/// The addresses of all files: stylesheet, htmx, own script, icon.
pub(crate) static ADDRESSES: LazyLock<[String; 4]> = LazyLock::new(|| {
    let address = |asset: &Asset| format!("/console/assets/{}", asset.name);
    ASSETS.each_ref().map(address)
});

/// `GET /console/assets/{name}`. Needs no session: the files are the same for all.
pub(crate) async fn show(Path(name): Path<String>) -> Result<Response, Problem> {
    let Some(asset) = ASSETS.iter().find(|asset| asset.name == name) else {
        return Err(problem::unknown_path().await);
    };
    let head = [(CONTENT_TYPE, asset.kind), (CACHE_CONTROL, KEEP)];
    Ok((head, asset.bytes).into_response())
}
