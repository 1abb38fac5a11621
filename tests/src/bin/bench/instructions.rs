//! Instructions of what every frame, prompt or question passes through, counted by callgrind. Times wander with the
//! machine; these do not.
//!
//! This program runs itself under valgrind, to do one thing so often and then twice as often: the difference is what
//! the thing takes, and what the program's start takes cancels out.

use std::{
    collections::BTreeMap,
    env,
    fmt::Write as _,
    fs,
    hint::black_box,
    path::Path,
    process::{Command, Stdio},
};

use anyhow::{Context as _, Result, bail, ensure};
use bytes::BytesMut;
use conductor::{
    catalogue::Offers,
    config::Config,
    frame::{peek, splice},
    routes::{self, Asked, Field},
};

use crate::{decisions, rows::Rows};

/// The first argument that makes this program repeat one thing.
pub const REPEAT: &str = "repeat";

/// What is counted, in the order of the rows, and how often it is done: the policy has a dozen questions in turn.
const WORK: [(&str, usize); 4] = [("peek", 2000), ("splice", 2000), ("route", 20), ("decide", 240)];

/// Routes of which the last one matches.
const ROUTES: usize = 20;

/// Counts everything once: another round would find the same.
pub fn round(index: usize, rows: &mut Rows) -> Result<()> {
    if index > 0 {
        return Ok(());
    }
    if Command::new("valgrind").arg("--version").stdout(Stdio::null()).status().is_err() {
        eprintln!("valgrind is not installed, so no instructions are counted");
        return Ok(());
    }
    for (row, (what, times)) in rows.instructions.iter_mut().zip(WORK) {
        let (once, twice) = (count(what, times)?, count(what, 2 * times)?);
        row.value(twice.saturating_sub(once) as f64 / times as f64);
    }
    Ok(())
}

/// Instructions of a whole run of this program.
fn count(what: &str, times: usize) -> Result<u64> {
    let mut run = Command::new("valgrind");
    // Only the sum is asked for, not where in the source it comes from.
    run.args(["--tool=callgrind", "--callgrind-out-file=/dev/null", "--read-inline-info=no"]);
    run.arg(env::current_exe()?).args([REPEAT, what, &times.to_string()]);
    let output = run.stdin(Stdio::null()).output()?;
    let words = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{what} under valgrind: {words}");
    let count = words.lines().find_map(|line| line.split_once("Collected :"));
    Ok(count.with_context(|| format!("callgrind tells no count: {words}"))?.1.trim().parse()?)
}

/// Does one thing so often. Runs under valgrind.
pub fn repeat(what: &str, times: usize) -> Result<()> {
    let dir = tempfile::tempdir()?;
    match what {
        "peek" => {
            let line = stream_frame();
            for _ in 0..times {
                black_box(peek(black_box(&line)).is_ok());
            }
        }
        "splice" => {
            // As a stream passes: the session's name is put in the place of the agent's.
            let (line, mut out) = (stream_frame(), BytesMut::new());
            let session = peek(&line).ok().context("it is a frame")?.session;
            for _ in 0..times {
                out.clear();
                splice(&mut out, black_box(&line), [(session, b"\"019a0000-0000-7000-8000-000000000000\"")]);
                black_box(&out);
            }
        }
        "route" => {
            let config = routes(dir.path())?;
            let (labels, offers, teams) = (BTreeMap::new(), Offers::new(), ["web".to_owned()]);
            let field = Field { config: &config, offers: &offers, busy: &|_| 1 };
            let asked = Asked {
                user: "ann",
                teams: &teams,
                cwd: Path::new("/srv/shop/api"),
                labels: &labels,
                agent: None,
                model: Some("model-1"),
                mode: None,
                last: None,
                bound: None,
            };
            for _ in 0..times {
                ensure!(routes::decide(black_box(&asked), &field).is_ok(), "there is no agent for it");
            }
        }
        "decide" => decisions::repeat(dir.path(), times)?,
        _ => bail!("there is no work called {what}"),
    }
    Ok(())
}

/// A frame of a stream, as most are.
fn stream_frame() -> Vec<u8> {
    let text = "the quick brown fox jumps over the lazy dog and does so again";
    let content = format!(r#"{{"type":"text","text":"{text}"}}"#);
    let update = format!(r#"{{"sessionUpdate":"agent_message_chunk","content":{content}}}"#);
    let params = format!(r#"{{"sessionId":"0f8fad5b-d9cb-469f-a165-70867728950e","update":{update}}}"#);
    format!(r#"{{"jsonrpc":"2.0","method":"session/update","params":{params}}}"#).into_bytes()
}

/// A configuration with routes of all kinds.
fn routes(dir: &Path) -> Result<Config> {
    let mut text = "default = \"a\"\n".to_owned();
    for at in 1..ROUTES {
        let only = match at % 4 {
            0 => format!("model = \"vendor-{at}/*\""),
            1 => format!("mode = \"mode-{at}\""),
            2 => format!("team = [\"team-{at}\", \"others-*\"]"),
            _ => format!("cwd = \"/srv/project-{at}\""),
        };
        writeln!(text, "[[route]]\n{only}\nto = \"a\"")?;
    }
    text += "[[route]]\nteam = \"web\"\ncwd = \"/srv/shop\"\nto = [\"a\", \"b\"]\n\
             [agents.a]\ncommand = \"a\"\n[agents.b]\ncommand = \"b\"\n";
    let file = dir.join("agents.toml");
    fs::write(&file, text)?;
    Ok(Config::load(Some(&file), [("HOME".into(), dir.as_os_str().to_owned())])?.config)
}
