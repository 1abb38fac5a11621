//! Names that are protected wherever they are, and why.
//!
//! Names, not files: a file that is not there yet can be made, and then it
//! counts. They are compared without regard to case and to what some file
//! systems leave out (dots and spaces at the end, streams), because there
//! `.GIT` and `.git` are the same. What a disk with short names calls `git~1`
//! is protected as well.
//!
//! Most are protected from being written only: they make other programs, or
//! the next session, do something. What is likely to hold keys or passwords is
//! protected from being read, too. A sample of such a file (`.env.example`) is
//! made to be read and is not protected.

mod aim;

use std::{borrow::Cow, ffi::OsStr, os::unix::ffi::OsStrExt as _, path::Path};

pub use self::aim::is_aimed_at_secrets;

/// Why a name is protected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Protection {
    /// In words.
    pub reason: &'static str,
    /// From being read, too.
    pub secret: bool,
}

const GIT: Protection = Protection { reason: "git runs or believes what is in there", secret: false };
const EDITOR: Protection =
    Protection { reason: "editors run tasks and programs that are named in there", secret: false };
const AGENT: Protection =
    Protection { reason: "it says what agents may do, or which tools they start", secret: false };
const ORDERS: Protection = Protection { reason: "agents follow what is written in there", secret: false };
const CI: Protection = Protection { reason: "it runs on build machines, with their rights", secret: false };
const STARTUP: Protection =
    Protection { reason: "shells and tools run or believe it when they start", secret: false };
const HOOK: Protection = Protection { reason: "tools run what is in there by themselves", secret: false };
const ENV: Protection =
    Protection { reason: "such files hold passwords and keys, and tools read them", secret: true };
const KEY: Protection = Protection { reason: "it is likely to be a key", secret: true };
const ACCOUNT: Protection =
    Protection { reason: "it is likely to hold passwords, tokens or other credentials", secret: true };

