//! The address to listen on, which for now must not leave this host.

use std::net::SocketAddr;

use serde::{Deserialize, Deserializer, de::Error};

use super::error::{quoted, remark};

/// Why an address was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{what}; {}", Self::REMEDY)]
pub struct ListenRefused {
    /// What is wrong with it.
    pub what: String,
}

impl ListenRefused {
    /// What to do instead.
    pub const REMEDY: &str = "listen on a loopback address such as 127.0.0.1:7420 and reach it from elsewhere \
        through an SSH tunnel (ssh -L 7420:127.0.0.1:7420 HOST)";
}

/// Refuses addresses that other hosts can reach: nothing protects the traffic
/// or the token on a network yet.
pub fn check_listen(addr: SocketAddr) -> Result<(), ListenRefused> {
    if addr.ip().to_canonical().is_loopback() {
        return Ok(());
    }
    let what = format!(
        "`{addr}` can be reached from other hosts, and TLS and authentication for remote listening come later"
    );
    Err(ListenRefused { what })
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

    use super::*;

    #[test]
    fn only_loopback_is_accepted() {
        for addr in ["127.0.0.1:0", "127.9.9.9:7420", "[::1]:7420", "[::ffff:127.0.0.1]:1"] {
            assert_eq!(check_listen(addr.parse().unwrap()), Ok(()), "{addr}");
        }
        for addr in ["0.0.0.0:7420", "[::]:7420", "10.0.0.1:7420", "[::ffff:10.0.0.1]:1"] {
            let refused = check_listen(addr.parse().unwrap()).unwrap_err().to_string();
            assert!(refused.contains("TLS") && refused.contains("ssh -L"), "{refused}");
        }
    }
}
