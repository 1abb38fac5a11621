//! The tools of the known agents: what each does, and where in its input it
//! says to what.
//!
//! Only what stands in these lists is understood. A key that is not known may
//! change what a tool does, so that its presence is `Unknown`.

use std::{collections::BTreeSet, path::Path};

use serde_json::{Map, Value};

use super::{
    Ground, SubAction,
    arguments::{addresses_in, is_address, quoted, squeezed, words},
    fetch, is_file_uri, patterns, place, strings,
    terminal::directory,
};
use crate::policy::{PathFact, shell};

/// What a tool does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Meaning {
    /// Runs a line, or a program with arguments.
    Shell,
    /// Changes files.
    Write,
    /// Reads files or directories that it names.
    Read,
    /// Reads a directory, by default the session's.
    Search,
    /// Like that, for files whose names have a pattern.
    Glob,
    /// One of these, or a search somewhere else: only its kind is known.
    Lookup,
    /// Reads or changes files: its `command` says which.
    Editor,
    /// Fetches something.
    Fetch,
    /// Changes the mode.
    Mode,
    /// Is of no consequence outside of the agent, or asks again for what has one.
    Plain,
    /// Belongs to an MCP server.
    Mcp {
        /// The server.
        server: String,
        /// The tool's name there.
        tool: String,
    },
}

/// What the tool of this name does, if it is known.
pub fn by_name(name: &str) -> Option<Meaning> {
    if !name.is_ascii() {
        return None;
    }
    if let Some((server, tool)) = mcp_name(name) {
        return Some(Meaning::Mcp { server, tool });
    }
    Some(match squeezed(name).as_str() {
        "bash" | "shell" | "runshellcommand" | "execute" | "execcommand" | "terminal" | "shellcommand"
        | "executecommand" | "executebash" | "runterminalcmd" | "runcommand" | "localshell"
        | "runinterminal" | "exec" => Meaning::Shell,
        "write" | "writefile" | "writetextfile" | "edit" | "editfile" | "multiedit" | "notebookedit"
        | "replace" | "applypatch" | "createfile" | "writetofile" | "replaceinfile" | "searchreplace"
        | "strreplacefile" | "deletefile" | "movefile" | "patch" => Meaning::Write,
        "read" | "readfile" | "readtextfile" | "readmanyfiles" | "notebookread" | "view" | "viewimage"
        | "analyze" => Meaning::Read,
        "ls" | "list" | "listdirectory" | "listdir" | "tree" | "grep" | "grepsearch"
        | "searchfilecontent" | "ripgrep" => Meaning::Search,
        "glob" => Meaning::Glob,
        "texteditor" | "strreplaceeditor" | "strreplacebasededittool" | "fileeditor" => Meaning::Editor,
        "webfetch" | "fetch" => Meaning::Fetch,
        "exitplanmode" | "enterplanmode" | "switchmode" => Meaning::Mode,
        "todowrite" | "todoread" | "writetodos" | "updateplan" | "think" | "toolsearch"
        | "askuserquestion" | "askuser" | "requestuserinput" | "task" | "agent" | "skill" | "bashoutput"
        | "killshell" | "killbash" | "taskoutput" | "taskstop" | "websearch" | "googlewebsearch"
        | "listagents" | "getgoal" | "updategoal" | "creategoal" | "updatetopic" => Meaning::Plain,
        _ => return None,
    })
}

/// What a call of this kind does if the tool has no name. A kind alone is never believed: the input
/// has to have the form that belongs to it.
pub fn by_kind(kind: &str) -> Option<Meaning> {
    Some(match kind {
        "execute" => Meaning::Shell,
        "edit" | "delete" | "move" => Meaning::Write,
        "read" => Meaning::Read,
        // Without a name it is not known whether its pattern is one of names or of content.
        "search" => Meaning::Lookup,
        "fetch" => Meaning::Fetch,
        "switch_mode" => Meaning::Mode,
        _ => return None,
    })
}

/// Server and tool in names such as `mcp__server__tool`, `mcp.server.tool` and `server__tool`.
pub fn mcp_name(name: &str) -> Option<(String, String)> {
    let pair = |(server, tool): (&str, &str)| {
        (!server.is_empty() && !tool.is_empty()).then(|| (server.to_owned(), tool.to_owned()))
    };
    if let Some(rest) = name.strip_prefix("mcp.") {
        return rest.split_once('.').and_then(pair);
    }
    name.strip_prefix("mcp__").unwrap_or(name).split_once("__").and_then(pair)
}

