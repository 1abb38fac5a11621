//! From the keys of a rule to what can be matched; refuses what cannot be meant.

use std::{sync::Arc, time::Duration};

use serde_json::Value;
use toml::Spanned;

use super::{
    Rule,
    file::{
        AskShape, FetchShape, PathShape, Problem, RuleShape, RunShape, ServerShape, Source, Texts, WhoShape,
        escaped,
    },
    globs::{Globs, PathGlobs, is_literal},
    matcher::{FetchMatcher, PathMatcher, Programs, RunMatcher, Scope, ServerMatcher, What},
    words::{Line, Options, Positionals},
};
use crate::{
    clock,
    policy::{Approvers, AskTerms, Effect},
};

/// The longest id of a rule.
const LONGEST_ID: usize = 64;

/// The longest reason: it is one sentence, and agents read it.
const LONGEST_REASON: usize = 500;

/// How long a rule may have a question wait.
const SHORTEST_ASK: Duration = Duration::from_secs(1);
const LONGEST_ASK: Duration = Duration::from_secs(7 * 24 * 3600);

/// What people may be.
const ROLES: [&str; 4] = ["developer", "approver", "auditor", "admin"];

/// Compiles one rule.
pub(super) fn compile(source: Source<'_>, shape: &RuleShape) -> Result<Rule, Problem> {
    let compiler = Compiler { source, shape, is_strict: shape.effect != Effect::Allow };
    compiler.id()?;
    let reason = compiler.reason()?;
    let scope = compiler.scope()?;
    let what = compiler.what()?;
    let ask = compiler.ask()?;
    Ok(Rule { id: shape.id.get_ref().clone(), effect: shape.effect, reason, scope, what, ask })
}

struct Compiler<'a> {
    source: Source<'a>,
    shape: &'a RuleShape,
    is_strict: bool,
}

