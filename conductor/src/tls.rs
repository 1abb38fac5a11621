//! TLS, for the listener and for whoever connects to it: certificates and keys
//! out of PEM files, what a connection is greeted with, whom a client trusts,
//! and the words for what can go wrong between the two.
//!
//! The cryptography is handed along, never set for the whole process: a
//! library that sets another must not change what protects our connections.

pub mod files;
pub mod listener;
pub mod outward;
pub mod words;

use std::{net::IpAddr, sync::Arc};

use rustls::crypto::{CryptoProvider, ring};
use url::{Host, Url};

/// HTTP/2, which is all that is spoken beneath gRPC.
const HTTP2: &[u8] = b"h2";

/// What encrypts, signs and verifies.
fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}

/// Whether nobody on the way to an address can read or change what is said:
/// TLS protects it, or it does not leave this host.
pub fn is_protected(url: &Url) -> bool {
    match url.scheme() {
        "https" => true,
        "http" => is_loopback(url),
        _ => false,
    }
}

/// Whether an address is on another host.
pub fn is_elsewhere(address: &str) -> bool {
    Url::parse(address).is_ok_and(|url| !is_loopback(&url))
}

/// Whether an address is on this host.
pub fn is_loopback(url: &Url) -> bool {
    match url.host() {
        Some(Host::Ipv4(ip)) => IpAddr::V4(ip).is_loopback(),
        Some(Host::Ipv6(ip)) => IpAddr::V6(ip).to_canonical().is_loopback(),
        Some(Host::Domain(name)) => name == "localhost",
        None => false,
    }
}
