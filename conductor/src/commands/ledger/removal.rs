//! `conductor ledger retain` and `conductor ledger erase`: what goes is found, put on record,
//! signed, and then it goes: from the ledger, from what the service holds, and from the homes
//! of agents.

use std::{
    collections::HashSet,
    io::{IsTerminal as _, stderr, stdin},
    path::{Path, PathBuf},
};

use serde_json::{Value, json};
use uuid::Uuid;

use super::{exists, premises::Premises};
use crate::{
    agent::transcripts::{self, Kept},
    cli::{EraseArgs, Global, LedgerArgs, RetainArgs},
    clock,
    commands::{
        ids::{self, Part, pick},
        progress::ProgressLine,
        table::{Table, size},
        terminal::{confirm, print, print_json},
    },
    config::Config,
    frame::escape,
    ledger::{
        LedgerError, Settings,
        evidence::{checkpoint::Kind, log::Log},
        history::{Filter, History},
        removal::{Going, Remover, Sum, erase::Whose, retain::Age},
    },
    record::{StreamKind, now_us},
    state::StateDir,
};

/// Paths that are shown; all of them are in the JSON.
const SHOWN: usize = 10;

/// What such a command needs.
pub(super) struct Task<'a> {
    global: &'a Global,
    state: StateDir,
    config: Config,
    settings: Settings,
}

impl<'a> Task<'a> {
    pub(super) fn new(global: &'a Global, args: &LedgerArgs, settings: Settings) -> Result<Self, String> {
        let state = StateDir::resolve(global.state_dir.clone(), std::env::var_os)
            .map_err(|error| error.to_string())?;
        let loaded = Config::load(args.place.config.as_deref(), std::env::vars_os());
        let config = loaded.map_err(|error| error.to_string())?.config;
        exists(&settings)?;
        Ok(Self { global, state, config, settings })
    }

    /// The log in which it is put on record. A state directory without a journal is not the
    /// service's, and nothing goes on its word.
    fn log(&self) -> Result<Log, String> {
        Log::of_state(self.settings.evidence.clone()).map_err(|error| error.to_string())
    }

    async fn premises(&self) -> Result<Premises, String> {
        self.log()?;
        Box::pin(Premises::open(self.global, &self.state, &self.config, &self.settings)).await
    }

    async fn remover(&self) -> Result<Remover, String> {
        Remover::open(&self.settings).await.map_err(|error| self.untouched(&error))
    }

    /// Nothing was changed, and why.
    fn untouched(&self, error: &LedgerError) -> String {
        format!("the ledger {} stays as it was: {error}", self.settings.shown())
    }

    /// When the service began that has the state directory, or had it last: it writes its number
    /// into the lock then.
    fn began_us(&self) -> Option<i64> {
        let began =
            std::fs::metadata(self.state.path().join("lock")).and_then(|lock| lock.modified()).ok()?;
        let since = began.duration_since(std::time::UNIX_EPOCH).ok()?;
        i64::try_from(since.as_micros()).ok()
    }

    /// What agents keep of sessions goes, or is only looked for.
    fn transcripts(&self, kept: &[Kept], only_look: bool) -> Result<Vec<PathBuf>, String> {
        let homes = self.state.path().join("homes");
        transcripts::remove(self.config.agents.values(), &homes, kept, only_look).map_err(|error| {
            format!("what agents keep of it could not be removed: {error}; put that right and do it again")
        })
    }

    /// Removes what is old.
    pub(super) async fn retain(&self, args: &RetainArgs) -> Result<(), String> {
        let age = i64::try_from(args.older_than.as_micros()).unwrap_or(i64::MAX);
        let before_us = now_us().saturating_sub(age);
        let asks = !args.dry_run && asks(args.yes, args.json);
        if args.dry_run || asks {
            let mut remover = self.remover().await?;
            let age = Age { before_us, began_us: self.began_us(), ..Age::default() };
            let old = remover.old(&age).await;
            let old = old.map_err(|error| self.untouched(&error))?;
            let kept = remover.kept_by_agents(&old.streams).await;
            let found = self.transcripts(&kept.map_err(|error| self.untouched(&error))?, true)?;
            remover.close().await;
            let shown = Retained {
                streams: &old.streams,
                open: old.open,
                transcripts: &found,
                stage: if asks && !old.streams.is_empty() { Stage::Asking } else { Stage::Trial },
                ..Retained::default()
            };
            if args.dry_run || shown.stage == Stage::Asking {
                shown.print(args.json, before_us)?;
            }
            if args.dry_run {
                return Ok(());
            }
            if shown.stage == Stage::Asking && !confirm("Remove this for good? [y/N]").await? {
                return Err("nothing was removed".to_owned());
            }
        }
        let premises = self.premises().await?;
        let retained = Box::pin(self.retain_with(&premises, args, before_us)).await;
        premises.close().await;
        retained
    }

