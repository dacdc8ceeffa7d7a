//! Which addresses are never called: the ones through which a URL could be turned against the host itself.
//!
//! Refused: link-local (169.254/16, fe80::/10), cloud metadata services by address and by name, unspecified (0/8, ::),
//! multicast and broadcast, and all of these inside an IPv6 form that embeds an IPv4 address (mapped, compatible, NAT64,
//! 6to4). Loopback and private ranges are allowed: destinations are often internal.
//!
//! The check runs on the address that is then connected to, after name resolution, so a name that resolves differently
//! the second time (rebinding) gains nothing. Through a proxy the proxy resolves names: there only the host's own text
//! can be checked, and the rest is the proxy's duty.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::config::ConfigError;

/// Names under which clouds serve metadata and credentials. They resolve to refused addresses; refusing the name too
/// covers proxies and private resolvers.
const METADATA_NAMES: [&str; 8] = [
    "metadata",
    "metadata.google.internal",
    "metadata.goog",
    "metadata.azure.internal",
    "metadata.tencentyun.com",
    "metadata.platformequinix.com",
    "instance-data",
    "instance-data.ec2.internal",
];

/// One entry of `allowed_hosts`.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Allowed {
    Name { host: String, port: Option<u16> },
    Network { base: IpAddr, prefix_bits: u8, port: Option<u16> },
}

/// The refused addresses and the exceptions from them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Guard {
    allowed: Vec<Allowed>,
}

impl Guard {
    /// Reads `allowed_hosts`: `host`, `host:port`, an address, `address:port` (`[v6]:port`), or a CIDR network.
    pub(crate) fn new(allowed_hosts: &[String]) -> Result<Guard, ConfigError> {
        let allowed = allowed_hosts
            .iter()
            .map(|entry| entry.trim())
            .filter(|entry| !entry.is_empty())
            .map(|entry| parse_allowed(entry).ok_or_else(|| ConfigError::AllowedHost(entry.to_owned())))
            .collect::<Result<_, _>>()?;
        Ok(Guard { allowed })
    }

    /// Whether the operator named this host as an exception.
    pub(crate) fn host_is_exempt(&self, host: &str, port: u16) -> bool {
        let host = normal_name(host);
        self.allowed.iter().any(|entry| match entry {
            Allowed::Name { host: name, port: only } => *name == host && only.is_none_or(|only| only == port),
            Allowed::Network { .. } => false,
        })
    }

    /// Why this host's name is refused before any resolution, if it is.
    pub(crate) fn refused_name(&self, host: &str, port: u16) -> Option<&'static str> {
        (METADATA_NAMES.contains(&normal_name(host).as_str()) && !self.host_is_exempt(host, port))
            .then_some("a cloud metadata name")
    }

    /// Why this address is refused for this host, if it is.
    pub(crate) fn refused_address(&self, host: &str, address: IpAddr, port: u16) -> Option<&'static str> {
        let why = refused(address)?;
        let plain = unmapped(address);
        let exempt = self.host_is_exempt(host, port)
            || self.allowed.iter().any(|entry| match entry {
                Allowed::Network { base, prefix_bits, port: only } => {
                    only.is_none_or(|only| only == port) && within(plain, *base, *prefix_bits)
                }
                Allowed::Name { .. } => false,
            });
        (!exempt).then_some(why)
    }
}

fn parse_allowed(entry: &str) -> Option<Allowed> {
    if let Some((base, prefix)) = entry.split_once('/') {
        let base: IpAddr = base.trim_matches(['[', ']']).parse().ok()?;
        let prefix_bits: u8 = prefix.parse().ok()?;
        return (prefix_bits <= width_bits(base)).then_some(Allowed::Network { base, prefix_bits, port: None });
    }
    if let Ok(base) = entry.trim_matches(['[', ']']).parse::<IpAddr>() {
        return Some(Allowed::Network { base, prefix_bits: width_bits(base), port: None });
    }
    let (host, port) = match entry.rsplit_once(':') {
        Some((host, port)) => (host, Some(port.parse().ok()?)),
        None => (entry, None),
    };
    if let Ok(base) = host.trim_matches(['[', ']']).parse::<IpAddr>() {
        return Some(Allowed::Network { base, prefix_bits: width_bits(base), port });
    }
    let plain = host.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_'));
    (!host.is_empty() && plain).then(|| Allowed::Name { host: normal_name(host), port })
}

