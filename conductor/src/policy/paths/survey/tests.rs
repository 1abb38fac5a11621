//! Two looks at a directory, and what they tell.

#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

use std::{
    fs,
    os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink},
};

use nix::unistd::{Uid, setfsuid};

use super::*;

/// A working copy with a little of everything.
fn workspace() -> (tempfile::TempDir, PathBuf) {
    let temp = tempfile::tempdir().unwrap();
    let root = temp.path().canonicalize().unwrap().join("work");
    for (path, text) in [
        (".git/HEAD", "ref: refs/heads/main"),
        (".git/config", "[core]"),
        (".git/hooks/post-update", "#!/bin/sh"),
        (".git/hooks/pre-commit.sample", "#!/bin/sh"),
        (".git/index", "index"),
        (".claude/settings.json", "{}"),
        (".idea/workspace.xml", "<project/>"),
        (".github/dependabot.yml", "version: 2"),
        ("src/main.rs", "fn main() {}"),
    ] {
        put(&root.join(path), text);
    }
    (temp, root)
}

fn put(path: &Path, text: &str) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

fn look(root: &Path) -> Survey {
    Survey::first(&[root.to_path_buf()])
}

/// What a second look tells: paths seen from the root, and what became of them.
fn told(root: &Path, before: &Survey) -> Vec<(String, What)> {
    let changes = before.again().changes_since(before);
    // A glance sees the same, if it was over in a moment.
    if let Some(glance) = before.glance_again() {
        assert_eq!(glance.changes_since(before), changes);
    }
    let name = |path: &Path| path.strip_prefix(root).unwrap_or(path).to_string_lossy().into_owned();
    changes.iter().map(|change| (name(&change.path), change.what)).collect()
}

#[test]
fn nothing_is_told_of_ordinary_work() {
    let (_temp, root) = workspace();
    let before = look(&root);
    assert_eq!(before.partial().count(), 0);
    for path in [
        ".git/index",
        ".git/HEAD",
        ".git/COMMIT_EDITMSG",
        ".git/hooks/pre-commit.sample",
        ".git/logs/HEAD",
        ".git/objects/ab/cdef",
        ".opencode/.gitignore",
        ".git/refs/heads/topic",
        ".idea/workspace.xml",
        ".claude/worktrees/one/src/main.rs",
        ".venv/lib/python3/site.py",
        ".aider.chat.history.md",
        ".github/dependabot.yml",
        "src/main.rs",
    ] {
        put(&root.join(path), "other and longer");
    }
    assert_eq!(told(&root, &before), []);
}

#[test]
fn what_makes_programs_do_something_is_told() {
    let (_temp, root) = workspace();
    let before = look(&root);
    for path in [
        ".git/hooks/pre-commit",
        ".git/config",
        ".git/commondir",
        ".git/info/attributes",
        ".git/modules/libs/one/config",
        ".git/modules/libs/one/HEAD",
        ".vscode/tasks.json",
        ".github/workflows/deep/ci.yml",
        ".gitlab-ci.yml",
        ".mcp.json",
        ".envrc",
        ".husky/_/pre-push",
        ".hg/hgrc",
        "AGENTS.md",
        "node_modules/.bin/tsc",
    ] {
        put(&root.join(path), "other and longer");
    }
    fs::remove_file(root.join(".claude/settings.json")).unwrap();
    let mut expected = vec![
        (".claude/settings.json".to_owned(), What::Removed),
        (".envrc".to_owned(), What::Appeared),
        (".git/commondir".to_owned(), What::Appeared),
        (".git/config".to_owned(), What::Changed),
        (".git/hooks/pre-commit".to_owned(), What::Appeared),
        (".git/info/attributes".to_owned(), What::Appeared),
        (".git/modules/libs/one/config".to_owned(), What::Appeared),
        (".github/workflows/deep/ci.yml".to_owned(), What::Appeared),
        (".gitlab-ci.yml".to_owned(), What::Appeared),
        (".hg/hgrc".to_owned(), What::Appeared),
        (".husky/_/pre-push".to_owned(), What::Appeared),
        (".mcp.json".to_owned(), What::Appeared),
        (".vscode/tasks.json".to_owned(), What::Appeared),
        ("AGENTS.md".to_owned(), What::Appeared),
        ("node_modules/.bin/tsc".to_owned(), What::Appeared),
    ];
    let mut found = told(&root, &before);
    found.sort_by(|one, other| one.0.cmp(&other.0));
    expected.sort_by(|one, other| one.0.cmp(&other.0));
    assert_eq!(found, expected);
}

