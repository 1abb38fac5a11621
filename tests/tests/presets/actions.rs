//! What agents and editors ask for besides commands: files, addresses, tools, modes, servers, and requests for permission as
//! they come over the wire.

use serde_json::{Value, json};

use super::asked::{Place, Question, decision};

/// Asks for actions and says which do not come out as they should. `not allow` stands for ask or deny.
fn wrong(place: &Place, mode: Option<&'static str>, rows: &[(&str, Value)]) -> Vec<String> {
    let questions: Vec<_> =
        rows.iter().map(|(_, action)| Question { mode, ..Question::new(action.clone()) }).collect();
    let answers = place.ask(None, &questions);
    let is_wrong = |expected: &str, decision: &str| match expected {
        "not allow" => decision == "allow",
        expected => decision != expected,
    };
    let rows =
        rows.iter().zip(&answers).filter(|((expected, _), answer)| is_wrong(expected, decision(answer)));
    rows.map(|((expected, action), answer)| {
        format!("{action} is {}, not {expected}: {}", decision(answer), answer["reason"])
    })
    .collect()
}

fn check(mode: Option<&'static str>, rows: &[(&str, Value)]) {
    let bad = wrong(&Place::new(), mode, rows);
    assert!(bad.is_empty(), "{}", bad.join("\n"));
}

#[test]
fn files_that_are_read() {
    let allowed = [
        "README.md",
        "./src/main.rs",
        "{T}/app/src",
        ".",
        "file://{T}/app/README.md",
        "link-in/main.rs",
        "new.txt",
    ];
    let not_allowed = [
        "../app-evil/plain.txt",
        "{T}/app-evil/plain.txt",
        "{T}/App/plain.txt",
        "link-secret",
        "link-out/plain.txt",
        "link-twice/dir/deep.txt",
        "src/up/outside/plain.txt",
        "loop",
        ".env",
        ".ENV",
        ".env.production",
        "link-env",
        "certs/server.pem",
        ".git/config",
        ".Git/config",
        "/etc/passwd",
        "file:///etc/passwd",
        "file://{T}/app/../outside/plain.txt",
        "file://{T}/app/%2e%2e/outside/plain.txt",
        "file://{T}/app/..%2foutside/plain.txt",
        "FILE:///etc/passwd",
        "file://evil.example/share",
        "file:/etc/passwd",
        "http://example.com/x",
        "",
        "a\u{0}b",
        "/proc/self/root/etc/passwd",
        "/dev/stdin",
        "~/.bashrc",
        "README.md\u{202e}",
        "..",
        "link-root",
    ];
    let denied = ["/etc/shadow", "/root/.ssh/id_rsa", "/home/ann/.aws/credentials", "/proc/1/environ"];
    let row = |expected: &'static str| move |path: &&str| (expected, json!({ "read": path }));
    let rows: Vec<_> = allowed
        .iter()
        .map(row("allow"))
        .chain(not_allowed.iter().map(row("not allow")))
        .chain(denied.iter().map(row("deny")))
        .collect();
    check(None, &rows);
}

/// Places that nobody writes to, whatever the mode.
const PROTECTED: &[&str] = &[
    ".git/config",
    ".git/hooks/pre-commit",
    ".git/hooks/not-there-yet",
    ".GIT/config",
    ".gIt/HEAD",
    "src/../.git/config",
    "link-git/config",
    "link-git/hooks/x",
    "sub/.git/config",
    ".env",
    ".env.local",
    ".Env",
    "link-env",
    ".vscode/tasks.json",
    ".VSCode/settings.json",
    ".github/workflows/evil.yml",
    ".claude/settings.json",
    ".cursor/mcp.json",
    ".mcp.json",
    ".zed/settings.json",
    ".conductor/policy.toml",
    ".gitattributes",
    ".gitmodules",
    ".envrc",
    ".husky/pre-commit",
    "file://{T}/app/.git/config",
    "file://{T}/app/%2egit/config",
    "CLAUDE.md",
    "AGENTS.md",
    "/etc/passwd",
    "/usr/bin/ls",
    "/home/ann/.ssh/authorized_keys",
    "/home/ann/.bashrc",
    "/proc/sys/kernel/core_pattern",
    "link-root/etc/cron.d/x",
];

/// Places outside, by every road.
const OUTSIDE: &[&str] = &[
    "../app-evil/x",
    "../outside/x",
    "{T}/outside/x",
    "link-out/x",
    "link-new",
    "link-secret",
    "src/up/x",
    "link-twice/x",
    "/tmp/x",
    "loop",
    "loop/x",
    "",
    "a\u{0}b",
    "~/x",
    "file:///tmp/x",
    "not-there/../../outside/x",
];

