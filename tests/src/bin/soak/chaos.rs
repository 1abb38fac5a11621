//! What goes wrong, and when: kills, drains, outages, a network that breaks and
//! stalls, and a configuration that changes, one after the other and some at the same
//! time, by lot.

use std::{
    collections::BTreeMap,
    fs,
    time::{Duration, Instant},
};

use conductor_tests::{
    dice::Dice,
    procfs::{began, parent},
};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

use crate::{
    findings::{Kind, Trouble},
    shared::count,
    work::RULES,
    world::{World, wait_until},
};

/// How long the service may take to end after a signal, on a busy machine.
const ENDING: Duration = Duration::from_secs(60);

/// How often each comes, of their sum.
const FAULTS: [(Fault, u64); 14] = [
    (Fault::KillService, 8),
    (Fault::KillAgent, 16),
    (Fault::KillGuard, 8),
    (Fault::KillBridge, 10),
    (Fault::Drain, 4),
    (Fault::KillInDrain, 3),
    (Fault::StopPostgres, 4),
    (Fault::KillPostgres, 3),
    (Fault::Cut, 16),
    (Fault::Stall, 6),
    (Fault::Delay, 4),
    (Fault::CloseProxy, 5),
    (Fault::Reload, 6),
    (Fault::Rules, 5),
];

/// What can go wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fault {
    KillService,
    KillAgent,
    KillGuard,
    KillBridge,
    Drain,
    KillInDrain,
    StopPostgres,
    KillPostgres,
    Cut,
    Stall,
    Delay,
    CloseProxy,
    Reload,
    Rules,
}

impl Fault {
    /// Its name in the report.
    pub fn name(self) -> &'static str {
        match self {
            Self::KillService => "kill -9 of the service",
            Self::KillAgent => "kill -9 of an agent",
            Self::KillGuard => "kill -9 of a guard",
            Self::KillBridge => "kill -9 of a bridge",
            Self::Drain => "SIGTERM, drained",
            Self::KillInDrain => "kill -9 in a drain",
            Self::StopPostgres => "database stopped",
            Self::KillPostgres => "kill -9 of the database",
            Self::Cut => "connections cut",
            Self::Stall => "connections stalled",
            Self::Delay => "answers delayed",
            Self::CloseProxy => "nobody let through",
            Self::Reload => "configuration reloaded",
            Self::Rules => "rules changed",
        }
    }

    /// Whether somebody is killed.
    pub fn is_kill(self) -> bool {
        self.name().starts_with("kill")
    }
}

/// What is to be put right again.
#[derive(Debug)]
enum Remedy {
    Postgres,
    Proxy(usize),
}

/// Breaks a world.
#[derive(Debug)]
pub struct Chaos {
    dice: Dice,
    remedies: Vec<(Instant, Remedy)>,
    /// What went wrong so far, and how often.
    pub done: BTreeMap<Fault, u64>,
    changes: u64,
}

impl Chaos {
    pub fn new(dice: Dice) -> Self {
        Self { dice, remedies: Vec::new(), done: BTreeMap::new(), changes: 0 }
    }

    /// Breaks things for a while, then puts all of them right.
    pub fn storm(&mut self, world: &mut World, until: Instant) {
        while Instant::now() < until {
            let pause = self.dice.millis(50, 900);
            wait_until((Instant::now() + pause).min(until));
            self.remedy(world, Instant::now());
            self.look_after_service(world);
            let fault = self.choose();
            if self.strike(world, fault) {
                *self.done.entry(fault).or_default() += 1;
                count(&world.shared.counts.faults);
            }
        }
        self.remedy(world, until + ENDING);
    }

    /// Sees that nothing ends by itself.
    pub fn look_after_service(&self, world: &mut World) {
        if began(world.service.pid()).is_none() {
            let status = world.service.wait_exit(ENDING);
            world.shared.findings.add(Trouble::one(Kind::Died, format!("the service ended with {status}")));
            world.start_again();
        }
    }

    fn choose(&mut self) -> Fault {
        let mut left = self.dice.roll(FAULTS.iter().map(|(_, weight)| weight).sum());
        for (fault, weight) in FAULTS {
            if left < weight {
                return fault;
            }
            left -= weight;
        }
        Fault::Cut
    }

