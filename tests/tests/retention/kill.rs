//! Letting go, killed at each of its steps: what is left then is nothing that counts as changed,
//! and the same command does the rest.
//!
//! One run says which steps there are; the others end the command, or the service beside it,
//! before one of them. They are counted, so nothing hangs on time. Each run begins with the same
//! state and ends with a service that goes on.
//!
//! `KILL_STEPS` says how many steps are tried in each manner, 0 all of them, and `KILL_SEED` which.

use std::{
    fs,
    os::unix::process::ExitStatusExt as _,
    path::{Path, PathBuf},
    process::Command,
};

use conductor::{
    journal::{self, Journal},
    ledger::Settings,
};
use conductor_tests::{
    dice::{self, Dice},
    editor::DEADLINE,
    harness::Service,
    postgres::Database,
    preload,
    shipping::{derived, number},
};
use serde_json::{Value, json};

use crate::{
    erase::{close, dumped, holds, isolated, talk},
    fixture::{conduct, days_ago, done, end, holding, past},
    steps::{Counter, chosen},
};

const KEPT: &str = "canary-77aa-of-the-kept";

/// Who is killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Victim {
    /// The command, where no service runs.
    Alone,
    /// The command, beside a service.
    Beside,
    /// The service.
    Service,
}

/// A session that goes, and how.
#[derive(Debug, Clone)]
struct Removal {
    args: [String; 4],
    session: String,
    words: &'static str,
    /// What an agent keeps of it.
    transcript: PathBuf,
    /// How it is called when the ledger is verified.
    noted: &'static str,
}

/// A service that is stopped between runs, and what it begins each with.
struct Stage {
    service: Service,
    database: Option<Database>,
    removals: [Removal; 2],
    kept: String,
}

impl Stage {
    /// A session to be erased, one that is old, and one that stays.
    fn new() -> Self {
        // A small journal has a small reserve, which is copied often.
        let builder = isolated().set("journal.cap", "64MiB");
        let builder = builder.agent("demo", &json!({})).set("agents.demo.home", "isolated");
        let counter = Counter::of(builder.dir(), "service");
        let library = preload::library("steps");
        let builder = builder.env("LD_PRELOAD", library.to_str().unwrap());
        let mut service = builder.env("STEPS", counter.0.to_str().unwrap()).start();
        let (words, old_words) = ("canary-5c3e-of-the-erased", "canary-11d2-of-the-old");
        let (mut editor, mut other) = (service.editor(), service.editor());
        let (session, own) = talk(&service, &mut editor, words);
        let (kept, _) = talk(&service, &mut other, KEPT);
        close(&service, &session);
        drop((editor, other));
        assert!(service.term().success());
        let settings = journal::Settings { reserve_bytes: 1 << 16, ..journal::Settings::default() };
        let (journal, _) = Journal::open(&service.state().join("journal"), settings).unwrap();
        let old = past(&journal, days_ago(100), old_words);
        end(&journal, &old, days_ago(95));
        journal.close();
        // It hears of that, and so does the ledger.
        service.start_again();
        assert!(service.term().success());
        let homes = service.state().join("homes");
        let transcript = homes.join(format!("fake/projects/{own}.jsonl"));
        let erase = Removal {
            args: ["ledger", "erase", "--session", &session].map(str::to_owned),
            session,
            words,
            transcript,
            noted: "erased, which is on record",
        };
        let retain = Removal {
            args: ["ledger", "retain", "--older-than", "90d"].map(str::to_owned),
            session: old.session.id.to_string(),
            words: old_words,
            transcript: homes.join(format!("demo/projects/agent-{}.jsonl", old.session.id)),
            noted: "removed by retention, which is on record",
        };
        for Removal { session, words, transcript, .. } in [&erase, &retain] {
            let kept = service.state().join(format!("kept/{session}.json"));
            for place in [transcript, &kept] {
                fs::create_dir_all(place.parent().unwrap()).unwrap();
                fs::write(place, words).unwrap();
            }
            let found = holding(&service.state(), words);
            assert_eq!(found.len(), 5, "ledger, journal, store, home and a file of its own: {found:?}");
        }
        copy(&service.state(), &service.dir.join("begin"));
        Self { service, database: None, removals: [erase, retain], kept }
    }

    fn settings(&self) -> Settings {
        let mut settings = Settings::embedded(&self.service.state());
        if let Some(database) = &self.database {
            settings.url = database.url().parse().unwrap();
        }
        settings
    }

    /// As it was at first. A new database gets everything from the journal.
    async fn begin(&mut self, victim: Victim) {
        let state = self.service.state();
        fs::remove_dir_all(&state).unwrap();
        copy(&self.service.dir.join("begin"), &state);
        if self.database.is_some() {
            for entry in fs::read_dir(&state).unwrap().map(Result::unwrap) {
                if entry.file_name().to_string_lossy().starts_with("ledger.sqlite") {
                    fs::remove_file(entry.path()).unwrap();
                }
            }
            let database = Database::new().await;
            self.service.configure("ledger.url", database.url());
            self.database = Some(database);
            self.service.start_again();
            assert!(self.service.term().success());
        }
        if victim != Victim::Alone {
            self.service.start_again();
        }
    }

    /// Runs the command and kills somebody before a step. Which steps were taken, and whether
    /// somebody was killed.
    fn run(&mut self, removal: &Removal, victim: Victim, step: u64) -> (String, bool) {
        let [command, service] = ["command", "service"].map(|who| Counter::of(&self.service.dir, who));
        let counter = if victim == Victim::Service { &service } else { &command };
        let mut removing = self.service.command(&removal.args.each_ref().map(String::as_str));
        removing.env("CONDUCTOR_CONFIG", self.service.dir.join("agents.toml")).env("STEPS", &command.0);
        counter.begin(step);
        let output = removing.output().unwrap();
        let (taken, is_killed) = counter.end(step);
        match victim {
            Victim::Service if is_killed => {
                assert_eq!(self.service.wait_exit(DEADLINE).signal(), Some(9));
            }
            _ if is_killed => assert_eq!(output.status.signal(), Some(9), "{output:?}"),
            _ => assert!(output.status.success(), "{:?}", done(&output)),
        }
        (taken, is_killed)
    }