/// Keys of inputs that name places, without what separates their words.
const PLACES: [&str; 22] = [
    "filepath",
    "path",
    "absolutepath",
    "notebookpath",
    "targetfile",
    "filename",
    "file",
    "parentdir",
    "paths",
    "filepaths",
    "files",
    "dirpath",
    "directory",
    "directorypath",
    "source",
    "destination",
    "sourcepath",
    "destinationpath",
    "oldpath",
    "newpath",
    "movepath",
    "dir",
];

/// Keys of tools that change files which say how, not where.
const CONTENTS: [&str; 27] = [
    "content",
    "contents",
    "newstring",
    "oldstring",
    "newstr",
    "oldstr",
    "filetext",
    "inserttext",
    "before",
    "after",
    "diff",
    "unifieddiff",
    "instruction",
    "cellid",
    "newsource",
    "celltype",
    "editmode",
    "aiproposedcontent",
    "language",
    "description",
    "explanation",
    "codeedit",
    "type",
    "kind",
    "oldtext",
    "newtext",
    "viewrange",
];

/// Those of them that say where something is put, which no tool does that only reads.
const TARGETS: [&str; 4] = ["destination", "destinationpath", "newpath", "movepath"];

/// Keys of tools that read or search which say how, not where.
const LOOKS: [&str; 13] = [
    "pattern",
    "query",
    "include",
    "exclude",
    "glob",
    "type",
    "outputmode",
    "description",
    "format",
    "encoding",
    "pages",
    "viewrange",
    "includepattern",
];

/// Keys of tools that read or search whose numbers and switches say how much, and how it is shown.
const MEASURES: [&str; 43] = [
    "a",
    "after",
    "aftercontext",
    "b",
    "before",
    "beforecontext",
    "c",
    "casesensitive",
    "charlimit",
    "context",
    "contextlines",
    "count",
    "depth",
    "end",
    "endline",
    "endlineoneindexed",
    "endlineoneindexedinclusive",
    "headlimit",
    "i",
    "ignorecase",
    "length",
    "limit",
    "line",
    "linecount",
    "linelimit",
    "linenumbers",
    "lines",
    "linestart",
    "maxdepth",
    "maxresults",
    "multiline",
    "n",
    "offset",
    "pages",
    "range",
    "recursive",
    "respectgitignore",
    "shouldreadentirefile",
    "start",
    "startline",
    "startlineoneindexed",
    "timeout",
    "viewrange",
];

/// Keys of tools that run commands which do not change what is run.
const AROUND: [&str; 10] = [
    "description",
    "reason",
    "justification",
    "explanation",
    "callid",
    "turnid",
    "itemid",
    "processid",
    "prefixrule",
    "type",
];

/// What an input says.
#[derive(Debug, Default)]
pub struct Reading {
    /// What would be done.
    pub found: Vec<SubAction>,
    /// To what, so that two inputs can be compared.
    pub objects: BTreeSet<String>,
}

impl Reading {
    /// Something that could not be understood.
    pub fn unknown(&mut self, what: impl Into<String>) {
        self.found.push(SubAction::unknown(what));
    }

    /// A place that is read or written.
    pub fn place(&mut self, fact: PathFact, is_write: bool) {
        let shown =
            fact.resolved.as_ref().map_or_else(|| fact.given.clone(), |real| real.display().to_string());
        if self.objects.insert(format!("place {shown}")) {
            self.found.push(if is_write { SubAction::Write(fact) } else { SubAction::Read(fact) });
        }
    }

    /// A place by its name. Tools that take several at once take patterns, too, and a few do where one
    /// is named; brackets and braces are also in names that people give to files.
    fn named(&mut self, given: &str, is_list: bool, is_write: bool, ground: &Ground<'_>) {
        let fact = place(given, ground);
        // An address is decoded before it is a pattern.
        let decoded = fact.resolved.as_deref().and_then(Path::to_str).filter(|_| is_file_uri(given));
        let is_pattern = |text: &str| {
            let is_several = text.contains(['*', '?']) || is_list && text.contains(['[', '{']);
            is_several || patterns::may_be_aimed(text)
        };
        if is_pattern(given) || decoded.is_some_and(is_pattern) {
            self.unknown("it may name more files than one: there is a pattern in the name");
        }
        self.place(fact, is_write);
    }

    fn stray(&mut self, key: &str) {
        self.unknown(format!("it is not known what {} means for this tool", quoted(key)));
    }
}

/// A value that cannot name or change anything.
fn is_idle(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(_) | Value::Number(_) => true,
        Value::String(text) => text.is_empty(),
        Value::Array(list) => list.iter().all(|value| value.is_number() || value.is_boolean()),
        Value::Object(object) => object.is_empty(),
    }
}

/// A value that turns nothing on.
fn is_void(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::Bool(true) => false,
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::String(text) => text.is_empty(),
        Value::Array(list) => list.is_empty(),
        Value::Object(object) => object.is_empty(),
    }
}

