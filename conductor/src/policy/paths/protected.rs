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

use std::{
    borrow::Cow,
    ffi::OsStr,
    path::{Component, Path},
};

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
    (".cshrc", STARTUP),
    (".curlrc", STARTUP),
    (".cursor", AGENT),
    (".cursorrules", ORDERS),
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
    (".fast-agent", AGENT),
    (".fleet", EDITOR),
    (".forgejo", CI),
    (".gdbinit", STARTUP),
    (".gemini", AGENT),
    (".git", GIT),
    (".git-credentials", ACCOUNT),
    (".gitattributes", GIT),
    (".gitconfig", GIT),
    (".gitea", CI),
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
    (".jj", HOOK),
    (".junie", AGENT),
    (".kilocode", AGENT),
    (".kiro", AGENT),
    (".kshrc", STARTUP),
    (".kube", ACCOUNT),
    (".lldbinit", STARTUP),
    (".lldbinit-lldb", STARTUP),
    (".m2", STARTUP),
    (".mcp.json", AGENT),
    (".mise.toml", STARTUP),
    (".mvn", STARTUP),
    (".my.cnf", ACCOUNT),
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
    (".pnpmfile.cjs", HOOK),
    (".pre-commit-config.yaml", HOOK),
    (".pre-commit-config.yml", HOOK),
    (".pre-commit-hooks.yaml", HOOK),
    (".profile", STARTUP),
    (".psqlrc", STARTUP),
    (".pypirc", ACCOUNT),
    (".python_history", ACCOUNT),
    (".pythonrc", STARTUP),
    (".qwen", AGENT),
    (".ripgreprc", STARTUP),
    (".roo", AGENT),
    (".rooignore", AGENT),
    (".roomodes", AGENT),
    (".semaphore", CI),
    (".ssh", KEY),
    (".svn", HOOK),
    (".tcshrc", STARTUP),
    (".teamcity", CI),
    (".terraformrc", ACCOUNT),
    (".tmux.conf", STARTUP),
    (".tool-versions", STARTUP),
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
];

/// Names of files, folded, sorted. The directories above the root may have such names.
static FILES: &[(&str, Protection)] = &[
    ("agent.md", ORDERS),
    ("agents.md", ORDERS),
    ("agents.override.md", ORDERS),
    ("appveyor.yml", CI),
    ("azure-pipelines.yaml", CI),
    ("azure-pipelines.yml", CI),
    ("bitbucket-pipelines.yml", CI),
    ("buildspec.yaml", CI),
    ("buildspec.yml", CI),
    ("claude.local.md", ORDERS),
    ("claude.md", ORDERS),
    ("cloudbuild.yaml", CI),
    ("cloudbuild.yml", CI),
    ("codeowners", CI),
    ("copilot-instructions.md", ORDERS),
    ("credentials", ACCOUNT),
    ("credentials.json", ACCOUNT),
    ("credentials.toml", ACCOUNT),
    ("credentials.yaml", ACCOUNT),
    ("credentials.yml", ACCOUNT),
    ("fastagent.config.yaml", AGENT),
    ("fastagent.jsonl", AGENT),
    ("fastagent.secrets.yaml", ACCOUNT),
    ("gemini.md", ORDERS),
    ("git~1", GIT),
    ("jenkinsfile", CI),
    ("kubeconfig", ACCOUNT),
    ("lefthook.toml", HOOK),
    ("lefthook.yaml", HOOK),
    ("lefthook.yml", HOOK),
    ("local.settings.json", ACCOUNT),
    ("mcp.json", AGENT),
    ("mise.toml", STARTUP),
    ("opencode.json", AGENT),
    ("opencode.jsonc", AGENT),
    ("pyvenv.cfg", STARTUP),
    ("qwen.md", ORDERS),
    ("service-account.json", ACCOUNT),
    ("service_account.json", ACCOUNT),
    ("sitecustomize.py", STARTUP),
    ("terraform.tfstate", ACCOUNT),
    ("terraform.tfstate.backup", ACCOUNT),
    ("usercustomize.py", STARTUP),
];

/// Two names that follow one another, folded.
static PAIRS: &[(&str, &str, Protection)] = &[
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
    (".config", "nvim", EDITOR),
    (".config", "opencode", AGENT),
    (".config", "pip", STARTUP),
    (".config", "systemd", STARTUP),
    (".config", "zed", EDITOR),
    (".docker", "config.json", ACCOUNT),
    (".gem", "credentials", ACCOUNT),
    (".git", "config", ACCOUNT),
    (".github", "actions", CI),
    (".github", "workflows", CI),
    (".gitlab", "ci", CI),
    (".gradle", "gradle.properties", ACCOUNT),
    (".m2", "settings.xml", ACCOUNT),
    (".yarn", "plugins", HOOK),
    (".yarn", "releases", HOOK),
];

