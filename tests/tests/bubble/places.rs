//! What makes other programs or the next session do something stays as it is (`tests/faults`, row
//! M7 and CVE-2026-25725).

use std::{fs, os::unix::fs::symlink};

use nix::sys::signal::Signal;
use serde_json::json;

use crate::{exists, lines, worlds};

/// Says of each command of a script whether it came to something.
fn tried(commands: &[&str]) -> String {
    commands.iter().map(|command| format!("({command}) 2>&- && echo yes || echo no\n")).collect()
}

#[test]
fn protected_places_cannot_be_changed_and_all_else_can() {
    for world in worlds() {
        fs::create_dir(world.root.join(".idea")).unwrap();
        fs::write(world.root.join(".mcp.json"), "{}").unwrap();
        world.give();
        let before = world.names("");
        let refused = [
            "echo > .git/hooks/pre-commit",
            "echo >> .git/config",
            "rm .git/config",
            "mv .git/config .git/config.old",
            "echo > .git/config.lock && mv .git/config.lock .git/config",
            "echo > .idea/x",
            "mv .idea x",
            "echo >> .mcp.json",
            "rm .mcp.json",
            "echo > .vscode/tasks.json",
            "rmdir .vscode",
            "mv .vscode x",
            "mkdir -p .github/workflows/x",
            "chmod 777 .vscode",
            // What is above must not be swapped for a copy.
            "mv .git x",
            "mv .github x",
            "rm -r .git",
            // Nor can it be uncovered.
            "umount .vscode",
            "umount -l .vscode",
            "mount -o remount,rw,bind .vscode",
            "unshare -Urm umount .vscode",
        ];
        let allowed =
            ["echo > file", "mkdir directory", "echo > .git/index", "echo > .github/CODEOWNERS", "rm file"];
        let script = tried(&refused) + &tried(&allowed);
        let told = world.run(&world.terms(), &script);
        let outcomes = lines(&told);
        let commands: Vec<_> = refused.iter().chain(&allowed).collect();
        assert_eq!(outcomes.len(), commands.len(), "{told}");
        for (at, command) in commands.into_iter().enumerate() {
            let expected = if at < refused.len() { "no" } else { "yes" };
            assert_eq!(outcomes[at], expected, "{command}");
        }
        // What was made to be mounted on is gone; what the command has made is not.
        let mut after = [".github".to_owned(), "directory".to_owned()].to_vec();
        after.extend(before);
        after.sort();
        assert_eq!(world.names(""), after);
        assert_eq!(world.names(".github"), ["CODEOWNERS"]);
        assert_eq!(world.names(".git"), ["config", "hooks", "index"]);
    }
}

#[test]
fn links_are_not_followed_and_told_as_open() {
    for world in worlds() {
        symlink(&world.outside, world.root.join(".vscode")).unwrap();
        symlink("nowhere", world.root.join(".github")).unwrap();
        world.give();
        let mut guarded = world.start(&world.terms(), "cat .vscode/secret 2>&- || echo refused");
        let open = [world.root.join(".vscode"), world.root.join(".github")];
        assert_eq!(guarded.held()["open"], json!(open));
        assert_eq!(guarded.line(), "refused");
        guarded.wait();
        assert!(!exists(&world.root.join("nowhere")));
        assert_eq!(fs::read_dir(&world.outside).unwrap().count(), 1, "nothing is made behind a link");
    }
}

#[test]
fn a_directory_above_the_root_cannot_be_moved_away() {
    for world in worlds() {
        let above = world.root.join("above");
        let root = above.join("deeper/root");
        fs::create_dir_all(&root).unwrap();
        world.give();
        let mut terms = world.terms();
        // The root is within what is writable anyway.
        terms["bubble"]["roots"] = json!([root]);
        let script = tried(&["mv above x", "mv above/deeper x", "mv above/deeper/root x", "mkdir above/x"]);
        assert_eq!(lines(&world.run(&terms, &script)), ["no", "no", "no", "yes"]);
    }
}

#[test]
fn what_is_named_as_writable_is_so() {
    for world in worlds() {
        for directory in [".claude/cache", ".codex", ".gemini"] {
            fs::create_dir_all(world.root.join(directory)).unwrap();
        }
        world.give();
        let mut terms = world.terms();
        let write = ["", ".claude/cache", ".codex"].map(|path| world.root.join(path));
        terms["reach"]["write"] = json!(write);
        let script =
            tried(&["echo > .claude/x", "echo > .gemini/x", "echo > .claude/cache/x", "echo > .codex/x"]);
        assert_eq!(lines(&world.run(&terms, &script)), ["no", "no", "yes", "yes"]);
    }
}