/// Names of files and directories, folded; what is beneath such a directory is protected as well.
/// Sorted, for they are searched.
static NAMES: &[(&str, Protection)] = &[
    (".agents", AGENT),
    (".aider.conf.yml", AGENT),
    (".amazonq", AGENT),
    (".appveyor.yml", CI),
    (".augment", AGENT),
    (".authinfo", ACCOUNT),
    (".aws", ACCOUNT),
    (".azure", ACCOUNT),
    (".bash_aliases", STARTUP),
    (".bash_history", ACCOUNT),
    (".bash_login", STARTUP),
    (".bash_logout", STARTUP),
    (".bash_profile", STARTUP),
    (".bashrc", STARTUP),
    (".bazelrc", STARTUP),
    (".boto", ACCOUNT),
    (".buildkite", CI),
    (".circleci", CI),
    (".cirrus.yml", CI),
    (".claude", AGENT),
    (".claude.json", AGENT),
    (".clinerules", ORDERS),
    (".codex", AGENT),
    (".conductor", AGENT),
    (".continue", AGENT),
    (".copilot", AGENT),
    (".credentials.json", ACCOUNT),
    (".crush", AGENT),
    (".crush.json", AGENT),
    (".cshrc", STARTUP),
    (".curlrc", STARTUP),
    (".cursor", AGENT),
    (".cursorrules", ORDERS),
    (".dev.vars", ENV),
    (".devcontainer", EDITOR),
    (".devcontainer.json", EDITOR),
    (".dir-locals.el", EDITOR),
    (".direnv", STARTUP),
    (".dockercfg", ACCOUNT),
    (".drone.yml", CI),
    (".emacs", EDITOR),
    (".emacs.d", EDITOR),
    (".envrc", ENV),
    (".exrc", EDITOR),
    (".factory", AGENT),
    (".fast-agent", AGENT),
    (".flaskenv", ENV),
    (".fleet", EDITOR),
    (".forgejo", CI),
    (".ftpconfig", ACCOUNT),
    (".gdbinit", STARTUP),
    (".gemini", AGENT),
    (".git", GIT),
    (".git-credentials", ACCOUNT),
    (".gitattributes", GIT),
    (".gitconfig", GIT),
    (".gitea", CI),
    (".githooks", HOOK),
    (".gitlab-ci.yml", CI),
    (".gitmodules", GIT),
    (".gnupg", KEY),
    (".goose", AGENT),
    (".goosehints", ORDERS),
    (".gooseignore", AGENT),
    (".gradle", STARTUP),
    (".helix", EDITOR),
    (".hg", HOOK),
    (".hgrc", STARTUP),
    (".htpasswd", ACCOUNT),
    (".husky", HOOK),
    (".idea", EDITOR),
    (".inputrc", STARTUP),
    (".irbrc", STARTUP),
    (".jj", HOOK),
    (".junie", AGENT),
    (".kilocode", AGENT),
    (".kiro", AGENT),
    (".kshrc", STARTUP),
    (".kube", ACCOUNT),
    (".kubeconfig", ACCOUNT),
    (".lefthook", HOOK),
    (".lefthook-local", HOOK),
    (".lldbinit", STARTUP),
    (".lldbinit-lldb", STARTUP),
    (".lvimrc", EDITOR),
    (".m2", STARTUP),
    (".mcp.json", AGENT),
    (".mise", STARTUP),
    (".mvn", STARTUP),
    (".my.cnf", ACCOUNT),
    (".mylogin.cnf", ACCOUNT),
    (".netrc", ACCOUNT),
    (".nova", EDITOR),
    (".npmrc", ACCOUNT),
    (".nvim.lua", EDITOR),
    (".nvimrc", EDITOR),
    (".opencode", AGENT),
    (".password-store", ACCOUNT),
    (".pdbrc", STARTUP),
    (".pdbrc.py", STARTUP),
    (".pgpass", ACCOUNT),
    (".pnp.cjs", HOOK),
    (".pnp.js", HOOK),
    (".pnp.loader.mjs", HOOK),
    (".pnpmfile.cjs", HOOK),
    (".pre-commit-config.yaml", HOOK),
    (".pre-commit-config.yml", HOOK),
    (".pre-commit-hooks.yaml", HOOK),
    (".profile", STARTUP),
    (".proverc", STARTUP),
    (".psqlrc", STARTUP),
    (".pypirc", ACCOUNT),
    (".python_history", ACCOUNT),
    (".pythonrc", STARTUP),
    (".qwen", AGENT),
    (".ripgreprc", STARTUP),
    (".roo", AGENT),
    (".rooignore", AGENT),
    (".roomodes", AGENT),
    (".rprofile", STARTUP),
    (".rspec", STARTUP),
    (".rules", ORDERS),
    (".s3cfg", ACCOUNT),
    (".semaphore", CI),
    (".sqliterc", STARTUP),
    (".ssh", KEY),
    (".svn", HOOK),
    (".tcshrc", STARTUP),
    (".teamcity", CI),
    (".terraformrc", ACCOUNT),
    (".tmux.conf", STARTUP),
    (".token", ACCOUNT),
    (".tool-versions", STARTUP),
    (".trae", AGENT),
    (".travis.yml", CI),
    (".vault-token", ACCOUNT),
    (".vim", EDITOR),
    (".vimrc", EDITOR),
    (".vs", EDITOR),
    (".vscode", EDITOR),
    (".wgetrc", STARTUP),
    (".windsurf", AGENT),
    (".windsurfrules", ORDERS),
    (".woodpecker", CI),
    (".woodpecker.yaml", CI),
    (".woodpecker.yml", CI),
    (".yarnrc", HOOK),
    (".yarnrc.yml", ACCOUNT),
    (".zed", EDITOR),
    (".zlogin", STARTUP),
    (".zlogout", STARTUP),
    (".zprofile", STARTUP),
    (".zsh_history", ACCOUNT),
    (".zshenv", STARTUP),
    (".zshrc", STARTUP),
    ("_netrc", ACCOUNT),
];

