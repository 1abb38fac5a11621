//! A workspace to ask about, and the program that is asked.

use std::{
    fs,
    io::Write as _,
    os::unix::fs::{PermissionsExt as _, symlink},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use conductor_tests::harness::program;
use serde_json::{Value, json};
use tempfile::TempDir;

/// Stands in tables for the directory above the workspace.
pub const ABOVE: &str = "{T}";

/// A workspace `app` with all that makes a policy stumble, and its neighbours.
pub struct Place {
    dir: TempDir,
    above: PathBuf,
}

/// One question.
#[derive(Debug, Clone)]
pub struct Question {
    /// What is asked for, as `policy explain` takes it.
    pub action: Value,
    /// The session's mode.
    pub mode: Option<&'static str>,
    /// Whether there is somebody to ask.
    pub interactive: bool,
}

impl Question {
    pub fn new(action: Value) -> Self {
        Self { action, mode: None, interactive: true }
    }

    pub fn shell(line: &str) -> Self {
        Self::new(json!({ "shell": line }))
    }
}

impl Place {
    pub fn new() -> Self {
        let dir = TempDir::new().unwrap();
        let above = fs::canonicalize(dir.path()).unwrap();
        let place = Self { dir, above };
        for (file, text) in FILES {
            place.file(file, text);
        }
        for (link, target) in LINKS {
            symlink(target, place.above.join(link)).unwrap();
        }
        for program in ["app/bin/ls", "app/ls", "app/script.sh", "app/node_modules/.bin/tsc", "outside/cat"] {
            let mode = fs::Permissions::from_mode(0o755);
            fs::set_permissions(place.above.join(program), mode).unwrap();
        }
        for empty in ["app/evil.git/objects", "app/evil.git/refs", "app/empty"] {
            fs::create_dir_all(place.above.join(empty)).unwrap();
        }
        place
    }

    fn file(&self, name: &str, text: &str) {
        let path = self.above.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    pub fn workspace(&self) -> PathBuf {
        self.above.join("app")
    }

    /// Writes a rule file and says where.
    pub fn policy(&self, text: &str) -> PathBuf {
        let path = self.dir.path().join("policy.toml");
        fs::write(&path, text).unwrap();
        path
    }

    /// A text of a table with the placeholder filled in.
    pub fn fill(&self, text: &str) -> String {
        text.replace(ABOVE, self.above.to_str().unwrap())
    }

    /// Puts questions to the program: one answer each.
    pub fn ask(&self, policy: Option<&Path>, questions: &[Question]) -> Vec<Value> {
        let path = std::env::var("PATH").unwrap();
        self.ask_with(policy, questions, &path)
    }

    /// The same, with another `PATH`.
    pub fn ask_with(&self, policy: Option<&Path>, questions: &[Question], path: &str) -> Vec<Value> {
        self.ask_in("", policy, questions, path)
    }

    /// The same, of a session in a directory of the workspace.
    pub fn ask_in(
        &self,
        inside: &str,
        policy: Option<&Path>,
        questions: &[Question],
        path: &str,
    ) -> Vec<Value> {
        let app = self.workspace();
        let mut lines = String::new();
        for question in questions {
            let mut request = json!({
                "user": "ann", "agent": "claude", "cwd": app.join(inside), "roots": [app],
                "interactive": question.interactive, "action": question.action,
            });
            if let Some(mode) = question.mode {
                request["mode"] = mode.into();
            }
            // The placeholder may stand in any text of the action.
            lines.push_str(&self.fill(&request.to_string()));
            lines.push('\n');
        }
        let mut command = Command::new(program("conductor"));
        command.args(["policy", "explain", "--batch"]).env("PATH", path).current_dir(&app);
        if let Some(policy) = policy {
            command.arg("--policy").arg(policy);
        }
        let (code, out, err) = run(command, &lines);
        assert_eq!(code, Some(0), "policy explain failed:\n{err}");
        let answers: Vec<Value> = out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(answers.len(), questions.len(), "not one answer for each question:\n{err}");
        answers
    }
}

/// Runs a command on some input: exit code, output, errors.
pub fn run(mut command: Command, input: &str) -> (Option<i32>, String, String) {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    // The answers may fill their pipe before the last question is written.
    let input = input.to_owned();
    let writer = std::thread::spawn(move || stdin.write_all(input.as_bytes()));
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (output.status.code(), text(output.stdout), text(output.stderr))
}

/// What an answer comes to.
pub fn decision(answer: &Value) -> &str {
    answer["decision"].as_str().unwrap_or_else(|| panic!("no decision in {answer}"))
}

/// Files beneath the directory above the workspace.
const FILES: &[(&str, &str)] = &[
    ("app/README.md", "# App\n"),
    ("app/Cargo.toml", "[package]\nname = \"app\"\n"),
    ("app/Cargo.lock", "version = 4\n"),
    ("app/Makefile", "all:\n\techo all\n"),
    ("app/package.json", "{\"name\":\"app\",\"scripts\":{\"test\":\"true\"}}\n"),
    ("app/tsconfig.json", "{}\n"),
    ("app/requirements.txt", "requests\n"),
    ("app/a.txt", "a\n"),
    ("app/b.txt", "b\n"),
    ("app/data.csv", "1,2,3\n"),
    ("app/-o", "a file with the name of an option\n"),
    ("app/list", "/etc/passwd\n"),
    ("app/script.sh", "#!/bin/sh\nid\n"),
    ("app/script.sed", "1e id\n"),
    ("app/src/main.rs", "fn main() {}\n"),
    ("app/src/lib.rs", "pub fn lib() {}\n"),
    ("app/src/app.py", "print(1)\n"),
    ("app/src/util/mod.ts", "export {}\n"),
    ("app/tests/it.rs", "#[test]\nfn it() {}\n"),
    ("app/docs/notes.md", "notes\n"),
    ("app/logs/app.log", "started\n"),
    ("app/good.gz", "packed\n"),
    ("app/good.zip", "packed\n"),
    // A working copy within this one, whose `.git` is not what it seems.
    ("app/nested/a.txt", "a\n"),
    ("app/linked/.git/config", "[core]\n"),
    ("app/target/debug/app", "binary\n"),
    ("app/node_modules/.bin/tsc", "#!/bin/sh\nid\n"),
    ("app/bin/ls", "#!/bin/sh\nid\n"),
    ("app/ls", "#!/bin/sh\nid\n"),
    ("app/.env", "TOKEN=secret\n"),
    ("app/.env.production", "TOKEN=secret\n"),
    ("app/.gitignore", "target\n"),
    ("app/.git/HEAD", "ref: refs/heads/main\n"),
    ("app/.git/config", "[core]\n"),
    ("app/.git/hooks/post-checkout", "#!/bin/sh\n"),
    ("app/.github/workflows/ci.yml", "on: push\n"),
    ("app/.vscode/settings.json", "{}\n"),
    ("app/certs/server.pem", "key\n"),
    // A directory that is a repository without a `.git`, with settings that start a program.
    ("app/evil.git/HEAD", "ref: refs/heads/main\n"),
    ("app/evil.git/config", "[core]\n\tbare = false\n\tworktree = .\n\tfsmonitor = ../script.sh\n"),
    // A neighbour whose name begins like the workspace's.
    ("app-evil/plain.txt", "secret\n"),
    ("App/plain.txt", "secret\n"),
    ("outside/plain.txt", "secret\n"),
    ("outside/cat", "#!/bin/sh\nid\n"),
    ("outside/dir/deep.txt", "secret\n"),
];

/// Links, with what they say.
const LINKS: &[(&str, &str)] = &[
    ("app/link-out", "../outside"),
    ("app/link-secret", "../outside/plain.txt"),
    ("app/link-passwd", "/etc/passwd"),
    ("app/link-root", "/"),
    ("app/link-env", ".env"),
    ("app/link-git", ".git"),
    ("app/link-new", "../outside/not-there-yet"),
    ("app/link-twice", "link-out"),
    ("app/loop", "loop"),
    ("app/link-in", "src"),
    ("app/src/up", "../.."),
    ("app/docs/passwd.md", "/etc/passwd"),
    ("app/cat", "../outside/cat"),
    // What a program finds that puts something behind the name that it is given.
    ("app/packed.gz", "../outside/plain.txt"),
    ("app/packed.zip", "../outside/plain.txt"),
    ("app/docs/packed.gz", "../../outside/plain.txt"),
    ("app/nested/.git", "../../outside"),
    ("app/linked/.git/HEAD", "../../../outside/plain.txt"),
];