#[test]
fn what_is_swapped_or_gets_another_mode_is_changed() {
    let (_temp, root) = workspace();
    let before = look(&root);
    fs::rename(root.join(".claude"), root.join("elsewhere")).unwrap();
    symlink(root.join("elsewhere"), root.join(".claude")).unwrap();
    let hooks = root.join(".git/hooks");
    fs::set_permissions(&hooks, fs::Permissions::from_mode(0o777)).unwrap();
    fs::set_permissions(hooks.join("post-update"), fs::Permissions::from_mode(0o755)).unwrap();
    let expected = [".claude", ".git/hooks", ".git/hooks/post-update"];
    assert_eq!(told(&root, &before), expected.map(|path| (path.to_owned(), What::Changed)));
    // What a link leads to is somebody else's.
    let before = look(&root);
    put(&root.join("elsewhere/settings.json"), "other and longer");
    assert_eq!(told(&root, &before), []);
    fs::remove_file(root.join(".claude")).unwrap();
    symlink("/elsewhere", root.join(".claude")).unwrap();
    assert_eq!(told(&root, &before), [(".claude".to_owned(), What::Changed)]);
}

#[test]
fn a_working_copy_has_its_hooks_in_another_repository() {
    let (temp, root) = workspace();
    let copy = temp.path().canonicalize().unwrap().join("copy");
    put(&copy.join(".git"), &format!("gitdir: {}\n", root.join(".git/worktrees/copy").display()));
    put(&root.join(".git/worktrees/copy/HEAD"), "x");
    put(&root.join(".git/worktrees/copy/commondir"), "../..\n");
    put(&copy.join("src/lib.rs"), "");
    let (before, deep) = (look(&copy), look(&copy.join("src")));
    put(&root.join(".git/hooks/pre-commit"), "#!/bin/sh");
    for (root_of, before) in [(&root, &before), (&root, &deep)] {
        assert_eq!(told(root_of, before), [(".git/hooks/pre-commit".to_owned(), What::Appeared)]);
    }
    // Who changes where it is says nothing of what is there.
    let before = look(&copy);
    put(&copy.join(".git"), "gitdir: /etc\n");
    assert_eq!(told(&copy, &before), [(".git".to_owned(), What::Changed)]);
}

#[test]
fn what_is_too_much_is_named_and_hides_nothing_else() {
    let (_temp, root) = workspace();
    let many = root.join(".vscode");
    for number in 0..2 * places::MOST_IN_ONE {
        put(&many.join(number.to_string()), "");
    }
    let before = look(&root);
    assert_eq!(before.partial().collect::<Vec<_>>(), [many.as_path()]);
    assert_eq!(told(&root, &before), [], "names that are missing there mean nothing");
    put(&root.join(".zed/tasks.json"), "");
    assert_eq!(told(&root, &before), [(".zed/tasks.json".to_owned(), What::Appeared)]);
    // The kernel's clock may be coarse: two changes can have the same time.
    let time = || fs::metadata(&many).unwrap().ctime_nsec();
    let then = time();
    while time() == then {
        put(&many.join("one-more"), "");
        fs::remove_file(many.join("one-more")).unwrap();
    }
    let told = told(&root, &before);
    assert!(told.contains(&(".vscode".to_owned(), What::Changed)), "{told:?}");
}

