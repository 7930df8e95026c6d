//! The secrets of a store. Without them an HMAC reveals nothing about the arguments.

use std::fmt;

use ring::hmac;

/// Most secrets of a store. Each secret costs one lookup for each name that depends on it.
pub const MAX_SECRETS: usize = 4;

/// Thirty-two random bytes, made once for a store. [`Debug`](fmt::Debug) does not print them.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret([u8; 32]);

/// The secret that is used today, and earlier secrets that calls were made with.
///
/// Earlier secrets come from losses of data: gateways used another secret until an operator accepted the loss.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Secrets {
    pub today: Secret,
    pub earlier: Vec<Secret>,
}

impl Secrets {
    pub const fn one(today: Secret) -> Self {
        Self {
            today,
            earlier: Vec::new(),
        }
    }

    /// Today's secret first; `None`: no secrets, or too many.
    pub fn of(all: Vec<Secret>) -> Option<Self> {
        if all.len() > MAX_SECRETS {
            return None;
        }
        let mut all = all.into_iter();
        Some(Self {
            today: all.next()?,
            earlier: all.collect(),
        })
    }

    /// All secrets, today's first.
    pub fn all(&self) -> impl Iterator<Item = &Secret> {
        std::iter::once(&self.today).chain(&self.earlier)
    }

    pub fn has_all_of(&self, others: &Self) -> bool {
        others.all().all(|other| self.all().any(|one| one == other))
    }

    /// Joins the secrets of the store and of one gateway. Also returns how many are left out.
    ///
    /// The gateway's today's secret stays today's. If they are too many, those of the store go first: otherwise two
    /// gateways could take turns in leaving out each other's.
    pub fn joined(store: &Self, known: &Self) -> (Self, usize) {
        let mut all: Vec<Secret> = store.all().cloned().collect();
        for one in known.all() {
            if !all.contains(one) {
                all.push(one.clone());
            }
        }
        let left_out = all.len().saturating_sub(MAX_SECRETS);
        all.truncate(MAX_SECRETS);
        if let Some(place) = all.iter().position(|one| *one == known.today) {
            all[..=place].rotate_right(1);
        }
        let today = all.remove(0);
        let earlier = all;
        (Self { today, earlier }, left_out)
    }
}

impl Secret {
    pub const fn new(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    pub fn bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// HMAC-SHA-256 over length-prefixed parts. `what` keeps uses apart.
    pub fn mac<const N: usize>(&self, what: &str, parts: [&str; N]) -> [u8; 32] {
        self.mac_of(what, &parts.map(str::as_bytes))
    }

    /// The same, over parts that are bytes.
    pub fn mac_of(&self, what: &str, parts: &[&[u8]]) -> [u8; 32] {
        let mut context = hmac::Context::with_key(&hmac::Key::new(hmac::HMAC_SHA256, &self.0));
        for part in std::iter::once(what.as_bytes()).chain(parts.iter().copied()) {
            context.update(&(part.len() as u64).to_be_bytes());
            context.update(part);
        }
        let mut mac = [0; 32];
        // A tag of SHA-256 has so many bytes.
        mac.copy_from_slice(context.sign().as_ref());
        mac
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secrets(numbers: &[u8]) -> Secrets {
        let all = numbers.iter().map(|n| Secret::new([*n; 32]));
        Secrets::of(all.collect()).expect("not too many")
    }

    #[test]
    fn joined_secrets_begin_with_the_gateways_own_and_leave_out_none_of_the_stores() {
        let joined = |store, known| Secrets::joined(&secrets(store), &secrets(known));
        assert_eq!(joined(&[1], &[2]), (secrets(&[2, 1]), 0));
        assert_eq!(joined(&[1, 2], &[2, 3]), (secrets(&[2, 1, 3]), 0));
        assert_eq!(joined(&[1, 2, 3], &[4, 5, 6]), (secrets(&[4, 1, 2, 3]), 2));
        let full = &[1, 2, 3, 4];
        assert_eq!(joined(full, &[5]), (secrets(full), 1));
        assert_eq!(joined(full, &[5, 3]), (secrets(full), 1));
    }

    #[test]
    fn one_store_has_all_secrets_of_another_only_if_it_has_each_of_them() {
        let has_all = |all, others| secrets(all).has_all_of(&secrets(others));
        assert!(has_all(&[1], &[1]) && has_all(&[1, 2], &[2]) && has_all(&[1, 2], &[2, 1]));
        assert!(!has_all(&[1], &[2]) && !has_all(&[1], &[1, 2]) && !has_all(&[1, 2], &[3, 1]));
    }

    #[test]
    fn an_hmac_depends_on_the_secret_the_use_and_the_borders_of_the_parts() {
        let (one, other) = (Secret::new([1; 32]), Secret::new([2; 32]));
        assert_ne!(one.mac("a", ["b"]), other.mac("a", ["b"]));
        assert_ne!(one.mac("a", ["b"]), one.mac("b", ["b"]));
        assert_ne!(one.mac("a", ["bc", "d"]), one.mac("a", ["b", "cd"]));
        // python3 -c 'import hmac;n=lambda t:len(t).to_bytes(8,"big")+t.encode()
        //   print(hmac.new(b"\x01"*32,n("a")+n("b"),"sha256").hexdigest())'
        assert_eq!(
            hex::encode(one.mac("a", ["b"])),
            "f71706a801f2288f65f7d850d1ab74297bb98a723a069a8cc46be9f8aa79c558"
        );
        assert_eq!(format!("{one:?}"), "Secret(…)");
        assert_eq!((one.bytes(), other.bytes()), (&[1; 32], &[2; 32]));
    }
}
