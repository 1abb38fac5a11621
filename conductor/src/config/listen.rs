//! The address to listen on, which leaves this host only with TLS.

use std::net::SocketAddr;

use serde::{Deserialize, Deserializer, de::Error};

use super::{
    Tls,
    error::{quoted, remark},
};

/// Why an address was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{what}; {}", Self::REMEDY)]
pub struct ListenRefused {
    /// What is wrong with it.
    pub what: String,
}

impl ListenRefused {
    /// What to do instead.
    pub const REMEDY: &str = "name a certificate and its key in [service.tls], or listen on a loopback address \
        such as 127.0.0.1:7420 and reach it from elsewhere through an SSH tunnel \
        (ssh -L 7420:127.0.0.1:7420 HOST)";
}

/// Refuses addresses that other hosts can reach unless TLS protects the
/// traffic and the tokens on the way. Authentication needs no word here: no
/// call is answered without, wherever it comes from.
pub fn check_listen(addr: SocketAddr, tls: &Tls) -> Result<(), ListenRefused> {
    if addr.ip().to_canonical().is_loopback() || tls.pair().is_some() {
        return Ok(());
    }
    Err(ListenRefused { what: format!("`{addr}` can be reached from other hosts, and there is no TLS") })
}

/// Reads an address that somebody has typed.
pub fn parse_listen(given: &str) -> Result<SocketAddr, &'static str> {
    given.parse().map_err(|_| "write IP:PORT, as in 127.0.0.1:7420 or [::1]:7420; port 0 takes a free one")
}

pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<SocketAddr, D::Error> {
    let text = String::deserialize(from)?;
    text.parse().map_err(|_| {
        D::Error::custom(remark(
            &format!("{} is not an address to listen on", quoted(&text)),
            "write IP:PORT, as in \"127.0.0.1:7420\" or \"[::1]:7420\"; port 0 takes a free one",
        ))
    })
}

/// An address that need not be there; empty text is how people unset one.
pub(super) fn optional<'de, D: Deserializer<'de>>(from: D) -> Result<Option<SocketAddr>, D::Error> {
    let text = String::deserialize(from)?;
    if text.is_empty() {
        return Ok(None);
    }
    text.parse().map(Some).map_err(|_| {
        D::Error::custom(remark(
            &format!("{} is not an address to listen on", quoted(&text)),
            "write IP:PORT, as in \"127.0.0.1:9464\" or \"[::1]:9464\"; port 0 takes a free one",
        ))
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

    use super::*;

    #[test]
    fn beyond_loopback_only_with_tls() {
        let (plain, half) = (Tls::default(), Tls { cert: Some("/c".into()), ..Tls::default() });
        let tls = Tls { key: Some("/k".into()), ..half.clone() };
        for addr in ["127.0.0.1:0", "127.9.9.9:7420", "[::1]:7420", "[::ffff:127.0.0.1]:1"] {
            assert_eq!(check_listen(addr.parse().unwrap(), &plain), Ok(()), "{addr}");
        }
        for addr in ["0.0.0.0:7420", "[::]:7420", "10.0.0.1:7420", "[::ffff:10.0.0.1]:1"] {
            let addr = addr.parse().unwrap();
            for tls in [&plain, &half] {
                let refused = check_listen(addr, tls).unwrap_err().to_string();
                assert!(refused.contains("[service.tls]") && refused.contains("ssh -L"), "{refused}");
            }
            assert_eq!(check_listen(addr, &tls), Ok(()), "{addr}");
        }
    }
}