#[test]
fn a_root_that_is_not_there_is_not_looked_at() {
    let gone = PathBuf::from("/nonexistent/work");
    let before = Survey::first(std::slice::from_ref(&gone));
    assert_eq!(before.partial().collect::<Vec<_>>(), [gone.as_path()]);
    let unseen = Survey::unseen(&[gone]);
    assert_eq!(unseen.changes_since(&before), []);
}

#[test]
fn odd_things_are_looked_at_and_not_opened() {
    let (_temp, root) = workspace();
    let before = look(&root);
    nix::unistd::mkfifo(&root.join(".mcp.json"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    symlink(root.join(".claude"), root.join(".claude/loop")).unwrap();
    fs::remove_dir_all(root.join(".git")).unwrap();
    nix::unistd::mkfifo(&root.join(".git"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    let told = told(&root, &before);
    for (path, what) in
        [(".mcp.json", What::Appeared), (".claude/loop", What::Appeared), (".git", What::Changed)]
    {
        assert!(told.contains(&(path.to_owned(), what)), "{path}: {told:?}");
    }
    assert_eq!(before.again().partial().count(), 0, "what is gone was looked at");
    assert_eq!(look(&root).partial().count(), 0);
}

#[test]
fn a_glance_goes_nowhere_that_an_agent_can_name() {
    let (_temp, root) = workspace();
    let roots = [root.clone()];
    let before = look(&root);
    assert_eq!(plain_repositories(&roots), Some(vec![root.join(".git")]));
    put(&root.join(".git/commondir"), "../elsewhere");
    assert_eq!(plain_repositories(&roots), None, "a working copy of another repository");
    fs::rename(root.join(".git"), root.join("git")).unwrap();
    symlink(root.join("git"), root.join(".git")).unwrap();
    assert_eq!(plain_repositories(&roots), None, "a link");
    fs::remove_file(root.join(".git")).unwrap();
    put(&root.join(".git"), "gitdir: git");
    assert_eq!(plain_repositories(&roots), None, "a file that names it");
    assert!(before.glance().is_none());
}

/// A look after which every change shows: nothing was changed just before.
fn calm_look(root: &Path) -> Survey {
    loop {
        let survey = look(root);
        if survey.seen.is_still() {
            return survey;
        }
    }
}

#[test]
fn what_is_as_it_was_is_not_looked_at_again() {
    let (_temp, root) = workspace();
    put(&root.join("node_modules/.bin/tsc"), "");
    put(&root.join(".git/modules/libs/one/HEAD"), "x");
    symlink("settings.json", root.join(".claude/link")).unwrap();
    assert!(!look(&root).seen.is_still(), "what was changed just now may change once more unseen");
    // How long a look takes on a busy machine is not what is tried here.
    let mut before = Survey { is_brief: true, ..calm_look(&root) };
    // Work in places that nobody watches.
    put(&root.join("src/main.rs"), "other and longer");
    put(&root.join(".git/objects/ab/cdef"), "x");
    assert!(Arc::ptr_eq(&before.glance_again().unwrap().seen, &before.seen));
    assert!(Arc::ptr_eq(&before.glance().unwrap().seen, &before.seen));
    type Act = fn(&Path);
    let acts: [(&str, What, Act); 11] = [
        (".git/config", What::Changed, |path| put(path, "[other]")),
        (".git/info/attributes", What::Appeared, |path| put(path, "")),
        (".git/commondir", What::Appeared, |path| put(path, "")),
        (".git/hooks/pre-commit", What::Appeared, |path| put(path, "")),
        (".git/modules/libs/one/config", What::Appeared, |path| put(path, "")),
        (".git/worktrees/two/config", What::Appeared, |path| {
            put(&path.with_file_name("HEAD"), "x");
            put(path, "");
        }),
        (".github/workflows/ci.yml", What::Appeared, |path| put(path, "")),
        (".claude/settings.json", What::Removed, |path| fs::remove_file(path).unwrap()),
        (".claude/link", What::Changed, |path| {
            fs::remove_file(path).unwrap();
            symlink("/elsewhere", path).unwrap();
        }),
        ("node_modules/.bin/tsc", What::Changed, |path| put(path, "other and longer")),
        (".mcp.json", What::Appeared, |path| put(path, "")),
    ];
    for (path, what, act) in acts {
        act(&root.join(path));
        assert!(!before.seen.is_still(), "{path}");
        assert_eq!(told(&root, &before), [(path.to_owned(), what)]);
        before = calm_look(&root);
    }
    fs::rename(&root, root.with_file_name("other")).unwrap();
    assert!(!before.seen.is_still(), "the root is gone");
}

/// Looks with no more rights than the permissions of files give, whoever runs the tests.
fn without_privileges<T: Send>(look: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let looking = scope.spawn(|| {
            // For this thread only; somebody else than root may pass over no permissions.
            setfsuid(Uid::from_raw(65534));
            look()
        });
        looking.join().unwrap()
    })
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

/// An agent may close a directory before anybody has looked, and open it later.
#[test]
fn what_could_not_be_opened_is_named_and_its_opening_told() {
    for (closed, inner) in [
        ("node_modules", "node_modules/.bin/tsc"),
        (".github", ".github/workflows/ci.yml"),
        (".git/modules", ".git/modules/one/config"),
        (".git/modules/one", ".git/modules/one/config"),
        (".git/modules/libs/two", ".git/modules/libs/two/hooks/pre-commit"),
    ] {
        let (temp, root) = workspace();
        set_mode(temp.path(), 0o755);
        put(&root.join(".git/modules/one/HEAD"), "x");
        put(&root.join(".git/modules/libs/two/HEAD"), "x");
        put(&root.join("node_modules/.bin/tsc"), "");
        let directory = root.join(closed);
        let open = without_privileges(|| look(&root));
        set_mode(&directory, 0);
        let before = without_privileges(|| look(&root));
        assert_eq!(before.partial().collect::<Vec<_>>(), [directory.as_path()], "{closed}");
        assert!(!without_privileges(|| before.seen.is_still()), "{closed}");
        assert_eq!(without_privileges(|| told(&root, &before)), [], "{closed} is as it was");
        let change = [(closed.to_owned(), What::Changed)];
        assert_eq!(without_privileges(|| told(&root, &open)), change, "{closed} was closed");
        set_mode(&directory, 0o755);
        put(&root.join(inner), "other and longer");
        assert_eq!(without_privileges(|| told(&root, &before)), change, "{closed} was opened");
    }
}

/// What is no directory has nothing in it, until it is one.
#[test]
fn what_was_no_directory_is_looked_at_once_it_is_one() {
    for (path, inner) in [
        ("node_modules", "node_modules/.bin/tsc"),
        (".git/modules", ".git/modules/one/config"),
        (".git/modules/one", ".git/modules/one/config"),
    ] {
        for is_link in [false, true] {
            let (_temp, root) = workspace();
            let path = root.join(path);
            match is_link {
                false => put(&path, "a file"),
                true => {
                    fs::create_dir_all(path.parent().unwrap()).unwrap();
                    symlink("/nonexistent", &path).unwrap();
                }
            }
            let before = calm_look(&root);
            assert_eq!(before.partial().count(), 0, "{inner}");
            fs::remove_file(&path).unwrap();
            put(&root.join(inner).with_file_name("HEAD"), "x");
            put(&root.join(inner), "");
            assert!(!before.seen.is_still(), "{inner}");
            let told = told(&root, &before);
            assert!(told.contains(&(inner.to_owned(), What::Appeared)), "{inner}: {told:?}");
        }
    }
}
