//! Command lines, read by a real grammar and taken apart into simple commands.
//!
//! Only a literal line is understood: simple commands of words that mean what they say, joined by
//! `&&`, `||`, `;`, `|` and newlines. It is read twice, by a scan that knows an allow-list of
//! characters (`scan`) and by a grammar for the whole language (`lists`); if the two do not find
//! the same words, nobody knows what a shell would find. Anything else is a
//! [`SubAction::Unknown`], beside whatever could still be told.

use std::path::{Component, Path, PathBuf};

use self::{
    lists::Simple,
    scan::{Arrow, Join, Written},
    wrappers::{Fate, Guess, Opened},
};
use super::{Command, Ground, PathFact, SubAction, Word, paths, text};

mod builtins;
mod lists;
mod scan;
mod surroundings;
mod wrappers;

#[cfg(test)]
mod tests;

/// The longest line that is read, in bytes.
const MOST_BYTES: usize = 16 * 1024;
/// The most commands that are told apart; nobody reads more before saying yes.
const MOST_COMMANDS: usize = 64;
/// The most words whose paths are looked up, so that a line costs a bounded number of looks at the
/// disk.
const MOST_WORDS: usize = 256;
/// The most words that are kept of all commands; a word costs memory even if nothing is looked up.
const MOST_TEXTS: usize = 16 * MOST_WORDS;
/// How deep lines may be inside of lines.
const MOST_LINES_DEEP: usize = 3;
/// How many wrappers may stand around a program.
const MOST_WRAPPERS: usize = 8;
/// How much of others' text is put into a message, in characters.
const MOST_SHOWN: usize = 60;

/// What a line for a shell would do.
pub fn line(line: &str, ground: &Ground<'_>) -> Vec<SubAction> {
    let mut reader = Reader::new(ground);
    reader.line(line, ground.cwd, false, 0);
    reader.finish()
}

/// What a program with arguments would do; wrappers such as `env` or `sh -c` are opened.
pub fn argv(argv: &[String], ground: &Ground<'_>) -> Vec<SubAction> {
    let mut reader = Reader::new(ground);
    let bytes: usize = argv.iter().map(|word| word.len() + 1).sum();
    if bytes > MOST_BYTES {
        reader.unknown(format!("more than {} KiB of arguments", MOST_BYTES / 1024));
        return reader.finish();
    }
    for word in argv {
        if let Some(hidden) = text::hidden(word) {
            reader.unknown(format!("an argument with {hidden}"));
        }
    }
    let words: Vec<_> = argv.iter().map(|text| Given { text, is_literal: true }).collect();
    let spot = Spot { cwd: ground.cwd, is_piped: false, in_shell: false, lines: 0, wrappers: 0 };
    reader.command(&words, spot);
    reader.finish()
}

/// A word of a command.
#[derive(Debug, Clone, Copy)]
struct Given<'a> {
    text: &'a str,
    is_literal: bool,
}

/// Where a command stands.
#[derive(Debug, Clone, Copy)]
struct Spot<'a> {
    cwd: &'a Path,
    is_piped: bool,
    /// A shell looks its name up, and has some built in.
    in_shell: bool,
    lines: usize,
    wrappers: usize,
}

/// The directory a shell is in: as the kernel has it, and as the shell believes, which is what `..`
/// means to `cd`.
#[derive(Debug)]
struct Place {
    cwd: PathBuf,
    believed: PathBuf,
    /// Above this, what the shell believes is not known.
    floor: PathBuf,
    has_moved: bool,
}

struct Reader<'a> {
    ground: &'a Ground<'a>,
    found: Vec<SubAction>,
    commands: usize,
    /// How many words were looked up.
    words: usize,
    /// How many words were kept.
    texts: usize,
}

impl<'a> Reader<'a> {
    fn new(ground: &'a Ground<'a>) -> Self {
        Self { ground, found: Vec::new(), commands: 0, words: 0, texts: 0 }
    }

    fn finish(mut self) -> Vec<SubAction> {
        if self.found.is_empty() {
            self.unknown("a command line that does nothing");
        }
        // Many programs read the directory that they are in without naming it.
        let here = self.ground.resolver.path(self.ground.cwd, ".");
        if here.root.is_none() || here.trouble.is_some() {
            self.found.push(SubAction::Read(here));
        }
        self.found
    }

