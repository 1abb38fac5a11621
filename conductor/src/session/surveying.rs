//! Protected places are looked at before a turn and after it: what the agent's own tools have
//! changed there, and nobody has decided about, is told.
//!
//! The prompt goes to the agent once the first look is over, and the agent's answer to it is heard
//! once the second is, so what is told belongs to the turn. The first is made while the prompt's
//! record is on its way to the disk. A look is made on another thread, for a disk may hang; but
//! where the last one was over in a moment, on a disk of this host, the next is a glance by the
//! session itself: to wake a thread and be woken by it takes longer. What people or other sessions
//! change meanwhile cannot be told apart, and what an agent does between turns is not seen.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use serde_json::json;
use tokio::{
    task::JoinSet,
    time::{Instant, timeout_at},
};
use tracing::warn;

use super::{Input, Session, excuses::Excuses};
use crate::{
    frame::{Kind, Run},
    metrics::Branch,
    pending::WireId,
    policy::{
        paths::survey::{Change, Survey},
        text::shown,
    },
    record::note,
};

/// How long somebody waits for a look. It ends itself much sooner, unless the disk hangs.
const PATIENCE: Duration = Duration::from_secs(1);

/// Paths that people are shown; the record has more.
const MOST_SHOWN: usize = 5;

/// Paths that one note has, as many as the ledger takes from it.
const MOST_NOTED: usize = 256;

/// Longest path in a notice.
const LONGEST: usize = 200;

/// How far a session is with looking.
#[derive(Debug, Default)]
enum Stage {
    /// No turn runs, or none that is looked at.
    #[default]
    Rest,
    /// A turn begins; the first look is made once its prompt is written. It may be on its way
    /// already: the last prompt was taken back, and what is seen for that is as good for this one.
    Due { is_on_its_way: bool },
    /// The prompt waits for the first look.
    First,
    /// The turn runs; what there was before.
    Running(Survey),
    /// The agent has answered, and that waits for the second look.
    Second { before: Survey, answer: Run },
}

/// What a session knows of its protected places.
#[derive(Debug)]
pub(super) struct Surveying {
    stage: Stage,
    /// A look on another thread; at most one, also if it hangs.
    looking: JoinSet<Survey>,
    /// How long it is waited for.
    due: Instant,
    /// What was allowed in this turn.
    pub(super) excuses: Excuses,
    /// Of which places it was told that not all is looked at.
    told: Vec<PathBuf>,
    roots: Vec<PathBuf>,
    /// The last look, if it was brief.
    last: Option<Survey>,
}

impl Default for Surveying {
    fn default() -> Self {
        Self {
            stage: Stage::Rest,
            looking: JoinSet::new(),
            due: Instant::now(),
            excuses: Excuses::default(),
            told: Vec::new(),
            roots: Vec::new(),
            last: None,
        }
    }
}

impl Surveying {
    /// Whether a prompt has to wait.
    pub(super) fn holds_prompt(&self) -> bool {
        matches!(self.stage, Stage::First)
    }

    /// Whether an answer waits.
    pub(super) fn holds_answer(&self) -> bool {
        matches!(self.stage, Stage::Second { .. })
    }

    /// The turn has not begun after all.
    pub(super) fn forget(&mut self) {
        self.stage = Stage::Rest;
    }

    /// A turn begins. Something of the session may still be at work here.
    fn begin(&mut self, roots: &[PathBuf], is_busy: bool) {
        self.excuses = Excuses::new(is_busy);
        let is_same = self.roots == roots;
        if !is_same {
            (self.roots, self.last) = (roots.to_vec(), None);
        }
        let is_on_its_way = is_same && !self.looking.is_empty() && self.due > Instant::now();
        self.stage = Stage::Due { is_on_its_way };
    }

