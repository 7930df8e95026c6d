//! Reading what came back.

use std::error::Error as _;

use bytes::BytesMut;

use crate::core::outcome::Body;

/// A body up to its end, and at most so many bytes of it.
pub(super) async fn read(mut response: reqwest::Response, max_result: usize) -> Body {
    let mut whole = BytesMut::new();
    loop {
        match response.chunk().await {
            Ok(None) => return Body::Whole(whole.freeze()),
            Ok(Some(chunk)) if whole.len() + chunk.len() > max_result => {
                return Body::Broken(format!("it is longer than {max_result} bytes"));
            }
            Ok(Some(chunk)) => whole.extend_from_slice(&chunk),
            Err(error) => return Body::Broken(chain(&error)),
        }
    }
}

/// An error with its causes, without the URL, which may hold secrets.
pub(super) fn chain(error: &reqwest::Error) -> String {
    let mut causes = Vec::new();
    let mut cause = error.source();
    while let Some(error) = cause {
        causes.push(error.to_string());
        cause = error.source();
    }
    if causes.is_empty() {
        "the request failed".to_owned()
    } else {
        causes.join(": ")
    }
}
