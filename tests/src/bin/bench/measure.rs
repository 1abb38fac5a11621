//! The measurements. Each round takes every one of them once, the agent alone, behind a plain relay, behind ssh
//! and through the conductor in turn.

use std::{
    path::PathBuf,
    process::Command,
    thread::sleep,
    time::{Duration, Instant},
};

use anyhow::{Result, bail, ensure};

use crate::{
    contained, decisions,
    editor::Editor,
    journal,
    lasting::Lasting,
    machine::{self, Machine},
    parts::Part,
    recording::Recording,
    relay,
    report::{Each, Row, median, percentile},
    rows::Rows,
    service::{Programs, SLOW_START, Service},
    ssh::Ssh,
};

/// How much of everything one round does.
#[derive(Debug, Clone, Copy)]
pub struct Amount {
    pub round_trips: usize,
    pub decisions: usize,
    pub stream: usize,
    /// Streams of one round, of which the median counts.
    pub streams: usize,
    pub paced: usize,
    pub starts: usize,
    pub slow_starts: usize,
    pub idle_sessions: usize,
    /// Connections and bridges that come back at once.
    pub links: usize,
    pub bridges: usize,
    pub journal: journal::Amount,
    /// Frames carried into each database.
    pub shipped: usize,
}

impl Amount {
    pub const FULL: Self = Self {
        round_trips: 2000,
        decisions: 24_000,
        stream: 100_000,
        streams: 3,
        paced: 500,
        starts: 20,
        slow_starts: 3,
        idle_sessions: 200,
        links: 1000,
        bridges: 100,
        journal: journal::Amount { frames: 1_000_000, effects: 300 },
        shipped: 200_000,
    };
    pub const QUICK: Self = Self {
        round_trips: 500,
        decisions: 6_000,
        stream: 20_000,
        streams: 3,
        paced: 100,
        starts: 5,
        slow_starts: 1,
        idle_sessions: 200,
        links: 1000,
        bridges: 50,
        journal: journal::Amount { frames: 300_000, effects: 100 },
        shipped: 60_000,
    };
}

/// Frames per second of the paced stream.
pub const PACE: usize = 500;

/// A slow reader takes nothing at first, then a little at a time, and then all the rest.
const READER_ASLEEP: Duration = Duration::from_secs(1);
const READER_PAUSE: Duration = Duration::from_millis(2);
const READER_SLOW_BYTES: usize = 24 << 20;

/// Bytes that a terminal prints.
const TERMINAL_BYTES: usize = 64 << 20;

/// Connections that share the idle sessions.
const CONNECTIONS: usize = 4;

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

/// Everything that is measured round by round.
pub struct Bench {
    programs: Programs,
    amount: Amount,
    service: Service,
    /// Nothing where OpenSSH is not installed.
    ssh: Option<Ssh>,
    seats: Each<Seat>,
    recording: Recording,
    lasting: Lasting,
    pub machine: Machine,
    rows: Rows,
}

impl Bench {
    pub fn start(
        programs: Programs,
        other: Option<PathBuf>,
        ssh: Option<Ssh>,
        amount: Amount,
        machine: Machine,
    ) -> Result<Self> {
        let service = Service::start(&programs)?;
        let seat = match &ssh {
            Some(ssh) => Some(Seat::take(ssh.spawn(&programs.stub)?, &service)?),
            None => None,
        };
        let seats = Each {
            direct: Seat::take(programs.direct()?, &service)?,
            relay: Seat::take(relay::spawn(&programs)?, &service)?,
            ssh: seat,
            conductor: Seat::take(service.bridge("stub")?, &service)?,
        };
        let recording = Recording::new(programs.clone(), other)?;
        let lasting = Lasting::new(programs.clone())?;
        Ok(Self { programs, amount, service, ssh, seats, recording, lasting, machine, rows: Rows::new() })
    }

