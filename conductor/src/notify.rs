//! Word to the service manager: ready, reloading, stopping, still alive.
//!
//! systemd hands a service the address of a datagram socket in `NOTIFY_SOCKET`
//! and, if it watches over it, an interval in `WATCHDOG_USEC`. Without them
//! nothing is said. The watchdog is fed by a task of the runtime that relays,
//! after a look behind the journal's lock: if either hangs, nobody feeds it.

use std::{
    ffi::{OsStr, OsString},
    io,
    os::unix::{
        ffi::OsStrExt as _,
        net::{SocketAddr, UnixDatagram},
    },
    time::Duration,
};

use nix::time::{ClockId, clock_gettime};
use tokio::time::{MissedTickBehavior, interval};
use tracing::warn;

use crate::journal::Journal;

/// Who is told.
#[derive(Debug)]
pub struct Manager {
    socket: Option<(UnixDatagram, SocketAddr)>,
    watchdog: Option<Duration>,
}

impl Manager {
    /// The manager that the environment names, if it names one.
    pub fn new(variable: impl Fn(&str) -> Option<OsString>) -> Self {
        let address = variable("NOTIFY_SOCKET").filter(|address| !address.is_empty());
        let socket = address.and_then(|address| match connect(&address) {
            Ok(socket) => Some(socket),
            Err(error) => {
                warn!(%error, "NOTIFY_SOCKET cannot be used; the service manager is told nothing");
                None
            }
        });
        let text = |name| variable(name).and_then(|text| text.into_string().ok());
        // It may be meant for the program that started us.
        let is_ours = text("WATCHDOG_PID").is_none_or(|pid| pid == std::process::id().to_string());
        let interval = text("WATCHDOG_USEC").and_then(|text| text.parse().ok()).filter(|us| *us > 0);
        Self { socket, watchdog: interval.filter(|_| is_ours).map(Duration::from_micros) }
    }

    /// Sessions can be opened.
    pub fn ready(&self) {
        self.say("READY=1\nSTATUS=serving");
    }

    /// Configuration and policy are read anew; `ready` follows.
    pub fn reloading(&self) {
        let since = clock_gettime(ClockId::CLOCK_MONOTONIC).map(Duration::from).unwrap_or_default();
        self.say(&format!("RELOADING=1\nMONOTONIC_USEC={}", since.as_micros()));
    }

    /// Turns end, and then everything else.
    pub fn stopping(&self) {
        self.say("STOPPING=1\nSTATUS=letting turns end");
    }

    /// Feeds the watchdog, twice as often as it must be. Never returns.
    pub async fn feed_watchdog(&self, journal: &Journal) {
        let Some(time) = self.watchdog.filter(|_| self.socket.is_some()) else {
            return std::future::pending().await;
        };
        let mut ticks = interval(time / 2);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            // Waits for the lock as every frame does.
            let _ = journal.status();
            self.say("WATCHDOG=1");
        }
    }

    fn say(&self, words: &str) {
        if let Some((socket, address)) = &self.socket
            && let Err(error) = socket.send_to_addr(words.as_bytes(), address)
        {
            warn!(%error, "the service manager cannot be told");
        }
    }
}

fn connect(address: &OsStr) -> io::Result<(UnixDatagram, SocketAddr)> {
    let address = match address.as_bytes() {
        #[cfg(target_os = "linux")]
        [b'@', name @ ..] => {
            use std::os::linux::net::SocketAddrExt as _;
            SocketAddr::from_abstract_name(name)?
        }
        _ => SocketAddr::from_pathname(address)?,
    };
    let socket = UnixDatagram::unbound()?;
    // A manager that does not read must not hold us up.
    socket.set_nonblocking(true)?;
    Ok((socket, address))
}

#[cfg(all(test, target_os = "linux"))]
#[allow(clippy::unwrap_used, reason = "tests fail by panicking")]
mod tests {
    use std::os::linux::net::SocketAddrExt as _;

    use super::*;

    fn heard(socket: &UnixDatagram) -> String {
        let mut buffer = [0; 256];
        let length = socket.recv(&mut buffer).unwrap();
        String::from_utf8_lossy(&buffer[..length]).into_owned()
    }

    #[test]
    fn a_manager_is_found_by_path_and_by_abstract_name() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("notify");
        let listening = UnixDatagram::bind(&path).unwrap();
        let manager = Manager::new(|name| (name == "NOTIFY_SOCKET").then(|| path.clone().into()));
        manager.ready();
        assert!(heard(&listening).starts_with("READY=1\n"));

        let name = format!("conductor-test-{}", std::process::id());
        let address = SocketAddr::from_abstract_name(name.as_bytes()).unwrap();
        let listening = UnixDatagram::bind_addr(&address).unwrap();
        let manager = Manager::new(|var| (var == "NOTIFY_SOCKET").then(|| format!("@{name}").into()));
        manager.reloading();
        assert!(heard(&listening).starts_with("RELOADING=1\nMONOTONIC_USEC="));
    }

    #[test]
    fn nobody_is_told_where_nobody_asked() {
        let manager = Manager::new(|_| None);
        manager.stopping();
        assert!(manager.socket.is_none() && manager.watchdog.is_none());
        // The watchdog of another process is not ours to feed.
        let other = Manager::new(|name| match name {
            "WATCHDOG_USEC" => Some("1000000".into()),
            "WATCHDOG_PID" => Some("1".into()),
            _ => None,
        });
        assert!(other.watchdog.is_none());
    }
}