    /// Looks for the first time in a turn, if that is due.
    pub(super) fn look(&mut self) {
        let Stage::Due { is_on_its_way } = self.stage else { return };
        self.stage = Stage::First;
        if is_on_its_way {
            return;
        }
        if let Some(survey) = self.last.as_ref().and_then(Survey::glance) {
            return self.looked(survey);
        }
        let roots = self.roots.clone();
        if !self.start(move || Survey::first(&roots)) {
            self.stage = Stage::Running(Survey::unseen(&self.roots));
        }
    }

    /// The first look is over.
    fn looked(&mut self, survey: Survey) {
        self.last = survey.is_brief().then(|| survey.clone());
        self.stage = Stage::Running(survey);
    }

    /// Looks for the second time.
    fn end(&mut self, before: &Survey) -> bool {
        let before = before.clone();
        self.start(move || before.again())
    }

    /// Has another thread look; whether it does. If the last one still looks, the disk hangs, and
    /// nobody is sent after it.
    fn start(&mut self, look: impl FnOnce() -> Survey + Send + 'static) -> bool {
        while self.looking.try_join_next().is_some() {}
        let is_free = self.looking.is_empty();
        if is_free {
            self.looking.spawn_blocking(look);
            self.due = Instant::now() + PATIENCE;
        }
        is_free
    }

    /// What was seen by the thread that was sent last. Nothing is lost if this is dropped.
    pub(super) async fn seen(&mut self) -> Survey {
        match timeout_at(self.due, self.looking.join_next()).await {
            Ok(Some(Ok(survey))) => survey,
            // It hangs, or it broke down.
            _ => Survey::unseen(&self.roots),
        }
    }
}

impl Session {
    /// A turn begins: the prompt is about to be staged.
    pub(super) fn survey_before(&mut self) {
        let berth = &self.open.berth;
        self.survey.forget();
        if berth.hosting.is_some() {
            // A command of the last turn may go on, and a write be on its way.
            let is_busy = !self.host.is_idle() || !self.terminals.is_empty();
            self.survey.begin(&berth.roots, is_busy);
        }
    }

    /// What the agent says. If that ends the turn, it is heard after the second look.
    pub(super) fn hear_agent(&mut self, run: Option<Run>) {
        let Some(run) = run else {
            self.output = None;
            return;
        };
        match std::mem::take(&mut self.survey.stage) {
            Stage::Running(before) if self.ends_turn(&run) => self.survey_after(before, run),
            stage => {
                self.survey.stage = stage;
                self.take_run(&run);
            }
        }
    }

    /// Whether the answer to the running turn's prompt is among these frames.
    fn ends_turn(&self, run: &Run) -> bool {
        let Some(turn) = &self.turn else { return false };
        run.iter().any(|(bytes, peek)| {
            matches!(peek.kind, Kind::Result | Kind::Error)
                && WireId::parse(peek.id.of(bytes)).is_some_and(|id| id.number == turn.number)
        })
    }

    fn survey_after(&mut self, before: Survey, answer: Run) {
        // What was allowed may have changed anything.
        if self.survey.excuses.cover_all() {
            return self.take_run(&answer);
        }
        if let Some(after) = before.glance_again() {
            self.survey.last = Some(after.clone());
            self.tell_changes(&before, &after);
            return self.take_run(&answer);
        }
        if self.survey.end(&before) {
            self.survey.stage = Stage::Second { before, answer };
            return;
        }
        self.tell_changes(&before, &Survey::unseen(&self.open.berth.roots));
        self.take_run(&answer);
    }

    /// A look is over: what waited for it goes on.
    pub(super) fn surveyed(&mut self, survey: Survey) {
        match std::mem::take(&mut self.survey.stage) {
            Stage::First => self.survey.looked(survey),
            Stage::Second { before, answer } => {
                self.tell_changes(&before, &survey);
                self.take_run(&answer);
            }
            stage => self.survey.stage = stage,
        }
    }