    async fn retain_with(
        &self,
        premises: &Premises,
        args: &RetainArgs,
        before_us: i64,
    ) -> Result<(), String> {
        let mut remover = self.remover().await?;
        let say = |error: LedgerError| self.untouched(&error);
        let not_cleaned = |error| format!("what was to go is gone, but the room was not given back: {error}");
        let log = self.log()?;
        let began_us = self.began_us().filter(|_| matches!(premises, Premises::Service(_)));
        let mut age = Age { before_us, journal: Some(log.journal()), began_us, open: HashSet::new() };
        let found = remover.old(&age).await.map_err(say)?;
        age.open = premises.withdraw(&sessions_of(&found.streams)).await?.into_iter().collect();
        // What was used meanwhile has reached the ledger by now, and nobody uses the rest any more.
        let old = remover.old(&age).await.map_err(say)?;
        if old.streams.is_empty() {
            // Whoever was killed may have left no more to do than this.
            let cleaned = remover.clean().await;
            remover.close().await;
            Retained { open: old.open, ..Retained::default() }.print(args.json, before_us)?;
            return cleaned.map_err(not_cleaned);
        }
        let kept = remover.kept_by_agents(&old.streams).await.map_err(say)?;
        let note = format!("everything before {}, by {}", clock::rfc3339_us(before_us), user());
        remover.sign(&log, Kind::Retained, &old.streams, &note).await.map_err(say)?;
        // The ledger is last: whoever was killed finds there what is to be done again.
        let (sessions, others) = split(&old.streams);
        let finished = premises.finish(sessions, others).await;
        let journal_records = finished.map_err(|why| {
            format!(
                "the ledger has it all, but the service has let go of some: {why}. Run the same command again"
            )
        })?;
        let transcripts = self.transcripts(&kept, false)?;
        let mut line = ProgressLine::new("frames");
        let removed =
            remover.remove(&old.streams, &age, |progress| line.tell(progress.done, progress.total)).await;
        line.clear();
        let (gone, months) = removed.map_err(say)?;
        let cleaned = remover.clean().await;
        remover.close().await;
        let shown = Retained {
            streams: &gone,
            open: old.open,
            months: &months,
            journal_records,
            transcripts: &transcripts,
            stage: Stage::Done,
        };
        shown.print(args.json, before_us)?;
        cleaned.map_err(not_cleaned)
    }

    /// Erases words.
    pub(super) async fn erase(&self, args: &EraseArgs) -> Result<(), String> {
        if args.dry_run {
            return Box::pin(self.erase_with(None, args, Stage::Trial)).await;
        }
        // Only from here on the ledger has all that there is to show.
        let premises = self.premises().await?;
        let erased = Box::pin(self.erase_at(&premises, args)).await;
        premises.close().await;
        erased
    }

    async fn erase_at(&self, premises: &Premises, args: &EraseArgs) -> Result<(), String> {
        if asks(args.yes, args.json) {
            Box::pin(self.erase_with(None, args, Stage::Asking)).await?;
            if !confirm("Erase this for good? [y/N]").await? {
                return Err("nothing was erased".to_owned());
            }
        }
        Box::pin(self.erase_with(Some(premises), args, Stage::Done)).await
    }