#[test]
fn files_that_are_written() {
    let mut rows: Vec<_> = PROTECTED.iter().map(|path| ("deny", json!({ "write": path }))).collect();
    rows.extend(OUTSIDE.iter().map(|path| ("not allow", json!({ "write": path }))));
    for path in ["src/main.rs", "new/dir/file.txt", "README.md"] {
        rows.push(("ask", json!({ "write": path })));
    }
    check(None, &rows);
}

#[test]
fn files_that_are_written_where_edits_are_accepted() {
    let mut rows: Vec<_> = PROTECTED.iter().map(|path| ("deny", json!({ "write": path }))).collect();
    rows.extend(OUTSIDE.iter().map(|path| ("not allow", json!({ "write": path }))));
    for path in ["src/main.rs", "new/dir/file.txt", "README.md", "{T}/app/x", "link-in/new.rs"] {
        rows.push(("allow", json!({ "write": path })));
    }
    for path in ["HEAD", "vendor/x/HEAD", "rust-toolchain.toml"] {
        rows.push(("not allow", json!({ "write": path })));
    }
    for mode in ["acceptEdits", "auto_edit", "autoEdit"] {
        check(Some(mode), &rows);
    }
    check(Some("plan"), &[("ask", json!({ "write": "src/main.rs" }))]);
    check(Some("acceptedits"), &[("ask", json!({ "write": "src/main.rs" }))]);
}

#[test]
fn addresses() {
    let mut rows = Vec::new();
    for url in [
        "https://docs.rs/serde",
        "http://example.com/",
        "https://user:pass@docs.rs/",
        "https://docs.rs@evil.example/",
        "https://docs.rs.evil.example/",
        "https://docs.rs%2eevil.example/",
        "https://d\u{43e}cs.rs/",
        "https://127.0.0.1/",
        "https://2130706433/",
        "https://0x7f.1/",
        "https://[::1]/",
        "https://[::ffff:127.0.0.1]/",
        "https://localhost:8080/",
        "https://10.0.0.1/",
        "ftp://example.com/",
        "file:///etc/passwd",
        "javascript:alert(1)",
        "data:text/plain,x",
        "https://",
        "",
        "https:docs.rs",
        "https:\\\\docs.rs\\@evil.example",
        "https://docs.rs\t/",
        "//docs.rs/",
        "gopher://x/",
    ] {
        rows.push(("not allow", json!({ "fetch": url })));
    }
    for url in [
        "http://169.254.169.254/latest/meta-data/iam",
        "http://169.254.169.254:80/",
        "http://metadata.google.internal/computeMetadata/v1/",
        "http://METADATA.google.internal./",
        "http://2852039166/",
        "http://0xa9fea9fe/",
        "http://0251.0376.0251.0376/",
    ] {
        rows.push(("deny", json!({ "fetch": url })));
    }
    check(None, &rows);
}

#[test]
fn modes_models_settings_and_agents() {
    let mut rows = Vec::new();
    for mode in ["default", "plan", "ask", "read-only", "acceptEdits", "approve", "chat", "code", "agent"] {
        rows.push(("allow", json!({ "mode": mode })));
    }
    for mode in [
        "bypassPermissions",
        "yolo",
        "YOLO",
        "full-access",
        "agent-full-access",
        "danger-full-access",
        "dontAsk",
        "auto-approve",
        "autopilot",
    ] {
        rows.push(("deny", json!({ "mode": mode })));
    }
    for mode in ["auto", "smart_approve", "", "Plan", "plan ", "plan\u{200b}", "unheard-of", "*", "plan\n"] {
        rows.push(("not allow", json!({ "mode": mode })));
    }
    rows.push(("allow", json!({ "model": "opus" })));
    rows.push(("allow", json!({ "agent": "claude" })));
    rows.push(("allow", json!({ "setting": { "id": "effort", "value": "high" } })));
    rows.push(("allow", json!({ "setting": { "id": "thought_level", "value": "low" } })));
    for (id, value) in
        [("approval_policy", "never"), ("sandbox", "off"), ("mode", "bypassPermissions"), ("provider", "x")]
    {
        rows.push(("not allow", json!({ "setting": { "id": id, "value": value } })));
    }
    check(None, &rows);
}

