//! What a sub-action is about, in a few words: short enough to count by and to be read in a
//! table, and the same for what one rule would be about.

use super::{PathFact, SubAction, rules::base_name, text};

/// Characters of a name.
const SHOWN: usize = 40;

/// Characters of a whole sub-action.
const LINE: usize = 100;

/// Programs of which the first word says what they do. Of others it may be anything, and
/// counts would fall apart by file names.
const WITH_SUBCOMMANDS: &[&str] = &[
    "apt",
    "apt-get",
    "aws",
    "az",
    "brew",
    "bun",
    "bundle",
    "cargo",
    "conda",
    "deno",
    "docker",
    "dotnet",
    "gcloud",
    "gh",
    "git",
    "go",
    "gradle",
    "helm",
    "just",
    "kubectl",
    "make",
    "mvn",
    "npm",
    "pip",
    "pip3",
    "pnpm",
    "podman",
    "poetry",
    "rake",
    "rustup",
    "systemctl",
    "terraform",
    "uv",
    "yarn",
];

impl SubAction {
    /// What to count it under: the kind, and the name that rules would go by.
    pub fn topic(&self) -> String {
        let named = |kind: &str, name: &str| format!("{kind} {}", text::shown(name, SHOWN));
        match self {
            Self::Run(command) => {
                let name = base_name(&command.program);
                let mut topic = named("run", name);
                let first = command.words.first().map(|word| word.text.as_str()).unwrap_or_default();
                if WITH_SUBCOMMANDS.contains(&name) && first.starts_with(|c: char| c.is_ascii_alphabetic()) {
                    topic.push(' ');
                    topic.push_str(&text::shown(first, SHOWN));
                }
                if command.is_local {
                    topic.push_str(" (local)");
                }
                topic
            }
            Self::Read(fact) => format!("read{}", place(fact, fact.secret)),
            Self::Write(fact) => format!("write{}", place(fact, fact.protected.is_some() || fact.secret)),
            Self::Fetch(fact) if fact.host.is_empty() => "fetch".to_owned(),
            Self::Fetch(fact) => named("fetch", &fact.host),
            Self::Mcp { server, tool } => named("mcp", &format!("{server}/{tool}")),
            Self::Tool { name } => named("tool", name),
            Self::Mode { id } => named("mode", id),
            Self::Model { id } => named("model", id),
            Self::Setting { id, .. } => named("setting", id),
            Self::Agent { name } => named("agent", name),
            Self::Server(fact) => named("server", fact.known.as_deref().unwrap_or(&fact.name)),
            Self::Unknown { .. } => "unknown".to_owned(),
        }
    }

    /// All of it in one line, for an example.
    pub fn line(&self) -> String {
        let line = match self {
            Self::Run(command) => {
                let words = command.words.iter().map(|word| word.text.as_str()).take(LINE);
                std::iter::once(command.program.as_str()).chain(words).collect::<Vec<_>>().join(" ")
            }
            Self::Read(fact) => format!("read {}", fact.given),
            Self::Write(fact) => format!("write {}", fact.given),
            Self::Fetch(fact) => format!("fetch {}", fact.given),
            Self::Setting { id, value } => format!("setting {id} = {value}"),
            Self::Unknown { what } => what.clone(),
            other => other.topic(),
        };
        text::shown(&line, LINE)
    }
}

fn place(fact: &PathFact, is_protected: bool) -> &'static str {
    match (fact.trouble.is_some() || fact.resolved.is_none(), fact.root.is_some(), is_protected) {
        (true, ..) => " (unclear where)",
        (_, _, true) => " (protected)",
        (_, false, _) => " (outside)",
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::{Command, Word};

    fn run(program: &str, first: &str) -> SubAction {
        let words = vec![Word { text: first.into(), path: None, value: None }];
        let cwd = "/w".into();
        SubAction::Run(Command {
            program: program.into(),
            file: None,
            is_local: false,
            words,
            cwd,
            is_piped: false,
        })
    }

    #[test]
    fn commands_are_counted_by_what_they_do() {
        assert_eq!(run("/usr/bin/git", "push").topic(), "run git push");
        assert_eq!(run("git", "-C").topic(), "run git");
        assert_eq!(run("rm", "notes").topic(), "run rm");
        assert_eq!(run("rm", "no\ntes").line(), "rm no\\ntes");
        let long = run(&"x".repeat(500), "");
        assert!(long.topic().chars().count() < 60 && long.line().chars().count() <= LINE);
    }

    #[test]
    fn paths_are_counted_by_where_they_lead() {
        let inside = PathFact {
            given: "a".into(),
            resolved: Some("/w/a".into()),
            root: Some("/w".into()),
            ..PathFact::default()
        };
        let outside = PathFact { root: None, ..inside.clone() };
        let unclear = PathFact { trouble: Some("odd".into()), ..inside.clone() };
        let kept = PathFact { protected: Some("keys".into()), ..inside.clone() };
        let topics = [&inside, &outside, &unclear, &kept].map(|fact| SubAction::Write(fact.clone()).topic());
        assert_eq!(topics, ["write", "write (outside)", "write (unclear where)", "write (protected)"]);
        assert_eq!(SubAction::Read(kept).topic(), "read", "what is protected may be read");
    }
}
