//! The walk against a real directory, and against whatever text there is.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests fail by panicking")]

use std::{
    fs,
    os::unix::{
        ffi::OsStrExt as _,
        fs::{PermissionsExt as _, symlink},
    },
};

use proptest::prelude::*;
use tempfile::TempDir;

use super::*;

/// A directory with a root `app` in it, its sibling `app-evil`, and links of all sorts.
struct Place {
    _kept: TempDir,
    base: PathBuf,
    disk: Disk,
}

fn place() -> Place {
    let kept = TempDir::new().unwrap();
    let base = kept.path().canonicalize().unwrap();
    let app = base.join("app");
    for directory in ["app/src/deep", "app/.git", "app-evil", "outside/inner", "app/nested"] {
        fs::create_dir_all(base.join(directory)).unwrap();
    }
    for file in ["app/src/main.rs", "app-evil/x", "outside/secret", "outside/inner/y", "app/.git/config"] {
        fs::write(base.join(file), "").unwrap();
    }
    for (target, link) in [
        ("../outside", "app/out"),
        ("../../outside/inner", "app/src/inner"),
        ("src", "app/in"),
        ("main.rs", "app/src/same.rs"),
        ("loop-b", "app/loop-a"),
        ("loop-a", "app/loop-b"),
        ("nowhere/new", "app/dangling"),
        ("../outside/new", "app/dangling-out"),
        (".git", "app/harmless"),
        ("../app/src/main.rs", "outside/back"),
        ("../app", "outside/root"),
        ("/proc/self/root", "app/proc"),
        ("/dev/stdin", "app/stdin"),
        (".env", "app/plain.txt"),
        ("src/main.rs", "app/.env"),
    ] {
        symlink(target, base.join(link)).unwrap();
    }
    symlink(std::ffi::OsStr::from_bytes(b"\xff\xfe"), base.join("app/bytes")).unwrap();
    let disk = Disk::new([&app, &app.join("nested")], Vec::new());
    Place { _kept: kept, base, disk }
}

impl Place {
    fn at(&self, given: &str) -> PathFact {
        self.disk.path(&self.base.join("app"), &given.replace("BASE", self.base.to_str().unwrap()))
    }
}

#[test]
fn paths_lead_where_the_kernel_takes_them() {
    let place = place();
    let app = place.base.join("app");
    for (given, leads, root) in [
        ("src/main.rs", "app/src/main.rs", Some("app")),
        ("BASE/app/src/main.rs", "app/src/main.rs", Some("app")),
        ("./src//deep/../main.rs", "app/src/main.rs", Some("app")),
        (".", "app", Some("app")),
        ("src/", "app/src", Some("app")),
        ("src/new.rs", "app/src/new.rs", Some("app")),
        ("new/deep/er.rs", "app/new/deep/er.rs", Some("app")),
        ("new/", "app/new", Some("app")),
        ("src/same.rs", "app/src/main.rs", Some("app")),
        ("in/main.rs", "app/src/main.rs", Some("app")),
        ("in/../src", "app/src", Some("app")),
        ("dangling", "app/nowhere/new", Some("app")),
        ("nested/x", "app/nested/x", Some("app/nested")),
        ("BASE/outside/root/src/main.rs", "app/src/main.rs", Some("app")),
        ("..", "", None),
        ("../app-evil/x", "app-evil/x", None),
        ("BASE/app-evil/x", "app-evil/x", None),
        ("out/secret", "outside/secret", None),
        ("out", "outside", None),
        ("out/../app-evil/x", "app-evil/x", None),
        // By its text this would be `src/..`.
        ("src/inner/../secret", "outside/secret", None),
        ("src/inner/..", "outside", None),
        ("dangling-out", "outside/new", None),
        ("../../../../../../../../../../etc/passwd", "/etc/passwd", None),
        ("/etc/passwd", "/etc/passwd", None),
        ("/dev/null", "/dev/null", None),
        ("-la", "app/-la", Some("app")),
        ("HEAD~1", "app/HEAD~1", Some("app")),
        ("$id.tsx", "app/$id.tsx", Some("app")),
    ] {
        let fact = place.at(given);
        assert_eq!(fact.trouble, None, "{given}");
        assert_eq!(fact.resolved, Some(flat(&place.base.join(leads))), "{given}");
        assert_eq!(fact.root, root.map(|root| place.base.join(root)), "{given}");
        assert_eq!(fact.protected, None, "{given}");
    }
    let inner = place.disk.path(&app.join("src"), "../src/main.rs");
    assert_eq!(inner.resolved, Some(app.join("src/main.rs")));
    let through = place.disk.path(&app.join("in/deep"), "../main.rs");
    assert_eq!(through.resolved, Some(app.join("src/main.rs")), "also the directory is walked");
}

