//! Everyday work that must pass unasked: what coding agents run most when they look around in a workspace.

use super::asked::{Place, Question, decision};

/// Commands, by what they are for.
const TABLE: &[(&str, &[&str])] = &[
    (
        "looking around",
        &[
            "ls",
            "ls -la",
            "ls -lah src",
            "ls -1",
            "ls -R src",
            "ls -lt --color=never",
            "ls src tests docs",
            "ls -la 2>/dev/null",
            "ls -d src",
            "ls {T}/app/src",
            "pwd",
            "pwd && ls",
            "cd src && ls",
            "cd {T}/app && ls -la",
            "cd src && cd util && pwd",
            "cd src && ls && cd .. && ls",
            "tree -L 2",
            "tree -a -I 'node_modules|target' src",
            "du -sh .",
            "du -h --max-depth=1",
            "df -h",
            "stat README.md",
            "stat -c '%s %n' README.md",
            "file README.md",
            "realpath src/main.rs",
            "readlink -f src",
            "basename src/main.rs .rs",
            "dirname src/main.rs",
            "which node",
            "which -a python3",
            "command -v cargo",
            "type ls",
            "test -f Cargo.toml && echo yes",
            "test -d src || echo no",
            "[ -f package.json ] && echo node",
            "ls src || echo none",
            "ls .github/workflows",
            "ls -la .vscode",
            "[ -d .git ] && echo repo",
            "[ ! -f x ] || echo there",
            "ls --help",
            "unzip -l a.zip",
        ],
    ),
    (
        "reading files",
        &[
            "cat README.md",
            "cat src/main.rs src/lib.rs",
            "cat -n src/main.rs",
            "cat ./package.json",
            "cat .gitignore",
            "cat .github/workflows/ci.yml",
            "cat link-in/main.rs",
            "cat not-there.txt",
            "head README.md",
            "head -20 README.md",
            "head -n 20 src/main.rs",
            "head -n20 src/main.rs",
            "head -c 100 README.md",
            "tail -5 logs/app.log",
            "tail -n 100 logs/app.log",
            "tail -n +2 data.csv",
            "sed -n '1,80p' src/main.rs",
            "sed -n 5p src/main.rs",
            "sed -n '10,$p' src/main.rs",
            "sed -n '/fn main/,/^}/p' src/main.rs",
            "nl -ba src/main.rs",
            "wc -l src/main.rs",
            "wc -l src/main.rs src/lib.rs",
            "cat src/main.rs | head -50",
            "cat Cargo.toml | grep name",
            "cat a.txt | grep b | wc -l",
            "jq . package.json",
            "jq .name package.json",
            "jq -r '.scripts | keys[]' package.json",
            "cat package.json | jq '.scripts'",
            "xxd -l 64 a.txt",
            "hexdump -C a.txt",
            "od -c a.txt",
            "strings target/debug/app",
            "sha256sum Cargo.lock",
            "md5sum a.txt b.txt",
            "base64 a.txt",
        ],
    ),
    (
        "searching",
        &[
            "grep -rn foo src",
            "grep -rn \"TODO\" .",
            "grep -n 'fn main' src/main.rs",
            "grep -ri 'error' logs",
            "grep -E 'a|b' a.txt",
            "grep -c foo a.txt",
            "grep -v '^#' requirements.txt",
            "grep -A3 -B3 main src/main.rs",
            "grep -rn --include='*.rs' foo .",
            "grep -rl foo src tests",
            "grep -rnw foo src --exclude-dir=target",
            "grep -rn -e foo -e bar src",
            "rg foo",
            "rg -n \"foo\" src",
            "rg -l 'fn main' --type rust",
            "rg -tpy 'def main'",
            "rg -i todo -g '*.rs'",
            "rg --files",
            "rg --files -g '*.md' docs",
            "rg -C 3 'pub fn' src",
            "rg -n 'a|b' src | head -20",
            "find . -name '*.rs' -type f",
            "find . -maxdepth 2 -type d",
            "find src -name '*.ts' -not -path '*/node_modules/*'",
            "find . -type f -name '*.rs' | wc -l",
            "find . -type f -mtime -1",
            "find . -name '*.rs' -o -name '*.py'",
            "find . -size +10k -print",
            "fd main src",
            "fd -e rs",
            "git grep -n main",
        ],
    ),
    (
        "working on text",
        &[
            "sort a.txt",
            "sort a.txt | uniq -c",
            "sort a.txt | uniq -c | sort -rn | head",
            "sort -t, -k2 -n data.csv",
            "cut -d, -f1 data.csv",
            "cut -d',' -f1,3 data.csv",
            "cut -d ' ' -f 2- a.txt",
            "awk '{print $1}' a.txt",
            "awk -F, '{print $2}' data.csv",
            "awk 'NR>=1 && NR<=5' a.txt",
            "awk 'NR>1' a.txt",
            "awk '/foo/ {print $2}' a.txt",
            "awk '{sum+=$1} END {print sum}' a.txt",
            "awk '{print NR\": \"$0}' a.txt",
            "awk 'END{print NR}' a.txt",
            "sed -n '1,5p;10,20p' a.txt",
            "sed -n -e 5p a.txt",
            "sed '/^#/d' a.txt",
            "sed -E 's/[0-9]+/N/g; s/a/b/' a.txt",
            "shuf -n 1 a.txt",
            "tr a-z A-Z",
            "cat a.txt | tr -d '\\r'",
            "sed 's/foo/bar/g' a.txt",
            "column -t -s, data.csv",
            "diff a.txt b.txt",
            "diff -u a.txt b.txt",
            "comm -12 a.txt b.txt",
            "cmp a.txt b.txt",
            "paste a.txt b.txt",
            "rev a.txt",
            "tac a.txt",
            "fold -w 80 README.md",
        ],
    ),
    (
        "history",
        &[
            "git status",
            "git status --short",
            "git status -sb",
            "git status --porcelain",
            "git --no-pager status",
            "git log --oneline -5",
            "git log --oneline -n 10",
            "git log -1 --stat",
            "git log --graph --oneline --all",
            "git log --author=ann --since='2 weeks ago'",
            "git log -p -- src/main.rs",
            "git log --format='%h %an %s' -5",
            "git --no-pager log -3",
            "git log main..HEAD",
            "git diff",
            "git diff --stat",
            "git diff --stat HEAD~1",
            "git diff --cached",
            "git diff HEAD -- src/main.rs",
            "git diff main...HEAD --name-only",
            "git --no-pager diff",
            "git show",
            "git show HEAD",
            "git show --stat HEAD~1",
            "git show HEAD:README.md",
            "git branch",
            "git branch -a",
            "git branch -vv",
            "git branch --show-current",
            "git remote -v",
            "git remote get-url origin",
            "git rev-parse HEAD",
            "git rev-parse --show-toplevel",
            "git rev-parse --abbrev-ref HEAD",
            "git describe --tags --always",
            "git blame -L 1,20 src/main.rs",
            "git blame src/main.rs",
            "git ls-files",
            "git ls-files src | head",
            "git ls-tree -r HEAD --name-only",
            "git tag",
            "git tag -l 'v*'",
            "git stash list",
            "git shortlog -sn",
            "git reflog -5",
            "git merge-base main HEAD",
            "git config user.name",
            "git config --get user.email",
            "git config --get remote.origin.url",
            "git worktree list",
            "git check-ignore -v target",
            "git cat-file -p HEAD",
            "cd {T}/app && git status",
            "git status && git diff --stat",
            "git log --oneline | head -5",
        ],
    ),
    (
        "tools and the machine",
        &[
            "node --version",
            "node -v",
            "npm --version",
            "npm ls --depth=0",
            "python3 --version",
            "python3 -V",
            "cargo --version",
            "rustc --version",
            "rustc -vV",
            "go version",
            "java -version",
            "gcc --version",
            "make --version",
            "git --version",
            "pip list",
            "pip show requests",
            "whoami",
            "id",
            "uname -a",
            "cat /etc/os-release",
            "hostname",
            "date",
            "date +%Y-%m-%d",
            "date -u '+%F %T'",
            "uptime",
            "free -h",
            "nproc",
            "ps aux",
            "ps -ef | grep node",
            "echo hello",
            "echo \"hello world\"",
            "echo '--- done ---'",
            "echo -n x",
            "printf 'a %s\\n' b",
            "true",
            "sleep 1",
            "seq 1 5",
            "echo a; echo b",
            "ls >/dev/null 2>&1 && echo ok",
            "cat a.txt 2>&1 | head",
            "timeout 10 ls",
            "time ls",
        ],
    ),
];