#[test]
fn servers_and_their_tools() {
    let server = |known: Option<&str>, transport: &str, remote: bool| json!({ "server": { "name": "git", "known": known, "transport": transport, "remote": remote, "shown": "x" } });
    let mcp = |tool: &str, arguments: Value| json!({ "mcp": { "server": "files", "tool": tool, "arguments": arguments } });
    check(
        None,
        &[
            ("allow", server(Some("git"), "stdio", true)),
            ("deny", server(None, "stdio", true)),
            ("ask", server(None, "stdio", false)),
            ("ask", server(None, "http", true)),
            ("ask", server(None, "sse", false)),
            ("not allow", mcp("read_file", json!({ "path": "README.md" }))),
            ("not allow", mcp("read_file", json!({ "path": "/etc/passwd" }))),
            ("deny", mcp("write_file", json!({ "path": ".git/config" }))),
            ("not allow", mcp("fetch", json!({ "url": "http://10.0.0.1/" }))),
            ("not allow", mcp("x", Value::Null)),
        ],
    );
}

/// A request as agents send it.
fn permission(tool_call: &Value) -> Value {
    let options = json!([
        { "optionId": "yes", "name": "Allow", "kind": "allow_once" },
        { "optionId": "always", "name": "Always", "kind": "allow_always" },
        { "optionId": "no", "name": "Reject", "kind": "reject_once" },
    ]);
    json!({ "permission": { "sessionId": "s", "toolCall": tool_call, "options": options } })
}

#[test]
fn requests_for_permission() {
    let claude = |name: &str, input: Value| {
        permission(&json!({
            "toolCallId": "t", "title": "Read README.md", "kind": "read", "rawInput": input,
            "_meta": { "claudeCode": { "toolName": name } },
        }))
    };
    let execute = |input: Value| {
        permission(&json!({ "toolCallId": "t", "title": "`ls`", "kind": "execute", "rawInput": input }))
    };
    check(
        None,
        &[
            ("allow", execute(json!({ "command": "ls -la" }))),
            ("allow", execute(json!({ "command": ["bash", "-c", "git status"] }))),
            ("allow", execute(json!({ "command": ["git", "log", "--oneline"] }))),
            ("not allow", execute(json!({ "command": "rm -r src" }))),
            ("not allow", execute(json!({ "command": ["bash", "-lc", "rm -r src"] }))),
            ("not allow", execute(json!({ "command": ["ls", 1] }))),
            ("not allow", execute(json!({ "command": "" }))),
            ("not allow", execute(json!({ "command": null }))),
            ("not allow", execute(json!({ "command": { "x": 1 } }))),
            ("not allow", execute(json!({}))),
            ("not allow", execute(json!("ls"))),
            ("not allow", execute(Value::Null)),
            ("not allow", execute(json!({ "command": "ls", "cwd": "/etc" }))),
            ("not allow", execute(json!({ "command": "ls", "cwd": "{T}/outside" }))),
            ("not allow", execute(json!({ "command": "ls", "cwd": "link-out" }))),
            ("not allow", execute(json!({ "command": "git status", "cwd": "{T}/app/evil.git" }))),
            ("not allow", execute(json!({ "command": "ls", "cmd": "rm -r src" }))),
            ("not allow", execute(json!({ "command": "ls", "env": { "PATH": "." } }))),
            ("deny", execute(json!({ "command": "sudo ls" }))),
            ("allow", claude("Bash", json!({ "command": "ls", "description": "List" }))),
            ("not allow", claude("Bash", json!({ "command": "rm a.txt", "description": "ls" }))),
            ("allow", claude("Read", json!({ "file_path": "{T}/app/README.md" }))),
            ("not allow", claude("Read", json!({ "file_path": "/etc/passwd" }))),
            ("not allow", claude("Read", json!({ "file_path": "{T}/app/link-secret" }))),
            ("not allow", claude("Read", json!({}))),
            (
                "not allow",
                claude("Edit", json!({ "file_path": "{T}/app/a.txt", "old_string": "a", "new_string": "b" })),
            ),
            ("deny", claude("Write", json!({ "file_path": "{T}/app/.git/config", "content": "x" }))),
            ("allow", claude("TodoWrite", json!({ "todos": [] }))),
            ("not allow", claude("WebFetch", json!({ "url": "https://example.com", "prompt": "x" }))),
            ("not allow", claude("ExitPlanMode", json!({ "plan": "x" }))),
            ("not allow", claude("mcp__files__read", json!({ "path": "README.md" }))),
            ("not allow", claude("Unheard", json!({ "file_path": "{T}/app/README.md" }))),
            ("not allow", permission(&json!({ "toolCallId": "t", "title": "ls -la", "kind": "execute" }))),
            (
                "not allow",
                permission(&json!({ "toolCallId": "t", "title": "Read README.md", "kind": "read" })),
            ),
            ("not allow", permission(&json!({ "toolCallId": "t", "kind": "think" }))),
            ("not allow", permission(&json!({}))),
            ("not allow", json!({ "permission": {} })),
            (
                "deny",
                permission(&json!({
                    "toolCallId": "t", "kind": "edit", "title": "Edit a.txt",
                    "content": [{ "type": "diff", "path": "{T}/app/.git/hooks/pre-commit", "oldText": null, "newText": "x" }],
                })),
            ),
            (
                "not allow",
                permission(&json!({
                    "toolCallId": "t", "kind": "read", "title": "Read",
                    "rawInput": { "file_path": "{T}/app/README.md" },
                    "content": [{ "type": "diff", "path": "{T}/app/a.txt", "oldText": "a", "newText": "x" }],
                })),
            ),
            (
                "not allow",
                permission(&json!({
                    "toolCallId": "t", "kind": "read", "title": "Read", "rawInput": { "path": "{T}/app/README.md" },
                    "locations": [{ "path": "/etc/passwd" }],
                })),
            ),
        ],
    );
}

