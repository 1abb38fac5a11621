//! Requests and their answers, in both directions: prompts, permissions, files
//! and terminals.

use super::{
    LINE, NAME, PATH, State, Step, TEXT, digest,
    json::{column, cut, dig, elements, int, pick, short, some, text},
    telling::Teller,
};
use crate::{
    frame::Method,
    ledger::table::{COMMANDS, DECISIONS, FILE_ACCESSES, Fact, USAGE, Value},
    policy::text::join,
    record::{Destination, Origin},
};

/// Most terminals that are remembered; a session has 32 at a time.
const MOST_TERMINALS: usize = 4096;
/// Most options of a request for permission that are remembered.
const MOST_OPTIONS: usize = 32;
/// Tokens beyond this are no count of anything; sums must stay in range.
const MOST_TOKENS: i64 = 1_000_000_000_000;

/// What a request was for, until it is answered.
#[derive(Debug)]
pub enum What {
    /// A prompt, by its turn.
    Prompt { turn: i64 },
    /// A permission: its frame and time, its tool call, the options on offer
    /// with their kinds.
    Permission { seq: i64, asked_us: i64, call: Option<u64>, options: Vec<(String, String)> },
    /// A file that is read or written: its frame.
    File { seq: i64 },
    /// A command: its row and when it began.
    Command { row: i64, began_us: i64 },
    /// The state of a terminal, or its end.
    Terminal { terminal: u64 },
    /// A mode that is set.
    Mode(String),
    /// An option that is set.
    Option,
    /// A session that is opened.
    Open,
    /// Anything else that an editor asks. It is kept so that our answer is not
    /// taken for one to another editor, whose request may have the same id.
    Other,
}

/// A terminal at work.
#[derive(Debug, Clone, Copy)]
pub struct Terminal {
    row: i64,
    began_us: i64,
}

impl State {
    /// Forgets what an agent's process has under way, because it has none any
    /// more; its ids may come again and mean something else.
    pub(super) fn forget_agent(&mut self) {
        self.waiting.take(|from, what| from != Origin::Editor && !matches!(what, What::Open));
        self.calls.clear();
        self.kept = 0;
        self.commands.clear();
        self.terminals.clear();
        self.messages.close();
    }
}