    /// Ends everything in good order and gives the rows in the order of the table.
    pub fn finish(self) -> Result<(Vec<Row>, Machine)> {
        let Each { direct, relay, ssh, conductor } = self.seats;
        for seat in [direct, relay, conductor].into_iter().chain(ssh) {
            seat.editor.end()?;
        }
        self.recording.finish()?;
        self.service.stop()?;
        Ok((self.rows.into_vec(), self.machine))
    }

    /// One round of everything, or of one part. Who comes first changes from round to round.
    pub fn round(&mut self, index: usize, only: Option<&[Part]>) -> Result<()> {
        let parts = Part::ALL.into_iter().map(|(_, part)| part);
        for part in parts.filter(|part| only.is_none_or(|only| only.contains(part))) {
            self.service.step();
            let (recording, amount) = (&mut self.recording, &self.amount);
            let (machine, rows) = (&mut self.machine, &mut self.rows);
            match part {
                Part::RoundTrips => self.round_trips(index)?,
                Part::Decisions => {
                    machine.settle()?;
                    decisions::round(amount.decisions, rows)?;
                }
                Part::Held => {
                    machine.settle()?;
                    contained::round(&self.programs, amount.starts, rows)?;
                }
                Part::Streams => self.streams(index)?,
                Part::Crowds => self.crowds()?,
                Part::Terminal => self.terminal()?,
                Part::Starts => self.starts()?,
                Part::New => self.new_sessions()?,
                Part::Memory => self.memory()?,
                Part::Journal => recording.journal(amount.journal, index, machine, rows)?,
                Part::Recording => recording.service(amount, index, machine, rows)?,
                Part::Shipping => recording.shipping(amount.shipped, machine, rows)?,
                Part::Restart => recording.restart(machine, rows)?,
                Part::Reattach => self.lasting.reattach(machine, rows)?,
                Part::Idle => self.lasting.idle(machine, rows)?,
                Part::Reconnect => self.lasting.reconnect(amount, machine, rows)?,
            }
        }
        Ok(())
    }

    fn round_trips(&mut self, index: usize) -> Result<()> {
        let a = self.amount;

        let times = self.each(index, |seat, _| {
            for _ in 0..a.round_trips / 10 {
                seat.editor.turn(&seat.session, "n=1 size=64", 2)?;
            }
            let one = |_| Ok(micros(seat.editor.turn(&seat.session, "n=1 size=64", 2)?));
            (0..a.round_trips).map(one).collect::<Result<Vec<f64>>>()
        })?;
        self.rows.prompt_p50.each(&times.map(|times| median(times)));
        self.rows.prompt_p99.each(&times.map(|times| percentile(times, 0.99)));

        let times = self.each(index, |seat, _| {
            let one = |_| Ok(micros(seat.editor.permission(&seat.session)?));
            (0..a.round_trips / 2).map(one).collect::<Result<Vec<f64>>>()
        })?;
        self.rows.permission.each(&times.map(|times| median(times)));

        let times = self.each(index, |seat, _| {
            Ok(seat.editor.paced(&seat.session, PACE, a.paced)?.into_iter().map(micros).collect::<Vec<_>>())
        })?;
        self.rows.paced.each(&times.map(|times| median(times)));
        Ok(())
    }

    fn streams(&mut self, index: usize) -> Result<()> {
        let a = self.amount;
        let streams = self.each(index, |seat, serve| stream(seat, serve, a, 64))?;
        self.rows.stream_small.each(&streams.map(|(rate, _)| *rate));
        self.rows.cpu_small.value(streams.conductor.1);

        let rates = self.each(index, |seat, _| {
            let prompt = format!("n={} size=64", a.stream);
            let one = |_| rate(a.stream, seat.editor.decoded_turn(&seat.session, &prompt, a.stream + 1)?);
            (0..a.streams).map(one).collect::<Result<Vec<f64>>>()
        })?;
        self.rows.stream_decoded.each(&rates.map(|rates| median(rates)));

        let streams = self.each(index, |seat, serve| stream(seat, serve, a, 2048))?;
        self.rows.stream_large.each(&streams.map(|(rate, _)| *rate));
        self.rows.cpu_large.value(streams.conductor.1);
        Ok(())
    }