/// Names of files, folded, sorted. The directories above the root may have such names.
static FILES: &[(&str, Protection)] = &[
    (".cargo", STARTUP),
    (".venv", STARTUP),
    ("accesskeys.csv", ACCOUNT),
    ("agent.md", ORDERS),
    ("agents.md", ORDERS),
    ("agents.override.md", ORDERS),
    ("appveyor.yml", CI),
    ("auth.json", ACCOUNT),
    ("azure-pipelines.yaml", CI),
    ("azure-pipelines.yml", CI),
    ("bitbucket-pipelines.yml", CI),
    ("buildspec.yaml", CI),
    ("buildspec.yml", CI),
    ("bunfig.toml", STARTUP),
    ("claude.local.md", ORDERS),
    ("claude.md", ORDERS),
    ("cloudbuild.yaml", CI),
    ("cloudbuild.yml", CI),
    ("codeowners", CI),
    ("commondir", GIT),
    ("cookies.sqlite", ACCOUNT),
    ("copilot-instructions.md", ORDERS),
    ("credentials.csv", ACCOUNT),
    ("credentials.json", ACCOUNT),
    ("credentials.toml", ACCOUNT),
    ("credentials.xml", ACCOUNT),
    ("credentials.yaml", ACCOUNT),
    ("credentials.yml", ACCOUNT),
    ("crush.json", AGENT),
    ("deploy-key", KEY),
    ("deploy_key", KEY),
    ("deploykey", KEY),
    ("fastagent.config.yaml", AGENT),
    ("fastagent.jsonl", AGENT),
    ("fastagent.secrets.yaml", ACCOUNT),
    ("gcp-key.json", ACCOUNT),
    ("gemini.md", ORDERS),
    ("gitdir", GIT),
    ("git~1", GIT),
    ("jenkinsfile", CI),
    ("kube.config", ACCOUNT),
    ("kubeconfig", ACCOUNT),
    ("local.settings.json", ACCOUNT),
    ("mcp.json", AGENT),
    ("oauth_creds.json", ACCOUNT),
    ("opencode.json", AGENT),
    ("opencode.jsonc", AGENT),
    ("packed-refs", GIT),
    ("pip.conf", ACCOUNT),
    ("pip.ini", ACCOUNT),
    ("pyvenv.cfg", STARTUP),
    ("qwen.md", ORDERS),
    ("rclone.conf", ACCOUNT),
    ("rootkey.csv", ACCOUNT),
    ("service-account.json", ACCOUNT),
    ("service_account.json", ACCOUNT),
    ("sftp-config.json", ACCOUNT),
    ("sitecustomize.py", STARTUP),
    ("terraform.tfstate", ACCOUNT),
    ("terraform.tfstate.backup", ACCOUNT),
    ("token.json", ACCOUNT),
    ("tokens.json", ACCOUNT),
    ("usercustomize.py", STARTUP),
    ("wp-config.php", ACCOUNT),
];

/// Two names that follow one another, folded.
static PAIRS: &[(&str, &str, Protection)] = &[
    (".bundle", "config", STARTUP),
    (".cargo", "config", STARTUP),
    (".cargo", "config.toml", STARTUP),
    (".cargo", "credentials", ACCOUNT),
    (".cargo", "credentials.toml", ACCOUNT),
    (".config", "autostart", STARTUP),
    (".config", "containers", ACCOUNT),
    (".config", "fish", STARTUP),
    (".config", "gcloud", ACCOUNT),
    (".config", "gh", ACCOUNT),
    (".config", "git", GIT),
    (".config", "goose", AGENT),
    (".config", "helix", EDITOR),
    (".config", "mise", STARTUP),
    (".config", "nvim", EDITOR),
    (".config", "opencode", AGENT),
    (".config", "pip", STARTUP),
    (".config", "systemd", STARTUP),
    (".config", "zed", EDITOR),
    (".docker", "config.json", ACCOUNT),
    (".gem", "credentials", ACCOUNT),
    (".git", "config", ACCOUNT),
    (".github", "actions", CI),
    (".github", "agents", AGENT),
    (".github", "chatmodes", AGENT),
    (".github", "hooks", AGENT),
    (".github", "instructions", ORDERS),
    (".github", "prompts", ORDERS),
    (".github", "skills", ORDERS),
    (".github", "workflows", CI),
    (".gitlab", "ci", CI),
    (".gradle", "gradle.properties", ACCOUNT),
    (".m2", "settings.xml", ACCOUNT),
    (".yarn", "plugins", HOOK),
    (".yarn", "releases", HOOK),
    ("env", "bin", STARTUP),
    ("env", "scripts", STARTUP),
    ("mise", "config.local.toml", STARTUP),
    ("mise", "config.toml", STARTUP),
    ("node_modules", ".bin", STARTUP),
    ("venv", "bin", STARTUP),
    ("venv", "scripts", STARTUP),
];