impl Compiler<'_> {
    fn refuse<T>(&self, at: &Spanned<T>, what: impl Into<String>, hint: impl Into<String>) -> Problem {
        let id: String = self.shape.id.get_ref().chars().take(LONGEST_ID).flat_map(escaped).collect();
        let what: String = what.into().chars().flat_map(escaped).collect();
        Problem { line: self.source.line(&at.span()), rule: Some(id), what, hint: hint.into() }
    }

    fn id(&self) -> Result<(), Problem> {
        let id = self.shape.id.get_ref();
        let good = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-' || c == '_';
        if !id.is_empty() && id.len() <= LONGEST_ID && id.chars().all(good) {
            return Ok(());
        }
        let hint = format!("use at most {LONGEST_ID} of a-z, 0-9, - and _");
        Err(self.refuse(&self.shape.id, "this cannot be the id of a rule", hint))
    }

    fn reason(&self) -> Result<String, Problem> {
        let reason = self.shape.reason.get_ref().trim();
        if reason.is_empty() {
            let hint = "say why, for the agent and for people, as in reason = \"pushes are reviewed\"";
            return Err(self.refuse(&self.shape.reason, "`reason` is empty", hint));
        }
        if reason.chars().count() > LONGEST_REASON {
            let what = format!("`reason` has more than {LONGEST_REASON} characters");
            return Err(self.refuse(&self.shape.reason, what, "say it in a sentence"));
        }
        Ok(reason.chars().flat_map(escaped).collect())
    }

    fn scope(&self) -> Result<Scope, Problem> {
        let shape = self.shape;
        if let Some(roots) = &shape.root
            && let Some(root) = roots.iter().find(|root| !root.get_ref().starts_with(['/', '*']))
        {
            let what = format!("root `{}` matches no directory", root.get_ref());
            return Err(self.refuse(root, what, "write it from `/` on, as in \"/srv/src/**\""));
        }
        let root = shape.root.as_ref().map(|roots| {
            // A session's directory is absolute, so `**` is, too.
            let from_top = |root: &Spanned<String>| match root.get_ref().as_str() {
                text if text.starts_with('/') => text.to_owned(),
                text => format!("/{text}"),
            };
            let first = self.some("root", roots)?;
            let roots: Vec<_> = roots.iter().map(from_top).collect();
            PathGlobs::new(&roots, self.is_strict).map_err(|why| self.refuse(first, why, CORRECT_PATTERN))
        });
        Ok(Scope {
            user: self.names("who.user", shape.who.user.as_ref())?,
            team: self.names("who.team", shape.who.team.as_ref())?,
            role: self.names("who.role", shape.who.role.as_ref())?,
            agent: self.names("agent", shape.agent.as_ref())?,
            mode: self.names("mode", shape.mode.as_ref())?,
            model: self.names("model", shape.model.as_ref())?,
            root: root.transpose()?,
        })
    }

    /// How it asks, if it says so.
    fn ask(&self) -> Result<Option<Arc<AskTerms>>, Problem> {
        let Some(ask) = &self.shape.ask else { return Ok(None) };
        if self.shape.effect != Effect::Ask {
            let hint = "give it effect = \"ask\", or remove `ask`";
            return Err(self.refuse(ask, "`ask` is for rules that ask", hint));
        }
        let shape = ask.get_ref();
        let approvers = shape.approvers.as_ref().map(|who| self.approvers(ask, who)).transpose()?;
        let timeout = shape.timeout.as_ref().map(|text| self.timeout(text)).transpose()?;
        let (driver, is_own_allowed) = (shape.driver.unwrap_or(true), shape.own.unwrap_or(true));
        Ok(Some(Arc::new(AskTerms { approvers, driver, is_own_allowed, timeout })))
    }

    fn approvers(&self, at: &Spanned<AskShape>, who: &WhoShape) -> Result<Approvers, Problem> {
        let names = |texts: &Option<Texts>| -> Vec<String> {
            texts.iter().flatten().map(|text| text.get_ref().clone()).collect()
        };
        let approvers = Approvers { user: names(&who.user), team: names(&who.team), role: names(&who.role) };
        if approvers == Approvers::default() {
            let hint = "name users, teams or roles, as in approvers = { team = [\"leads\"] }";
            return Err(self.refuse(at, "`approvers` names nobody", hint));
        }
        let roles = who.role.iter().flatten();
        if let Some(role) = roles.clone().find(|role| !ROLES.contains(&role.get_ref().as_str())) {
            let what = format!("there is no role `{}`", role.get_ref());
            return Err(self.refuse(role, what, format!("roles are {}", ROLES.join(", "))));
        }
        if let Some(role) = roles.clone().find(|role| role.get_ref() == "auditor") {
            let what = "auditors read everything and change nothing";
            return Err(self.refuse(role, what, "name approver, admin or developer"));
        }
        let all = [&who.user, &who.team].into_iter().flatten().flatten();
        match all.clone().find(|name| !is_literal(name.get_ref()) || name.get_ref().is_empty()) {
            Some(name) => {
                let what = format!("`{}` is no name", name.get_ref());
                Err(self.refuse(name, what, "write names in full; approvers have no patterns"))
            }
            None => Ok(approvers),
        }
    }

    fn timeout(&self, text: &Spanned<String>) -> Result<Duration, Problem> {
        let parsed = clock::parse_duration(text.get_ref()).ok();
        parsed.filter(|time| (SHORTEST_ASK..=LONGEST_ASK).contains(time)).ok_or_else(|| {
            let what = format!("`{}` is no time to wait", text.get_ref());
            self.refuse(text, what, "write a number and a unit from \"1s\" to \"7d\", as in \"30m\"")
        })
    }

    fn what(&self) -> Result<What, Problem> {
        let shape = self.shape;
        let mut all = Vec::new();
        if let Some(run) = &shape.run {
            all.push(What::Run(self.run(run)?));
        }
        if let Some(read) = &shape.read {
            all.push(What::Read(self.path("read", read)?));
        }
        if let Some(write) = &shape.write {
            all.push(What::Write(self.path("write", write)?));
        }
        if let Some(fetch) = &shape.fetch {
            all.push(What::Fetch(self.fetch(fetch)?));
        }
        if let Some(mcp) = &shape.mcp {
            let server = self.names("mcp.server", mcp.server.as_ref())?;
            all.push(What::Mcp { server, tool: self.names("mcp.tool", mcp.tool.as_ref())? });
        }
        all.extend(self.names("tool", shape.tool.as_ref())?.map(What::Tool));
        all.extend(self.names("set_mode", shape.set_mode.as_ref())?.map(What::Mode));
        all.extend(self.names("set_model", shape.set_model.as_ref())?.map(What::Model));
        if let Some(setting) = &shape.setting {
            let id = self.names("setting.id", setting.id.as_ref())?;
            all.push(What::Setting { id, value: self.names("setting.value", setting.value.as_ref())? });
        }
        all.extend(self.names("use_agent", shape.use_agent.as_ref())?.map(What::Agent));
        if let Some(server) = &shape.server {
            all.push(What::Server(self.server(server)?));
        }
        match shape.anything {
            None => {}
            Some(true) if self.is_strict => all.push(What::Anything),
            Some(_) => {
                let hint = "write `anything = true` with effect ask or deny, or name what is allowed";
                return Err(self.refuse(&shape.id, "`anything` cannot be allowed, nor be false", hint));
            }
        }
        match (all.pop(), all.is_empty()) {
            (Some(what), true) => Ok(what),
            (found, _) => {
                let what = if found.is_some() { "it is about several things" } else { "it is about nothing" };
                let hint = "give each rule exactly one of run, read, write, fetch, mcp, tool, set_mode, \
                            set_model, setting, use_agent, server and anything";
                Err(self.refuse(&shape.id, what, hint))
            }
        }
    }

    fn run(&self, run: &RunShape) -> Result<RunMatcher, Problem> {
        let programs = self.programs(&run.program)?;
        let is_any = match &run.words {
            None => self.is_strict,
            Some(words) if words.get_ref() != "any" => {
                let hint = "write words = \"any\", or remove it and list flags, options and positionals";
                return Err(self.refuse(words, "`words` can only be \"any\"", hint));
            }
            Some(words) => {
                if run.flags.is_some() || run.options.is_some() || run.positionals.is_some() {
                    let hint = "remove `words`, or remove flags, options and positionals";
                    return Err(self.refuse(words, "`words` leaves nothing to list", hint));
                }
                true
            }
        };
        if !self.is_strict
            && let Some(odd) = [&run.any_option, &run.any_word, &run.any_path]
                .into_iter()
                .find_map(|list| list.as_ref()?.first())
        {
            let hint = "list what may be there in flags, options and positionals; or make it an ask or \
                            deny rule";
            let what = "`any_option`, `any_word` and `any_path` allow everything beside";
            return Err(self.refuse(odd, what, hint));
        }
        let subcommands = run.subcommand.as_ref().map(|list| self.subcommands(list)).transpose()?;
        let globals = self.options(None, run.globals.as_ref())?;
        if let Some(global) = run.globals.as_ref().and_then(|list| list.first()) {
            if subcommands.is_none() {
                let hint = "put them into `options`, or name a `subcommand`";
                return Err(self.refuse(
                    global,
                    "`globals` stand before a sub-command, and there is none",
                    hint,
                ));
            }
            if globals.has_facts() {
                let hint = "give it the kind text or number, if what it names cannot matter";
                return Err(self.refuse(global, "a path or address in `globals` would not be judged", hint));
            }
        }
        let lists_options = run.flags.is_some() || run.options.is_some();
        let options = match lists_options || !is_any {
            true => Some(self.options(run.flags.as_ref(), run.options.as_ref())?),
            false => None,
        };
        let positionals = match (&run.positionals, is_any) {
            (Some(kinds), _) => {
                let read = Positionals::new(kinds.iter().map(|kind| kind.get_ref().as_str()));
                let at = kinds.first();
                Some(read.map_err(|why| self.refuse_at(at, why, "correct `positionals`"))?)
            }
            (None, true) => None,
            (None, false) => Some(Positionals::default()),
        };
        if let Some(first) = run.options_first.as_ref().filter(|_| self.is_strict) {
            let what = "`options_first` would keep a rule that asks or denies from matching";
            return Err(self.refuse(first, what, "remove it"));
        }
        if let Some(at) = run.at.as_ref().filter(|at| at.get_ref() != "start") {
            let what = format!("`{}` is no place for `at`", at.get_ref());
            return Err(self.refuse(
                at,
                what,
                "write at = \"start\" for the session's directory, or remove it",
            ));
        }
        Ok(RunMatcher {
            is_strict: self.is_strict,
            programs,
            subcommands,
            globals,
            line: Line {
                options,
                positionals,
                options_first: run.options_first.as_ref().is_some_and(|first| *first.get_ref()),
                is_strict: self.is_strict,
            },
            local: run.local,
            at_start: run.at.is_some(),
            any_option: run.any_option.as_ref().map(|list| self.any_option(list)).transpose()?,
            any_word: self.names("run.any_word", run.any_word.as_ref())?,
            any_path: run.any_path.as_ref().map(|list| self.any_path(list).map(Box::new)).transpose()?,
        })
    }

    fn programs(&self, list: &Texts) -> Result<Programs, Problem> {
        // `[` is the name of a program, and no pattern.
        let is_name = |text: &str| text == "[" || is_literal(text);
        self.some("run.program", list)?;
        if list.iter().any(|name| name.get_ref() == "*") {
            return Ok(Programs::Any);
        }
        for name in list {
            let text = name.get_ref();
            if text.is_empty() || text.contains('/') {
                let hint =
                    "write the bare name, as in \"git\": a program in a workspace is never meant by it";
                return Err(self.refuse(name, format!("`{text}` is no program's name"), hint));
            }
            if !is_name(text) && !self.is_strict {
                let what = format!("`{text}`: programs are allowed by their full names");
                return Err(self.refuse(
                    name,
                    what,
                    "list the names, or write \"*\" alone for every program",
                ));
            }
        }
        if list.iter().all(|name| is_name(name.get_ref())) {
            return Ok(Programs::Named(list.iter().map(|name| name.get_ref().clone()).collect()));
        }
        Ok(self.names("run.program", Some(list))?.map_or(Programs::Any, Programs::Like))
    }

    fn subcommands(&self, list: &Texts) -> Result<Vec<Vec<String>>, Problem> {
        self.some("run.subcommand", list)?;
        let read = |sequence: &Spanned<String>| {
            let words: Vec<_> = sequence.get_ref().split(' ').map(str::to_owned).collect();
            if words.iter().any(|word| word.is_empty() || word == "--") {
                let what = format!("`{}` is no sub-command", sequence.get_ref());
                return Err(self.refuse(sequence, what, "write its words with one blank between them"));
            }
            Ok(words)
        };
        list.iter().map(read).collect()
    }

    fn options(&self, flags: Option<&Spanned<String>>, options: Option<&Texts>) -> Result<Options, Problem> {
        let flag_letters = flags.map_or("", |flags| flags.get_ref().as_str());
        let list = options.map_or(&[][..], Vec::as_slice);
        Options::new(flag_letters, list.iter().map(|option| option.get_ref().as_str()))
            .map_err(|why| self.refuse_at(flags.or(list.first()), why, "correct `flags` or `options`"))
    }

    fn any_option(&self, list: &Texts) -> Result<Vec<String>, Problem> {
        self.some("run.any_option", list)?;
        let read = |option: &Spanned<String>| {
            let text = option.get_ref();
            let is_option =
                text.starts_with('-') && !text.trim_start_matches('-').is_empty() && !text.contains('=');
            if !is_option || text.starts_with("---") {
                let what = format!("`{text}` is no option's name");
                return Err(self.refuse(
                    option,
                    what,
                    "write it as in \"--output\" or \"-o\", without a value",
                ));
            }
            Ok(text.clone())
        };
        list.iter().map(read).collect()
    }

    fn any_path(&self, list: &Texts) -> Result<PathGlobs, Problem> {
        let globs = self.path_globs("run.any_path", list)?;
        match list.iter().find(|path| !path.get_ref().starts_with('/')) {
            Some(odd) => {
                let what = format!("`{}`: `any_path` is for what lies outside of all roots", odd.get_ref());
                Err(self.refuse(odd, what, "write it from `/` on, as in \"/etc/**\""))
            }
            None => Ok(globs),
        }
    }

    fn path_globs(&self, key: &str, list: &Texts) -> Result<PathGlobs, Problem> {
        let first = self.some(key, list)?;
        let patterns: Vec<_> = list.iter().map(Spanned::get_ref).collect();
        PathGlobs::new(&patterns, self.is_strict)
            .map_err(|why| self.refuse(first, format!("{key}: {why}"), CORRECT_PATTERN))
    }

    fn path(&self, key: &str, shape: &PathShape) -> Result<PathMatcher, Problem> {
        let globs = shape.path.as_ref().map(|list| self.path_globs(key, list));
        let (inside, protected) = (shape.inside, shape.protected);
        Ok(PathMatcher { is_strict: self.is_strict, path: globs.transpose()?, inside, protected })
    }

    fn fetch(&self, shape: &FetchShape) -> Result<FetchMatcher, Problem> {
        for host in shape.host.iter().flatten() {
            let text = host.get_ref();
            let name = text.strip_prefix("*.").unwrap_or(text);
            let is_plain = text == "*" || (is_literal(name) && !name.is_empty());
            if !self.is_strict && !is_plain {
                let what = format!("`{text}` could match hosts of others");
                return Err(self.refuse(host, what, "write a host, \"*.DOMAIN\", or \"*\" for every host"));
            }
            if text.contains(['/', ':', '@']) && !text.starts_with('[')
                || text.chars().any(char::is_uppercase)
            {
                let what = format!("`{text}` matches no host");
                return Err(self.refuse(
                    host,
                    what,
                    "write the name alone, in lower case; ports go into `port`",
                ));
            }
        }
        if shape.port.as_ref().is_some_and(Vec::is_empty) {
            return Err(self.refuse(
                &self.shape.id,
                "`fetch.port` is empty and matches nothing",
                REMOVE_OR_NAME,
            ));
        }
        let scheme = shape.scheme.as_ref().map(|list| {
            self.some("fetch.scheme", list)?;
            Ok(list.iter().map(|scheme| scheme.get_ref().to_ascii_lowercase()).collect())
        });
        let path = shape.path.as_ref().map(|list| {
            let first = self.some("fetch.path", list)?;
            if let Some(odd) = list.iter().find(|path| !path.get_ref().starts_with(['/', '*'])) {
                let what = format!("`{}` matches no path of an address", odd.get_ref());
                return Err(self.refuse(odd, what, "write it from `/` on, as in \"/api/**\""));
            }
            let patterns: Vec<_> = list.iter().map(Spanned::get_ref).collect();
            Globs::of_paths(&patterns).map_err(|why| self.refuse(first, why, CORRECT_PATTERN))
        });
        Ok(FetchMatcher {
            is_strict: self.is_strict,
            scheme: scheme.transpose()?,
            host: self.names("fetch.host", shape.host.as_ref())?,
            port: shape.port.clone(),
            path: path.transpose()?,
        })
    }

    fn server(&self, shape: &ServerShape) -> Result<ServerMatcher, Problem> {
        let transport = shape.transport.as_ref().map(|list| {
            self.some("server.transport", list)?;
            let known = ["stdio", "http", "sse", "acp"];
            if let Some(odd) = list.iter().find(|name| !known.contains(&name.get_ref().as_str())) {
                let what = format!("`{}` is no transport", odd.get_ref());
                return Err(self.refuse(odd, what, "the transports are stdio, http, sse and acp"));
            }
            Ok(list.iter().map(|name| name.get_ref().clone()).collect())
        });
        Ok(ServerMatcher {
            is_strict: self.is_strict,
            name: self.names("server.name", shape.name.as_ref())?,
            known: shape.known,
            transport: transport.transpose()?,
            remote: shape.remote,
        })
    }

    /// Patterns over names, of which there has to be one.
    fn names(&self, key: &str, list: Option<&Texts>) -> Result<Option<Globs>, Problem> {
        let Some(list) = list else { return Ok(None) };
        let first = self.some(key, list)?;
        let patterns: Vec<_> = list.iter().map(Spanned::get_ref).collect();
        Globs::of_names(&patterns)
            .map(Some)
            .map_err(|why| self.refuse(first, format!("`{key}`: {why}"), CORRECT_PATTERN))
    }

    fn some<'a>(&self, key: &str, list: &'a Texts) -> Result<&'a Spanned<String>, Problem> {
        list.first().ok_or_else(|| {
            self.refuse(&self.shape.id, format!("`{key}` is empty and matches nothing"), REMOVE_OR_NAME)
        })
    }

    fn refuse_at(&self, at: Option<&Spanned<String>>, what: String, hint: &str) -> Problem {
        self.refuse(at.unwrap_or(&self.shape.id), what, hint)
    }
}

const REMOVE_OR_NAME: &str = "remove the key, or name something";
const CORRECT_PATTERN: &str = "correct the pattern: `*` stops at `/`, `**` does not, and `\\` takes the next \
                               character as it is";

/// The keys of a rule that say whom and where, and those that say what; for comparing rules.
pub(super) fn keys(shape: &RuleShape) -> (Value, Value) {
    let mut all = serde_json::to_value(shape).unwrap_or_default();
    let mut scope = serde_json::Map::new();
    if let Some(all) = all.as_object_mut() {
        for key in ["id", "effect", "reason", "match", "not_match"] {
            all.remove(key);
        }
        for key in ["who", "agent", "mode", "model", "root"] {
            scope.extend(all.remove(key).map(|value| (key.to_owned(), value)));
        }
        all.retain(|_, value| !value.is_null());
    }
    (Value::Object(scope), all)
}