    fn crowds(&mut self) -> Result<()> {
        let bridge = |bench: &Self| bench.service.bridge("stub");
        let (one, all, _) = self.crowd(16, bridge)?;
        self.rows.crowd_16.pair(one, all);
        let (one, all, (mean, slowest)) = self.crowd(128, bridge)?;
        self.rows.crowd_128.pair(one, all);
        self.rows.slowest.pair(mean, slowest);
        let (one, all, (mean, slowest)) = self.crowd(128, |bench| relay::spawn(&bench.programs))?;
        self.rows.crowd_relay.pair(one, all);
        self.rows.slowest_relay.pair(mean, slowest);
        Ok(())
    }

    /// Many editors, each with a session that streams at the same time: the rate of one of them alone, of all
    /// together, and the mean and the least of each one's own rate.
    fn crowd(
        &mut self,
        sessions: usize,
        spawn: impl Fn(&Self) -> Result<Editor>,
    ) -> Result<(f64, f64, (f64, f64))> {
        let mut seats = Vec::new();
        for _ in 0..sessions {
            seats.push(Seat::take(spawn(self)?, &self.service)?);
        }
        self.machine.settle()?;
        self.service.step();
        // Alone it streams as much as all of them do together.
        let each = (4 * self.amount.stream / sessions).max(1000);
        let whole = each * sessions;
        let first = &mut seats[0];
        let alone = first.editor.turn(&first.session, &format!("n={whole} size=64"), whole + 1)?;
        self.service.step();
        let begun = Instant::now();
        let times = std::thread::scope(|scope| {
            let turn =
                |seat: &mut Seat| seat.editor.turn(&seat.session, &format!("n={each} size=64"), each + 1);
            let running: Vec<_> = seats.iter_mut().map(|seat| scope.spawn(move || turn(seat))).collect();
            let ended = running.into_iter().map(|thread| match thread.join() {
                Ok(took) => took,
                Err(_) => bail!("an editor failed"),
            });
            ended.collect::<Result<Vec<Duration>>>()
        })?;
        let all = begun.elapsed();
        for seat in seats {
            seat.editor.end()?;
        }
        let rates = times.into_iter().map(|took| rate(each, took)).collect::<Result<Vec<f64>>>()?;
        let mean = rates.iter().sum::<f64>() / rates.len() as f64;
        let slowest = rates.iter().copied().fold(f64::INFINITY, f64::min);
        Ok((rate(whole, alone)?, rate(whole, all)?, (mean, slowest)))
    }

    /// A command that prints much: read through a pipe of our own, and by the conductor's terminal.
    fn terminal(&mut self) -> Result<()> {
        self.machine.settle()?;
        self.service.step();
        let begun = Instant::now();
        let output = Command::new("head").args(["-c", &TERMINAL_BYTES.to_string(), "/dev/zero"]).output()?;
        ensure!(output.stdout.len() == TERMINAL_BYTES, "`head` printed {} bytes", output.stdout.len());
        let direct = begun.elapsed();
        let seat = &mut self.seats.conductor;
        let took = seat.editor.turn(&seat.session, &format!("terminal={TERMINAL_BYTES}"), 1)?;
        let mebibytes = |took: Duration| TERMINAL_BYTES as f64 / 1048576.0 / took.as_secs_f64();
        self.rows.terminal.pair(mebibytes(direct), mebibytes(took));
        Ok(())
    }