/// How names begin.
static BEGINNINGS: &[(&str, Protection)] = &[
    (".env", ENV),
    (".aider", AGENT),
    (".goose", AGENT),
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
    (".tfvars", ACCOUNT),
    (".tfvars.json", ACCOUNT),
    ("_history", ACCOUNT),
    ("-credentials.json", ACCOUNT),
    ("_credentials.json", ACCOUNT),
    ("-service-account.json", ACCOUNT),
];

/// What `secrets.` and `secret.` are followed by if they are data and not a program's source.
static DATA: &[&str] =
    &["cfg", "conf", "enc", "env", "ini", "json", "properties", "sops", "toml", "txt", "xml", "yaml", "yml"];

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
    let mut previous: Cow<'_, str> = Cow::Borrowed("");
    let mut components = path.components().enumerate().peekable();
    while let Some((at, component)) = components.next() {
        let name = match component {
            Component::Normal(name) => fold(name),
            // What it undoes is not known here; the resolved path tells.
            Component::ParentDir | Component::CurDir => continue,
            Component::RootDir | Component::Prefix(_) => continue,
        };
        // Working copies that agents make for themselves are workspaces like others.
        let next = components.peek().map(|(_, next)| fold(next.as_os_str()));
        let is_copy = next.is_some_and(|next| next == "worktrees");
        note(exact(NAMES, &name).filter(|protection| !(is_copy && *protection == AGENT)));
        note(PAIRS.iter().find(|(one, two, _)| *two == name && *one == previous).map(|pair| pair.2));
        if at >= above {
            note(exact(FILES, &name));
            note(pattern(&name));
            // With a file of this name beside a few others, git takes a directory for a repository
            // and runs what its configuration names.
            if name == "head" && components.peek().is_none() && component.as_os_str() == "HEAD" {
                note(Some(GIT));
            }
        }
        previous = name;
    }
    found
}

fn exact(list: &[(&str, Protection)], name: &str) -> Option<Protection> {
    let at = list.binary_search_by(|(entry, _)| (*entry).cmp(name)).ok()?;
    list.get(at).map(|(_, protection)| *protection)
}

fn pattern(name: &str) -> Option<Protection> {
    let begins = || BEGINNINGS.iter().find(|(beginning, _)| name.starts_with(beginning));
    let ends = || ENDINGS.iter().find(|(ending, _)| name.ends_with(ending) && name.len() > ending.len());
    if let Some(rest) = name.strip_prefix(".env") {
        let is_sample = SAMPLES.iter().any(|sample| rest.ends_with(sample));
        // `.environment` is another word.
        let is_env = rest.is_empty() || rest.starts_with(|c: char| !c.is_alphanumeric());
        return (is_env && !is_sample).then_some(ENV);
    }
    let data = |extension: &str| DATA.contains(&extension);
    let is_data = ["secrets.", "secret."]
        .iter()
        .any(|word| name.strip_prefix(word).is_some_and(|rest| rest.rsplit('.').next().is_some_and(data)));
    let is_local = name.ends_with(".env") || name.contains(".secrets.") || name.contains(".secret.");
    if is_data || is_local {
        return Some(ACCOUNT);
    }
    begins().or_else(ends).map(|(_, protection)| *protection)
}

/// A name as a file system may see it that knows no case: folded, without dots and spaces at the
/// end and without the name of a stream.
fn fold(name: &OsStr) -> Cow<'_, str> {
    let text = name.to_string_lossy();
    let is_plain = |byte: u8| byte.is_ascii() && !byte.is_ascii_uppercase() && byte != b':';
    let is_cut = text.ends_with(['.', ' ']);
    if text.bytes().all(is_plain) && !is_cut {
        return text;
    }
    let whole: &str = text.split(':').next().unwrap_or_default();
    let cut = whole.trim_end_matches(['.', ' ']);
    // Upper case first: it takes apart what lower case leaves alone, such as a long s.
    let folded: String = cut.chars().flat_map(char::to_uppercase).flat_map(char::to_lowercase).collect();
    Cow::Owned(folded)
}

#[cfg(test)]
mod tests;
