//! Nothing outlives its session (A21–A24), its guard (C3) or the service (C4), however it
//! leaves its session, its group and its environment, and whoever is killed.

use std::{
    collections::BTreeSet,
    fs,
    path::Path,
    time::{Duration, Instant},
};

use conductor::record::Origin;
use conductor_tests::{
    dice::{Dice, number},
    disk,
    editor::DEADLINE,
    fake::process::SLEEPER,
    harness::{Running, Service, assert_says, poll_until},
    procfs::{began, parent},
};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde_json::{Value, json};

use crate::{Cell, LADDER, ONE_SECOND, Sandbox, end_reason, world};

/// Descendants of every stubborn kind; `clear_env` for some that have nothing to be known by.
fn stubborn(clear_env: bool) -> Value {
    json!([
        { "fork": { "detach": true, "hold_stdout": true, "ignore_sigterm": true, "clear_env": clear_env } },
        { "fork": { "detach": true, "ignore_sigterm": true } },
        { "fork": { "hold_stdout": true, "clear_env": clear_env } },
    ])
}

/// What runs of this test now, the service and our own editors left out.
fn alive(service: &Service) -> Vec<Running> {
    service.supervised()
}

/// Every process beneath one, each with its beginning.
fn tree(root: u32) -> Vec<(u32, String)> {
    let all: Vec<(u32, u32)> = fs::read_dir("/proc")
        .unwrap()
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .filter_map(|pid| Some((pid, parent(pid)?)))
        .collect();
    let mut found = BTreeSet::from([root]);
    loop {
        let more: Vec<u32> = all
            .iter()
            .filter(|(pid, parent)| found.contains(parent) && !found.contains(pid))
            .map(|(pid, _)| *pid)
            .collect();
        if more.is_empty() {
            break;
        }
        found.extend(more);
    }
    found.remove(&root);
    found.into_iter().filter_map(|pid| Some((pid, began(pid)?))).collect()
}

/// A process and every one beneath it.
fn family(root: i32) -> Vec<(u32, String)> {
    let root = root.cast_unsigned();
    tree(root).into_iter().chain(began(root).map(|since| (root, since))).collect()
}

/// How many of these processes are alive.
fn left(family: &[(u32, String)]) -> usize {
    family.iter().filter(|(pid, since)| began(*pid).as_ref() == Some(since)).count()
}

/// Fails unless a family, and whoever left it for good, is gone in time.
fn is_gone(service: &Service, family: &[(u32, String)], time: Duration, what: &str) {
    let gone = poll_until(time, || left(family) == 0 && sleepers(service) == 0);
    assert!(gone, "{what}: alive are {} and {:?}\n{}", left(family), alive(service), service.log());
}

/// Fails unless a family, and everything else of a service that was killed, is gone in time.
fn all_gone(service: &Service, family: &[(u32, String)], what: &str) {
    let gone = poll_until(ONE_SECOND, || left(family) == 0 && alive(service).is_empty());
    assert!(gone, "{what}: alive are {} and {:?}\n{}", left(family), alive(service), service.log());
}

fn kill9(pid: i32) {
    // It may have died of another's death by now.
    let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
}

fn sleepers(service: &Service) -> usize {
    service.processes().iter().filter(|running| running.command.contains(SLEEPER)).count()
}

/// A session whose agent has left descendants behind.
fn with_descendants(service: &Service, clear_env: bool) -> Cell {
    let mut mine = Cell::mine(service);
    mine.editor.turn_do(&mine.session, &stubborn(clear_env));
    assert!(poll_until(DEADLINE, || sleepers(service) == 3), "{:?}", service.processes());
    mine
}

#[test]
fn a21_detached_descendants_without_an_environment_die_with_the_session() {
    let service = world(Sandbox::Required).start();
    let mut mine = with_descendants(&service, true);
    let family = family(mine.guard);
    assert_eq!(family.len(), 5, "a guard, an agent and three others: {family:?}");
    mine.close();
    is_gone(&service, &family, ONE_SECOND, "a closed session");
}

#[test]
fn a21_they_die_with_a_crashed_agent_and_its_reader_ends() {
    let service = world(Sandbox::Required).start();
    let mut mine = with_descendants(&service, true);
    // A descendant holds stdout, so there is no end of file to notice.
    let id = mine.editor.prompt_do(&mine.session, &json!([{ "exit": 5 }]));
    assert_says(&mine.editor.error_of(&id), &["status 5"]);
    service.wait_gone(SLEEPER, ONE_SECOND);
}

