//! Tool calls, merged over their updates, and the files and commands that they
//! tell of.

use super::{
    LINE, MOST_ITEMS, NAME, PATH, Step, TEXT, digest,
    json::{column, cut, dig, elements, int, members, pick, short, some, text},
    telling::{Teller, Telling, is_end},
};
use crate::{
    ledger::table::{COMMANDS, FILE_ACCESSES, Fact, TOOL_CALLS},
    policy::text::join,
};

/// Most tool calls of a session that are remembered.
const MOST_CALLS: usize = 20_000;
/// Most file accesses of a turn that are known to have been told.
const MOST_TOLD: usize = 20_000;
/// Most commands of tool calls that may turn out to be run in a terminal.
const MOST_COMMANDS: usize = 64;
/// Longest input of a tool call that is kept for decisions, and all of them.
const MOST_INPUT: usize = 16 << 10;
const MOST_KEPT: usize = 4 << 20;

/// What is remembered of a tool call.
#[derive(Debug)]
pub struct Call {
    /// The frame that named it first.
    pub seq: i64,
    /// The tool's name.
    pub name: String,
    /// What it was given, for the decision about it.
    pub input: Option<Box<str>>,
    /// Its command: the row, and when it began.
    pub command: Option<(i64, i64)>,
    turn: Option<i64>,
    began_us: i64,
    ended: bool,
    /// Nothing but a request for permission has named it.
    only_asked: bool,
    kind: Option<String>,
    line: u64,
    /// How good the sources of name and output are that were seen so far.
    name_rank: usize,
    output_rank: usize,
}

