//! Names that are protected, and names that are not.

use std::path::Component;

use super::*;

#[test]
fn the_lists_can_be_searched() {
    for list in [NAMES, FILES] {
        for pair in list.windows(2) {
            assert!(pair[0].0 < pair[1].0, "{} must stand after {}", pair[0].0, pair[1].0);
        }
    }
    let folded = |name: &str| fold(OsStr::new(name)) == name;
    assert!(NAMES.iter().chain(FILES).chain(BEGINNINGS).chain(ENDINGS).all(|(name, _)| folded(name)));
    assert!(PAIRS.iter().all(|(one, two, _)| folded(one) && folded(two)));
    // By these they are told from all others before they are searched for.
    assert!(NAMES.iter().all(|(name, _)| name.starts_with(['.', '_'])));
    assert!(BEGINNINGS.iter().chain(ENDINGS).all(|(part, _)| part.contains(['.', '_', '-'])));
    assert!(COPIES.iter().all(|copy| copy.contains('.') || *copy == "~"));
}

#[test]
fn names_are_counted_like_components() {
    for path in ["/", "/a", "/a/b", "//a//b/", "/a/./b", "a/b", "./a", ".", "..", "/..", "a/../b/.", ""] {
        let path = Path::new(path);
        let is_name = |part: &Component<'_>| matches!(part, Component::Normal(_) | Component::ParentDir);
        let expected: Vec<_> = path.components().enumerate().filter(|(_, part)| is_name(part)).collect();
        let expected: Vec<_> = expected.iter().map(|(at, part)| (*at, part.as_os_str())).collect();
        assert_eq!(names(path).collect::<Vec<_>>(), expected, "{path:?}");
        if path.is_absolute() {
            assert_eq!(depth(path), path.components().count(), "{path:?}");
        }
    }
}

fn judge(path: &str) -> Option<Protection> {
    by_name(Path::new(path), 0)
}

#[test]
fn names_that_make_programs_do_something_are_not_written() {
    for path in [
        ".git/hooks/pre-commit",
        ".git",
        "sub/.git/HEAD",
        ".GIT/hooks/x",
        ".Git",
        ".giT/x",
        ".git./x",
        ".git /x",
        ".git::$INDEX_ALLOCATION/x",
        "git~1/hooks/x",
        "GIT~1",
        ".gitmodules",
        ".gitattributes",
        "a/.gitconfig",
        "HEAD",
        "bare/HEAD",
        ".vscode/tasks.json",
        ".VSCode/settings.json",
        ".idea/workspace.xml",
        ".zed/settings.json",
        "x.code-workspace",
        ".devcontainer/devcontainer.json",
        ".cursor/mcp.json",
        ".claude/settings.json",
        ".claude/settings.local.json",
        ".CLAUDE/x",
        ".codex/config.toml",
        ".gemini/settings.json",
        ".qwen/settings.json",
        ".opencode/opencode.json",
        "opencode.json",
        ".goosehints",
        ".goose/config.yaml",
        ".mcp.json",
        ".conductor/policy.toml",
        "AGENTS.md",
        "docs/CLAUDE.md",
        "gemini.md",
        ".github/workflows/ci.yml",
        ".GitHub/Workflows/ci.yml",
        ".gitlab-ci.yml",
        "Jenkinsfile",
        ".circleci/config.yml",
        ".bashrc",
        ".profile",
        ".zshrc",
        ".cargo/config.toml",
        ".cargo/config",
        ".husky/pre-commit",
        ".pre-commit-config.yaml",
        ".pnpmfile.cjs",
        ".config/fish/config.fish",
        "venv/lib/site.pth",
        ".claude/worktrees/x/.claude/settings.json",
        ".conductor",
        "sitecustomize.py",
        "bare/hooks/post-checkout",
        "x/commondir",
        "x/gitdir",
        "packed-refs",
        ".venv/bin/python",
        "venv/bin/activate",
        "web/node_modules/.bin/tsc",
        ".cargo/bin/x",
        ".sqliterc",
        ".irbrc",
        ".Rprofile",
        ".bundle/config",
        ".rspec",
        ".proverc",
        "crush.json",
        ".crush.json",
        ".crush/x",
        ".crushrules",
        ".trae/rules/x.md",
        ".factory/x",
        ".rules",
        ".lvimrc",
        ".exrc",
        ".githooks/pre-commit",
        ".lefthook.yml",
        ".lefthook/pre-commit/x.sh",
        "lefthook.yml",
        "lefthook-local.yml",
        ".lefthook-local.json",
        "mise.toml",
        ".mise.toml",
        ".mise.local.toml",
        "mise.local.toml",
        ".mise/config.toml",
        "mise/config.toml",
        ".config/mise/config.toml",
        ".github/instructions/x.md",
        ".github/prompts/x.md",
        ".github/agents/x.md",
        ".github/chatmodes/x.md",
        ".appveyor.yml",
        "bunfig.toml",
        ".pnp.cjs",
        "env/bin/python",
        "env/Scripts/activate",
    ] {
        let found = judge(path).map(|found| found.secret);
        assert_eq!(found, Some(false), "{path} is protected, and may be read");
    }
}