/// How names begin.
static BEGINNINGS: &[(&str, Protection)] = &[
    (".env", ENV),
    (".aider", AGENT),
    (".crush", AGENT),
    (".goose", AGENT),
    (".pgpass", ACCOUNT),
    (".yarnrc", ACCOUNT),
    ("id_dsa", KEY),
    ("id_ecdsa", KEY),
    ("id_ed25519", KEY),
    ("id_rsa", KEY),
    ("terraform.tfstate", ACCOUNT),
];

/// How names end.
static ENDINGS: &[(&str, Protection)] = &[
    (".code-workspace", EDITOR),
    (".gpg", KEY),
    (".jks", KEY),
    (".kdb", KEY),
    (".kdbx", KEY),
    (".key", KEY),
    (".keystore", KEY),
    (".keytab", KEY),
    (".p12", KEY),
    (".p8", KEY),
    (".pem", KEY),
    (".pfx", KEY),
    (".pkcs12", KEY),
    (".ppk", KEY),
    (".pth", STARTUP),
    (".sublime-project", EDITOR),
    (".tfstate", ACCOUNT),
    (".tfvars", ACCOUNT),
    (".tfvars.json", ACCOUNT),
    ("_history", ACCOUNT),
    ("-credentials.json", ACCOUNT),
    ("_credentials.json", ACCOUNT),
    ("-service-account.json", ACCOUNT),
];

/// Names of files or directories that hold secrets, unless it is a program's source that has such a
/// name or lies in there.
static LOOSE: &[&str] = &[".secrets", "credentials", "secrets", "token"];

/// How files end that are a program's source or its documentation.
static SOURCES: &[&str] = &[
    "astro", "c", "cc", "cjs", "cpp", "cs", "css", "dart", "ex", "exs", "go", "h", "hpp", "hs", "html",
    "java", "js", "jsx", "kt", "lua", "md", "mjs", "php", "py", "rb", "rs", "scala", "scss", "svelte",
    "swift", "ts", "tsx", "vue",
];

/// What is put behind a name for a copy.
static COPIES: &[&str] = &[".1", ".backup", ".bak", ".copy", ".old", ".orig", ".save", ".swo", ".swp", "~"];

/// The hooks of git. A directory of hooks without any of these is something else.
static HOOKS: &[&str] = &[
    "applypatch-msg",
    "commit-msg",
    "fsmonitor-watchman",
    "p4-changelist",
    "p4-post-changelist",
    "p4-pre-submit",
    "p4-prepare-changelist",
    "post-applypatch",
    "post-checkout",
    "post-commit",
    "post-index-change",
    "post-merge",
    "post-receive",
    "post-rewrite",
    "post-update",
    "pre-applypatch",
    "pre-auto-gc",
    "pre-commit",
    "pre-merge-commit",
    "pre-push",
    "pre-rebase",
    "pre-receive",
    "prepare-commit-msg",
    "proc-receive",
    "push-to-checkout",
    "reference-transaction",
    "sendemail-validate",
    "update",
];

/// What `.env` is followed by in files that are made to be read.
static SAMPLES: &[&str] = &[".default", ".defaults", ".dist", ".example", ".sample", ".template"];

