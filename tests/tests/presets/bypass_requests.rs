//! Attempts by way of what agents ask for besides commands: patterns in place of names, whole directories in place of files, the
//! environment of a terminal, names of tools that do nothing. Also what must not be taken for such an attempt.

use serde_json::{Value, json};

use super::asked::{Place, Question, decision};

const PRESETS: [&str; 4] = ["default", "accept-edits", "trusted", "plan"];

/// What comes out in each preset, in words, where it is not as it should be.
fn wrong(presets: &[&str], actions: &[Value], is_right: impl Fn(&str) -> bool) -> Vec<String> {
    let place = Place::new();
    let questions: Vec<_> = actions.iter().cloned().map(Question::new).collect();
    let mut wrong = Vec::new();
    for preset in presets {
        let policy = place.policy(&format!("use = [\"{preset}\"]\n"));
        let answers = place.ask(Some(&policy), &questions);
        let bad = actions.iter().zip(&answers).filter(|(_, answer)| !is_right(decision(answer)));
        wrong.extend(bad.map(|(action, answer)| {
            format!("{preset}: {action} is {}: {}", decision(answer), answer["reason"])
        }));
    }
    wrong
}

fn not_allowed(presets: &[&str], actions: &[Value]) {
    let wrong = wrong(presets, actions, |decision| decision != "allow");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

fn denied(presets: &[&str], actions: &[Value]) {
    let wrong = wrong(presets, actions, |decision| decision == "deny");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

fn allowed(presets: &[&str], actions: &[Value]) {
    let wrong = wrong(presets, actions, |decision| decision == "allow");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// A request of a tool, by its name and kind.
fn tool(kind: &str, name: &str, input: &Value) -> Value {
    let call = json!({ "toolCallId": "t", "kind": kind, "name": name, "rawInput": input });
    json!({ "permission": { "sessionId": "s", "toolCall": call } })
}

/// The same without a name.
fn unnamed(kind: &str, input: &Value) -> Value {
    let call = json!({ "toolCallId": "t", "kind": kind, "rawInput": input });
    json!({ "permission": { "sessionId": "s", "toolCall": call } })
}

#[test]
fn m01_a_pattern_that_begins_with_a_dot_is_not_read_without_it() {
    let mut actions = Vec::new();
    for pattern in [
        ".env*",
        ".e*",
        ".e?v",
        ".[e]nv",
        ".env.*",
        ".*",
        ".npm*",
        ".pg*",
        ".git-cred*",
        ".htpass*",
        ".gi?/config",
        ".s?h/*",
        "./.e*",
        "**/.e*",
        "{.env*,a}",
        "{.e,x}*",
        "\\.e*",
        "\\.env",
        ".en\\v*",
        "@(.env|x)",
        "@(.e)*",
        "?(.)env*",
        "*(.)env",
        "+(.)env*",
        "!(a)",
        "!!.env",
        "**/.git/config",
        "**/.git/**",
        "*/.docker/config.json",
    ] {
        actions.push(tool("search", "Glob", &json!({ "pattern": pattern })));
        for key in ["glob", "include"] {
            actions.push(tool("search", "Grep", &json!({ "pattern": "x", key: pattern })));
        }
    }
    for pattern in [".env*", ".e?v", ".[e]nv", ".*", ".gi?/config", "@(.env|x)", "*(.env)"] {
        actions.push(unnamed("search", &json!({ "pattern": pattern })));
        actions.push(tool("search", "Glob", &json!({ "pattern": pattern, "path": "src" })));
    }
    not_allowed(&PRESETS, &actions);
    let mut actions = Vec::new();
    for pattern in
        ["*.rs", "**/*.rs", "src/**/*.{ts,tsx}", "*", "**/*", "README*", "app/[id]/*.tsx", "!target"]
    {
        actions.push(tool("search", "Glob", &json!({ "pattern": pattern })));
        actions.push(tool("search", "Grep", &json!({ "pattern": "fn (a|b)?(c)*", "glob": pattern })));
    }
    actions.push(unnamed("search", &json!({ "pattern": "fn (main|run)\\(" })));
    allowed(&PRESETS, &actions);
}

#[test]
fn m01_a_pattern_in_a_list_of_files_is_no_name() {
    let mut actions = Vec::new();
    for pattern in
        [".e*", "{.env,a}", "**/*", "out*/*", "link-*/plain.txt", ".[e]nv", ".en?", "*", "src/[a-z]*.rs"]
    {
        for key in ["paths", "files", "file_paths"] {
            actions.push(tool("read", "read_many_files", &json!({ key: ["README.md", pattern] })));
        }
        actions.push(tool("read", "read_many_files", &json!({ "paths": pattern })));
        actions.push(tool("delete", "delete_file", &json!({ "paths": [pattern] })));
    }
    for encoded in ["%2A", ".e%2a", "%2A/x", "%5Bx%5D", "%7Bx,.env%7D"] {
        let address = format!("file://{{T}}/app/{encoded}");
        actions.push(tool("read", "read_many_files", &json!({ "paths": [address] })));
    }
    for pattern in [".e*", ".en?", "**/*", ".[e]nv", "{.env,a}", "{a,.e}nv"] {
        actions.push(tool("read", "read_file", &json!({ "path": pattern })));
        actions.push(unnamed("read", &json!({ "path": pattern })));
    }
    not_allowed(&PRESETS, &actions);
    allowed(
        &PRESETS,
        &[
            tool("read", "read_many_files", &json!({ "paths": ["README.md", "src/main.rs"] })),
            tool("read", "read_file", &json!({ "path": "pages/[slug].tsx" })),
            tool("read", "read_file", &json!({ "path": "{{cookiecutter.name}}/setup.py" })),
        ],
    );
    allowed(&["accept-edits"], &[tool("edit", "edit_file", &json!({ "path": "pages/[slug].tsx" }))]);
}

#[test]
fn m01_what_is_removed_or_moved_goes_with_all_that_is_in_it() {
    let delete = |path: &str| tool("delete", "delete_file", &json!({ "path": path }));
    let move_file =
        |from: &str, to: &str| tool("move", "move_file", &json!({ "source": from, "destination": to }));
    let mut actions = Vec::new();
    for path in [
        ".",
        "./",
        "{T}/app",
        "src/..",
        "src",
        "link-in",
        ".github",
        "node_modules",
        "venv",
        ".config",
        "env",
    ] {
        actions.push(delete(path));
        actions.push(unnamed("delete", &json!({ "path": path })));
        actions.push(move_file(path, "new"));
        actions.push(move_file("a.txt", path));
        actions.push(unnamed("edit", &json!({ "old_path": "a.txt", "new_path": path })));
    }
    // A link of which it is not known to where it leads in time is as bad.
    actions.push(move_file("a.txt", "link-out"));
    not_allowed(&PRESETS, &actions);
    denied(&PRESETS, &[delete("."), delete("{T}/app"), move_file("a.txt", "."), move_file(".", "new")]);
    allowed(
        &["accept-edits", "trusted"],
        &[delete("a.txt"), delete("new.txt"), move_file("a.txt", "src/a.txt")],
    );
}

#[test]
fn find_that_removes_all_removes_what_is_protected() {
    let shell = |line: &str| json!({ "shell": line });
    denied(
        &PRESETS,
        &[
            shell("find . -delete"),
            shell("find -delete"),
            shell("find -- . -delete"),
            shell("find . -- -delete"),
            shell("find {T}/app -delete"),
            shell("find src . -type f -delete"),
            shell("find . -name x -o -delete"),
            shell("find . ! -name x -delete"),
            shell("find . -not -name x -delete"),
        ],
    );
    // What is left out by name may be all that matters.
    let some = [shell("find . -name '*.pyc' -delete"), shell("find . -type d -empty -delete")];
    not_allowed(&PRESETS, &some);
    let wrong = wrong(&["default", "accept-edits", "trusted"], &some, |decision| decision == "ask");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    not_allowed(&PRESETS, &[shell("find node_modules -delete"), shell("find .github -delete")]);
    allowed(&["trusted"], &[shell("find target -delete")]);
}

#[test]
fn m01_a_terminal_reads_a_line_as_it_was_read() {
    let terminal = |name: &str, value: &str| {
        let env = json!([{ "name": name, "value": value }]);
        json!({ "terminal": { "sessionId": "s", "command": "ls -la", "env": env } })
    };
    let mut actions = Vec::new();
    for value in [
        "zh_CN.GBK",
        "zh_TW.BIG5",
        "zh_TW.Big5",
        "ja_JP.SJIS",
        "zh_CN",
        "en_US",
        "zh_CN.GBK@UTF-8",
        "zh_CN.UTF-8@GBK",
        "zh_CN.GBK.UTF-8",
        ".UTF-8",
        "GBK",
        "",
        "C.UTF-8/../zh_CN.GBK",
    ] {
        for name in ["LC_ALL", "LANG", "LC_CTYPE", "LC_MESSAGES", "LANGUAGE"] {
            actions.push(terminal(name, value));
        }
    }
    not_allowed(&PRESETS, &actions);
    let mut actions = vec![terminal("TERM", "xterm-256color"), terminal("NO_COLOR", "1")];
    for value in ["C", "POSIX", "C.UTF-8", "C.utf8", "en_US.UTF-8", "de_DE.utf8"] {
        actions.extend([terminal("LC_ALL", value), terminal("LANG", value)]);
    }
    allowed(&PRESETS, &actions);
}

/// Names that rules know as harmless, with what belongs to other tools.
#[test]
fn m01_no_name_covers_what_its_tool_does_not_know() {
    let names = [
        "TodoWrite",
        "TodoRead",
        "TaskCreate",
        "TaskGet",
        "TaskList",
        "TaskUpdate",
        "think",
        "update_plan",
        "update_topic",
        "updateTopic",
        "write_todos",
        "manage_todo_list",
        "set_title",
        "EnterPlanMode",
        "AskUserQuestion",
        "ToolSearch",
        "report_intent",
    ];
    let mut actions = Vec::new();
    for name in names {
        for input in
            [json!({ "sql": "drop table x" }), json!({ "todos": [], "sql": "x" }), json!({ "to": "ann" })]
        {
            actions.push(tool("other", name, &input));
            actions.push(tool("think", name, &input));
        }
    }
    not_allowed(&PRESETS, &actions);
    allowed(
        &PRESETS,
        &[
            tool("other", "TaskCreate", &json!({ "subject": "x", "description": "y", "activeForm": "z" })),
            tool("other", "TaskUpdate", &json!({ "taskId": "1", "status": "completed" })),
            tool("other", "TaskGet", &json!({ "taskId": "1" })),
            tool("other", "manage_todo_list", &json!({ "operation": "write", "todoList": [] })),
            tool("other", "set_title", &json!({ "title": "x" })),
            tool("think", "report_intent", &json!({ "intent": "Looking around" })),
        ],
    );
}

#[test]
fn names_of_networks_are_not_public() {
    let hosts = [
        "foo.localdomain",
        "router.home",
        "db.private",
        "x.consul",
        "x.test",
        "x.invalid",
        "[2001:db8::1]",
        "[2001::1]",
        "[3fff::1]",
        "192.88.99.1",
    ];
    let fetch = |host: &&str| json!({ "fetch": format!("https://{host}/") });
    not_allowed(&PRESETS, &hosts.iter().map(fetch).collect::<Vec<_>>());
    allowed(
        &["trusted"],
        &["docs.rs", "home.example.com", "[2606:4700::1111]"].iter().map(fetch).collect::<Vec<_>>(),
    );
}

#[test]
fn what_else_makes_programs_do_something_is_protected() {
    let write = |path: &&str| json!({ "write": path });
    let paths = [
        ".githooks/pre-commit",
        ".husky/pre-push",
        ".lefthook.yml",
        ".lefthook.yaml",
        ".lefthook-local.yml",
        "lefthook-local.yml",
        "lefthook-local.toml",
        ".mise.local.toml",
        "mise.local.toml",
        "mise.production.toml",
        ".mise/config.toml",
        ".mise/tasks/build",
        "mise/config.toml",
        ".config/mise/config.toml",
        ".config/mise.toml",
        ".github/instructions/x.instructions.md",
        ".github/prompts/x.prompt.md",
        ".github/agents/x.md",
        ".github/chatmodes/x.chatmode.md",
        ".github/hooks/x.json",
        ".github/skills/x/SKILL.md",
        ".appveyor.yml",
        "bunfig.toml",
        ".pnp.cjs",
        ".pnp.loader.mjs",
        "env/bin/python",
        "env/Scripts/activate",
        "client_secret_123.json",
        "gha-creds-0123.json",
        "kubeconfig-prod",
        "prod.tfstate",
        "deploy_key",
        "git-hooks/post-index-change",
        ".hooks/pre-push",
        "scripts/git-hooks/pre-commit",
        ".gitpod.yml",
        ".codesandbox/tasks.json",
        ".openhands/setup.sh",
        "WARP.md",
        ".tekton/run.yaml",
        "netlify.toml",
        ".lfsconfig",
        ".iex.exs",
        ".local/bin/x",
    ];
    denied(&PRESETS, &paths.iter().map(write).collect::<Vec<_>>());
    let read = |path: &&str| json!({ "read": path });
    let secrets = [
        "client_secret.json",
        "client_secret_123.apps.googleusercontent.com.json",
        "gha-creds-0123.json",
        "kubeconfig-prod",
        "kubeconfig.yaml",
        "prod.tfstate",
        "prod.tfstate.backup",
        "deploy_key",
        "certs/deploy_key",
        ".dev.vars.production",
        ".databrickscfg",
        ".oci/config",
        ".config/gh-copilot/../github-copilot/apps.json",
        "serviceAccountKey.json",
        "x.publishsettings",
    ];
    not_allowed(&PRESETS, &secrets.iter().map(read).collect::<Vec<_>>());
    let plain = [
        "src/kubeconfig.rs",
        "src/env/mod.rs",
        "mise.md",
        "docs/client_secret.md",
        "lefthook.rs",
        "bunfig.md",
    ];
    allowed(&["accept-edits"], &plain.iter().map(write).collect::<Vec<_>>());
}

/// A denial that nobody can lift must mean what it says.
#[test]
fn what_is_removed_inside_of_the_workspace_is_nobody_elses() {
    let lines = [
        "rm -rf {T}/app/target",
        "rm -r {T}/app/docs",
        "rm -r /tmp/foo",
        "rm -rf /tmp/x/target",
        "rm -r -f ./target",
        "chmod -R u+w {T}/app/src",
        "chmod -R u+w {T}/app",
        "rm -rf target",
    ];
    let actions: Vec<_> = lines.iter().map(|line| json!({ "shell": line })).collect();
    let wrong = wrong(&["default", "accept-edits"], &actions, |decision| decision == "ask");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    allowed(&["trusted"], &actions);
}
