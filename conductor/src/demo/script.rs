//! The scripts: the first word of a prompt picks one.
//!
//! Scripts that need the client's hands (files, terminals, questions) are in [`super::hands`].

use std::time::Duration;

use serde_json::{Value, json};

use super::hands;
use super::turn::{Flow, Stop, Turn, unrecorded};
use super::wire::RpcError;

/// The most chunks that `stream` sends.
const MOST_CHUNKS: u64 = 1_000_000;
/// The longest that `slow` takes, in seconds.
const SLOWEST: u64 = 3_600;
/// The biggest chunk that `big` makes, in KiB. Lines are built in memory.
const BIGGEST: u64 = 65_536;

/// Name, hint of the input, description of every command.
const COMMANDS: &[(&str, &str, &str)] = &[
    ("help", "", "list these commands"),
    ("stream", "[N]", "stream N small chunks (default 10)"),
    ("think", "", "think aloud, as much as the thought level says, then answer"),
    ("plan", "", "make a plan and work through it"),
    ("tool", "", "call a tool that only pretends: pending, in progress, completed"),
    ("read", "PATH", "read a file through the client"),
    ("write", "PATH TEXT", "ask, then write a file through the client"),
    ("run", "COMMAND…", "ask, then run a command in a terminal of the client"),
    ("ask", "", "ask for permission only, and say what was answered"),
    ("form", "", "ask the client to show a form"),
    ("slow", "[SECONDS]", "stream one chunk a second (default 10), to be cancelled"),
    ("big", "N", "send one chunk of N KiB (default 1)"),
    ("fail", "", "answer the prompt with a JSON-RPC error"),
    ("refuse", "", "end the turn with the stop reason refusal"),
    ("crash", "", "end the process in mid-turn with exit code 3"),
    ("usage", "", "report tokens and cost that nobody spent"),
    ("commands", "", "announce the commands again"),
    ("whoami", "", "show pid, directories, model, mode and the names of environment variables"),
];

/// A prompt, taken apart.
#[derive(Debug)]
pub(super) struct Prompt {
    pub(super) text: String,
    pub(super) blocks: Vec<Value>,
}

impl Prompt {
    /// Reads the `prompt` parameter.
    pub(super) fn from_params(params: &Value) -> Result<Self, RpcError> {
        let blocks = params
            .get("prompt")
            .and_then(Value::as_array)
            .ok_or_else(|| RpcError::bad_params("`prompt` must be an array of content blocks"))?;
        let mut text = String::new();
        for (position, block) in blocks.iter().enumerate() {
            let wrong = |why: &str| RpcError::bad_params(format!("`prompt[{position}]` {why}"));
            let field = |name: &str| block.get(name).is_some_and(Value::is_string);
            let complete = match block.get("type").and_then(Value::as_str) {
                Some("text") => field("text"),
                Some("image" | "audio") => field("data") && field("mimeType"),
                Some("resource_link") => field("name") && field("uri"),
                Some("resource") => block.get("resource").is_some_and(Value::is_object),
                Some(other) => {
                    return Err(wrong(&format!("has the type {other:?}, which is not known here")));
                }
                None => return Err(wrong("has no `type`")),
            };
            if !complete {
                return Err(wrong("lacks a field that its type requires"));
            }
            if block["type"] == "text" {
                text.push_str(block["text"].as_str().unwrap_or_default());
            }
        }
        Ok(Self { text, blocks: blocks.clone() })
    }

    /// The first words, as a title; `None` if there are no words.
    pub(super) fn title(&self) -> Option<String> {
        let words: Vec<_> = self.text.split_whitespace().take(8).collect();
        let title: String = words.join(" ").chars().filter(|c| !c.is_control()).take(60).collect();
        (!title.is_empty()).then_some(title)
    }
}