/// Why a path is protected, by its names; the weightiest reason if there are several. `above` of
/// its components are those of a root: that is a place that people have chosen, so that only
/// names count there that are never those of a workspace.
pub fn by_name(path: &Path, above: usize) -> Option<Protection> {
    let mut found: Option<Protection> = None;
    let mut note = |protection: Option<Protection>| {
        if let Some(protection) = protection
            && found.is_none_or(|found| protection.secret && !found.secret)
        {
            found = Some(protection);
        }
    };
    let is_source = path.file_name().is_some_and(|name| is_source(&fold(name)));
    let mut is_in_git = false;
    let mut previous: Cow<'_, str> = Cow::Borrowed("");
    let mut names = names(path).peekable();
    while let Some((at, given)) = names.next() {
        // What it undoes is not known here; the resolved path tells.
        if given == ".." {
            continue;
        }
        let name = fold(given);
        // Working copies that agents make for themselves are workspaces like others.
        let next = names.peek().map(|(_, next)| *next);
        let is_last = next.is_none();
        let is_copy = || next.is_some_and(|next| fold(next) == "worktrees");
        note(listed(&name).filter(|protection| *protection != AGENT || !is_copy()));
        note(PAIRS.iter().find(|(one, two, _)| *two == name && *one == previous).map(|pair| pair.2));
        // Also submodules and working copies have one, deeper in.
        if is_in_git && is_last && matches!(&*name, "config" | "config.worktree") {
            note(Some(ACCOUNT));
        }
        is_in_git |= name == ".git" || name == "git~1";
        if previous == "hooks" && HOOKS.contains(&&*name) {
            note(Some(GIT));
        }
        if at >= above {
            note(exact(FILES, &name));
            note(pattern(&name));
            if !is_source && LOOSE.contains(&&*name) {
                note(Some(ACCOUNT));
            }
            // With a file of this name beside a few others, git takes a directory for a repository
            // and runs what its configuration names.
            if is_last && given == "HEAD" {
                note(Some(GIT));
            }
        }
        if let Some(original) = original(&name) {
            note(secret(original).filter(|_| at >= above));
        }
        previous = name;
    }
    found
}

/// What is protected in a directory of this name, which need not be protected itself.
pub fn protected_in(name: &OsStr) -> impl Iterator<Item = &'static str> {
    let name = fold(name);
    PAIRS.iter().filter(move |(above, ..)| *above == name).map(|(_, inner, _)| *inner)
}

/// The names in a path with their places, as [`Path::components`] counts them.
fn names(path: &Path) -> impl Iterator<Item = (usize, &OsStr)> {
    let bytes = path.as_os_str().as_bytes();
    // A dot at the beginning counts there, and a root is the first.
    let first = usize::from(bytes.starts_with(b"/") || bytes == b"." || bytes.starts_with(b"./"));
    let names = bytes.split(|byte| *byte == b'/').filter(|name| !matches!(*name, b"" | b"."));
    names.enumerate().map(move |(at, name)| (first + at, OsStr::from_bytes(name)))
}

/// How many components an absolute path has.
pub fn depth(path: &Path) -> usize {
    1 + names(path).count()
}

/// The name of which this is that of a copy.
fn original(name: &str) -> Option<&str> {
    if !name.ends_with(['~', '#']) && !name.contains('.') {
        return None;
    }
    let mut rest = name.strip_prefix('#').and_then(|name| name.strip_suffix('#')).unwrap_or(name);
    let mut is_swapped = false;
    while let Some((copy, cut)) = COPIES.iter().find_map(|copy| Some((copy, rest.strip_suffix(copy)?))) {
        is_swapped |= copy.starts_with(".sw");
        rest = cut;
    }
    // An editor puts a dot before the name, too. `..env` was `.env`.
    if is_swapped && !rest.strip_prefix('.').is_none_or(|bare| secret(rest).is_some() || bare.is_empty()) {
        rest = rest.strip_prefix('.').unwrap_or(rest);
    }
    (rest != name && !rest.is_empty()).then_some(rest)
}

/// Why a single name is protected from being read, if it is.
fn secret(name: &str) -> Option<Protection> {
    let listed = listed(name).into_iter().chain(exact(FILES, name)).chain(pattern(name));
    let loose = LOOSE.contains(&name).then_some(ACCOUNT);
    listed.chain(loose).find(|found| found.secret)
}