#[test]
fn what_cannot_be_told_is_trouble() {
    let place = place();
    let long = format!("src/{}", "a/".repeat(3000));
    let long_name = "n".repeat(300);
    for given in [
        "",
        "loop-a",
        "loop-a/x",
        "nope/../src",
        "nope/../../outside",
        "src/main.rs/",
        "src/main.rs/.",
        "src/main.rs/x",
        "src/main.rs/..",
        "a\0b",
        "a\nb",
        "a\u{1b}[0m",
        "proc",
        "proc/etc/passwd",
        "stdin",
        "bytes",
        "/proc/self/root/etc/passwd",
        "/proc/self/cwd/x",
        "/proc/self/fd/0",
        "/proc/1/environ",
        "/proc/thread-self/x",
        "/proc",
        "/dev/fd/0",
        "/dev/stdin",
        "/dev/stdout",
        "/dev/tcp/evil.com/80",
        "/dev/udp/x/1",
        "/dev/sda",
        "~",
        "~/x",
        "~root/x",
        " /etc/passwd",
        "src ",
        "a\\b",
        "$HOME/x",
        "${HOME}/x",
        "file:///etc/passwd",
        "FILE:/etc/passwd",
        "https://docs.rs/",
        "src/../a://b",
        "BASE/outside/back",
        "BASE/outside/root",
        &long,
        &long_name,
    ] {
        let fact = place.at(given);
        assert!(fact.trouble.is_some(), "{given:?} leads to {:?}", fact.resolved);
    }
}

#[test]
fn a_directory_that_may_not_be_entered_is_trouble() {
    use std::fs::Permissions;
    let place = place();
    let shut = place.base.join("app/shut");
    fs::create_dir(&shut).unwrap();
    fs::set_permissions(&shut, Permissions::from_mode(0o000)).unwrap();
    let fact = place.at("shut/x");
    // Whoever may do everything sees that there is nothing.
    let may_look = fs::symlink_metadata(shut.join("x")).is_err_and(|error| error.raw_os_error() == Some(2));
    fs::set_permissions(&shut, Permissions::from_mode(0o700)).unwrap();
    assert_eq!(fact.trouble.is_none(), may_look, "{fact:?}");
}