    fn unknown(&mut self, what: impl Into<String>) {
        let unknown = SubAction::unknown(what);
        if !self.found.contains(&unknown) {
            self.found.push(unknown);
        }
    }

    fn line(&mut self, line: &str, cwd: &Path, is_piped: bool, depth: usize) {
        if depth > MOST_LINES_DEEP {
            return self.unknown("too many shells inside of one another");
        }
        if line.len() > MOST_BYTES {
            return self.unknown(format!("a command line of more than {} KiB", MOST_BYTES / 1024));
        }
        if let Some(hidden) = text::hidden_in_lines(line) {
            self.unknown(format!("a command line with {hidden}"));
        }
        let mut scanned = scan::scan(line);
        let commands = lists::simple_commands(&mut scanned);
        // The grammar gets only what is harmless to it, too, and what its answer matters for: nothing
        // that nests, and no more than is allowed.
        let words: usize = commands.iter().map(|command| command.words.len()).sum();
        if commands.len() > MOST_COMMANDS {
            self.unknown(format!("more than {MOST_COMMANDS} commands"));
        } else if words > MOST_WORDS + MOST_COMMANDS {
            self.unknown(format!("more than {MOST_WORDS} words"));
        } else if scanned.troubles.is_empty() && !lists::agrees(line, &commands) {
            self.unknown("a command line that can be read in two ways");
        }
        for trouble in scanned.troubles {
            self.unknown(trouble);
        }
        self.list(&commands, cwd, is_piped, depth);
        if scanned.has_comments {
            self.typed(line, cwd, is_piped, depth);
        }
        for inner in scanned.inner.into_iter().take(MOST_COMMANDS) {
            self.line(inner, cwd, is_piped, depth + 1);
        }
    }