#[test]
fn a22_ignored_sigterm_is_followed_by_sigkill() {
    let service = world(Sandbox::Required).start();
    let mut mine = with_descendants(&service, true);
    let family = family(mine.guard);
    mine.editor.turn_do(&mine.session, &json!(["ignore_sigterm", "stop_reading"]));
    mine.close();
    is_gone(&service, &family, LADDER, "a deaf agent");
    let told = service.ledger("fake").iter().any(|entry| entry.text.as_deref() == Some("SIGTERM"));
    assert!(told, "SIGTERM comes before SIGKILL");
}

#[test]
fn a23_a_stopped_agent_is_found_and_killed_with_all_it_has() {
    let service = world(Sandbox::Required).start();
    let mut mine = with_descendants(&service, true);
    let family = family(mine.guard);
    let id = mine.editor.prompt_do(&mine.session, &json!([{ "signal": 19 }, "hang"]));
    mine.editor.set_deadline(Duration::from_secs(30));
    assert_says(&mine.editor.error_of(&id), &["stop"]);
    is_gone(&service, &family, LADDER, "a stopped agent");
}

#[test]
fn a24_zombies_are_reaped() {
    let service = world(Sandbox::Required).start();
    let mut mine = Cell::mine(&service);
    let chunks = mine.editor.turn_do(&mine.session, &json!([{ "zombies": 20 }]));
    let pids: Vec<u32> = serde_json::from_str(&chunks[0]).unwrap();
    assert_eq!(pids.len(), 20);
    let family = family(mine.guard);
    mine.close();
    is_gone(&service, &family, LADDER, "an agent with dead children");
    let dead = || pids.iter().filter(|pid| Path::new(&format!("/proc/{pid}")).exists()).count();
    assert!(poll_until(ONE_SECOND, || dead() == 0), "{} zombies are left", dead());
}

#[test]
fn c03_a_killed_guard_takes_all_with_it_and_the_end_is_recorded() {
    who_ends_with_a_killed_guard(&world(Sandbox::Required).start());
}

/// Kills a guard: all beneath it ends, that is recorded, and nobody else notices.
pub fn who_ends_with_a_killed_guard(service: &Service) {
    let (mut mine, mut theirs) = (with_descendants(service, true), Cell::theirs(service));
    let family = family(mine.guard);
    assert_eq!(family.len(), 5, "{family:?}");
    // Killed before the prompt is there, another process would get it.
    let said = mine.editor.chunks(&mine.session).len();
    let turn = mine.editor.prompt_do(&mine.session, &json!([{ "update": {} }, "hang"]));
    mine.editor.wait_chunks(&mine.session, said + 1);
    kill9(mine.guard);
    is_gone(service, &family, ONE_SECOND, "a killed guard");
    mine.editor.error_of(&turn);
    end_reason(service, mine.agent);
    theirs.is_well();
}

#[test]
fn c04_nothing_outlives_a_killed_service() {
    let mut service = world(Sandbox::Required).start();
    let (mine, theirs) = (with_descendants(&service, true), Cell::theirs(&service));
    let tree = tree(service.pid());
    assert!(tree.len() >= 7, "two guards, two agents and three others: {tree:?}");
    service.kill9();
    all_gone(&service, &tree, "a killed service");
    drop((mine, theirs));
}

/// Kills the service and all its guards so that neither can clean up after the other.
fn kill_service_and_guards(service: &mut Service) {
    service.signal(Signal::SIGSTOP);
    // All its threads, or one of them would still see the first guard die.
    let pid = service.pid();
    let is_stopped = |stat: &str| stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('T'));
    let stopped = || {
        let threads = fs::read_dir(format!("/proc/{pid}/task")).unwrap().flatten();
        let mut stats = threads.filter_map(|thread| fs::read_to_string(thread.path().join("stat")).ok());
        stats.all(|stat| is_stopped(&stat))
    };
    assert!(poll_until(DEADLINE, stopped), "the service does not stop");
    // All are listed before the first is killed: what a guard leaves has the service as its parent, too.
    let is_guard = |(pid, _): &(u32, String)| parent(*pid) == Some(service.pid());
    let guards: Vec<_> = tree(service.pid()).into_iter().filter(is_guard).collect();
    guards.into_iter().for_each(|(guard, _)| kill9(guard.cast_signed()));
    service.kill9();
}

