//! Bounds of connections: how many there may be, and how long they may be silent.

use std::net::IpAddr;
use std::time::Duration;

/// Bounds on the number and the silence of connections.
#[derive(Debug, Clone)]
pub struct Bounds {
    pub max_connections: usize,
    /// Most connections of one address.
    pub per_address: usize,
    /// Addresses of balancers, for which `per_address` does not hold.
    pub proxies: Vec<Network>,
    /// The longest time from a request's first byte to its head's end.
    ///
    /// For the first request it begins with the connection.
    pub header_timeout: Duration,
    /// The longest time without a request.
    ///
    /// Also how long a client may read nothing of an answer.
    pub idle_timeout: Duration,
}

/// A network: an address, and how many of its first bits count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Network {
    bits: u128,
    length: u32,
}

impl Network {
    /// `10.0.0.1`, `10.0.0.0/8`, `fd00::/8`.
    ///
    /// # Errors
    /// It is neither.
    pub fn parse(text: &str) -> Result<Self, String> {
        let refuse = || {
            format!(
                "{text:?} is not an address; one looks like \"10.0.0.7\", a network like \"10.0.0.0/8\""
            )
        };
        let (address, length) = match text.split_once('/') {
            Some((address, length)) => (address, Some(length)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().map_err(|_| refuse())?;
        let most = if address.is_ipv4() { 32 } else { 128 };
        let length: u32 = length.map_or(Ok(most), |length| length.parse().map_err(|_| refuse()))?;
        if length > most {
            return Err(refuse());
        }
        // An IPv4 address is the end of an IPv6 one.
        let length = length + 128 - most;
        Ok(Self {
            bits: bits(address) & mask(length),
            length,
        })
    }

    pub(super) fn holds(&self, address: IpAddr) -> bool {
        bits(address) & mask(self.length) == self.bits
    }
}

pub(super) fn mask(length: u32) -> u128 {
    u128::MAX.checked_shl(128 - length).unwrap_or(0)
}

fn bits(address: IpAddr) -> u128 {
    let address = match address.to_canonical() {
        IpAddr::V4(address) => address.to_ipv6_mapped(),
        IpAddr::V6(address) => address,
    };
    address.to_bits()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_network_holds_its_addresses_and_no_others() {
        for (network, inside, outside) in [
            ("10.0.0.7", "10.0.0.7", "10.0.0.8"),
            ("10.0.0.0/8", "10.255.0.1", "11.0.0.1"),
            ("10.1.2.3/8", "::ffff:10.9.9.9", "::10.9.9.9"),
            ("fd00::/8", "fdff::1", "fe00::1"),
            ("0.0.0.0/0", "8.8.8.8", "2001:db8::1"),
            ("::/0", "10.0.0.1", ""),
        ] {
            let parsed = Network::parse(network).expect(network);
            assert!(
                parsed.holds(inside.parse().expect("an address")),
                "{network}"
            );
            assert!(
                !outside.parse().is_ok_and(|address| parsed.holds(address)),
                "{network}"
            );
        }
        for wrong in [
            "",
            "ten",
            "10.0.0.0/33",
            "10.0.0.0/-1",
            "::/129",
            "10.0.0.0/8/8",
            "10.0.0.1:80",
        ] {
            assert!(Network::parse(wrong).is_err(), "{wrong}");
        }
    }
}
