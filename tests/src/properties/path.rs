//! Paths, on a disk that is full of links.

use std::{
    fs,
    os::{
        fd::{AsRawFd as _, OwnedFd},
        unix::fs::symlink,
    },
    path::{Component, Path, PathBuf},
};

use conductor::{
    policy::{Disk, PathFact, Resolver},
    workspace::Roots,
};
use nix::fcntl::OFlag;
use tempfile::TempDir;

use super::{HERE, imagined};

thread_local! {
    /// Made once, and gone with the thread.
    static WORLD: World = World::new();
}

/// A session's directory `app` with its second root `lib`, and `app-evil` beside them,
/// where nobody has any business.
struct World {
    _directory: TempDir,
    app: PathBuf,
    lib: PathBuf,
    roots: Roots,
}

impl World {
    fn new() -> Self {
        let directory = tempfile::Builder::new().prefix("paths").tempdir().unwrap();
        let above = directory.path().canonicalize().unwrap();
        let [app, lib, evil] = ["app", "lib", "app-evil"].map(|name| above.join(name));
        for directory in [&app.join("src/deep"), &app.join(".git/hooks"), &lib.join("inner"), &evil.join("x")]
        {
            fs::create_dir_all(directory).unwrap();
        }
        for file in
            [app.join("a"), app.join("src/b"), lib.join("c"), evil.join("secret"), app.join(".git/config")]
        {
            fs::write(file, "x").unwrap();
        }
        let links = [
            ("app/out", "../app-evil"),
            ("app/up", ".."),
            ("app/self", "."),
            ("app/loop", "loop"),
            ("app/hop", "src/deep/hop"),
            ("app/src/deep/hop", "../../out/secret"),
            ("app/in", "src/deep"),
            ("app/gone", "nowhere/at/all"),
            ("app/dots", "src/../../app-evil/x"),
            ("app/g", ".git"),
            ("app-evil/back", "../app"),
            ("lib/to-app", "../app/src"),
        ];
        for (link, target) in links {
            symlink(target, above.join(link)).unwrap();
        }
        for (link, target) in
            [("app/abs-in", app.join("src")), ("app/abs-out", evil), ("app/abs-lib", lib.clone())]
        {
            symlink(target, above.join(link)).unwrap();
        }
        let roots = Roots::open(vec![(app.clone(), app.clone()), (lib.clone(), lib.clone())]).unwrap();
        Self { _directory: directory, app, lib, roots }
    }
}

/// A path; `@` at its beginning stands for the session's directory. Where it leads is
/// where the kernel says; what is outside is never said to be inside, and never opened.
pub fn path(data: &[u8]) {
    if let Ok(text) = std::str::from_utf8(data) {
        WORLD.with(|world| leads_where_it_leads(world, text));
    }
}

fn leads_where_it_leads(world: &World, text: &str) {
    let given = match text.strip_prefix('@') {
        Some(rest) => format!("{}{rest}", world.app.display()),
        None => text.to_owned(),
    };
    let disk = Disk::resolved(vec![world.app.clone(), world.lib.clone()], Vec::new(), Default::default());
    let fact = disk.path(&world.app, &given);
    is_sound(&fact, &[&world.app, &world.lib]);
    let judged = fact.resolved.as_deref().filter(|_| fact.trouble.is_none());
    if let (Some(judged), Ok(real)) = (judged, world.app.join(&given).canonicalize()) {
        assert_eq!(judged, real, "{given:?} leads elsewhere");
    }
    for judged in [None, judged] {
        is_inside(world, &given, world.roots.file(&given, judged, OFlag::O_PATH).ok());
    }
    is_inside(world, &given, world.roots.directory(&given).ok());
    is_sound(&imagined().path(Path::new(HERE), text), &[Path::new(HERE)]);
}

/// A root is above where the path leads, component by component.
fn is_sound(fact: &PathFact, roots: &[&Path]) {
    let Some(resolved) = &fact.resolved else {
        assert_eq!(fact.root, None, "{fact:?}");
        return;
    };
    let plain = |part: Component<'_>| matches!(part, Component::RootDir | Component::Normal(_));
    assert!(resolved.is_absolute() && resolved.components().all(plain), "{fact:?}");
    let above =
        roots.iter().filter(|root| resolved.starts_with(root)).max_by_key(|root| root.as_os_str().len());
    assert_eq!(fact.root.as_deref(), above.copied(), "{fact:?}");
}

/// What was opened lies beneath a root.
fn is_inside(world: &World, given: &str, opened: Option<OwnedFd>) {
    let Some(opened) = opened else { return };
    let real = fs::read_link(format!("/proc/self/fd/{}", opened.as_raw_fd())).unwrap();
    assert!(real.starts_with(&world.app) || real.starts_with(&world.lib), "{given:?} opened {real:?}");
}