/// Ends an editor that may have lost its service. Its bridge would go on with the next one.
fn end(mut cell: Cell) {
    cell.editor.close_stdin();
    cell.editor.wait_exit();
}

#[test]
fn c04_what_outlives_both_service_and_guard_is_found_and_recorded_at_the_next_start() {
    let mut service = world(Sandbox::Required).start();
    // They have their environment, by which they are known.
    let mine = with_descendants(&service, false);
    let tree = tree(service.pid());
    kill_service_and_guards(&mut service);
    end(mine);
    let left: BTreeSet<u64> = alive(&service).iter().map(|running| running.pid.into()).collect();
    assert!(left.len() >= 3, "only {left:?} was left of {tree:?}, so nothing can be found");
    service.start_again();
    all_gone(&service, &tree, "a new start");
    Cell::open(&service, "fake", service.work().join("next")).is_well();
    service.term();
    let texts = disk::texts(&disk::journal(&service), Origin::Conductor);
    let notes = texts.iter().filter_map(|text| serde_json::from_str::<Value>(text).ok());
    let notes = notes.filter(|note| note["method"] == "_conductor/leftovers_ended");
    let processes: Vec<Value> =
        notes.flat_map(|note| note["params"]["processes"].as_array().unwrap().clone()).collect();
    let recorded = processes.iter().filter_map(|process| process["pid"].as_u64()).collect();
    assert_eq!(left, recorded, "{texts:?}");
}

#[test]
fn c04_processes_of_others_are_let_be_at_a_start() {
    let mut service = world(Sandbox::Required).start();
    let mine = with_descendants(&service, false);
    // Another service of the same host, with agents that look alike.
    let other = world(Sandbox::Required).start();
    let theirs = with_descendants(&other, false);
    kill_service_and_guards(&mut service);
    end(mine);
    service.start_again();
    assert!(poll_until(ONE_SECOND, || sleepers(&service) == 0), "{:?}", service.processes());
    assert_eq!(sleepers(&other), 3, "{:?}", other.processes());
    assert!(crate::runs(theirs.agent) && crate::runs(theirs.guard));
}

/// Kills somebody at some moment while an agent forks; nothing of it may be left.
fn round(service: &mut Service, dice: &mut Dice, what: &str) {
    let victim = dice.roll(6);
    let both = victim == 5;
    let mut mine = Cell::open(service, "fake", service.work().join("mine"));
    let mut steps = stubborn(!both);
    let more = json!([{ "update": {} }, { "repeat": [30, stubborn(!both)] }, "hang"]);
    steps.as_array_mut().unwrap().extend(more.as_array().unwrap().clone());
    mine.editor.prompt_do(&mine.session, &steps);
    let before = mine.editor.chunks(&mine.session).len();
    mine.editor.wait_chunks(&mine.session, before + 1);
    // The moment of the kill is what is random here; nothing waits for it.
    let moment = Instant::now() + Duration::from_micros(dice.roll(60_000));
    while Instant::now() < moment {
        std::thread::yield_now();
    }
    let (guard, agent) = (mine.guard, mine.agent);
    let what = format!("{what}, victim {victim}");
    let (all, family) = (tree(service.pid()), family(guard));
    match victim {
        0 => service.kill9(),
        1 => kill9(guard),
        2 => kill9(agent),
        3 => [guard, agent].into_iter().for_each(kill9),
        4 => {
            kill9(agent);
            service.kill9();
        }
        _ => kill_service_and_guards(service),
    }
    if service.is_running() {
        is_gone(service, &family, ONE_SECOND, &what);
        end(mine);
        return;
    }
    if both {
        end(mine);
        service.start_again();
        return all_gone(service, &all, &what);
    }
    all_gone(service, &all, &what);
    end(mine);
    service.start_again();
}

#[test]
fn c04_whoever_is_killed_at_whichever_moment_nothing_is_left() {
    let rounds = number("ORPHAN_ROUNDS", 10);
    let seed = number("ORPHAN_SEED", 20_261_117);
    let mut dice = Dice::new(seed);
    let mut service = world(Sandbox::Required).set("agents.fake.restart.intensity", 1_000_000).start();
    for number in 0..rounds {
        round(&mut service, &mut dice, &format!("round {number} of seed {seed}"));
    }
}