#[test]
fn secrets_are_not_even_read() {
    for path in [
        ".env",
        ".ENV",
        ".env.local",
        ".env.production",
        "app/.env",
        ".env~",
        ".env.bak",
        ".env-prod",
        "prod.env",
        ".envrc",
        ".netrc",
        ".npmrc",
        ".pypirc",
        ".git-credentials",
        ".ssh/id_ed25519",
        ".ssh/config",
        ".\u{17f}sh/x",
        "\u{2e}\u{212a}ube/config",
        ".gnupg/x",
        ".aws/credentials",
        ".kube/config",
        ".docker/config.json",
        ".git/config",
        ".GIT/Config",
        "id_rsa",
        "id_rsa.bak",
        "keys/server.pem",
        "server.KEY",
        "a.p12",
        "a.pfx",
        "vault.kdbx",
        "a.jks",
        "credentials.json",
        "secrets.yaml",
        "secrets.prod.yml",
        "secret.json",
        "db.secrets.toml",
        "gcp-credentials.json",
        "terraform.tfstate",
        "prod.tfvars",
        ".bash_history",
        ".mysql_history",
        ".cargo/credentials.toml",
        ".config/gh/hosts.yml",
        ".pgpass",
        ".env:stream",
        ".env.",
        ".config/gcloud/x",
        ".yarnrc",
        ".yarnrc.yml",
        ".credentials.json",
        ".claude/.credentials.json",
        ".codex/auth.json",
        ".gemini/oauth_creds.json",
        "token",
        ".token",
        "token.json",
        ".conductor/token",
        ".kubeconfig",
        "kubeconfig",
        "kube.config",
        ".boto",
        ".s3cfg",
        "rclone.conf",
        ".dev.vars",
        ".flaskenv",
        "deploy/PROD.env",
        "accessKeys.csv",
        "credentials.csv",
        "credentials",
        "app/credentials/x.json",
        "ssh_host_ed25519_key",
        ".mylogin.cnf",
        ".pgpass-2",
        "wp-config.php",
        "wp-config.php.bak",
        "sftp-config.json",
        ".ftpconfig",
        "secrets/db",
        "Secrets",
        ".secrets",
        "secret.key.b64",
        "secrets.tf",
        "privateKey.txt",
        "private_key",
        "my-service-account-1.json",
        "x-firebase-adminsdk-1.json",
        "gcp-key.json",
        "pip.conf",
        "a.ppk",
        "private.asc",
        "cookies.sqlite",
        ".vault-token",
        ".git/config.worktree",
        ".git/modules/a/b/config",
        ".git/worktrees/a/config.worktree",
        "git~1/config",
        "_netrc",
        ".netrc.bak",
        ".npmrc~",
        "id_rsa.old",
        "credentials.json.orig",
        "credentials.json.bak.1",
        "auth.json.save",
        ".token.swp",
        "..npmrc.swp",
        ".credentials.swp",
        "#.netrc#",
        "client_secret.json",
        "client_secret_1.apps.json",
        "gha-creds-0a.json",
        "kubeconfig",
        "kubeconfig2",
        "kubeconfig.prod",
        "prod.tfstate",
        "prod.tfstate.backup",
        "deploy_key",
        "keys/deploy_key.bak",
    ] {
        let found = judge(path).map(|found| found.secret);
        assert_eq!(found, Some(true), "{path} must not even be read");
    }
}

