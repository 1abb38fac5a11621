//! Addresses on the network, read by a real parser.

use super::UrlFact;

/// Takes an address apart. One that cannot be read has `trouble` and no host.
pub fn fact(given: &str) -> UrlFact {
    UrlFact { given: given.into(), trouble: Some("not read".into()), ..UrlFact::default() }
}