    /// The agent has ended, or the session does, and a turn ran. What the agent said last and
    /// nobody has heard is given back.
    pub(super) async fn survey_last(&mut self) -> Option<Run> {
        let (before, answer, is_looking) = match std::mem::take(&mut self.survey.stage) {
            Stage::Running(before) if !self.survey.excuses.cover_all() => {
                let is_looking = self.survey.end(&before);
                (before, None, is_looking)
            }
            Stage::Second { before, answer } => (before, Some(answer), true),
            Stage::Rest | Stage::Due { .. } | Stage::First | Stage::Running(_) => return None,
        };
        let after = match is_looking {
            true => self.survey.seen().await,
            false => Survey::unseen(&self.open.berth.roots),
        };
        self.tell_changes(&before, &after);
        answer
    }

    /// Tells what has changed and was not decided. It stands before the end of the turn, in the
    /// record, too.
    fn tell_changes(&mut self, before: &Survey, after: &Survey) {
        let mut changes = after.changes_since(before);
        changes.retain(|change| !self.survey.excuses.cover(&change.path));
        self.tell_unseen(before, after);
        if !changes.is_empty() {
            self.report_changes(&changes);
        }
        if self.recorder.has_pending() {
            self.commit(Input::Nothing);
        }
    }

    fn report_changes(&mut self, changes: &[Change]) {
        let paths = changes.iter().map(|change| change.path.as_path());
        let list = self.listed(paths);
        warn!(paths = list, "what is protected was changed in a turn, and nobody was asked");
        self.open.metrics.unmediated.add(changes.len() as u64);
        let noted: Vec<_> = changes
            .iter()
            .take(MOST_NOTED)
            .map(|change| json!({ "path": change.path.to_string_lossy(), "change": change.what.name() }))
            .collect();
        let params = json!({ "paths": noted, "more": changes.len() - noted.len() });
        self.recorder.note(note::UNMEDIATED, &params);
        let text = format!(
            "While this turn ran, what is protected was changed and nobody was asked: {list}. Look at it \
             before anything runs it: `git checkout -- PATH` brings back what git has, and what is new can \
             be removed. A sandbox (`bwrap`) can keep agents from such places."
        );
        self.warn_everyone("Changed without asking", &text);
    }

    /// Says once of which places not all is looked at.
    fn tell_unseen(&mut self, before: &Survey, after: &Survey) {
        let mut unseen: Vec<PathBuf> =
            before.partial().chain(after.partial()).map(Path::to_path_buf).take(MOST_NOTED).collect();
        unseen.sort();
        unseen.dedup();
        if unseen.is_empty() {
            return;
        }
        self.open.metrics.best_effort(Branch::PlacesUnseen);
        if unseen == self.survey.told {
            return;
        }
        let list = self.listed(unseen.iter().map(PathBuf::as_path));
        warn!(paths = list, "not all that is protected was looked at; what changes there is not told");
        let paths: Vec<_> = unseen.iter().map(|path| path.to_string_lossy()).collect();
        self.recorder.note(note::UNSEEN, &json!({ "paths": paths }));
        let text = format!(
            "Not all that is protected could be looked at: {list}. There is too much, or it cannot be read. \
             What agents change there without asking may not be told."
        );
        self.survey.told = unseen;
        self.warn_everyone("Not all was looked at", &text);
    }

    fn warn_everyone(&mut self, title: &str, text: &str) {
        self.say_notice("warning", title, text);
    }

    /// A few paths as people may see them, seen from the session's directory. Their names are the
    /// agent's.
    fn listed<'a>(&self, paths: impl ExactSizeIterator<Item = &'a Path>) -> String {
        let more = paths.len().saturating_sub(MOST_SHOWN);
        let name = |path: &Path| {
            let seen = path.strip_prefix(&self.open.cwd).ok().filter(|seen| !seen.as_os_str().is_empty());
            let text = shown(&seen.unwrap_or(path).to_string_lossy(), LONGEST);
            format!("`{}`", text.replace('`', "\\u{60}"))
        };
        let names: Vec<_> = paths.take(MOST_SHOWN).map(name).collect();
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        names.join(", ") + &more
    }
}