    /// Measures all targets, one right after the other.
    fn each<T>(
        &mut self,
        round: usize,
        mut measure: impl FnMut(&mut Seat, u32) -> Result<T>,
    ) -> Result<Each<T>> {
        let serve = self.service.pid();
        let Each { direct, relay, ssh, conductor } = &mut self.seats;
        let mut seats = [Some(direct), Some(relay), ssh.as_mut(), Some(conductor)];
        let mut found = [const { None }; 4];
        for turn in 0..seats.len() {
            let which = (round + turn) % seats.len();
            let Some(seat) = &mut seats[which] else { continue };
            self.machine.settle()?;
            self.service.step();
            found[which] = Some(measure(seat, serve)?);
        }
        match found {
            [Some(direct), Some(relay), ssh, Some(conductor)] => Ok(Each { direct, relay, ssh, conductor }),
            _ => bail!("a target was not measured"),
        }
    }

    /// How long a person waits for the bridge, against the least that any program takes.
    fn starts(&mut self) -> Result<()> {
        self.machine.settle()?;
        self.service.step();
        let (mut trivial, mut bridge, mut ssh) = (Vec::new(), Vec::new(), Vec::new());
        for index in 0..self.amount.starts {
            let started = Instant::now();
            ensure!(Command::new("true").status()?.success(), "`true` failed");
            trivial.push(millis(started.elapsed()));

            let started = Instant::now();
            let editor = self.service.editor("stub")?;
            bridge.push(millis(started.elapsed()));
            editor.end()?;

            // It takes a hundred times as long, so that a few of them must do.
            let Some(server) = self.ssh.as_ref().filter(|_| index % 5 == 0) else { continue };
            let started = Instant::now();
            let mut editor = server.spawn(&self.programs.stub)?;
            editor.initialize()?;
            ssh.push(millis(started.elapsed()));
            editor.end()?;
        }
        if !ssh.is_empty() {
            self.rows.start.ssh(median(&ssh));
        }
        self.rows.start.pair(median(&trivial), median(&bridge));
        Ok(())
    }

    fn new_sessions(&mut self) -> Result<()> {
        let (direct, warm) = self.new_session("stub", self.amount.starts, Programs::direct)?;
        self.rows.new.pair(direct, warm);
        let (direct, warm) = self.new_session("slow", self.amount.slow_starts, Programs::direct_slow)?;
        self.rows.new_slow.pair(direct, warm);
        let (own, added) = self.rebinding(self.amount.starts)?;
        self.rows.rebind.pair(own, added);
        Ok(())
    }

    /// What a prompt that goes to another agent, of which a process is warm, takes longer than the next one there;
    /// beside it that agent's own `session/new`.
    fn rebinding(&mut self, count: usize) -> Result<(f64, f64)> {
        self.machine.settle()?;
        let work = self.service.work();
        let mut alone = self.programs.direct()?;
        alone.initialize()?;
        let mut editor = self.service.editor("slow")?;
        let (mut own, mut added) = (Vec::new(), Vec::new());
        for _ in 0..count {
            self.service.step();
            let begun = Instant::now();
            alone.new_session(&work)?;
            own.push(millis(begun.elapsed()));

            let session = editor.new_session(&work)?;
            editor.turn_with(&session, "slow")?;
            // Its successor is not to start in the time that is measured.
            sleep(SLOW_START + Duration::from_millis(200));
            let moved = editor.turn_with(&session, "stub")?;
            let stayed = editor.turn_with(&session, "stub")?;
            added.push(millis(moved) - millis(stayed));
            editor.close_session(&session)?;
        }
        alone.end()?;
        editor.end()?;
        Ok((median(&own), median(&added)))
    }