impl Step<'_> {
    pub(super) fn request(&mut self, params: &str) {
        let to_agent = self.frame.to == Destination::Agent;
        let by_editor = self.frame.origin == Origin::Editor;
        match self.peek.method {
            // Another agent takes the turn over.
            Method::SessionPrompt if to_agent && self.frame.origin == Origin::Conductor => {
                if let Some(turn) = self.turn() {
                    self.wait(What::Prompt { turn });
                }
            }
            Method::SessionPrompt if to_agent => self.prompt(params),
            // Somebody takes a seat while a turn runs, and nothing begins anew.
            Method::SessionLoad | Method::SessionResume if by_editor && self.turn().is_some() => {
                self.wait(What::Other);
            }
            Method::SessionNew | Method::SessionResume if to_agent => self.wait(What::Open),
            Method::SessionLoad if to_agent => {
                // What we have recorded already is not recorded again.
                self.state.replaying = self.state.had_turns;
                self.wait(What::Open);
            }
            Method::SessionSetMode if to_agent => {
                self.wait(short(pick(params, ["modeId"])[0], NAME).map_or(What::Other, What::Mode));
            }
            Method::SessionSetConfigOption if to_agent => self.wait(What::Option),
            Method::RequestPermission if !to_agent => self.permission(params),
            Method::FsRead if !to_agent => self.file(params, "read"),
            Method::FsWrite if !to_agent => self.file(params, "write"),
            Method::TerminalCreate if !to_agent => self.terminal(params),
            Method::Terminal if !to_agent => self.terminal_request(params),
            _ if by_editor => self.wait(What::Other),
            _ => {}
        }
    }

    /// An answer: a result or an error.
    pub(super) fn answer(&mut self, result: Option<&str>, error: Option<&str>) {
        // Where several are asked, one that does not choose decides nothing.
        if self.told.is_declined {
            return;
        }
        let Some(what) = self.answered() else { return };
        let failure = error.map(|error| {
            let [message, code] = pick(error, ["message", "code"]);
            let message = short(message, LINE).unwrap_or_else(|| "an error without a message".into());
            code.and_then(int).map_or_else(|| message.clone(), |code| format!("{message} ({code})"))
        });
        let json = result.unwrap_or_default();
        match what {
            What::Prompt { turn } => {
                if result.is_some() {
                    self.turn_usage(turn, json);
                }
                self.end_turn(turn, short(pick(json, ["stopReason"])[0], NAME), failure);
            }
            What::Permission { seq, asked_us, call, options } => {
                self.decided(seq, asked_us, call, &options, json, failure);
            }
            What::File { seq } => {
                if let Some(failure) = failure {
                    let key = [self.id().into(), seq.into(), 0i64.into()];
                    self.facts.push(Fact::new(FILE_ACCESSES, key).set("error", failure));
                }
            }
            What::Command { row, began_us } => self.started(row, began_us, json, failure),
            What::Terminal { terminal } => {
                let status = some(pick(json, ["exitStatus"])[0]).unwrap_or(json);
                let [code, signal] = pick(status, ["exitCode", "signal"]);
                let (code, signal) = (code.and_then(int), short(signal, NAME));
                if code.is_some() || signal.is_some() {
                    self.exited(terminal, code, signal);
                }
            }
            What::Mode(mode) if result.is_some() => {
                self.session.put("mode", mode.clone());
                self.state.mode = Some(mode);
            }
            What::Mode(_) | What::Other => {}
            What::Option => self.options(json),
            What::Open => {
                self.state.replaying = false;
                self.state.messages.close();
                self.options(json);
            }
        }
    }

    fn turn_usage(&mut self, turn: i64, result: &str) {
        let Some(usage) = some(pick(result, ["usage"])[0]) else { return };
        let tokens = tokens(usage);
        if tokens.iter().all(Option::is_none) {
            return;
        }
        let [input, output, thought, cached_read, cached_write, total] = tokens;
        let mut fact = self.row(USAGE, [self.id().into(), self.seq().into()]);
        fact.put("turn", turn);
        fact.put("model", self.state.model.clone());
        fact.put("at_us", self.at());
        fact.put("input_tokens", input);
        fact.put("output_tokens", output);
        fact.put("thought_tokens", thought);
        fact.put("cached_read_tokens", cached_read);
        fact.put("cached_write_tokens", cached_write);
        fact.put("total_tokens", total);
        self.facts.push(fact);
    }

    fn permission(&mut self, params: &str) {
        let [tool_call, offered] = pick(params, ["toolCall", "options"]);
        let tool_call = tool_call.unwrap_or_default();
        // What the request says of the tool call counts for that, too.
        let call = self.tool_call(tool_call, Teller::Permission);
        let [id, title, kind, input] = pick(tool_call, ["toolCallId", "title", "kind", "rawInput"]);
        let known = call.and_then(|call| self.state.calls.get(&call));
        let (seq, at) = (self.seq(), self.at());
        let mut fact = self.row(DECISIONS, [self.id().into(), seq.into()]);
        fact.put("call", known.map(|known| known.seq));
        fact.put("tool_call_id", short(id, NAME));
        fact.put("tool", known.map_or("unknown", |known| &known.name));
        fact.put("kind", short(kind, NAME));
        fact.put("title", short(title, LINE));
        let input = some(input).or_else(|| known?.input.as_deref());
        fact.put("input", column(input));
        fact.put("options", column(offered));
        fact.put("asked_us", at);
        self.facts.push(fact);
        let options = offered.into_iter().flat_map(elements).take(MOST_OPTIONS).filter_map(|option| {
            let [id, kind] = pick(option, ["optionId", "kind"]);
            Some((short(id, NAME)?, short(kind, NAME)?))
        });
        self.wait(What::Permission { seq, asked_us: at, call, options: options.collect() });
    }

    fn decided(
        &mut self,
        seq: i64,
        asked_us: i64,
        call: Option<u64>,
        options: &[(String, String)],
        json: &str,
        failure: Option<String>,
    ) {
        let [outcome, option] =
            dig(json, &["outcome"]).map(|json| pick(json, ["outcome", "optionId"])).unwrap_or_default();
        let chosen = short(option, NAME);
        let kind = chosen.as_ref().and_then(|id| options.iter().find(|(offered, _)| offered == id));
        let kind = kind.map(|(_, kind)| kind.as_str());
        let decision = match outcome.and_then(text).as_deref() {
            _ if failure.is_some() => "error",
            Some("cancelled") => "cancelled",
            Some("selected") if kind.is_some_and(|kind| kind.starts_with("allow")) => "allow",
            Some("selected") if kind.is_some_and(|kind| kind.starts_with("reject")) => "reject",
            // An answer that was not on offer.
            _ => "error",
        };
        let mut fact = Fact::new(DECISIONS, [self.id().into(), seq.into()]);
        fact.put("decision", decision);
        fact.put("option_id", chosen);
        fact.put("option_kind", kind);
        fact.put("decided_by", self.frame.origin.name());
        if self.frame.origin == Origin::Editor {
            fact.put("decided_user", self.told.by.as_ref().or(self.state.user.as_ref()).cloned());
        }
        fact.put("reason", failure);
        fact.put("decided_us", self.at());
        fact.put("duration_us", self.at().saturating_sub(asked_us).max(0));
        self.facts.push(fact);
        if decision == "allow" {
            return;
        }
        // It was not run, so it will not end.
        let row = call.and_then(|call| self.state.calls.get_mut(&call)?.command.take());
        if let Some((row, _)) = row {
            let error = if decision == "reject" { "rejected" } else { decision };
            self.facts.push(Fact::new(COMMANDS, [self.id().into(), row.into()]).set("error", error));
        }
    }

    fn file(&mut self, params: &str, access: &'static str) {
        if let Some(path) = pick(params, ["path"])[0].and_then(text) {
            self.access(&path, access, "fs", None);
            self.wait(What::File { seq: self.seq() });
        }
    }

    /// A command that we or the editor are to run. If it is the one that a tool
    /// call has announced, it is the same row.
    fn terminal(&mut self, params: &str) {
        let [command, args, cwd] = pick(params, ["command", "args", "cwd"]);
        let Some(command) = command.and_then(text) else { return };
        let args: Vec<_> = args.into_iter().flat_map(elements).filter_map(text).collect();
        let argv = (!args.is_empty()).then(|| {
            let all: Vec<&str> = std::iter::once(&command).chain(&args).map(AsRef::as_ref).collect();
            serde_json::to_string(&all).unwrap_or_default()
        });
        let line =
            if args.is_empty() { command.into_owned() } else { join(std::iter::once(command).chain(args)) };
        let line_digest = digest(&[&line]);
        let announced = self.state.commands.iter().rposition(|(known, _)| *known == line_digest);
        let call = announced.and_then(|at| self.state.commands.remove(at)).map(|(_, call)| call);
        let known = call.and_then(|call| self.state.calls.get(&call));
        let (seq, at) = (self.seq(), self.at());
        let (row, began_us) = known.and_then(|known| known.command).unwrap_or((seq, at));
        let mut fact = self.row(COMMANDS, [self.id().into(), row.into()]);
        fact.put("source", "terminal");
        fact.put("line", cut(&line, TEXT));
        fact.put("argv", column(argv.as_deref()));
        fact.put("cwd", short(cwd, PATH));
        fact.put("began_us", began_us);
        self.facts.push(fact);
        self.wait(What::Command { row, began_us });
    }

    /// Whether a command was started.
    fn started(&mut self, row: i64, began_us: i64, json: &str, failure: Option<String>) {
        let mut fact = Fact::new(COMMANDS, [self.id().into(), row.into()]);
        if let Some(failure) = failure {
            fact.put("error", failure);
        } else if let Some(id) = pick(json, ["terminalId"])[0].and_then(text) {
            if self.state.terminals.len() >= MOST_TERMINALS {
                self.state.terminals.clear();
            }
            self.state.terminals.insert(digest(&[&id]), Terminal { row, began_us });
            fact.put("terminal_id", cut(&id, NAME));
        }
        self.facts.push(fact);
    }

    fn terminal_request(&mut self, params: &str) {
        let Some(id) = pick(params, ["terminalId"])[0].and_then(text) else { return };
        let terminal = digest(&[&id]);
        match self.get(self.peek.name).and_then(text).as_deref() {
            Some("terminal/output" | "terminal/wait_for_exit") => self.wait(What::Terminal { terminal }),
            // Whatever still runs is ended by that, and nobody will be told how.
            Some("terminal/release") => self.exited(terminal, None, None),
            _ => {}
        }
    }

    fn exited(&mut self, terminal: u64, code: Option<i64>, signal: Option<String>) {
        let Some(Terminal { row, began_us }) = self.state.terminals.remove(&terminal) else { return };
        self.command_ended(row, began_us, code, signal);
    }

    pub(super) fn command_ended(
        &mut self,
        row: i64,
        began_us: i64,
        code: Option<i64>,
        signal: Option<String>,
    ) {
        let mut fact = Fact::new(COMMANDS, [self.id().into(), Value::Int(row)]);
        fact.put("ended_us", self.at());
        fact.put("duration_us", self.at().saturating_sub(began_us).max(0));
        fact.put("exit_code", code);
        fact.put("exit_signal", signal);
        self.facts.push(fact);
    }
}

/// The tokens of a turn: read, written, of thoughts, read from a cache, written
/// to one, all.
pub fn tokens(usage: &str) -> [Option<i64>; 6] {
    pick(
        usage,
        [
            "inputTokens",
            "outputTokens",
            "thoughtTokens",
            "cachedReadTokens",
            "cachedWriteTokens",
            "totalTokens",
        ],
    )
    .map(|tokens| tokens.and_then(int).filter(|tokens| (0..=MOST_TOKENS).contains(tokens)))
}