    /// Does it; whether there was anybody to do it to.
    fn strike(&mut self, world: &mut World, fault: Fault) -> bool {
        match fault {
            Fault::KillService => self.kill_service(world, &[Signal::SIGKILL], fault),
            Fault::Drain => self.kill_service(world, &[Signal::SIGTERM], fault),
            Fault::KillInDrain => self.kill_service(world, &[Signal::SIGTERM, Signal::SIGKILL], fault),
            Fault::KillAgent => self.kill_one(&world.service.agents_alive()),
            Fault::KillGuard => {
                let ours = world.service.supervised().into_iter();
                let guards = ours.filter(|running| running.command.contains(" guard --control"));
                self.kill_one(&guards.map(|running| running.pid).collect::<Vec<_>>())
            }
            Fault::KillBridge => {
                let bridges: Vec<u32> = world.shared.bridges.lock().unwrap().values().copied().collect();
                // One that has just ended may have left its number to a stranger.
                let is_ours = |pid: &u32| parent(*pid) == Some(std::process::id());
                let bridges: Vec<u32> = bridges.into_iter().filter(is_ours).collect();
                self.kill_one(&bridges)
            }
            Fault::StopPostgres | Fault::KillPostgres => self.stop_postgres(world, fault),
            Fault::Cut | Fault::Stall | Fault::Delay | Fault::CloseProxy => {
                self.break_network(world, fault);
                true
            }
            Fault::Reload => {
                self.changes += 1;
                let grace = format!("{}s", 20 + self.changes % 5);
                world.service.configure("service.cancel_grace", grace);
                world.service.reload();
                true
            }
            Fault::Rules => {
                self.changes += 1;
                let rules = format!("{RULES}\n# revision {}\n", self.changes);
                fs::write(world.service.dir.join("policy.toml"), rules).expect("the rules can be written");
                world.service.reload();
                true
            }
        }
    }

    /// Ends the service by signals, sees that nothing is left, and starts it again.
    fn kill_service(&mut self, world: &mut World, signals: &[Signal], fault: Fault) -> bool {
        for (at, signal) in signals.iter().enumerate() {
            if at > 0 {
                let pause = self.dice.millis(0, 500);
                wait_until(Instant::now() + pause);
            }
            // It may have ended of the first one.
            if began(world.service.pid()).is_some() {
                world.service.signal(*signal);
            }
        }
        let status = world.service.wait_exit(ENDING);
        if fault == Fault::Drain && !status.success() {
            let words = format!("SIGTERM was followed by {status}");
            world.shared.findings.add(Trouble::one(Kind::Died, words));
        }
        world.look_for_orphans(fault.name());
        world.start_again();
        true
    }

    fn kill_one(&mut self, pids: &[u32]) -> bool {
        let Some(last) = pids.len().checked_sub(1) else { return false };
        let victim = pids[self.dice.roll(last as u64 + 1) as usize];
        kill(Pid::from_raw(victim.cast_signed()), Signal::SIGKILL).is_ok()
    }

    fn stop_postgres(&mut self, world: &World, fault: Fault) -> bool {
        let is_down = self.remedies.iter().any(|(_, remedy)| matches!(remedy, Remedy::Postgres));
        let Some(database) = world.database.as_ref().filter(|_| !is_down) else { return false };
        if fault == Fault::StopPostgres {
            database.server().stop();
        } else {
            database.server().kill();
        }
        self.remedies.push((Instant::now() + self.dice.millis(200, 6000), Remedy::Postgres));
        true
    }

    fn break_network(&mut self, world: &World, fault: Fault) {
        let number = self.dice.roll(world.proxies.len() as u64) as usize;
        let proxy = &world.proxies[number];
        match fault {
            Fault::Stall => proxy.swallow(),
            Fault::Delay => proxy.delay_answers(self.dice.millis(5, 200)),
            Fault::CloseProxy => {
                proxy.close(true);
                proxy.cut();
            }
            _ => return proxy.cut(),
        }
        self.remedies.push((Instant::now() + self.dice.millis(100, 4000), Remedy::Proxy(number)));
    }

    /// Puts right what is due.
    fn remedy(&mut self, world: &World, now: Instant) {
        let (due, later) = std::mem::take(&mut self.remedies).into_iter().partition(|(at, _)| *at <= now);
        self.remedies = later;
        let due: Vec<(Instant, Remedy)> = due;
        for (_, remedy) in due {
            match remedy {
                Remedy::Postgres => {
                    if let Some(database) = &world.database {
                        database.server().start();
                    }
                }
                Remedy::Proxy(number) => {
                    let proxy = &world.proxies[number];
                    proxy.close(false);
                    proxy.delay_answers(Duration::ZERO);
                    // What was swallowed never comes back.
                    proxy.cut();
                }
            }
        }
    }
}
