//! Links that sign in once, for a console whose token cannot be typed: that of `oncegate wrap`.

use std::sync::Mutex;
use std::time::Duration;

use oncegate_engine::wings::lock;
use sha2::{Digest, Sha256};
use tokio::time::Instant;
use uuid::Uuid;

/// How long a link may be used.
const LASTS: Duration = Duration::from_mins(5);
/// Most links that may still be used; the oldest ones are forgotten.
const MOST: usize = 8;

/// The links that were made and not used.
#[derive(Default)]
pub(crate) struct Links(Mutex<Made>);

#[derive(Default)]
struct Made {
    open: Vec<Link>,
    is_any: bool,
}

struct Link {
    /// The SHA-256 of its code.
    code: [u8; 32],
    /// The SHA-256 of the token that it stands for.
    token: [u8; 32],
    until: Instant,
}

impl Links {
    /// Makes a code that signs in once with the token of this SHA-256.
    pub(crate) fn make(&self, token: [u8; 32]) -> String {
        let code = [Uuid::new_v4(), Uuid::new_v4()].map(|part| part.simple().to_string());
        let code = code.concat();
        let mut made = lock(&self.0);
        made.is_any = true;
        if made.open.len() >= MOST {
            made.open.remove(0);
        }
        made.open.push(Link {
            code: Sha256::digest(&code).into(),
            token,
            until: Instant::now() + LASTS,
        });
        code
    }

    /// The token of a code, which is used up with that.
    pub(crate) fn take(&self, code: &str) -> Option<[u8; 32]> {
        let (code, now): ([u8; 32], _) = (Sha256::digest(code).into(), Instant::now());
        let mut made = lock(&self.0);
        made.open.retain(|link| now < link.until);
        let at = made.open.iter().position(|link| link.code == code)?;
        Some(made.open.remove(at).token)
    }

    /// Whether links, and not tokens, lead into this console.
    pub(crate) fn is_way_in(&self) -> bool {
        lock(&self.0).is_any
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_link_is_used_once_and_only_in_time() {
        let links = Links::default();
        assert!(!links.is_way_in());
        let (one, two) = (links.make([1; 32]), links.make([2; 32]));
        assert!(links.is_way_in() && one != two);
        assert_eq!(links.take("another"), None);
        assert_eq!(links.take(&one), Some([1; 32]));
        assert_eq!(links.take(&one), None, "it is used up");
        tokio::time::advance(LASTS).await;
        assert_eq!(links.take(&two), None, "it is too late");
        let made: Vec<String> = (0..=MOST).map(|_| links.make([3; 32])).collect();
        assert_eq!(links.take(&made[0]), None, "the oldest one is forgotten");
        assert!(links.take(&made[1]).is_some());
    }
}