/// The update that announces the commands.
pub(super) fn commands_update() -> Value {
    let commands: Vec<_> = COMMANDS
        .iter()
        .map(|(name, hint, description)| {
            let mut command = json!({ "name": name, "description": description });
            if !hint.is_empty() {
                command["input"] = json!({ "hint": hint });
            }
            command
        })
        .collect();
    json!({ "sessionUpdate": "available_commands_update", "availableCommands": commands })
}

/// Plays the script that the prompt names.
pub(super) async fn play(turn: &mut Turn, prompt: &Prompt) -> Flow {
    let text = prompt.text.trim_start();
    let (word, rest) = text.split_once(char::is_whitespace).unwrap_or((text, ""));
    // Editors send a command chosen from the announced list with a slash.
    let word = word.strip_prefix('/').unwrap_or(word).to_lowercase();
    match word.as_str() {
        "help" => help(turn).await,
        "stream" => stream(turn, number(rest, 10).min(MOST_CHUNKS)).await,
        "think" => think(turn).await,
        "plan" => plan(turn).await,
        "tool" => tool(turn).await,
        "read" => hands::read(turn, rest).await,
        "write" => hands::write(turn, rest).await,
        "run" => hands::run(turn, rest).await,
        "ask" => hands::ask(turn).await,
        "form" => hands::form(turn).await,
        "slow" => slow(turn, number(rest, 10).min(SLOWEST)).await,
        "big" => big(turn, number(rest, 1).min(BIGGEST)).await,
        "fail" => fail(turn).await,
        "refuse" => {
            turn.say("I would rather not, since you asked me to refuse.\n").await?;
            Err(Stop::Refusal)
        }
        "crash" => {
            turn.say("Goodbye, cruel world: I am about to exit with code 3.\n").await?;
            Err(Stop::Crash)
        }
        "usage" => usage(turn).await,
        "commands" => {
            turn.update(&commands_update()).await?;
            turn.say(&format!("I announced {} commands.\n", COMMANDS.len())).await
        }
        "whoami" => whoami(turn).await,
        _ => echo(turn, prompt).await,
    }
}

/// The first word as a number, or else the default: a demo does not argue.
fn number(rest: &str, default: u64) -> u64 {
    rest.split_whitespace().next().and_then(|word| word.parse().ok()).unwrap_or(default)
}

async fn help(turn: &mut Turn) -> Flow {
    let mut text = String::from("I am the demo agent: scripts, no model. Say one of these:\n\n");
    for (name, hint, description) in COMMANDS {
        let gap = if hint.is_empty() { "" } else { " " };
        text.push_str(&format!("- `{name}{gap}{hint}`: {description}\n"));
    }
    turn.say(&text).await
}

async fn echo(turn: &mut Turn, prompt: &Prompt) -> Flow {
    let others =
        prompt.blocks.iter().filter_map(|block| block["type"].as_str()).filter(|kind| *kind != "text");
    let others: Vec<_> = others.collect();
    let mut text = match prompt.text.trim() {
        "" => "You said nothing in words.".to_owned(),
        said => format!("You said: {said}"),
    };
    if !others.is_empty() {
        text.push_str(&format!("\n\nWith it came: {}.", others.join(", ")));
    }
    text.push_str("\n\nI am the demo agent and understand single commands; say `help` to see them.\n");
    turn.say(&text).await
}

async fn stream(turn: &mut Turn, chunks: u64) -> Flow {
    for n in 1..=chunks {
        turn.chunk("agent_message_chunk", &format!("chunk {n} of {chunks}\n")).await?;
    }
    Ok(())
}

async fn think(turn: &mut Turn) -> Flow {
    const THOUGHTS: [&str; 5] = [
        "The user wants me to think.",
        "I have no model to think with.",
        "Yet a script can look thoughtful.",
        "Is that so different from a meeting?",
        "Better answer before this gets deep.",
    ];
    for thought in THOUGHTS.iter().take(turn.settings.thoughts()) {
        turn.think(&format!("{thought}\n")).await?;
    }
    turn.say(&format!("I have thought about it (thought level {}).\n", turn.settings.thought_level)).await
}