/// Whether an input asks for more rights than the agent gives its tools.
pub fn leaves_sandbox(input: &Map<String, Value>) -> bool {
    const SIGNS: [&str; 9] =
        ["sandbox", "escalat", "elevat", "privilege", "sudo", "danger", "bypass", "unsaf", "skippermission"];
    input.iter().any(|(key, value)| {
        let key = squeezed(key);
        let is_usual = matches!(value.as_str(), Some("use_default" | "default"));
        SIGNS.iter().any(|sign| key.contains(sign)) && !is_usual && !is_void(value)
    })
}

/// Reads the input of a tool. `Mode`, `Plain` and `Mcp` are not for here.
pub fn read(meaning: &Meaning, input: &Map<String, Value>, ground: &Ground<'_>) -> Reading {
    let mut reading = Reading::default();
    if leaves_sandbox(input) {
        reading.unknown("it wants to leave its sandbox");
    }
    match meaning {
        Meaning::Shell => run(input, ground, &mut reading),
        Meaning::Write => files(input, true, ground, &mut reading, 0),
        Meaning::Read | Meaning::Search | Meaning::Glob | Meaning::Lookup => {
            files(input, false, ground, &mut reading, 0);
            let is_placed = !reading.objects.is_empty();
            if *meaning == Meaning::Lookup && !is_placed {
                elsewhere(input, ground, &mut reading);
            }
            // A search without a place is one of the session's directory.
            if *meaning != Meaning::Read && !is_placed {
                reading.place(place(".", ground), false);
            }
            patterns::read(meaning, input, ground, &mut reading);
        }
        Meaning::Editor => editor(input, ground, &mut reading),
        Meaning::Fetch => addresses(input, ground, &mut reading),
        Meaning::Mode | Meaning::Plain | Meaning::Mcp { .. } => {}
    }
    reading
}

fn run(input: &Map<String, Value>, ground: &Ground<'_>, reading: &mut Reading) {
    let mut commands: Vec<&Value> = Vec::new();
    let mut directories: BTreeSet<&str> = BTreeSet::new();
    for (key, value) in input {
        match squeezed(key).as_str() {
            "command" | "cmd" if !value.is_null() => commands.push(value),
            "cwd" | "workdir" | "workingdirectory" | "directory" | "dirpath" | "dir" => match value {
                Value::String(given) if !given.is_empty() => {
                    directories.insert(given);
                }
                Value::Null | Value::String(_) => {}
                _ => reading.stray(key),
            },
            "url" if value.is_string() => {
                let given = value.as_str().unwrap_or_default();
                if reading.objects.insert(format!("address {given}")) {
                    reading.found.extend(fetch(given, ground));
                }
            }
            "shell" if value.as_str().is_some_and(is_plain_shell) => {}
            // What the agent itself makes of the command; it is looked at here anew.
            "parsedcmd" | "commandactions" | "proposedexecpolicyamendment" | "availabledecisions" => {}
            key if AROUND.contains(&key) || is_idle(value) => {}
            // What it asks for is noted for every tool.
            "sandboxpermissions" if value.is_string() => {}
            _ => reading.stray(key),
        }
    }
    let directory = match directories.len() {
        0 => None,
        1 => directories.first().and_then(|given| match directory(given, ground) {
            Ok(directory) => Some(directory),
            Err(why) => {
                reading.unknown(why);
                None
            }
        }),
        _ => {
            reading.unknown("it names two directories to run in");
            None
        }
    };
    let ground = Ground { cwd: directory.as_deref().unwrap_or(ground.cwd), ..*ground };
    if commands.windows(2).any(|pair| pair[0] != pair[1]) {
        reading.unknown("it names two commands that differ");
    }
    for command in commands {
        let actions = match command {
            Value::String(line) => shell::line(line, &ground),
            list => match strings(list) {
                Some(argv) if !argv.is_empty() => words(&argv, &ground),
                _ => vec![SubAction::unknown("its command is neither a text nor a list of texts")],
            },
        };
        if reading.objects.insert(format!("command {command}")) {
            reading.found.extend(actions);
        }
    }
}

/// Shells that read a line as it is read here.
fn is_plain_shell(shell: &str) -> bool {
    matches!(shell, "" | "sh" | "bash" | "/bin/sh" | "/bin/bash" | "/usr/bin/bash" | "/usr/bin/sh")
}

