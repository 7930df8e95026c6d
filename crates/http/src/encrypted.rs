//! What a gateway that speaks TLS itself says of later connections.

use axum::http::HeaderValue;
use axum::http::header::STRICT_TRANSPORT_SECURITY;
use axum::response::Response;

/// A year. Other hosts below this name are none of the gateway's business.
const LATER: HeaderValue = HeaderValue::from_static("max-age=31536000");

/// Tells browsers that they come back over TLS only. A proxy that ends TLS before the gateway says that itself.
pub(super) async fn stay_encrypted(mut response: Response) -> Response {
    response
        .headers_mut()
        .insert(STRICT_TRANSPORT_SECURITY, LATER);
    response
}