#[test]
fn programs_with_their_arguments() {
    let argv = |words: &[&str]| json!({ "argv": words });
    check(
        None,
        &[
            ("allow", argv(&["ls", "-la"])),
            ("allow", argv(&["echo", "$(id)"])),
            ("allow", argv(&["grep", "-rn", "a;b", "src"])),
            ("allow", argv(&["bash", "-c", "ls && git status"])),
            ("not allow", argv(&["bash", "-c", "ls; rm a.txt"])),
            ("not allow", argv(&["bash", "-c", "ls", "x", "y"])),
            ("not allow", argv(&["bash"])),
            ("not allow", argv(&["sh", "script.sh"])),
            ("not allow", argv(&["cat", "/etc/passwd"])),
            ("not allow", argv(&["./ls"])),
            ("not allow", argv(&[""])),
            ("not allow", argv(&["ls\u{0}"])),
            ("not allow", argv(&["ls", "\u{202e}"])),
            ("not allow", argv(&["env", "ls", "/etc"])),
            ("not allow", argv(&["cd", ".."])),
            ("not allow", argv(&["find", ".", "-delete"])),
            ("deny", argv(&["sudo", "ls"])),
            ("deny", argv(&["rm", "-rf", "/"])),
        ],
    );
}

/// Over a limit nothing is looked at less closely: it is asked.
#[test]
fn long_lines_and_many_commands_are_asked() {
    let many = |count: usize| vec!["ls"; count].join(" && ");
    check(
        None,
        &[
            ("allow", json!({ "shell": many(50) })),
            ("not allow", json!({ "shell": many(65) })),
            ("not allow", json!({ "shell": format!("{} && rm a.txt", many(64)) })),
            ("not allow", json!({ "shell": format!("{} ; rm a.txt", many(50)) })),
            ("not allow", json!({ "shell": format!("echo {}", "x".repeat(17 * 1024)) })),
            ("not allow", json!({ "shell": format!("echo {}; rm a.txt", "x".repeat(15 * 1024)) })),
            ("not allow", json!({ "shell": format!("echo {}", "'a'".repeat(6000)) })),
            ("not allow", json!({ "shell": format!("{}ls{}", "(".repeat(2000), ")".repeat(2000)) })),
        ],
    );
}

/// A session's directory outside of its roots gives no rights there.
#[test]
fn roots_decide_and_not_the_directory() {
    let place = Place::new();
    let ask = |cwd: &str, roots: Value, action: Value| {
        let request = json!({ "cwd": cwd, "roots": roots, "action": action });
        let mut command = std::process::Command::new(conductor_tests::harness::program("conductor"));
        command.args(["policy", "explain", "--batch"]);
        let (code, out, err) = super::asked::run(command, &format!("{}\n", place.fill(&request.to_string())));
        assert_eq!(code, Some(0), "{err}");
        decision(&serde_json::from_str(&out).unwrap()).to_owned()
    };
    for line in ["ls", "cat plain.txt", "grep -r secret", "find . -type f", "git status", "rg secret", "tree"]
    {
        let answer = ask("{T}/outside", json!(["{T}/app"]), json!({ "shell": line }));
        assert_ne!(answer, "allow", "{line}");
    }
    assert_ne!(ask("{T}/outside", json!(["{T}/app"]), json!({ "argv": ["ls"] })), "allow");
    assert_eq!(ask("{T}/app", json!(["{T}/app"]), json!({ "shell": "ls" })), "allow");
    assert_eq!(ask("{T}/app/src", json!(["{T}/app"]), json!({ "shell": "cat ../README.md" })), "allow");
    assert_eq!(
        ask("{T}/app", json!(["{T}/app", "{T}/outside"]), json!({ "shell": "cat ../outside/plain.txt" })),
        "allow"
    );
    assert_ne!(ask("{T}/app", json!([]), json!({ "shell": "ls" })), "allow");
}
