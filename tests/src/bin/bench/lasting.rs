//! What it costs that sessions outlive their editors' streams and their agents' processes: telling a long history
//! again, keeping sessions that nobody uses, and letting many editors back in at once.

use std::{
    thread::{scope, sleep},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use conductor_tests::proxy::Proxy;
use tokio::runtime::{Builder, Runtime};

use crate::{
    links::Door,
    machine::{self, Machine},
    measure::{Amount, millis, rate},
    rows::Rows,
    service::{Programs, Service, Way},
    targets::Seat,
};

/// Frames of the session that is told again.
const FRAMES: usize = 100_000;

/// The agent waits so long before it says what the editor misses.
const HEAD_START: Duration = Duration::from_millis(500);

/// Sessions whose memory is measured, and those that come before them: what the first ones need is needed once.
const SESSIONS: usize = 500;
const FIRST: usize = 100;

/// Sessions that are opened before all of them are parked. What one needs while it is open is used again by the
/// next, so that what remains is what a parked one needs.
const BATCH: usize = 50;

/// How long a process without sessions, or an editor that is away, may take to be noticed.
const NOTICED: Duration = Duration::from_secs(3);

/// How long sessions may take to be parked.
const PARKED: Duration = Duration::from_secs(30);

/// What measures it.
pub struct Lasting {
    programs: Programs,
    runtime: Runtime,
}

impl Lasting {
    pub fn new(programs: Programs) -> Result<Self> {
        let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
        Ok(Self { programs, runtime })
    }

    /// A long session, opened again and missed by a bridge that was cut off.
    pub fn reattach(&mut self, machine: &mut Machine, rows: &mut Rows) -> Result<()> {
        let service = Service::start(&self.programs)?;
        for (agent, row) in [("resuming", &mut rows.load), ("stub", &mut rows.load_handover)] {
            let mut seat = Seat::take(service.bridge(agent)?, &service)?;
            seat.editor.turn(&seat.session, &format!("n={FRAMES} size=64"), FRAMES + 1)?;
            seat.editor.end()?;
            // The ledger takes a while longer.
            machine::until_idle(service.pid())?;
            machine.settle()?;
            service.step();
            let mut editor = service.editor(agent)?;
            // The prompt is told, too, and the answer comes last.
            let took = editor.load_session(&seat.session, &service.work(), FRAMES + 2)?;
            row.value(rate(FRAMES, took)?);
            editor.turn(&seat.session, "n=1 size=64", 2)?;
            editor.end()?;
        }
        service.stop()?;

        let service = Service::start(&self.programs)?;
        let proxy = self.runtime.block_on(Proxy::to(service.port()?));
        let mut seat = Seat::take(service.bridge_by(Some(proxy.port()), "stub")?, &service)?;
        let prompt = format!("after={} n={FRAMES} size=64", HEAD_START.as_millis());
        let id = seat.editor.begin(&seat.session, &prompt)?;
        proxy.close(true);
        proxy.cut();
        sleep(HEAD_START);
        machine::until_idle(service.pid())?;
        machine.settle()?;
        service.step();
        let before = proxy.connections();
        proxy.close(false);
        let (through, (first, last)) = scope(|scope| {
            // The bridge tries again after a while; what that takes is chance.
            let through = scope.spawn(|| {
                while proxy.connections() == before {
                    sleep(Duration::from_micros(100));
                }
                Instant::now()
            });
            let read = seat.editor.finish(id, FRAMES + 1);
            anyhow::Ok((through.join().ok().context("nobody came through")?, read?))
        })?;
        rows.back.value(millis(first.saturating_duration_since(through)));
        rows.missed.value(rate(FRAMES, last - first)?);
        seat.editor.end()?;
        service.stop()
    }

    /// What the service keeps of sessions that nobody uses now. A fresh service for each kind, because freed memory
    /// stays with a process.
    pub fn idle(&mut self, machine: &mut Machine, rows: &mut Rows) -> Result<()> {
        machine.settle()?;
        for (way, row) in [(Way::Tls, &mut rows.live), (Way::Plain, &mut rows.live_plain)] {
            let service = Service::start_with(&self.programs, way, "")?;
            let door = Door::to(&service, "shared");
            let first = self.runtime.block_on(door.open_many(FIRST))?;
            let before = settled(&service)?;
            let links = self.runtime.block_on(door.open_many(SESSIONS))?;
            row.value((settled(&service)? - before) / SESSIONS as f64);
            drop((first, links));
            service.stop()?;
        }

        let service = Service::start(&self.programs)?;
        let door = Door::to(&service, "shared");
        let detach = |count: usize| {
            for _ in 0..count / BATCH {
                let links = self.runtime.block_on(door.open_many(BATCH))?;
                links.into_iter().for_each(|link| drop(link.lose()));
            }
            sleep(NOTICED);
            settled(&service)
        };
        let before = detach(FIRST)?;
        rows.detached.value((detach(SESSIONS)? - before) / SESSIONS as f64);
        service.stop()?;

        let service = Service::start(&self.programs)?;
        let mut editors = Vec::new();
        let mut park = |count: usize| {
            for at in 0..count / BATCH {
                if at.is_multiple_of(256 / BATCH) {
                    editors.push(service.editor("parking")?);
                }
                let editor = editors.last_mut().context("no editor")?;
                for _ in 0..BATCH {
                    editor.new_session(&service.work())?;
                }
                let due = Instant::now() + PARKED;
                while machine::children(service.pid())? > 0 {
                    ensure!(Instant::now() < due, "sessions are not parked after {PARKED:?}");
                    sleep(Duration::from_millis(20));
                }
            }
            settled(&service)
        };
        let before = park(FIRST)?;
        rows.parked.value((park(SESSIONS)? - before) / SESSIONS as f64);
        for editor in editors {
            editor.end()?;
        }
        service.stop()
    }

    /// Many editors that come back at the same moment: to a service that knows them, and to one that was killed.
    pub fn reconnect(&mut self, amount: &Amount, machine: &mut Machine, rows: &mut Rows) -> Result<()> {
        let service = Service::start(&self.programs)?;
        let door = Door::to(&service, "shared");
        let links = self.runtime.block_on(door.open_many(amount.links))?;
        machine.settle()?;
        service.step();
        let (took, mut links) = self.runtime.block_on(async {
            let lost = links.into_iter().map(|link| link.lose()).collect();
            let begun = Instant::now();
            let links = door.resume_all(lost).await?;
            anyhow::Ok((begun.elapsed(), links))
        })?;
        ensure!(links.len() == amount.links, "{} of {} came back", links.len(), amount.links);
        rows.links_back.value(took.as_secs_f64());
        self.runtime.block_on(async {
            for link in &mut links {
                link.turn().await?;
            }
            anyhow::Ok(())
        })?;
        drop(links);
        service.stop()?;

        // Another one: to that service the former editors are away, not gone.
        let mut service = Service::start(&self.programs)?;
        let proxy = self.runtime.block_on(Proxy::to(service.port()?));
        let mut seats = Vec::new();
        for _ in 0..amount.bridges {
            seats.push(Seat::take(service.bridge_by(Some(proxy.port()), "shared")?, &service)?);
        }
        machine.settle()?;
        service.step();
        let begun = Instant::now();
        proxy.cut();
        rows.bridges_back.value(answers(&mut seats, begun)?);
        for seat in seats {
            seat.editor.end()?;
        }

        let mut seats = Vec::new();
        for _ in 0..amount.bridges {
            seats.push(Seat::take(service.bridge_by(None, "resuming-shared")?, &service)?);
        }
        machine.settle()?;
        service.crash()?;
        // A prompt that was under way would be answered with an error.
        sleep(HEAD_START);
        service.start_again()?;
        rows.bridges_restart.value(answers(&mut seats, Instant::now())?);
        for seat in seats {
            seat.editor.end()?;
        }
        service.stop()
    }
}

/// Resident memory of a service that has nothing to do, in KiB.
fn settled(service: &Service) -> Result<f64> {
    machine::until_idle(service.pid())?;
    service.step();
    machine::resident(service.pid())
}

/// Seconds from a moment until every editor has had an answer to a prompt that is sent now.
fn answers(seats: &mut [Seat], begun: Instant) -> Result<f64> {
    let mut asked = Vec::new();
    for seat in &mut *seats {
        asked.push(seat.editor.ask_turn(&seat.session)?);
    }
    for (seat, id) in seats.iter_mut().zip(asked) {
        seat.editor.finish(id, 2)?;
    }
    Ok(begun.elapsed().as_secs_f64())
}