/// Files in the input of a tool that reads or changes them.
fn files(
    input: &Map<String, Value>,
    is_write: bool,
    ground: &Ground<'_>,
    reading: &mut Reading,
    depth: usize,
) {
    let ignored: &[&str] = if is_write { &CONTENTS } else { &LOOKS };
    for (key, value) in input {
        let squeezed = squeezed(key);
        if !is_write && TARGETS.contains(&squeezed.as_str()) && !is_void(value) {
            reading.stray(key);
        }
        match (squeezed.as_str(), value) {
            (key, Value::String(given)) if PLACES.contains(&key) => {
                let is_list = matches!(key, "paths" | "filepaths" | "files");
                reading.named(given, is_list, is_write, ground);
            }
            (name, Value::Array(_)) if PLACES.contains(&name) => match strings(value) {
                Some(list) => list.iter().for_each(|given| reading.named(given, true, is_write, ground)),
                None => reading.stray(key),
            },
            // Several changes at once, each an object like this one.
            ("edits", Value::Array(list)) if is_write && depth == 0 => {
                for edit in list {
                    match edit {
                        Value::Object(edit) => files(edit, is_write, ground, reading, depth + 1),
                        _ => reading.stray(key),
                    }
                }
            }
            // A map from paths to changes.
            ("changes", Value::Object(changes)) if is_write && depth == 0 => {
                for (path, change) in changes {
                    reading.place(place(path, ground), is_write);
                    match change {
                        Value::Object(change) => files(change, is_write, ground, reading, depth + 1),
                        _ => reading.stray(key),
                    }
                }
            }
            ("input" | "patch" | "patchtext", Value::String(text)) if is_write => {
                patch(text, ground, reading);
            }
            // What patterns among them lead to is told apart.
            (name, Value::String(_)) if ignored.contains(&name) => {}
            // A switch may well turn a tool that reads into one that does not.
            (name, value) if !is_write && !MEASURES.contains(&name) => {
                if !is_void(value) {
                    reading.stray(key);
                }
            }
            (_, value) if is_idle(value) => {}
            _ => reading.stray(key),
        }
    }
}

/// Files in a patch of Codex. Lines of content begin with a blank, `+` or `-`, so that nothing in
/// a file can look like these.
fn patch(text: &str, ground: &Ground<'_>, reading: &mut Reading) {
    const HEADS: [&str; 4] = ["*** Add File: ", "*** Update File: ", "*** Delete File: ", "*** Move to: "];
    let mut is_begun = false;
    for line in text.lines() {
        if line == "*** Begin Patch" {
            is_begun = true;
        } else if let Some(path) = HEADS.iter().find_map(|head| line.trim_start().strip_prefix(head)) {
            reading.place(place(path.trim_end(), ground), true);
        } else if line.starts_with("***") && !matches!(line, "*** End Patch" | "*** End of File") {
            reading.unknown("the patch has a line in it that is not understood");
        }
    }
    if !is_begun {
        reading.unknown("the patch is of a form that is not understood");
    }
}

/// A search of which it is not known where: perhaps in the web.
fn elsewhere(input: &Map<String, Value>, ground: &Ground<'_>, reading: &mut Reading) {
    let Some(query) = input.get("query").filter(|query| !is_void(query)) else { return };
    reading.unknown("it does not say where it searches, which may be the web");
    for given in query.as_str().map(addresses_in).unwrap_or_default() {
        reading.found.extend(fetch(given, ground));
    }
}

fn editor(input: &Map<String, Value>, ground: &Ground<'_>, reading: &mut Reading) {
    let is_write = match input.get("command").and_then(Value::as_str) {
        Some("view") => false,
        Some("create" | "write" | "str_replace" | "insert" | "undo_edit") => true,
        _ => {
            reading.unknown("its command is not known");
            true
        }
    };
    let mut rest = input.clone();
    rest.remove("command");
    files(&rest, is_write, ground, reading, 0);
}

fn addresses(input: &Map<String, Value>, ground: &Ground<'_>, reading: &mut Reading) {
    let mut note = |given: &str| {
        if reading.objects.insert(format!("address {given}")) {
            reading.found.extend(fetch(given, ground));
        }
    };
    let mut strays = Vec::new();
    let mut prompts = Vec::new();
    for (key, value) in input {
        match (squeezed(key).as_str(), value) {
            ("url" | "uri" | "link", Value::String(given)) => note(given),
            ("urls", Value::Array(_)) => match strings(value) {
                Some(list) => list.iter().for_each(|given| note(given)),
                None => strays.push(key),
            },
            ("prompt", Value::String(text)) => prompts.push(text),
            ("format" | "description", Value::String(given)) if !is_address(given) => {}
            (_, value) if is_idle(value) => {}
            _ => strays.push(key),
        }
    }
    // Some name the addresses only in what they ask about them.
    if reading.objects.is_empty() {
        for given in prompts.iter().flat_map(|text| addresses_in(text)) {
            if reading.objects.insert(format!("address {given}")) {
                reading.found.extend(fetch(given, ground));
            }
        }
    }
    strays.iter().for_each(|key| reading.stray(key));
}
