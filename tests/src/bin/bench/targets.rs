//! What is compared: the same agent, reached in several ways.

use anyhow::{Context as _, Result};

use crate::{
    acp::Acp,
    editor::Editor,
    relay,
    service::{Programs, Service, Way},
    ssh::Ssh,
};

/// A way to reach the agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Target {
    /// Spawned by the editor.
    Direct,
    /// Behind a relay that only copies.
    Relay,
    /// Behind `ssh`.
    Ssh,
    /// Behind the official ACP conductor, without proxies.
    Acp,
    /// Through a service as a team has it: TLS, policy, effects wait for the disk.
    Conductor,
    /// The same, but nothing waits for the disk.
    Unsynced,
    /// The same as the last, without TLS.
    Plain,
}

impl Target {
    pub const ALL: [Self; 7] =
        [Self::Direct, Self::Relay, Self::Ssh, Self::Acp, Self::Conductor, Self::Unsynced, Self::Plain];

    /// All but the variants of the conductor.
    pub const MAIN: [Self; 5] = [Self::Direct, Self::Relay, Self::Ssh, Self::Acp, Self::Conductor];
}

/// What was measured of each target. Some are not installed everywhere, and some are not asked for.
#[derive(Debug)]
pub struct Each<T>([Option<T>; Target::ALL.len()]);

impl<T> Each<T> {
    pub fn new() -> Self {
        Self([const { None }; _])
    }

    pub fn get(&self, target: Target) -> Option<&T> {
        self.0[target as usize].as_ref()
    }

    /// What was measured of a target that is always there.
    pub fn of(&self, target: Target) -> Result<T>
    where
        T: Copy,
    {
        self.get(target).copied().with_context(|| format!("{target:?} was not measured"))
    }

    pub fn get_mut(&mut self, target: Target) -> Option<&mut T> {
        self.0[target as usize].as_mut()
    }

    pub fn set(&mut self, target: Target, value: T) {
        self.0[target as usize] = Some(value);
    }

    pub fn map<U>(&self, get: impl Fn(&T) -> U) -> Each<U> {
        Each(self.0.each_ref().map(|value| value.as_ref().map(&get)))
    }

    pub fn into_values(self) -> impl Iterator<Item = T> {
        self.0.into_iter().flatten()
    }
}

/// An editor with a session.
pub struct Seat {
    pub editor: Editor,
    pub session: String,
}

impl Seat {
    /// Does the handshake and opens a session.
    pub fn take(mut editor: Editor, service: &Service) -> Result<Self> {
        editor.initialize()?;
        let session = editor.new_session(&service.work())?;
        Ok(Self { editor, session })
    }
}

/// What the agent is reached through, as long as the benchmark runs.
pub struct Targets {
    pub programs: Programs,
    /// The service of [`Target::Conductor`].
    pub service: Service,
    unsynced: Service,
    plain: Service,
    /// Nothing where OpenSSH is not installed.
    ssh: Option<Ssh>,
    /// Nothing where it could not be fetched.
    acp: Option<Acp>,
}

impl Targets {
    pub fn start(programs: Programs, ssh: Option<Ssh>, acp: Option<Acp>) -> Result<Self> {
        let service = Service::start(&programs)?;
        let unsynced = Service::start_with(&programs, Way::Tls, UNSYNCED)?;
        let plain = Service::start_with(&programs, Way::Plain, UNSYNCED)?;
        Ok(Self { programs, service, unsynced, plain, ssh, acp })
    }

    /// Whether there is such a target here.
    pub fn has(&self, target: Target) -> bool {
        match target {
            Target::Ssh => self.ssh.is_some(),
            Target::Acp => self.acp.is_some(),
            _ => true,
        }
    }

    /// Starts what an editor would start. No handshake yet. The conductor has the agent in several kinds.
    pub fn spawn(&self, target: Target, agent: &str) -> Result<Editor> {
        match target {
            Target::Direct => self.programs.direct(),
            Target::Relay => relay::spawn(&self.programs),
            Target::Ssh => self.ssh.as_ref().context("there is no ssh")?.spawn(&self.programs.stub),
            Target::Acp => self.acp.as_ref().context("there is no ACP conductor")?.spawn(&self.programs.stub),
            Target::Conductor => self.service.bridge(agent),
            Target::Unsynced => self.unsynced.bridge(agent),
            Target::Plain => self.plain.bridge(agent),
        }
    }

    /// An editor with a session.
    pub fn take(&self, target: Target) -> Result<Seat> {
        let service = match target {
            Target::Unsynced => &self.unsynced,
            Target::Plain => &self.plain,
            _ => &self.service,
        };
        Seat::take(self.spawn(target, "stub")?, service)
    }

    /// Says that a measurement begins; one that never ends is ended with the services.
    pub fn step(&self) {
        for service in [&self.service, &self.unsynced, &self.plain] {
            service.step();
        }
    }

    /// Ends everything in good order.
    pub fn stop(self) -> Result<()> {
        for service in [self.service, self.unsynced, self.plain] {
            service.stop()?;
        }
        Ok(())
    }
}

/// Settings of a service in which nothing waits for the disk.
pub const UNSYNCED: &str = "[journal]\nrecording = \"best-effort\"\n";