#[test]
fn a_pipe_is_no_file() {
    let place = place();
    nix::unistd::mkfifo(&place.base.join("app/pipe"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    assert!(place.at("pipe").trouble.is_some());
}

#[test]
fn protection_is_by_what_is_given_and_by_where_it_leads() {
    let place = place();
    for (given, secret) in [
        (".git/hooks/pre-commit", false),
        (".GIT/hooks/pre-commit", false),
        ("harmless/hooks/pre-commit", false),
        ("harmless/config", true),
        (".env", true),
        // Links to and from a protected name.
        ("plain.txt", true),
        ("../outside/.env.local", true),
        (".ssh/../src/main.rs", true),
        ("loop-a/.env", true),
        ("~/.ssh/id_rsa", true),
        ("src/.vscode/tasks.json", false),
    ] {
        let fact = place.at(given);
        assert!(fact.protected.is_some(), "{given}");
        assert_eq!(fact.secret, secret, "{given}");
    }
}

#[test]
fn places_that_hold_what_is_protected() {
    let place = place();
    for (given, holds, is_root) in [
        (".", true, true),
        ("src/..", true, true),
        ("nested", true, true),
        ("BASE/outside/root", true, true),
        (".github", true, false),
        ("src/node_modules/", true, false),
        ("ENV", true, false),
        ("src", false, false),
        ("../outside", false, false),
        ("loop-a", false, false),
    ] {
        let mut fact = PathFact { protected: None, ..place.at(given) };
        assert_eq!(holds_protected(&fact), holds, "{given}");
        protect_all_in(&mut fact);
        assert_eq!(fact.protected.is_some(), is_root, "{given}");
    }
    let is_directory = |path: &str| place.disk.is_directory(&place.base.join(path));
    assert!(is_directory("app/src") && !is_directory("app/src/main.rs"));
    assert!(!is_directory("app/in") && !is_directory("app/new"), "a link, and nothing");
}

#[test]
fn roots_are_resolved_and_those_that_are_not_there_are_left_out() {
    let place = place();
    let disk = Disk::new([place.base.join("outside/root"), place.base.join("nope")], Vec::new());
    assert_eq!(disk.roots, [place.base.join("app")]);
}

#[test]
fn programs_are_found_and_local_ones_told_apart() {
    use std::fs::Permissions;
    let place = place();
    let base = &place.base;
    let program = |path: &str, mode: u32| {
        let path = base.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, "").unwrap();
        fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    };
    program("bin/tool", 0o755);
    program("bin/data", 0o644);
    program("bin/open", 0o757);
    program("other/tool", 0o755);
    program("app/bin/tool", 0o755);
    program("app/bin/mine", 0o755);
    program("shared/any", 0o755);
    fs::set_permissions(base.join("shared"), Permissions::from_mode(0o1777)).unwrap();
    symlink("../app/bin/mine", base.join("bin/linked")).unwrap();
    fs::create_dir(base.join("ways")).unwrap();
    symlink("../app/bin", base.join("ways/in")).unwrap();
    symlink("../app", base.join("ways/app")).unwrap();
    symlink("../app/src", base.join("ways/src")).unwrap();
    symlink("../other/tool", base.join("bin/away")).unwrap();
    symlink("../bin", base.join("app/away")).unwrap();
    let cwd = base.join("app");
    let found = |search: &[&str], name: &str| {
        let in_base = |entry: &&str| {
            entry.strip_prefix('/').map_or_else(|| PathBuf::from(entry), |name| base.join(name))
        };
        let disk = Disk { search: search.iter().map(in_base).collect(), ..place.disk.clone() };
        let (file, is_local) = disk.program(&cwd, &name.replace("BASE", base.to_str().unwrap()));
        (file.map(|file| file.strip_prefix(base).unwrap_or(&file).to_str().unwrap().to_owned()), is_local)
    };
    for (search, name, file, is_local) in [
        (&["/bin"][..], "tool", Some("bin/tool"), false),
        (&["/bin"], "data", None, false),
        (&["/bin"], "nope", None, false),
        (&["/bin"], "open", Some("bin/open"), true),
        (&["/bin"], "linked", Some("app/bin/mine"), true),
        (&["/bin", "/app/bin"], "tool", Some("bin/tool"), false),
        (&["/app/bin", "/bin"], "tool", Some("app/bin/tool"), true),
        // Nothing of this name is there yet, but something may be made there.
        (&["/app/src", "/bin"], "tool", Some("bin/tool"), true),
        (&["/app/none", "/bin"], "tool", Some("bin/tool"), true),
        // A link before it, in it, or a way back up leads to where something may be made.
        (&["/ways/in", "/bin"], "tool", Some("app/bin/tool"), true),
        (&["/ways/app/src", "/bin"], "tool", Some("bin/tool"), true),
        (&["/ways/../app/src", "/bin"], "tool", Some("bin/tool"), true),
        (&["/ways/./", "/bin"], "tool", Some("bin/tool"), false),
        (&["/ways/src/", "/bin"], "tool", Some("bin/tool"), true),
        (&["/ways/src/.", "/bin"], "tool", Some("bin/tool"), true),
        (&["/ways//src", "/bin"], "tool", Some("bin/tool"), true),
        // The link itself may be replaced.
        (&["/app/away"], "tool", Some("bin/tool"), true),
        (&["/outside/inner", "/outside", "/outside/inner", "/bin"], "tool", Some("bin/tool"), false),
        (&["/outside/inner", "/shared", "/shared", "/bin"], "tool", Some("bin/tool"), true),
        (&["", "/bin"], "tool", Some("bin/tool"), true),
        (&[".", "/bin"], "tool", Some("bin/tool"), true),
        (&["bin", "/bin"], "tool", Some("app/bin/tool"), true),
        (&["/shared", "/bin"], "tool", Some("bin/tool"), true),
        (&["/bin", "/shared"], "any", Some("shared/any"), true),
        (&["/bin", "."], "nope", None, true),
        (&["/bin"], "BASE/bin/tool", Some("bin/tool"), false),
        (&["/bin"], "BASE/bin/../bin/tool", Some("bin/tool"), false),
        (&["/bin"], "../bin/tool", Some("bin/tool"), true),
        (&["/bin"], "./bin/tool", Some("app/bin/tool"), true),
        (&["/bin"], "BASE/bin/linked", Some("app/bin/mine"), true),
        (&["/bin"], "BASE/bin/nope", Some("bin/nope"), true),
        // Nobody has said that programs are there.
        (&["/bin"], "BASE/other/tool", Some("other/tool"), true),
        (&["/bin"], "BASE/bin/../other/tool", Some("other/tool"), true),
        (&["/bin"], "BASE/bin/away", Some("other/tool"), false),
        (&["/bin"], "/proc/self/exe", None, true),
        (&["/bin"], "", None, true),
        (&["/bin"], "to\u{0}ol", None, true),
    ] {
        assert_eq!(found(search, name), (file.map(Into::into), is_local), "{search:?} {name:?}");
    }
}

#[test]
fn what_was_absent_is_found_once_it_is_there() {
    use std::fs::Permissions;
    let place = place();
    let base = &place.base;
    let make = |path: &str| {
        fs::create_dir_all(base.join(path).parent().unwrap()).unwrap();
        fs::write(base.join(path), "").unwrap();
        fs::set_permissions(base.join(path), Permissions::from_mode(0o755)).unwrap();
    };
    make("bin/tool");
    fs::create_dir_all(base.join("early")).unwrap();
    let early = base.join("early");
    let search = vec![early.clone(), base.join("bin")];
    let mut absent = Absent::default();
    // As if it had been seen long ago, and has changed since.
    let now = Looks::default().at(&early).unwrap().stamp;
    let then = looks::Stamp { changed: (1, 0), ..now };
    absent.note(&early, then, "tool");
    assert_eq!(absent.of(&early, then, "tool"), Some(true));
    let mut find = |name: &str| {
        let disk = Disk::resolved(Vec::new(), search.clone(), std::mem::take(&mut absent));
        let (file, is_local) = disk.program(base, name);
        absent = disk.into_absent();
        assert!(!is_local, "{name}");
        file.map(|file| file.strip_prefix(base).unwrap().to_str().unwrap().to_owned())
    };
    // Nothing here has been left alone for long enough to be believed.
    for _ in 0..2 {
        assert_eq!(find("tool").as_deref(), Some("bin/tool"));
    }
    make("early/tool");
    assert_eq!(find("tool").as_deref(), Some("early/tool"));
    fs::rename(base.join("early/tool"), base.join("early/other")).unwrap();
    assert_eq!(find("tool").as_deref(), Some("bin/tool"));
    fs::rename(base.join("bin"), base.join("was-bin")).unwrap();
    assert_eq!(find("tool"), None);
    make("bin/tool");
    assert_eq!(find("tool").as_deref(), Some("bin/tool"));
    // The same names in another directory at the same place.
    fs::rename(&early, base.join("was-early")).unwrap();
    make("early/tool");
    assert_eq!(find("tool").as_deref(), Some("early/tool"));
}

#[test]
fn examples_need_no_disk() {
    let imagined = Imagined { roots: vec!["/workspace".into()] };
    let at = |given: &str| imagined.path(Path::new("/workspace"), given);
    let fact = at("src/../a.rs");
    assert_eq!(fact.resolved, Some("/workspace/a.rs".into()));
    assert_eq!(fact.root, Some("/workspace".into()));
    assert_eq!(at("../x").root, None);
    assert_eq!(at("/workspace-evil/x").root, None);
    assert!(at(".env").secret && at(".git/x").protected.is_some());
    assert!(at("/proc/self/x").trouble.is_some() && at("~/x").trouble.is_some() && at("").trouble.is_some());
    assert_eq!(imagined.program(Path::new("/workspace"), "git"), (Some("/usr/bin/git".into()), false));
    assert_eq!(imagined.program(Path::new("/workspace"), "./x"), (Some("/workspace/x".into()), true));
    assert_eq!(imagined.program(Path::new("/workspace"), "/bin/ls"), (Some("/bin/ls".into()), false));
    for elsewhere in
        ["/workspace/x", "/tmp/ls", "/home/ann/bin/git", "/usr/bin/../../tmp/ls", "/usr/bin/x/ls"]
    {
        assert!(imagined.program(Path::new("/workspace"), elsewhere).1, "{elsewhere}");
    }
    assert!(!imagined.program(Path::new("/workspace"), "/opt/tools/bin/x").1);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn no_text_leads_out_of_a_root_unseen(
        names in prop::collection::vec(prop::collection::vec(prop::sample::select(vec![
            "..", ".", "", "src", "out", "in", "inner", "deep", "same.rs", "main.rs", "nested", "app", "app-evil", "outside",
            "root", "back", "dangling", "dangling-out", "loop-a", "new", "proc", "harmless", "secret", "x",
        ]), 0..8), 16),
        any in any::<String>(),
        absolute in any::<bool>(),
    ) {
        let place = place();
        let imagined = Imagined { roots: place.disk.roots.clone() };
        for text in names.iter().map(|names| names.join("/")).chain([any]) {
            let given = if absolute { format!("BASE/{text}") } else { text };
            let fact = place.at(&given);
            imagined.path(&place.base, &given);
            let Some(root) = fact.root else { continue };
            let resolved = fact.resolved.expect("a root is above something");
            prop_assert!(resolved.starts_with(&root));
            // What exists of it is there without links, and the kernel agrees.
            let existing = resolved.ancestors().find(|path| path.symlink_metadata().is_ok()).unwrap();
            prop_assert_eq!(existing.canonicalize().unwrap(), existing);
            let whole = place.base.join("app").join(given.replace("BASE", place.base.to_str().unwrap()));
            if fact.trouble.is_none() && let Ok(real) = whole.canonicalize() {
                prop_assert_eq!(real, resolved);
            }
        }
    }
}