fn normal_name(host: &str) -> String {
    host.strip_suffix('.').unwrap_or(host).to_ascii_lowercase()
}

fn width_bits(address: IpAddr) -> u8 {
    if address.is_ipv4() { 32 } else { 128 }
}

fn within(address: IpAddr, base: IpAddr, prefix_bits: u8) -> bool {
    let (address, base, width) = match (address, base) {
        (IpAddr::V4(address), IpAddr::V4(base)) => (u128::from(address.to_bits()), u128::from(base.to_bits()), 32),
        (IpAddr::V6(address), IpAddr::V6(base)) => (address.to_bits(), base.to_bits(), 128),
        _ => return false,
    };
    let dropped = u32::from(width - prefix_bits.min(width));
    address.checked_shr(dropped).unwrap_or(0) == base.checked_shr(dropped).unwrap_or(0)
}

fn unmapped(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V6(v6) => v6.to_ipv4_mapped().map_or(address, IpAddr::V4),
        IpAddr::V4(_) => address,
    }
}

fn refused(address: IpAddr) -> Option<&'static str> {
    match address {
        IpAddr::V4(v4) => refused_v4(v4),
        IpAddr::V6(v6) => refused_v6(v6),
    }
}

fn refused_v4(v4: Ipv4Addr) -> Option<&'static str> {
    let octets = v4.octets();
    match octets {
        [169, 254, 169, 254] | [100, 100, 100, 200] | [168, 63, 129, 16] | [192, 0, 0, 192] => {
            Some("a cloud metadata address")
        }
        [169, 254, ..] => Some("a link-local address"),
        [0, ..] => Some("an unspecified address"),
        [224..=239, ..] => Some("a multicast address"),
        [255, 255, 255, 255] => Some("the broadcast address"),
        _ => None,
    }
}

fn refused_v6(v6: Ipv6Addr) -> Option<&'static str> {
    if v6.is_unspecified() {
        return Some("an unspecified address");
    }
    if v6.is_loopback() {
        return None;
    }
    let segments = v6.segments();
    match segments {
        [0xfd00, 0x0ec2, ..] | [0xfd20, 0x00ce, ..] => return Some("a cloud metadata address"),
        [0xfe80..=0xfebf, ..] => return Some("a link-local address"),
        [0xff00..=0xffff, ..] => return Some("a multicast address"),
        _ => {}
    }
    embedded_v4(segments).and_then(refused_v4)
}

