//! What it costs to start an agent held, against starting it bare: the same stub, from the spawn to its answer to
//! `initialize`, with a guard and everything that this host has to hold it.

use std::{
    fs,
    io::{BufRead as _, BufReader, IoSlice, PipeReader, Write as _},
    mem::MaybeUninit,
    os::{
        fd::{AsFd as _, OwnedFd},
        unix::net::UnixStream,
    },
    path::PathBuf,
    process::{Child, Command, Stdio},
    time::Instant,
};

use anyhow::{Context as _, Result, ensure};
use conductor::{
    config::Config,
    contain::{Container, Containment, Premises, cells::Cells, leftovers, reach::Needs},
};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use uuid::Uuid;

use crate::{report::median, rows::Rows, service::Programs};

const HELLO: &[u8] =
    b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"initialize\",\"params\":{\"protocolVersion\":1}}\n";

/// Starts both in turn, so often.
pub fn round(programs: &Programs, count: usize, rows: &mut Rows) -> Result<()> {
    let dir = tempfile::tempdir()?;
    let (state, work) = (dir.path().join("state"), dir.path().join("work"));
    fs::create_dir(&state)?;
    fs::create_dir(&work)?;
    // Nobody's own configuration.
    let home = ("HOME".into(), dir.path().as_os_str().to_owned());
    let config = Config::load(None, [home])?.config;
    let mut agent = config.agents.get("demo").context("the demo agent is built in")?.clone();
    agent.sandbox = Some(conductor::config::Sandbox::Required);
    let premises = Premises::new(&state, Cells::find(&leftovers::instance(&state)));
    let search = std::env::var_os("PATH");
    let roots = [work.clone()];
    let needs = Needs {
        program: &programs.stub,
        args: &[],
        search: search.as_deref(),
        home: None,
        owns_home: false,
        roots: &roots,
        profile: None,
    };
    let containment = Containment::new(&premises, &agent, &needs);
    let (mut bare, mut held, mut memory) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..count {
        bare.push(start_bare(programs)?);
        let begun = Instant::now();
        let container = containment.container(Uuid::now_v7())?;
        let (took, kib) = start_held(programs, &container, &work, begun)?;
        held.push(took);
        memory.push(kib / 1024.0);
    }
    rows.start_held.pair(median(&bare), median(&held));
    rows.guard_memory.value(median(&memory));
    Ok(())
}

fn start_bare(programs: &Programs) -> Result<f64> {
    let begun = Instant::now();
    let mut child = Command::new(&programs.stub).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    child.stdin.as_mut().context("it has a stdin")?.write_all(HELLO)?;
    answer(&mut child)?;
    let took = millis(begun);
    drop(child.stdin.take());
    child.wait()?;
    Ok(took)
}

/// How long it took, and the memory of the guard in KiB.
fn start_held(
    programs: &Programs,
    container: &Container,
    work: &PathBuf,
    begun: Instant,
) -> Result<(f64, f64)> {
    let (mut control, theirs) = UnixStream::pair()?;
    let mut order = Command::new(&programs.conductor);
    order.args(["guard", "--control", "--cwd"]).arg(work).arg("--").arg(&programs.stub);
    order.env_clear().envs(container.variables()).stdin(OwnedFd::from(theirs)).stdout(Stdio::piped());
    let mut guard = order.spawn()?;
    drop(order);
    let (read, mut write) = std::io::pipe()?;
    hand_over(&control, &read)?;
    drop(read);
    let mut terms = serde_json::to_vec(&container.terms)?;
    terms.push(b'\n');
    control.write_all(&terms)?;
    write.write_all(HELLO)?;
    answer(&mut guard)?;
    let took = millis(begun);
    let mut held = String::new();
    BufReader::new(&control).read_line(&mut held)?;
    ensure!(held.contains("landlock") && held.contains("seccomp"), "it is not held: {held}");
    let status = fs::read_to_string(format!("/proc/{}/smaps_rollup", guard.id()))?;
    // What it shares with all others that run this program is there once.
    let own: f64 = status
        .lines()
        .filter(|line| line.starts_with("Private_"))
        .filter_map(|line| line.split_whitespace().nth(1)?.parse::<f64>().ok())
        .sum();
    drop((write, control));
    guard.wait()?;
    Ok((took, own))
}

fn answer(child: &mut Child) -> Result<()> {
    let mut line = String::new();
    BufReader::new(child.stdout.take().context("it has a stdout")?).read_line(&mut line)?;
    ensure!(line.contains("protocolVersion"), "it did not answer: {line}");
    Ok(())
}

fn hand_over(control: &UnixStream, stdin: &PipeReader) -> Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut rights = SendAncillaryBuffer::new(&mut space);
    let stdin = [stdin.as_fd()];
    ensure!(rights.push(SendAncillaryMessage::ScmRights(&stdin)), "the descriptor does not fit");
    sendmsg(control, &[IoSlice::new(b"0")], &mut rights, SendFlags::NOSIGNAL)?;
    Ok(())
}

fn millis(since: Instant) -> f64 {
    since.elapsed().as_secs_f64() * 1e3
}
