//! The policy as a library: how long it takes from what is asked to what the rules say, the disk looked at included.

use std::{
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
    time::Instant,
};

use anyhow::{Context as _, Result, anyhow, ensure};
use conductor::policy::{Absent, Action, Disk, Effect, Ground, Policy, Subject, normalise};
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use crate::{
    journal::effects_after,
    measure::micros,
    report::{median, percentile},
    rows::Rows,
};

/// Rules of the policy.
const RULES: usize = 500;

/// The longest line that is judged at all, and the most commands in it.
const LONGEST_LINE: usize = 16 << 10;
const MOST_COMMANDS: usize = 64;

/// Times that each of the largest requests is judged in a round.
const REPEATS: usize = 20;

/// A policy, and the workspace in which things are asked.
struct Court {
    policy: Policy,
    subject: Subject,
    disk: Disk,
    cwd: PathBuf,
}

impl Court {
    fn open(dir: &Path) -> Result<Self> {
        for path in ["src/main.rs", "src/lib.rs", "README.md", "docs/a/b/c/guide.md"] {
            let path = dir.join(path);
            fs::create_dir_all(path.parent().context("it has a parent")?)?;
            fs::write(path, "text")?;
        }
        let cwd = dir.canonicalize()?;
        let search = std::env::var_os("PATH").map(|path| std::env::split_paths(&path).collect());
        let disk = Disk::resolved(vec![cwd.clone()], search.unwrap_or_default(), Absent::default());
        let subject = Subject {
            user: "ann".into(),
            teams: vec!["core".into(), "web".into()],
            role: "developer".into(),
            agent: "claude".into(),
            mode: Some("default".into()),
            model: Some("vendor/model-1".into()),
            cwd: cwd.clone(),
        };
        Ok(Self { policy: policy()?, subject, disk, cwd })
    }

    /// What comes of it, and how many microseconds that takes.
    fn judge(&self, action: &Action) -> (Effect, f64) {
        let begun = Instant::now();
        let ground = Ground { cwd: &self.cwd, resolver: &self.disk };
        let verdict = self.policy.evaluate(&self.subject, &normalise(action, &ground));
        (verdict.decision, micros(begun.elapsed()))
    }
}

/// The default policy with rules of all kinds beside it, as a large team may have them.
fn policy() -> Result<Policy> {
    let preset = Policy::load(None)?.rule_count();
    let mut text = "use = [\"default\"]\n".to_owned();
    for at in 0..RULES.saturating_sub(preset) {
        let effect = ["allow", "ask", "deny"][at % 3];
        let scope = match at % 5 {
            0 => format!("who = {{ team = [\"team-{at}\", \"core\"] }}"),
            1 => format!("agent = [\"claude*\", \"agent-{at}\"]"),
            2 => "root = [\"/**\"]".to_owned(),
            _ => String::new(),
        };
        let what = match at % 8 {
            0 => format!(
                "run = {{ program = [\"tool-{at}\"], subcommand = [\"show\", \"list\"], flags = \"ab\" }}"
            ),
            1 => format!(
                "run = {{ program = [\"git\"], subcommand = [\"extra-{at}\"], positionals = [\"read*\"] }}"
            ),
            2 => format!("read = {{ path = [\"vendor-{at}/**\", \"**/*.ext{at}\"] }}"),
            3 => format!("write = {{ path = [\"**/generated-{at}/**/*.rs\", \"/srv/{at}/*\"] }}"),
            4 => format!("fetch = {{ host = [\"host-{at}.example\", \"*.host-{at}.example\"] }}"),
            5 => format!("mcp = {{ server = [\"server-{at}\"], tool = [\"get_*\"] }}"),
            6 => format!("read = {{ path = [\"secret-{at}/**/k?y\"] }}"),
            _ => format!("tool = [\"Tool{at}*\"]"),
        };
        write!(
            text,
            "[[rule]]\nid = \"bench-{at}\"\neffect = \"{effect}\"\nreason = \"of the benchmark\"\n{scope}\n{what}\n"
        )?;
    }
    let policy = Policy::parse("bench", &text)?;
    ensure!(policy.rule_count() >= RULES, "the policy has {} rules", policy.rule_count());
    Ok(policy)
}

fn permission(raw_input: &Value, content: &str) -> Value {
    json!({ "permission": {
        "sessionId": "s",
        "toolCall": {
            "toolCallId": "t",
            "kind": "execute",
            "rawInput": raw_input,
            "content": [{ "type": "diff", "path": "src/main.rs", "oldText": "", "newText": content }],
        },
        "options": [{ "optionId": "y", "name": "Yes", "kind": "allow_once" }],
    } })
}