    /// A session in an open editor with a warm agent, against starting the agent.
    fn new_session(
        &mut self,
        agent: &str,
        count: usize,
        spawn: impl Fn(&Programs) -> Result<Editor>,
    ) -> Result<(f64, f64)> {
        self.machine.settle()?;
        let work = self.service.work();
        let mut editor = self.service.editor(agent)?;
        let (mut direct, mut warm) = (Vec::new(), Vec::new());
        // The first one makes sure that the directory is kept warm from now on. Then whatever is starting must
        // have started: each session below starts one process, its successor, and is over when that is warm.
        let session = editor.new_session(&work)?;
        editor.close_session(&session)?;
        sleep(SLOW_START + Duration::from_millis(200));
        for _ in 0..count {
            self.service.step();
            let begun = Instant::now();
            let mut alone = spawn(&self.programs)?;
            alone.initialize()?;
            alone.new_session(&work)?;
            direct.push(millis(begun.elapsed()));
            alone.end()?;

            let started = self.service.started(agent);
            let begun = Instant::now();
            let session = editor.new_session(&work)?;
            warm.push(millis(begun.elapsed()));
            editor.close_session(&session)?;
            self.service.until_started(agent, started + 1)?;
        }
        editor.end()?;
        Ok((median(&direct), median(&warm)))
    }

    /// What the service keeps in memory. A fresh one each time, because freed memory stays with a process.
    fn memory(&mut self) -> Result<()> {
        let service = Service::start(&self.programs)?;
        let pid = service.pid();
        let mut seats = Vec::new();
        for _ in 0..CONNECTIONS {
            seats.push(Seat::take(service.bridge("shared")?, &service)?);
        }
        let before = machine::resident(pid)?;
        self.rows.idle.value(before / 1024.0);
        let each = self.amount.idle_sessions / CONNECTIONS;
        for seat in &mut seats {
            for _ in 0..each {
                seat.editor.new_session(&service.work())?;
            }
        }
        let after = machine::resident(pid)?;
        self.rows.session.value((after - before) / (each * CONNECTIONS) as f64);
        for seat in seats {
            seat.editor.end()?;
        }
        service.stop()?;

        let fast = self.streaming_memory(|_| {})?;
        self.rows.fast_reader.value(fast);
        let slow = self.streaming_memory(|read| {
            if read == 0 {
                sleep(READER_ASLEEP);
            } else if read < READER_SLOW_BYTES {
                sleep(READER_PAUSE);
            }
        })?;
        self.rows.slow_reader.value(slow);
        Ok(())
    }

    /// The most memory above idle, in MiB, while a stream passes.
    fn streaming_memory(&mut self, pause: impl FnMut(usize)) -> Result<f64> {
        let service = Service::start(&self.programs)?;
        let mut seat = Seat::take(service.bridge("stub")?, &service)?;
        seat.editor.turn(&seat.session, "n=1 size=64", 2)?;
        let pid = service.pid();
        machine::forget_peak(pid)?;
        let before = machine::resident(pid)?;
        let frames = self.amount.stream;
        seat.editor.turn_slowly(&seat.session, &format!("n={frames} size=2048"), frames + 1, pause)?;
        let above = machine::peak(pid)? - before;
        seat.editor.end()?;
        service.stop()?;
        Ok(above / 1024.0)
    }
}

/// Frames per second of the median stream, and CPU time per frame of what the editor started and the service:
/// meaningless for the direct target, whose child is the agent.
fn stream(seat: &mut Seat, serve: u32, amount: Amount, size: usize) -> Result<(f64, f64)> {
    let prompt = format!("n={} size={size}", amount.stream);
    let cpu = |seat: &Seat| Ok::<_, anyhow::Error>(machine::cpu(seat.editor.pid())? + machine::cpu(serve)?);
    let before = cpu(seat)?;
    let mut rates = Vec::new();
    for _ in 0..amount.streams {
        let took = seat.editor.turn(&seat.session, &prompt, amount.stream + 1)?;
        rates.push(rate(amount.stream, took)?);
    }
    let used = cpu(seat)? - before;
    Ok((median(&rates), micros(used) / (amount.stream * amount.streams) as f64))
}

pub fn rate(frames: usize, took: Duration) -> Result<f64> {
    ensure!(!took.is_zero(), "a stream that took no time");
    Ok(frames as f64 / took.as_secs_f64())
}

pub fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

pub fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}