#[test]
fn a_copy_with_its_repository_elsewhere_is_protected_there() {
    for world in worlds() {
        let (repository, copy) = (world.root.join("main/.git"), world.root.join("copy"));
        let own = repository.join("worktrees/copy");
        fs::create_dir_all(&own).unwrap();
        fs::create_dir_all(&copy).unwrap();
        fs::write(copy.join(".git"), format!("gitdir: {}\n", own.display())).unwrap();
        fs::write(own.join("commondir"), "../..\n").unwrap();
        fs::write(repository.join("config"), "[core]\n").unwrap();
        world.give();
        let mut terms = world.terms();
        terms["bubble"]["roots"] = json!([copy]);
        let script = tried(&[
            "echo > copy/.git",
            "rm copy/.git",
            "echo > main/.git/hooks/x",
            "echo > main/.git/config",
            "mv main x",
            "echo > main/.git/index",
            "echo > main/.git/worktrees/copy/index",
        ]);
        assert_eq!(lines(&world.run(&terms, &script)), ["no", "no", "no", "no", "no", "yes", "yes"]);
    }
}

#[test]
fn what_several_need_stays_until_the_last_has_ended() {
    for world in worlds() {
        let before = world.names("");
        let wait_and_try = "read x; (echo > .vscode/x) 2>&- && echo yes || echo no";
        let mut first = world.start(&world.terms(), wait_and_try);
        first.held();
        let mut second = world.start(&world.terms(), wait_and_try);
        second.held();
        drop(first.stdin.take());
        assert_eq!(first.line(), "no");
        first.wait();
        assert!(exists(&world.root.join(".vscode")), "the second one still needs it");
        drop(second.stdin.take());
        assert_eq!(second.line(), "no");
        second.wait();
        assert_eq!(world.names(""), before);
    }
}

#[test]
fn what_a_killed_guard_leaves_is_removed_by_the_next() {
    for world in worlds() {
        let before = world.names("");
        let mut killed = world.start(&world.terms(), "sleep 60");
        killed.held();
        killed.signal(Signal::SIGKILL);
        killed.wait();
        assert!(exists(&world.root.join(".vscode")));
        world.run(&world.terms(), "true");
        assert_eq!(world.names(""), before);
    }
}

/// OpenCode writes that file into its directory wherever there is one, and ends if it cannot.
#[test]
fn what_a_program_writes_at_every_start_is_there_already() {
    for world in worlds() {
        for directory in ["objects", "refs"] {
            fs::create_dir(world.root.join(".git").join(directory)).unwrap();
        }
        fs::write(world.root.join(".git/HEAD"), "ref: refs/heads/main\n").unwrap();
        world.give();
        let before = world.names("");
        let script = tried(&[
            "test -e .opencode/.gitignore",
            "echo > .opencode/x",
            "rm .opencode/.gitignore",
            // Git does not see it either.
            "! command -v git > /dev/null || test -z \"$(git status --porcelain)\"",
        ]);
        let expected = ["yes", "no", "no", "yes"];
        assert_eq!(lines(&world.run(&world.terms(), &script)), expected);
        assert_eq!(world.names(""), before);
        // The same where the directory is somebody's, and where a guard was killed.
        fs::create_dir(world.root.join(".opencode")).unwrap();
        world.give();
        let mut killed = world.start(&world.terms(), "sleep 60");
        killed.held();
        killed.signal(Signal::SIGKILL);
        killed.wait();
        assert_eq!(world.names(".opencode"), [".gitignore"]);
        assert_eq!(lines(&world.run(&world.terms(), &script)), expected);
        assert!(world.names(".opencode").is_empty());
        // One that is there is left alone.
        fs::write(world.root.join(".opencode/.gitignore"), "node_modules\n").unwrap();
        world.give();
        world.run(&world.terms(), "true");
        assert_eq!(fs::read_to_string(world.root.join(".opencode/.gitignore")).unwrap(), "node_modules\n");
    }
}

#[test]
fn what_people_put_there_meanwhile_is_theirs() {
    for world in worlds() {
        let mut guarded = world.start(&world.terms(), "read x; cat .vscode/settings.json");
        guarded.held();
        fs::write(world.root.join(".vscode/settings.json"), "{}").unwrap();
        drop(guarded.stdin.take());
        assert_eq!(guarded.line(), "{}");
        guarded.wait();
        assert_eq!(world.names(".vscode"), ["settings.json"]);
    }
}