impl Step<'_> {
    /// What a frame says of a tool call. Returns the key it is remembered by.
    pub(super) fn tool_call(&mut self, json: &str, teller: Teller) -> Option<u64> {
        let Telling {
            id,
            name,
            title,
            kind,
            status,
            content,
            locations,
            input,
            output: result,
            raw_output: output,
        } = Telling::read(json)?;
        let key = digest(&[&id]);
        let (at, turn) = (self.at(), self.turn());
        let known = self.state.calls.get(&key).map(|known| (known.turn, known.ended));
        let new = teller.begins(known, &turn, status.as_deref());
        if new {
            self.make_room();
            let call = Call {
                seq: self.seq(),
                name: "unknown".into(),
                input: None,
                command: None,
                turn,
                began_us: at,
                ended: false,
                only_asked: true,
                kind: None,
                line: 0,
                name_rank: 0,
                output_rank: 0,
            };
            self.forget(key);
            self.state.calls.insert(key, call);
            self.session.put("tool_calls", 1i64);
        }
        let kept = &mut self.state.kept;
        let call = self.state.calls.get_mut(&key)?;

        call.only_asked &= teller == Teller::Permission;
        let began = new.then_some(at);
        let mut fact = Fact::new(TOOL_CALLS, [self.frame.stream.id.into(), call.seq.into()]);
        fact.put("began_us", began);
        if let Some(name) = name.unless_better(&mut call.name_rank) {
            call.name = name;
            fact.put("name", call.name.clone());
        } else if new {
            fact.put("name", call.name.clone());
        }
        if let Some(kind) = kind {
            fact.put("kind", kind.clone());
            call.kind = Some(kind);
        }
        if let Some(input) = input {
            fact.put("input", column(Some(input)));
            *kept = kept.saturating_sub(call.input.take().map_or(0, |old| old.len()));
            if input.len() <= MOST_INPUT && *kept + input.len() <= MOST_KEPT {
                *kept += input.len();
                call.input = Some(input.into());
            }
        }
        if let Some(result) = result.unless_better(&mut call.output_rank) {
            fact.put("output", column(Some(result)));
        }
        fact.put("title", short(title, LINE));
        fact.put("locations", column(locations.filter(|locations| elements(locations).next().is_some())));
        let ends = is_end(status.as_deref());
        let ended = ends && !call.ended;
        if ended {
            fact.put("ended_us", at);
            fact.put("duration_us", at.saturating_sub(call.began_us).max(0));
        }
        if status.is_some() {
            call.ended = ends;
        }
        let pending = (new && teller == Teller::Begin).then(|| "pending".to_string());
        fact.put("status", status.or(pending));
        let (seq, kind, tool) = (call.seq, call.kind.clone(), call.name.clone());
        if new {
            fact.put("tool_call_id", cut(&id, NAME));
            fact.put("turn", turn);
            fact.put("user_name", self.state.user.clone());
            fact.put("team", self.state.team.clone());
            fact.put("agent", self.state.agent.clone());
        }
        self.facts.push(fact);

        let input = input.unwrap_or_default();
        let by_editor = editor_access(input);
        let access = by_editor.unwrap_or_else(|| access_by(kind.as_deref(), &tool));
        let who = Some((seq, &*id));
        for part in content.into_iter().flat_map(elements).take(MOST_ITEMS as usize) {
            let [kind, path] = pick(part, ["type", "path"]);
            if kind.and_then(text).as_deref() == Some("diff")
                && let Some(path) = path.and_then(text)
            {
                self.access(&path, "write", "diff", who);
            }
        }
        for location in locations.into_iter().flat_map(elements).take(MOST_ITEMS as usize) {
            if let Some(path) = pick(location, ["path"])[0].and_then(text) {
                self.access(&path, access, "location", who);
            }
        }
        if !matches!(kind.as_deref(), Some("execute" | "fetch" | "think" | "switch_mode")) {
            self.input_files(input, access, who);
        }
        if matches!(kind.as_deref(), None | Some("execute" | "other")) && by_editor.is_none() {
            self.input_command(key, input, &id);
        }
        if ended {
            self.tool_ended(key, output.unwrap_or_default());
        }
        Some(key)
    }

    fn make_room(&mut self) {
        if self.state.calls.len() < MOST_CALLS {
            return;
        }
        let turn = self.turn();
        self.state.calls.retain(|_, call| !call.ended && call.turn == turn);
        if self.state.calls.len() >= MOST_CALLS / 2 {
            self.state.calls.clear();
        }
        self.state.kept =
            self.state.calls.values().filter_map(|call| call.input.as_ref()).map(|input| input.len()).sum();
    }

    /// Forgets what was kept for a call whose id begins again.
    fn forget(&mut self, key: u64) {
        if let Some(old) = self.state.calls.remove(&key) {
            self.state.kept = self.state.kept.saturating_sub(old.input.map_or(0, |input| input.len()));
        }
        self.state.commands.retain(|(_, call)| *call != key);
    }

    fn tool_ended(&mut self, key: u64, output: &str) {
        self.state.commands.retain(|(_, call)| *call != key);
        let Some(call) = self.state.calls.get_mut(&key) else { return };
        let old = call.input.take().map_or(0, |input| input.len());
        self.state.kept = self.state.kept.saturating_sub(old);
        if let Some((row, began_us)) = call.command.take() {
            let [a, b, c, metadata] = pick(output, ["exit_code", "exitCode", "exit", "metadata"]);
            let inner = metadata.and_then(|metadata| dig(metadata, &["exit"]));
            let code = [a, b, c, inner].into_iter().flatten().find_map(int);
            self.command_ended(row, began_us, code, None);
        }
    }

    /// One access to a file. What a tool call tells several times counts once.
    pub(super) fn access(
        &mut self,
        path: &str,
        access: &'static str,
        source: &'static str,
        call: Option<(i64, &str)>,
    ) {
        if path.is_empty() || self.items >= MOST_ITEMS {
            return;
        }
        if let Some((seq, _)) = call {
            let seq = seq.to_string();
            let any = digest(&[&seq, path]);
            let this = digest(&[&seq, path, access]);
            let told = &mut self.state.told;
            if told.contains(&this) || access == "touch" && told.contains(&any) {
                return;
            }
            if told.len() >= MOST_TOLD {
                told.clear();
            }
            told.extend([any, this]);
        }
        let key = [self.id().into(), self.seq().into(), self.items.into()];
        let mut fact = self.row(FILE_ACCESSES, key);
        fact.put("path", cut(path, PATH));
        fact.put("access", access);
        fact.put("source", source);
        fact.put("call", call.map(|(seq, _)| seq));
        fact.put("tool_call_id", call.map(|(_, id)| cut(id, NAME)));
        fact.put("at_us", self.at());
        self.facts.push(fact);
        self.items += 1;
    }

    /// Files that the input of a tool names.
    fn input_files(&mut self, input: &str, access: &'static str, who: Option<(i64, &str)>) {
        for (key, value) in members(input) {
            match key.as_ref() {
                "file_path" | "filePath" | "path" | "absolute_path" | "notebook_path" | "target_file"
                | "filename" | "file" => {
                    if let Some(path) = text(value).filter(|path| !path.contains("://")) {
                        self.access(&path, access, "input", who);
                    }
                }
                "paths" | "files" | "file_paths" => {
                    for path in elements(value).take(MOST_ITEMS as usize).filter_map(text) {
                        self.access(&path, access, "input", who);
                    }
                }
                // A patch, by file.
                "changes" => {
                    for (path, change) in members(value).take(MOST_ITEMS as usize) {
                        let deleted = dig(change, &["type"]) == Some("\"delete\"")
                            || dig(change, &["delete"]).is_some();
                        self.access(&path, if deleted { "delete" } else { "write" }, "input", who);
                    }
                }
                _ => {}
            }
        }
    }

    /// The command that the input of a tool names. Inputs may stream, so it may
    /// change; it stays one row.
    fn input_command(&mut self, key: u64, input: &str, id: &str) {
        let [command, cmd, args, cwd, workdir, directory] =
            pick(input, ["command", "cmd", "args", "cwd", "workdir", "directory"]);
        let Some(command) = some(command).or(some(cmd)) else { return };
        let (line, argv) = match text(command) {
            Some(command) if args.is_some_and(|args| elements(args).next().is_some()) => {
                let args = args.into_iter().flat_map(elements).filter_map(text);
                (join(std::iter::once(command).chain(args)), None)
            }
            Some(command) => (command.into_owned(), None),
            None => (join(elements(command).filter_map(text)), Some(command)),
        };
        let hash = digest(&[&line]);
        let (seq, at) = (self.seq(), self.at());
        let asked = self.asked_before(key, hash);
        let Some(call) = self.state.calls.get_mut(&key) else { return };
        if line.is_empty() || call.line == hash || call.ended && call.command.is_none() {
            return;
        }
        call.line = hash;
        let (row, began_us) = *call.command.get_or_insert(asked.unwrap_or((seq, at)));
        let call = call.seq;
        self.state.commands.retain(|(_, call)| *call != key);
        if self.state.commands.len() >= MOST_COMMANDS {
            self.state.commands.pop_front();
        }
        self.state.commands.push_back((hash, key));
        let mut fact = self.row(COMMANDS, [self.id().into(), row.into()]);
        fact.put("source", "tool");
        fact.put("line", cut(&line, TEXT));
        fact.put("argv", column(argv));
        fact.put("cwd", short(some(cwd).or(some(workdir)).or(some(directory)), PATH));
        fact.put("call", call);
        fact.put("tool_call_id", cut(id, NAME));
        fact.put("began_us", began_us);
        self.facts.push(fact);
    }

    /// The row of the same command, if permission was asked for it under an id
    /// that stands for nothing else: some agents ask first and give the tool
    /// call its id then.
    fn asked_before(&mut self, key: u64, line: u64) -> Option<(i64, i64)> {
        let calls = &mut self.state.calls;
        if calls.get(&key).is_none_or(|call| call.command.is_some()) {
            return None;
        }
        let same = |(known, other): &(u64, u64)| {
            *known == line && *other != key && calls.get(other).is_some_and(|other| other.only_asked)
        };
        let at = self.state.commands.iter().position(same)?;
        let (_, other) = self.state.commands.remove(at)?;
        calls.get_mut(&other)?.command.take()
    }
}

/// What is done to files by tools of a kind; where the agent tells no kind, the
/// tool's name must do.
fn access_by(kind: Option<&str>, name: &str) -> &'static str {
    match kind {
        Some("read" | "search") => "read",
        Some("edit") => "write",
        Some("delete") => "delete",
        Some("move") => "move",
        Some("execute" | "fetch" | "think" | "switch_mode") => "touch",
        _ => {
            let name = name.to_ascii_lowercase();
            let has = |words: &[&str]| words.iter().any(|word| name.contains(word));
            match () {
                () if has(&["write", "edit", "create", "patch", "replace"]) => "write",
                () if has(&["read", "view", "grep", "glob", "search"]) => "read",
                () if has(&["delete", "remove"]) => "delete",
                () if has(&["move", "rename"]) => "move",
                () => "touch",
            }
        }
    }
}

/// Tools that edit files by sub-command have a `command`, too, but run none.
fn editor_access(input: &str) -> Option<&'static str> {
    let [command, path] = pick(input, ["command", "path"]);
    path?;
    match text(command?)?.as_ref() {
        "view" => Some("read"),
        "create" | "str_replace" | "insert" | "undo_edit" | "write" | "edit" => Some("write"),
        _ => None,
    }
}