async fn plan(turn: &mut Turn) -> Flow {
    const STEPS: [(&str, &str); 3] =
        [("Look around", "high"), ("Do the work", "medium"), ("Tell what was done", "low")];
    // In step n, everything before n is done and n is being worked on; step 0 is the plan before any work.
    for step in 0..=STEPS.len() + 1 {
        let entries: Vec<_> = STEPS
            .iter()
            .enumerate()
            .map(|(position, (content, priority))| {
                let status = match (position + 1).cmp(&step) {
                    std::cmp::Ordering::Less => "completed",
                    std::cmp::Ordering::Equal => "in_progress",
                    std::cmp::Ordering::Greater => "pending",
                };
                json!({ "content": content, "priority": priority, "status": status })
            })
            .collect();
        turn.update(&json!({ "sessionUpdate": "plan", "entries": entries })).await?;
    }
    turn.say("All went according to plan.\n").await
}

async fn tool(turn: &mut Turn) -> Flow {
    let path = format!("{}/README.md", turn.cwd.trim_end_matches('/'));
    let more = json!({
        "name": "demo_search",
        "locations": [{ "path": path, "line": 1 }],
        "rawInput": { "query": "demo", "path": path },
    });
    turn.open_tool("Search for \"demo\"", "search", more).await?;
    turn.tool("in_progress", json!({})).await?;
    let found = json!({ "type": "text", "text": "Nothing was searched, and nothing was found." });
    let more = json!({ "content": [{ "type": "content", "content": found }], "rawOutput": { "matches": 0 } });
    turn.tool("completed", more).await?;
    turn.say("The tool call is complete; it only pretended.\n").await
}

async fn slow(turn: &mut Turn, seconds: u64) -> Flow {
    for n in 1..=seconds {
        turn.say(&format!("second {n} of {seconds}\n")).await?;
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    turn.say("That is all, and you never cancelled.\n").await
}

async fn big(turn: &mut Turn, kibibytes: u64) -> Flow {
    // 1 KiB of readable text, so that a truncated chunk is seen by eye.
    let line = format!("{:0<1023}\n", "demo ");
    let text = line.repeat(usize::try_from(kibibytes).unwrap_or(0));
    turn.chunk("agent_message_chunk", &text).await
}

async fn fail(turn: &mut Turn) -> Flow {
    turn.say("I am going to fail now.\n").await?;
    let mut error = RpcError::internal("the demo agent failed, as you asked");
    error.data = Some(json!({ "demo": true, "hint": "say `help` for something more pleasant" }));
    Err(Stop::Error(error))
}

async fn usage(turn: &mut Turn) -> Flow {
    let size = turn.settings.context_size();
    // Four bytes a token is the usual rule of thumb.
    let used = (turn.record.size().map_err(|error| unrecorded(&error))? / 4).min(size);
    let cost = json!({ "amount": 0.0, "currency": "USD" });
    turn.update(&json!({ "sessionUpdate": "usage_update", "used": used, "size": size, "cost": cost }))
        .await?;
    turn.say(&format!("About {used} of {size} tokens are used, and none were paid for.\n")).await
}

async fn whoami(turn: &mut Turn) -> Flow {
    // Names only: values hold secrets, and what is said here is recorded by others.
    let mut names: Vec<_> =
        std::env::vars_os().map(|(name, _)| name.to_string_lossy().escape_debug().to_string()).collect();
    names.sort();
    let process_cwd = std::env::current_dir()
        .map_or_else(|error| format!("unknown ({error})"), |path| path.display().to_string());
    let text = format!(
        "- pid: {}\n- session: {}\n- cwd: {}\n- process cwd: {}\n- model: {}\n- mode: {}\n- thought level: {}\n- environment: {}\n",
        std::process::id(),
        turn.session,
        turn.cwd.escape_debug(),
        process_cwd.escape_debug(),
        turn.settings.model,
        turn.settings.mode,
        turn.settings.thought_level,
        names.join(", "),
    );
    turn.say(&text).await
}