#[test]
fn everyday_work_passes_unasked() {
    let place = Place::new();
    let lines: Vec<_> = TABLE.iter().flat_map(|(_, lines)| lines.iter()).collect();
    assert!(lines.len() >= 120, "the table has shrunk to {} rows", lines.len());
    let questions: Vec<_> = lines.iter().map(|line| Question::shell(line)).collect();
    let answers = place.ask(None, &questions);
    let asked: Vec<_> = lines
        .iter()
        .zip(&answers)
        .filter(|(_, answer)| decision(answer) != "allow")
        .map(|(line, answer)| format!("{line:?} is {}: {}", decision(answer), answer["reason"]))
        .collect();
    assert!(asked.is_empty(), "{} of {} do not pass:\n{}", asked.len(), lines.len(), asked.join("\n"));
}

/// The presets that are built on the default allow what it allows.
#[test]
fn everyday_work_passes_in_every_preset() {
    let place = Place::new();
    let lines: Vec<_> = TABLE.iter().flat_map(|(_, lines)| lines.iter()).collect();
    let questions: Vec<_> = lines.iter().map(|line| Question::shell(line)).collect();
    for preset in ["accept-edits", "plan", "trusted"] {
        let policy = place.policy(&format!("use = [\"{preset}\"]\n"));
        let answers = place.ask(Some(&policy), &questions);
        let asked = lines.iter().zip(&answers).filter(|(_, answer)| decision(answer) != "allow");
        let asked: Vec<_> = asked.map(|(line, _)| *line).collect();
        assert!(asked.is_empty(), "{preset}: {asked:?}");
    }
}

/// A name in the workspace does not become a program of the machine because it is found first.
#[test]
fn a_program_in_the_workspace_is_none_of_the_everyday_ones() {
    let place = Place::new();
    let bin = place.workspace().join("bin");
    let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap());
    let answers = place.ask_with(None, &[Question::shell("ls -la"), Question::shell("cat a.txt")], &path);
    // An agent that can put programs there can put any there.
    assert_eq!([decision(&answers[0]), decision(&answers[1])], ["ask", "ask"]);
    let path = format!("{}:{}", std::env::var("PATH").unwrap(), bin.display());
    let answers = place.ask_with(None, &[Question::shell("ls -la")], &path);
    assert_eq!(decision(&answers[0]), "allow", "{}", answers[0]);
    for relative in ["bin", ".", ""] {
        let path = format!("{relative}:{}", std::env::var("PATH").unwrap());
        let answers = place.ask_with(None, &[Question::shell("ls -la")], &path);
        assert_eq!(decision(&answers[0]), "ask", "PATH begins with {relative:?}: {}", answers[0]);
    }
}