/// The IPv4 address inside an IPv6 one: mapped ::ffff:a.b.c.d, translated ::ffff:0:a.b.c.d, compatible ::a.b.c.d, NAT64
/// 64:ff9b::/96 and 64:ff9b:1::/48 (with the address in the last 32 bits), 6to4 2002::/16.
fn embedded_v4(segments: [u16; 8]) -> Option<Ipv4Addr> {
    let [_, first, second, .., high, low] = segments;
    let join = |high: u16, low: u16| Ipv4Addr::from_bits((u32::from(high) << 16) | u32::from(low));
    match segments {
        [0, 0, 0, 0, 0, 0xffff | 0, _, _] | [0, 0, 0, 0, 0xffff, 0, _, _] => Some(join(high, low)),
        [0x64, 0xff9b, 0, 0, 0, 0, _, _] | [0x64, 0xff9b, 1, ..] => Some(join(high, low)),
        [0x2002, ..] => Some(join(first, second)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn guard(entries: &[&str]) -> Guard {
        let entries: Vec<String> = entries.iter().map(|entry| (*entry).to_owned()).collect();
        Guard::new(&entries).expect("valid entries")
    }

    fn is_refused(guard: &Guard, host: &str, address: &str, port: u16) -> bool {
        guard.refused_address(host, address.parse().expect("address"), port).is_some()
    }

    #[test]
    fn dangerous_addresses_are_refused_in_every_spelling() {
        let guard = guard(&[]);
        for address in [
            "169.254.0.1",
            "169.254.169.254",
            "169.254.170.2",
            "100.100.100.200",
            "168.63.129.16",
            "0.0.0.0",
            "0.1.2.3",
            "224.0.0.1",
            "239.255.255.250",
            "255.255.255.255",
            "::",
            "fe80::1",
            "febf::1",
            "ff02::1",
            "fd00:ec2::254",
            "fd20:ce::254",
            "::ffff:169.254.169.254",
            "::ffff:0.0.0.0",
            "::ffff:224.0.0.1",
            "::ffff:255.255.255.255",
            "::ffff:0:169.254.169.254",
            "::169.254.169.254",
            "64:ff9b::169.254.169.254",
            "64:ff9b:1::169.254.169.254",
            "2002:a9fe:a9fe::1",
        ] {
            assert!(is_refused(&guard, "x", address, 80), "{address}");
        }
    }

    #[test]
    fn internal_and_public_addresses_are_allowed() {
        let guard = guard(&[]);
        for address in [
            "127.0.0.1",
            "10.0.0.1",
            "192.168.1.1",
            "172.16.0.1",
            "100.64.0.1",
            "8.8.8.8",
            "169.253.1.1",
            "::1",
            "fd12::1",
            "2001:db8::1",
            "fec0::1",
            "::ffff:127.0.0.1",
            "64:ff9b::8.8.8.8",
        ] {
            assert!(!is_refused(&guard, "x", address, 80), "{address}");
        }
    }

    #[test]
    fn metadata_names_are_refused_whatever_their_case_or_final_dot() {
        let none = guard(&[]);
        assert!(none.refused_name("Metadata.Google.Internal.", 80).is_some());
        assert!(none.refused_name("metadata", 80).is_some());
        assert!(none.refused_name("metadata.example", 80).is_none());
        assert!(guard(&["metadata.google.internal"]).refused_name("METADATA.google.internal", 80).is_none());
    }

    #[test]
    fn an_exception_covers_exactly_what_it_names() {
        let by_host = guard(&["printer.local:631"]);
        assert!(!is_refused(&by_host, "Printer.local", "169.254.3.4", 631));
        assert!(is_refused(&by_host, "printer.local", "169.254.3.4", 80));
        assert!(is_refused(&by_host, "other.local", "169.254.3.4", 631));

        let by_network = guard(&["169.254.3.0/24", "[fe80::1]:8080", "fe80:0:0:1::/64"]);
        assert!(!is_refused(&by_network, "x", "169.254.3.4", 80));
        assert!(!is_refused(&by_network, "x", "::ffff:169.254.3.4", 80));
        assert!(is_refused(&by_network, "x", "169.254.4.4", 80));
        assert!(!is_refused(&by_network, "x", "fe80::1", 8080));
        assert!(is_refused(&by_network, "x", "fe80::1", 80));
        assert!(!is_refused(&by_network, "x", "fe80:0:0:1::9", 80));

        assert!(!is_refused(&guard(&["0.0.0.0/0"]), "x", "169.254.169.254", 80));
    }

    #[test]
    fn a_malformed_exception_is_an_error_not_a_silent_nothing() {
        for entry in ["10.0.0.0/33", "host:99999", "a b", "http://x", "host:", "::1/129", ":80"] {
            assert!(Guard::new(&[entry.to_owned()]).is_err(), "{entry}");
        }
        assert!(Guard::new(&[" ".to_owned(), "db_1.internal".to_owned()]).is_ok());
    }
}