/// What agents ask for all day.
fn ordinary() -> Vec<Value> {
    vec![
        json!({ "shell": "git log --oneline -n 5" }),
        json!({ "shell": "cat README.md | head -5" }),
        json!({ "shell": "cd src && ls -la && git status" }),
        json!({ "argv": ["rg", "-n", "fn main", "src"] }),
        json!({ "shell": "cargo test --workspace" }),
        json!({ "read": "docs/a/b/c/guide.md" }),
        json!({ "write": "src/lib.rs" }),
        json!({ "read": "/etc/passwd" }),
        json!({ "fetch": "https://docs.rs/tokio/latest/tokio/" }),
        json!({ "mcp": { "server": "github", "tool": "get_issue", "arguments": { "number": 1 } } }),
        permission(&json!({ "command": "git diff" }), ""),
        permission(&json!({ "file_path": "src/main.rs" }), "fn main() {}"),
    ]
}

/// The largest that is judged at all, in several shapes.
fn largest() -> Vec<(&'static str, Value)> {
    let fill = |mut line: String, word: &dyn Fn(usize) -> String| {
        let mut at = 0;
        while line.len() + word(at).len() < LONGEST_LINE {
            line.push_str(&word(at));
            at += 1;
        }
        line
    };
    let each = LONGEST_LINE / MOST_COMMANDS;
    let commands = |program: &str| -> String {
        let one = |at: usize| {
            let mut command = program.to_owned();
            while command.len() + 24 < each {
                let _ = write!(command, " src/{at}/file{}", command.len());
            }
            command
        };
        (0..MOST_COMMANDS).map(one).collect::<Vec<_>>().join(" && ")
    };
    let many = commands("cat");
    vec![
        ("64 commands with paths", json!({ "shell": many })),
        ("64 commands of git", json!({ "shell": commands("git log") })),
        (
            "one command with short words",
            json!({ "shell": fill("cat".into(), &|at| format!(" {}", at % 10)) }),
        ),
        ("one command with short paths", json!({ "shell": fill("cat".into(), &|at| format!(" a/{at}")) })),
        ("one deep path", json!({ "read": fill("a".into(), &|_| "/b".into()) })),
        ("one long word", json!({ "shell": fill("cat ".into(), &|_| "x".into()) })),
        (
            "a permission with a diff of 1 MiB",
            permission(&json!({ "command": many }), &"line\n".repeat(200_000)),
        ),
    ]
}

/// Whether each request is shown, and not only what counts.
fn is_verbose() -> bool {
    std::env::var_os("BENCH_VERBOSE").is_some()
}

fn read(value: &Value) -> Result<Action> {
    Action::from_json(value).map_err(|why| anyhow!("{value}: {why}"))
}

/// Judges what agents ask for all day, so often in all.
pub fn repeat(dir: &Path, times: usize) -> Result<()> {
    let court = Court::open(dir)?;
    let actions = ordinary().iter().map(read).collect::<Result<Vec<_>>>()?;
    for action in actions.iter().cycle().take(times) {
        court.judge(action);
    }
    Ok(())
}

/// One round of all rows.
pub fn round(count: usize, rows: &mut Rows) -> Result<()> {
    let dir = tempfile::tempdir()?;
    let court = Court::open(dir.path())?;
    let actions = ordinary().iter().map(read).collect::<Result<Vec<_>>>()?;
    for action in &actions {
        court.judge(action);
    }
    let times: Vec<f64> = actions.iter().cycle().take(count).map(|action| court.judge(action).1).collect();
    if is_verbose() {
        for (at, value) in ordinary().iter().enumerate() {
            let own: Vec<f64> = times.iter().skip(at).step_by(actions.len()).copied().collect();
            eprintln!("{:6.1} {:6.1} µs  {value}", median(&own), percentile(&own, 0.99));
        }
    }
    rows.decision_p50.value(median(&times));
    rows.decision_p99.value(percentile(&times, 0.99));

    let mut worst: f64 = 0.0;
    for (name, value) in largest() {
        let action = read(&value)?;
        let times: Vec<f64> = (0..REPEATS).map(|_| court.judge(&action).1).collect();
        let took = median(&times) / 1000.0;
        ensure!(took < 10_000.0, "{name} took {took} ms");
        worst = worst.max(took);
        if is_verbose() {
            eprintln!("{name}: {took:.2} ms, {:?}", court.judge(&action).0);
        }
    }
    rows.decision_worst.value(worst);

    let mut next = actions.iter().cycle();
    let (alone, judged) = effects_after(dir.path(), &Runtime::new()?, count.div_ceil(100), || {
        next.next().map(|action| court.judge(action));
    })?;
    rows.judged_p50.pair(median(&alone), median(&judged));
    rows.judged_p99.pair(percentile(&alone, 0.99), percentile(&judged, 0.99));
    Ok(())
}