#[test]
fn everyday_names_are_not_protected() {
    for path in [
        "src/main.rs",
        ".gitignore",
        "README.md",
        "Makefile",
        ".env.example",
        ".env.sample",
        ".env.template",
        ".env.production.example",
        ".environment",
        "env",
        "src/env.rs",
        "src/secrets.rs",
        "secrets.py",
        "keyboard.rs",
        "monkey",
        "a.keys",
        "git",
        "github/workflows",
        ".github/ISSUE_TEMPLATE/x.md",
        "head",
        "src/head.rs",
        "components/Head/x.tsx",
        ".claude/worktrees/x/src/main.rs",
        ".config/app/x",
        "agents/x.md",
        "src/token.rs",
        "src/token/lexer.rs",
        "src/secrets/mod.rs",
        "credentials.ts",
        "credentials/index.ts",
        "secret.test.ts",
        "private_key.go",
        "src/hooks/useToken.ts",
        "hooks/README.md",
        "release.asc",
        "main.rs.bak",
        "AGENTS.md.orig",
        "tokenizer.json",
        "venv.md",
        "node_modules/x/index.js",
        "package.json",
        ".editorconfig",
        ".rustfmt.toml",
        ".key",
        "history",
        "a/b/../c",
        "-la",
        "--format=%h",
        "HEAD~1",
        "HEAD/x",
        "mise.md",
        "src/mise/mod.rs",
        "lefthook.rs",
        "src/env/mod.rs",
        "kubeconfig.go",
        "client_secret.md",
        "misery.toml",
    ] {
        assert_eq!(judge(path), None, "{path}");
    }
}

#[test]
fn a_root_may_have_the_name_of_a_file() {
    assert_eq!(by_name(Path::new("/home/ann/secrets.d.json/src/main.rs"), 4), None);
    assert!(by_name(Path::new("/home/ann/work/secrets.json"), 4).is_some());
    assert!(by_name(Path::new("/home/ann/.git/hooks/x"), 4).is_some());
    assert!(by_name(Path::new("/home/ann/.ssh/x"), 4).is_some_and(|found| found.secret));
}

#[test]
fn patterns_are_aimed_at_secrets_or_not() {
    for pattern in [
        ".env",
        ".ENV",
        ".env*",
        ".*",
        ".e?v",
        "id_*",
        "id_[re]*",
        "*.pem",
        "*.env",
        "*.PEM",
        "cred*",
        "*credentials*",
        "secret*",
        "[s]ecrets.yaml",
        "?redentials",
        "*token",
        "i*_rsa",
        "id_rsa",
        "credentials.???",
        "*_history",
        "kube*",
        "*.tfstate",
        "client_secret*.json",
        "deploy_*",
    ] {
        assert!(is_aimed_at_secrets(pattern), "{pattern}");
    }
    for pattern in [
        "",
        "*",
        "**",
        "*.rs",
        "*.json",
        "*.{",
        "*.toml",
        "src",
        "*_test.go",
        "test_*.py",
        "README*",
        "[ab]",
        "?",
        ".github",
    ] {
        assert!(!is_aimed_at_secrets(pattern), "{pattern}");
    }
}