fn is_source(name: &str) -> bool {
    name.rsplit_once('.').is_some_and(|(_, extension)| SOURCES.contains(&extension))
}

/// One of [`NAMES`], which all begin alike.
fn listed(name: &str) -> Option<Protection> {
    if name.starts_with(['.', '_']) { exact(NAMES, name) } else { None }
}

fn exact(list: &[(&str, Protection)], name: &str) -> Option<Protection> {
    let at = list.binary_search_by(|(entry, _)| (*entry).cmp(name)).ok()?;
    list.get(at).map(|(_, protection)| *protection)
}

fn pattern(name: &str) -> Option<Protection> {
    // Each of what follows has one of these in it. Few names have, and all names are looked at.
    let is_bare = !name.bytes().any(|byte| matches!(byte, b'.' | b'_' | b'-'));
    if is_bare && !name.starts_with("privatekey") && !name.starts_with("kubeconfig") {
        return None;
    }
    let begins = || BEGINNINGS.iter().find(|(beginning, _)| name.starts_with(beginning));
    let ends = || ENDINGS.iter().find(|(ending, _)| name.ends_with(ending) && name.len() > ending.len());
    if let Some(rest) = name.strip_prefix(".env") {
        let is_sample = SAMPLES.iter().any(|sample| rest.ends_with(sample));
        // `.environment` is another word.
        let is_env = rest.is_empty() || rest.starts_with(|c: char| !c.is_alphanumeric());
        return (is_env && !is_sample).then_some(ENV);
    }
    let is_source = is_source(name);
    let begins_with = |words: &[&str]| words.iter().any(|word| name.starts_with(word));
    let has = |words: &[&str]| words.iter().any(|word| name.contains(word));
    let is_secret = begins_with(&["secrets.", "secret."]) || has(&[".secrets.", ".secret."]);
    let accounts = ["service-account", "service_account", "-adminsdk", "client_secret", "gha-creds-"];
    let is_account =
        name.ends_with(".json") && has(&accounts) || name.starts_with("kubeconfig") && !is_source;
    if is_secret && !is_source || is_account || name.ends_with(".env") {
        return Some(ACCOUNT);
    }
    let is_private = begins_with(&["privatekey", "private_key", "private-key"]) && !is_source
        || name.starts_with("ssh_host_") && name.ends_with("_key")
        || name.ends_with(".asc") && has(&["private", "secret"]);
    if is_private {
        return Some(KEY);
    }
    begins().or_else(ends).map(|(_, protection)| *protection).or_else(|| settings(name))
}

/// Why a name is protected that is one of several for the settings of a tool.
fn settings(name: &str) -> Option<Protection> {
    match name.strip_prefix('.').unwrap_or(name).rsplit_once('.')? {
        ("lefthook" | "lefthook-local", "json" | "jsonc" | "toml" | "yaml" | "yml") => Some(HOOK),
        (tool, "toml") if tool.split('.').next() == Some("mise") => Some(STARTUP),
        _ => None,
    }
}

/// A name as a file system may see it that knows no case: folded, without dots and spaces at the
/// end and without the name of a stream.
pub fn fold(name: &OsStr) -> Cow<'_, str> {
    let text = name.to_string_lossy();
    let is_plain = |byte: u8| byte.is_ascii() && !byte.is_ascii_uppercase() && byte != b':';
    let is_cut = text.ends_with(['.', ' ']);
    if text.bytes().all(is_plain) && !is_cut {
        return text;
    }
    let whole: &str = text.split(':').next().unwrap_or_default();
    let cut = whole.trim_end_matches(['.', ' ']);
    if cut.is_ascii() {
        return Cow::Owned(cut.to_ascii_lowercase());
    }
    // Upper case first: it takes apart what lower case leaves alone, such as a long s.
    let folded: String = cut.chars().flat_map(char::to_uppercase).flat_map(char::to_lowercase).collect();
    Cow::Owned(folded)
}

#[cfg(test)]
mod tests;