    /// What there is of the sessions that stay.
    async fn others(&self, removal: &Removal) -> Vec<String> {
        let other = self.removals.iter().find(|other| other.session != removal.session).unwrap();
        let sessions = [&self.kept, &other.session];
        let mut found = derived(&self.settings()).await;
        found.retain(|row| sessions.iter().any(|session| row.contains(*session)));
        let frames = format!(
            "SELECT count(*) FROM frames WHERE raw IS NOT NULL AND stream_id IN ('{}', '{}')",
            sessions[0], sessions[1]
        );
        found.push(format!("{} frames", number(&self.settings(), &frames).await));
        for words in [KEPT, other.words] {
            // Where a service runs, logs of databases come and go.
            let files = holding(&self.service.state(), words).into_iter();
            let files = files.filter(|file| !file.to_string_lossy().ends_with("-wal"));
            found.extend(files.map(|file| format!("{words} in {}", file.display())));
        }
        found
    }

    /// Does it again, with a service or without one, and looks at what is there and what is not.
    async fn do_again(&mut self, removal: &Removal, with_service: bool, others: &[String]) {
        // The log may be ahead of the table of checkpoints, which follows it.
        let verified = conduct(&self.service, &["ledger", "verify", "--json"]);
        let verified: Value = serde_json::from_str(&verified.stdout).unwrap();
        let mut findings = verified["findings"].as_array().unwrap().iter();
        assert!(findings.all(|finding| finding["what"] == "checkpoint_missing"), "{verified:#}");
        if with_service && !self.service.is_running() {
            self.service.start_again();
        }
        let again = conduct(&self.service, &removal.args.each_ref().map(String::as_str));
        assert_eq!(again.code, Some(0), "{again:?}");
        let state = self.service.state();
        assert_eq!(holding(&state, removal.words), Vec::<PathBuf>::new());
        assert!(!holds(&dumped(self.database.as_ref(), &state), removal.words));
        let verified = conduct(&self.service, &["ledger", "verify"]);
        assert!(verified.code == Some(0) && verified.stdout.contains(removal.noted), "{verified:?}");

        assert_eq!(self.others(removal).await, others, "whatever else there is stays as it is");
        if !self.service.is_running() {
            self.service.start_again();
        }
        let mut editor = self.service.editor();
        let listed = editor.call("session/list", &json!({})).to_string();
        assert!(listed.contains(&self.kept) && !listed.contains(&removal.session), "{listed}");
        let load = json!({ "sessionId": self.kept, "cwd": self.service.work(), "mcpServers": [] });
        editor.call("session/load", &load);
        assert!(editor.chunks(&self.kept).concat().contains(KEPT));
        assert_eq!(editor.turn(&self.kept, "it goes on").last().unwrap(), "echo: it goes on");
        drop(editor);
        assert!(self.service.term().success());
    }
}

fn copy(from: &Path, to: &Path) {
    assert!(Command::new("cp").arg("-a").args([from, to]).status().unwrap().success());
}

#[allow(clippy::print_stdout, reason = "a failure is shown with the step before it")]
async fn killed_at_each_step(stage: &mut Stage, removal: &Removal, manners: &[(Victim, u64)]) {
    let mut dice = Dice::new(dice::number("KILL_SEED", 7));
    stage.begin(Victim::Alone).await;
    let others = stage.others(removal).await;
    for (victim, most) in manners.iter().copied() {
        stage.begin(victim).await;
        let (taken, _) = stage.run(removal, victim, u64::MAX >> 1);
        if stage.service.is_running() {
            assert!(stage.service.term().success());
        }
        let most = usize::try_from(dice::number("KILL_STEPS", most)).unwrap();
        let steps = chosen(&taken, most, &mut dice);
        let mut kills = 0;
        for (round, step) in steps.iter().enumerate() {
            let at = taken.lines().nth(usize::try_from(step - 1).unwrap()).unwrap();
            println!("{} with {victim:?} killed before step {step}, {at}", removal.args[1]);
            stage.begin(victim).await;
            kills += usize::from(stage.run(removal, victim, *step).1);
            stage.do_again(removal, round % 2 == 0, &others).await;
        }
        // Not each run takes as many steps as the first.
        assert!(kills > 0 && kills * 2 > steps.len(), "only {kills} were killed before {steps:?} of {taken}");
    }
    let log = stage.service.log();
    assert!(!log.contains("is not as it was left"), "the journal is whole: {log}");
}

/// In which manners, and at how many steps.
const MANNERS: [(Victim, u64); 3] = [(Victim::Alone, 8), (Victim::Beside, 5), (Victim::Service, 4)];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_erasure_that_is_killed_is_done_again() {
    let mut stage = Stage::new();
    let [erase, _] = stage.removals.clone();
    killed_at_each_step(&mut stage, &erase, &MANNERS).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_retention_that_is_killed_is_done_again() {
    let mut stage = Stage::new();
    let [_, retain] = stage.removals.clone();
    killed_at_each_step(&mut stage, &retain, &MANNERS).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn both_are_done_again_with_postgres() {
    let mut stage = Stage::new();
    stage.database = Some(Database::new().await);
    for removal in stage.removals.clone() {
        killed_at_each_step(&mut stage, &removal, &[(Victim::Alone, 4)]).await;
    }
}