    async fn erase_with(
        &self,
        premises: Option<&Premises>,
        args: &EraseArgs,
        stage: Stage,
    ) -> Result<(), String> {
        let whose = match (&args.session, &args.user) {
            (Some(given), _) => Whose::Session(self.session(given).await?),
            (None, Some(user)) => Whose::User(user.clone()),
            (None, None) => return Err("name a session or a user".to_owned()),
        };
        let mut remover = self.remover().await?;
        let say = |error: LedgerError| self.untouched(&error);
        let mut words = remover.words_of(&whose).await.map_err(say)?;
        let refused = |open: &[Uuid]| {
            let ids: Vec<_> = open.iter().map(Uuid::to_string).collect();
            format!(
                "open sessions are not erased; close them first: {}",
                ids.iter()
                    .map(|id| format!("conductor sessions close {id}"))
                    .collect::<Vec<_>>()
                    .join(" && ")
            )
        };
        if !words.open.is_empty() {
            return Err(refused(&words.open));
        }
        if words.streams.is_empty() {
            return Err(match &whose {
                Whose::Session(id) => format!("there is no session {id} in {}", self.settings.shown()),
                Whose::User(user) => format!(
                    "there is nothing of {} in {}",
                    escape(user.as_bytes(), 100),
                    self.settings.shown()
                ),
            });
        }
        let mut shown = Erased { stage, ..Erased::default() };
        if let Some(premises) = premises {
            let open = premises.withdraw(&words.sessions).await?;
            if !open.is_empty() {
                return Err(refused(&open));
            }
            // Their last frames have reached the ledger by now.
            words = remover.words_of(&whose).await.map_err(say)?;
        }
        let kept = remover.kept_by_agents(&words.streams).await.map_err(say)?;
        shown.frames = words.frames;
        if let Some(premises) = premises {
            let log = self.log()?;
            // Whoever was killed in between does the rest again, and only that.
            if words.frames > 0 {
                let what = match &whose {
                    Whose::Session(id) => format!("session {id}"),
                    Whose::User(user) => format!("user {user}"),
                };
                let note = format!("{what}, by {}: {}", user(), args.reason);
                remover.sign(&log, Kind::Erased, &words.streams, &note).await.map_err(say)?;
                let (others, single) = (&words.others, &words.single);
                remover.sign_frames(&log, others, single, &note).await.map_err(say)?;
            }
            let mut line = ProgressLine::new("frames");
            let erased = remover.erase(&words, |progress| line.tell(progress.done, progress.total)).await;
            line.clear();
            erased.map_err(say)?;
            let (_, others) = split(&words.streams);
            let finished = premises.finish(words.sessions.clone(), others).await;
            shown.journal_records = finished.map_err(|why| unfinished(&why))?;
        }
        shown.transcripts = self.transcripts(&kept, premises.is_none())?;
        let cleaned = match premises {
            Some(_) => remover.clean().await,
            None => Ok(()),
        };
        remover.close().await;
        shown.sessions = words.sessions;
        shown.others = words.streams.len().saturating_sub(shown.sessions.len());
        shown.elsewhere = words.elsewhere;
        shown.aside = aside(&self.settings);
        shown.print(args.json)?;
        cleaned.map_err(|error| {
            format!("no row holds the words any more, but the files may still have traces of them: {error}")
        })
    }

    /// The session that is meant: its id, or its beginning.
    async fn session(&self, given: &str) -> Result<Uuid, String> {
        if let Ok(id) = given.parse() {
            return Ok(id);
        }
        if !ids::is_part(given) {
            return Err(format!("`{}` is no session's id", escape(given.as_bytes(), 100)));
        }
        let filter =
            Filter { id_prefix: Some(given.to_owned()), limit: ids::CANDIDATES + 1, ..Filter::default() };
        let history = History::new(self.settings.clone(), None);
        let found = history.sessions(&filter).await.map_err(|error| self.untouched(&error))?.items;
        let picked = pick(found.iter().map(|s| s.session_id.as_str()), given, Part::Beginning)?;
        let none = || format!("no session's id begins with `{given}`; `conductor sessions ls` lists them");
        picked.ok_or_else(none)?.parse().map_err(|_| "an id is none".to_owned())
    }
}

/// The rest is to be done, by the same command.
fn unfinished(why: &str) -> String {
    format!("the ledger has let go of it, but the service has not yet: {why}. Run the same command again")
}

/// Who does it, as this host knows them.
fn user() -> String {
    let known = nix::unistd::User::from_uid(nix::unistd::geteuid()).ok().flatten();
    known.map_or_else(|| nix::unistd::geteuid().to_string(), |user| user.name)
}

fn sessions_of(streams: &[Going]) -> Vec<Uuid> {
    split(streams).0
}

/// Sessions, and what is none.
fn split(streams: &[Going]) -> (Vec<Uuid>, HashSet<Uuid>) {
    let (sessions, others): (Vec<_>, Vec<_>) =
        streams.iter().partition(|stream| stream.kind == StreamKind::Session);
    (sessions.iter().map(|stream| stream.id).collect(), others.iter().map(|stream| stream.id).collect())
}

/// Damaged ledgers that were moved aside: nobody but their owner can tell what is in them.
fn aside(settings: &Settings) -> Vec<PathBuf> {
    let beside = settings.file.parent().map(Path::read_dir).into_iter().flatten().flatten();
    let paths = beside.filter_map(|entry| Some(entry.ok()?.path()));
    paths.filter(|path| path.to_string_lossy().contains(".damaged-")).collect()
}

fn paths(paths: &[PathBuf]) -> Value {
    paths.iter().map(|path| path.display().to_string()).collect()
}

fn show_paths(out: &mut String, what: &str, paths: &[PathBuf]) {
    for path in paths.iter().take(SHOWN) {
        out.push_str(&format!("{what} {}\n", escape(path.as_os_str().as_encoded_bytes(), 500)));
    }
    if paths.len() > SHOWN {
        out.push_str(&format!("and {} more\n", paths.len() - SHOWN));
    }
}

/// Whether somebody is asked first: unattended, as by a timer, nobody could answer.
fn asks(yes: bool, as_json: bool) -> bool {
    !yes && !as_json && stdin().is_terminal() && stderr().is_terminal()
}