    /// The same line in a shell that takes comments for arguments.
    fn typed(&mut self, line: &str, cwd: &Path, is_piped: bool, depth: usize) {
        let mut scanned = scan::scan_typed(line);
        let mut commands = lists::simple_commands(&mut scanned);
        // What stands alone is no program's name then: nothing is found, and nothing is done.
        let is_alone = |command: &Simple<'_>| {
            command.words.first().is_some_and(|word| word.raw.starts_with('#') && !word.raw.contains('/'))
        };
        let is_joined = |command: &Simple<'_>| matches!(command.before, Join::And | Join::Or | Join::Pipe);
        if commands.iter().any(|command| is_alone(command) && is_joined(command)) {
            self.unknown("a comment behind an operator");
        }
        commands.retain(|command| !is_alone(command));
        self.list(&commands, cwd, is_piped, depth);
    }

    fn list(&mut self, commands: &[Simple<'_>], cwd: &Path, is_piped: bool, depth: usize) {
        let mut place = Place { cwd: cwd.into(), believed: cwd.into(), floor: cwd.into(), has_moved: false };
        for (at, command) in commands.iter().enumerate() {
            if self.commands > MOST_COMMANDS {
                return;
            }
            if begins(command) && place.has_moved {
                self.unknown("`cd` may fail, and what follows would run all the same");
            }
            let from_pipe = command.before == Join::Pipe;
            let into_pipe = commands.get(at + 1).is_some_and(|next| next.before == Join::Pipe);
            let words = self.program_of(command);
            let reads_file = self.redirections(command, &place.cwd);
            if let Some((Written { raw: "cd", .. }, target)) = words.split_first() {
                let is_sure = !from_pipe && !into_pipe && is_sure(commands, at);
                self.count();
                self.change_directory(target, is_sure, &mut place);
                continue;
            }
            let given: Vec<_> =
                words.iter().map(|word| Given { text: &word.text, is_literal: word.is_literal }).collect();
            if given.is_empty() {
                if command.words.is_empty() {
                    self.unknown("a redirection without a command");
                }
                continue;
            }
            let is_piped = is_piped || from_pipe || reads_file;
            let spot = Spot { cwd: &place.cwd, is_piped, in_shell: true, lines: depth, wrappers: 0 };
            self.command(&given, spot);
        }
    }

    /// The words from the program on, without what only a shell's grammar or variables are for.
    fn program_of<'c, 'l>(&mut self, command: &'c Simple<'l>) -> &'c [Written<'l>] {
        let mut words = command.words.as_slice();
        while let [first, rest @ ..] = words {
            if lists::is_assignment(first.raw) {
                self.unknown("a variable is set");
            } else if builtins::is_reserved(first.raw) {
                self.unknown(format!("`{}`, a word of a shell's grammar", first.raw));
                if matches!(first.raw, "case" | "coproc" | "for" | "foreach" | "function" | "select" | "[[") {
                    return &[];
                }
            } else {
                break;
            }
            words = rest;
        }
        words
    }

    /// Names the files of a command's redirections; whether its input is one.
    fn redirections(&mut self, command: &Simple<'_>, cwd: &Path) -> bool {
        let mut reads_file = false;
        for redirection in &command.arrows {
            let target = redirection.target.text.as_str();
            let is_known = match (redirection.descriptor, redirection.arrow) {
                (None | Some("1" | "2"), Arrow::Write) => target == "/dev/null",
                (None | Some("0"), Arrow::Read) => target == "/dev/null",
                (None | Some("1" | "2"), Arrow::CopyOut) => matches!(target, "1" | "2"),
                _ => false,
            };
            if is_known && redirection.target.is_literal {
                continue;
            }
            let is_copy = redirection.arrow == Arrow::CopyIn
                || (redirection.arrow == Arrow::CopyOut
                    && target.bytes().all(|byte| byte.is_ascii_digit() || byte == b'-'));
            if is_copy {
                self.unknown("a redirection of other descriptors than 1 and 2");
                continue;
            }
            // As `cat FILE |` would do.
            let is_input =
                matches!((redirection.descriptor, redirection.arrow), (None | Some("0"), Arrow::Read));
            if !(is_input && redirection.target.is_literal) {
                self.unknown("a redirection to or from a file");
            }
            reads_file |= redirection.arrow == Arrow::Read;
            let Some(fact) = self.fact(cwd, target, redirection.target.is_literal) else { continue };
            if matches!(redirection.arrow, Arrow::Read | Arrow::Both) {
                self.found.push(SubAction::Read(fact.clone()));
            }
            if redirection.arrow != Arrow::Read {
                self.found.push(SubAction::Write(fact));
            }
        }
        reads_file
    }

    /// `cd DIR`. Where it leads is read with the same eyes that judge paths.
    fn change_directory(&mut self, words: &[Written<'_>], is_sure: bool, place: &mut Place) {
        let target = match words {
            [target] if target.is_literal && !target.text.is_empty() => target.text.as_str(),
            _ => return self.unknown("`cd` without exactly one directory"),
        };
        if target.starts_with(['-', '+']) {
            return self.unknown("`cd` to a directory of before");
        }
        let Some(fact) = self.fact(&place.cwd, target, true) else { return };
        let resolved = fact.resolved.clone().filter(|_| fact.trouble.is_none());
        self.found.push(SubAction::Read(fact));
        if !is_sure {
            return self.unknown("`cd` in a pipe or beside `||`");
        }
        let (Some(resolved), Some(believed)) = (resolved, place.after(target)) else {
            return self.unknown("`cd` to where it cannot be told");
        };
        // With links on the way, `..` means one thing to the shell and another to the kernel.
        let Some(seen) = believed.to_str().and_then(|believed| self.fact(Path::new("/"), believed, true))
        else {
            return self.unknown("`cd` to where it cannot be told");
        };
        if seen.resolved.as_ref() != Some(&resolved) {
            return self.unknown("`cd` past a link, from where `..` leads elsewhere");
        }
        if target.starts_with('/') {
            place.floor = PathBuf::from("/");
        }
        place.cwd = resolved;
        place.believed = believed;
        place.has_moved = true;
    }

    /// Counts a command; whether there are still few enough of them.
    fn count(&mut self) -> bool {
        self.commands += 1;
        if self.commands > MOST_COMMANDS {
            self.unknown(format!("more than {MOST_COMMANDS} commands"));
        }
        self.commands <= MOST_COMMANDS
    }

    /// A program with its words, the program first.
    fn command(&mut self, words: &[Given<'_>], spot: Spot<'_>) {
        if !self.count() {
            return;
        }
        let Some(program) = words.first() else { return self.unknown("no program") };
        if !program.is_literal {
            return self.unknown("a program that cannot be told");
        }
        if let Some(trouble) = name_trouble(program.text) {
            self.unknown(format!("{trouble}: `{}`", text::shown(program.text, MOST_SHOWN)));
            if program.text.is_empty() {
                return;
            }
        }
        if spot.wrappers > MOST_WRAPPERS {
            return self.unknown("too many wrappers around a program");
        }
        let name = program.text.rsplit('/').next().unwrap_or_default();
        let texts: Vec<&str> = words.iter().map(|word| word.text).collect();
        let inner = Spot { in_shell: matches!(name, "builtin" | "command" | "time"), ..spot };
        let inner = Spot { wrappers: spot.wrappers + 1, ..inner };
        match wrappers::open(name, &texts) {
            Opened::Plain => self.run(words, spot, false),
            Opened::Starts(at) => {
                self.run(words, spot, true);
                if name == "nohup" {
                    let fact = self.fact(spot.cwd, "nohup.out", true);
                    self.found.extend(fact.map(SubAction::Write));
                }
                self.command(&words[at..], inner);
            }
            Opened::Line(at) => {
                self.run(words, spot, true);
                self.line(words[at].text, spot.cwd, spot.is_piped, spot.lines + 1);
            }
            Opened::Opaque(guesses) => {
                self.run(words, spot, false);
                let shown = text::shown(name, MOST_SHOWN);
                self.unknown(format!("`{shown}` may start something that its words do not tell"));
                for guess in guesses {
                    match guess {
                        Guess::Words(from, until) => self.command(&words[from..until], inner),
                        Guess::Line(at) => self.line(words[at].text, spot.cwd, spot.is_piped, spot.lines + 1),
                    }
                }
            }
        }
        if name == "find" {
            for (at, fate) in wrappers::written_by_find(&texts) {
                let given = if at == 0 { Given { text: ".", is_literal: true } } else { words[at] };
                let Some(fact) = self.fact(spot.cwd, given.text, given.is_literal) else { continue };
                self.lose(fact, fate);
            }
        }
        if let Some(trouble) = builtins::trouble(name, &texts[1..]) {
            self.unknown(trouble);
        }
        if let Some(files) = surroundings::chosen_by(name)
            && surroundings::has_one(self.ground.resolver, spot.cwd, files)
        {
            self.chosen_elsewhere(name);
        }
        let (resolver, words) = (self.ground.resolver, &texts[1..]);
        if name == "git" && surroundings::is_bare_repository(resolver, spot.cwd) {
            self.unknown("git in a directory that is a repository by itself");
        }
        if name == "diff" && !surroundings::are_files(resolver, spot.cwd, words) {
            self.unknown("`diff` of something that is no file: of directories it reads what is in them");
        }
        if surroundings::completes_names(name, words) && !surroundings::are_files(resolver, spot.cwd, words) {
            self.unknown(format!(
                "`{name}` of a name that is no file: it puts something behind it and looks again"
            ));
        }
        if matches!(name, "cat" | "ls") && !surroundings::is_git_there(resolver, spot.cwd, words) {
            self.unknown("`.git` is not what it seems: a link leads elsewhere");
        }
    }

    fn chosen_elsewhere(&mut self, name: &str) {
        let shown = text::shown(name, MOST_SHOWN);
        self.unknown(format!("a file in the workspace or above it says which `{shown}` would run"));
    }

    /// Names a place that `find` changes.
    fn lose(&mut self, mut fact: PathFact, fate: Fate) {
        if fate == Fate::Removed {
            paths::protect_all_in(&mut fact);
        }
        if fate != Fate::Written && fact.protected.is_none() && paths::holds_protected(&fact) {
            self.unknown("`find` may remove protected files there");
        }
        self.found.push(SubAction::Write(fact));
    }

    /// Names a program that is started. Of a wrapper that is opened nothing remains to be judged,
    /// unless an agent may have made it.
    fn run(&mut self, words: &[Given<'_>], spot: Spot<'_>, is_opened: bool) {
        let Some((program, words)) = words.split_first() else { return };
        let (file, is_local) = self.ground.resolver.program(spot.cwd, program.text);
        if is_opened && !is_local {
            return;
        }
        let is_built_in = spot.in_shell && builtins::is_plain(program.text);
        if file.as_deref().is_some_and(|file| surroundings::is_stand_in(program.text, file))
            && surroundings::has_one(self.ground.resolver, spot.cwd, surroundings::MANAGED_BY)
        {
            self.chosen_elsewhere(program.text);
        }
        let room = MOST_TEXTS - self.texts;
        if words.len() > room {
            self.unknown(format!("more than {MOST_WORDS} words"));
        }
        // Behind `--` everything is a word of its own, before it what begins with a dash is an option.
        let dashes = words.iter().position(|word| word.text == "--").unwrap_or(words.len());
        let is_bare = |text: &str| text.len() > 1 && text.starts_with('-') && !text.contains('=');
        let words: Vec<_> = (words.iter().enumerate().take(room))
            .map(|(at, word)| self.word(spot.cwd, *word, at < dashes && is_bare(word.text)))
            .collect();
        self.texts += words.len();
        self.found.push(SubAction::Run(Command {
            program: program.text.to_owned(),
            file: file.filter(|_| !is_built_in),
            is_local,
            words,
            cwd: spot.cwd.into(),
            is_piped: spot.is_piped,
        }));
    }

    /// No rule takes an option for a path, so that nobody needs to know where one would lead.
    fn word(&mut self, cwd: &Path, given: Given<'_>, is_option: bool) -> Word {
        let path = self.fact(cwd, given.text, given.is_literal && !is_option);
        let value = given.text.split_once('=').map(|(_, value)| value);
        let value = value.and_then(|value| self.fact(cwd, value, given.is_literal));
        Word { text: given.text.to_owned(), path, value }
    }

    /// Where a path leads, as long as there are not too many of them.
    fn fact(&mut self, cwd: &Path, given: &str, is_literal: bool) -> Option<PathFact> {
        self.words += 1;
        if self.words > MOST_WORDS {
            self.unknown(format!("more than {MOST_WORDS} words"));
            return None;
        }
        is_literal.then(|| self.ground.resolver.path(cwd, given))
    }
}

impl Place {
    /// What the shell believes to be its directory after `cd target`.
    fn after(&self, target: &str) -> Option<PathBuf> {
        let mut believed = if target.starts_with('/') { PathBuf::from("/") } else { self.believed.clone() };
        for component in Path::new(target).components() {
            match component {
                Component::Normal(name) => believed.push(name),
                Component::ParentDir => {
                    if !target.starts_with('/') && believed == self.floor && self.floor != Path::new("/") {
                        return None;
                    }
                    believed.pop();
                }
                Component::RootDir | Component::CurDir | Component::Prefix(_) => {}
            }
        }
        Some(believed)
    }
}

/// Whether a command begins a list, in which `&&`, `||` and `|` join it to others.
fn begins(command: &Simple<'_>) -> bool {
    !matches!(command.before, Join::And | Join::Or | Join::Pipe)
}

/// Whether what stands in the same list runs only if everything before it went well.
fn is_sure(commands: &[Simple<'_>], at: usize) -> bool {
    let from = commands[..=at].iter().rposition(begins).unwrap_or_default();
    let mut rest = commands[from + 1..].iter().take_while(|other| !begins(other));
    rest.all(|other| other.before != Join::Or) && commands[from].before != Join::Other
}

/// Why a program's name is not one that rules could be about.
fn name_trouble(name: &str) -> Option<&'static str> {
    let plain = |c: char| c.is_ascii_alphanumeric() || "_-./+@,".contains(c);
    if name.is_empty() {
        Some("a program without a name")
    } else if name == ":" || name == "[" {
        None
    } else if name.ends_with('/')
        || matches!(name, "." | "..")
        || name.ends_with("/.")
        || name.ends_with("/..")
    {
        Some("a directory in place of a program")
    } else if name.starts_with(['-', '+', '@', ',']) || !name.chars().all(plain) {
        Some("a program with an unusual name")
    } else {
        None
    }
}