/// How far it is when something is shown.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Stage {
    /// Nothing is to go.
    Trial,
    /// Somebody is about to be asked.
    Asking,
    #[default]
    Done,
}

/// What was removed, or would be.
#[derive(Default)]
struct Retained<'a> {
    stage: Stage,
    streams: &'a [Going],
    open: u64,
    months: &'a [String],
    journal_records: u64,
    transcripts: &'a [PathBuf],
}

impl Retained<'_> {
    fn print(&self, as_json: bool, before_us: i64) -> Result<(), String> {
        let sum = Sum::of(self.streams);
        if as_json {
            let ids: Vec<_> = sessions_of(self.streams).iter().map(Uuid::to_string).collect();
            let told = json!({
                "dry_run": self.stage == Stage::Trial,
                "before_us": before_us,
                "sessions": sum.sessions,
                "others": sum.others,
                "frames": sum.frames,
                "bytes": sum.bytes,
                "oldest_us": sum.oldest_us,
                "newest_us": sum.newest_us,
                "open": self.open,
                "months": self.months,
                "journal_records": self.journal_records,
                "transcripts": paths(self.transcripts),
                "session_ids": ids,
            });
            return print_json(&told);
        }
        let moment = |at: Option<i64>| at.map_or_else(|| "-".to_owned(), clock::rfc3339_us);
        let mut table = Table::new(0);
        table.row(["last used before".to_owned(), clock::rfc3339_us(before_us)]);
        table.row(["sessions".to_owned(), sum.sessions.to_string()]);
        table.row(["processes, connections, grants".to_owned(), sum.others.to_string()]);
        table.row(["frames".to_owned(), format!("{} ({})", sum.frames, size(sum.bytes))]);
        table.row(["oldest".to_owned(), moment(sum.oldest_us)]);
        table.row(["newest".to_owned(), moment(sum.newest_us)]);
        if self.open > 0 {
            table.row(["as old, but open".to_owned(), format!("{}, which stay", self.open)]);
        }
        if !self.months.is_empty() {
            table.row(["whole months".to_owned(), self.months.join(" ")]);
        }
        let mut out = table.lines().join("\n") + "\n";
        let (what, done) = match self.stage {
            Stage::Trial => ("would remove", "nothing was removed; leave out --dry-run to do it\n"),
            Stage::Asking => ("would remove", ""),
            Stage::Done if self.streams.is_empty() => ("removed", "there was nothing to remove\n"),
            Stage::Done => ("removed", "it is removed, and that is on record\n"),
        };
        show_paths(&mut out, what, self.transcripts);
        print(&(out + done))
    }
}

/// What was erased, or would be.
#[derive(Default)]
struct Erased {
    stage: Stage,
    sessions: Vec<Uuid>,
    others: usize,
    frames: u64,
    journal_records: u64,
    transcripts: Vec<PathBuf>,
    elsewhere: Vec<Uuid>,
    aside: Vec<PathBuf>,
}

impl Erased {
    fn print(&self, as_json: bool) -> Result<(), String> {
        let texts = |ids: &[Uuid]| ids.iter().map(Uuid::to_string).collect::<Vec<_>>();
        if as_json {
            let told = json!({
                "dry_run": self.stage == Stage::Trial,
                "session_ids": texts(&self.sessions),
                "others": self.others,
                "frames": self.frames,
                "journal_records": self.journal_records,
                "transcripts": paths(&self.transcripts),
                "elsewhere": texts(&self.elsewhere),
                "damaged_ledgers": paths(&self.aside),
            });
            return print_json(&told);
        }
        let (verb, done) = match self.stage {
            Stage::Trial => ("would remove", "nothing was erased; leave out --dry-run to do it\n"),
            Stage::Asking => ("would remove", ""),
            Stage::Done => ("removed", "the words are gone, and that is on record\n"),
        };
        let mut table = Table::new(0);
        table.row(["sessions".to_owned(), self.sessions.len().to_string()]);
        table.row(["processes, connections, grants".to_owned(), self.others.to_string()]);
        table.row(["frames with words".to_owned(), self.frames.to_string()]);
        if self.stage == Stage::Done {
            table.row(["records of the journal".to_owned(), self.journal_records.to_string()]);
        }
        let mut out = table.lines().join("\n") + "\n";
        show_paths(&mut out, verb, &self.transcripts);
        if !self.elsewhere.is_empty() {
            out.push_str(&format!(
                "prompts of this user stay in sessions of others, to be erased with --session: {}\n",
                texts(&self.elsewhere).join(" ")
            ));
        }
        show_paths(&mut out, "a damaged ledger may still hold the words, remove it by hand:", &self.aside);
        print(&(out + done))
    }
}
