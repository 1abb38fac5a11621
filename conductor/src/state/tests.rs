//! The state directory, on a real file system.

#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

use std::os::unix::fs::PermissionsExt as _;

use super::*;

fn temporary() -> (tempfile::TempDir, StateDir) {
    let root = tempfile::tempdir().unwrap();
    let dir = StateDir { path: root.path().join("a/state") };
    (root, dir)
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().mode() & 0o7777
}

fn chmod(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

fn resolve(given: Option<&str>, env: &[(&str, &str)]) -> Result<StateDir, StateError> {
    let lookup = |name| env.iter().find(|(key, _)| *key == name).map(|(_, value)| value.into());
    StateDir::resolve(given.map(PathBuf::from), lookup)
}

#[test]
fn the_directory_is_found_in_order() {
    let both = [("XDG_STATE_HOME", "/xdg"), ("HOME", "/home/u")];
    let path = |given, env: &[_]| resolve(given, env).unwrap().path().to_owned();
    assert_eq!(path(Some("/given"), &both), Path::new("/given"));
    assert_eq!(path(None, &both), Path::new("/xdg/conductor"));
    assert_eq!(path(Some(""), &both), Path::new("/xdg/conductor"));
    assert_eq!(path(None, &both[1..]), Path::new("/home/u/.local/state/conductor"));
    // Relative: the flag is meant from here on, the variable is a mistake.
    assert_eq!(path(Some("here"), &both), std::env::current_dir().unwrap().join("here"));
    assert_eq!(
        path(None, &[("XDG_STATE_HOME", "xdg"), ("HOME", "/h")]),
        Path::new("/h/.local/state/conductor")
    );
    let refused = resolve(None, &[("HOME", "")]).unwrap_err().to_string();
    assert!(refused.contains("--state-dir"), "{refused}");
}

#[test]
fn a_service_makes_what_it_needs_and_clients_find_it() {
    let (_root, dir) = temporary();
    let service = dir.open_for_service().unwrap();
    assert_eq!(mode(dir.path()), 0o700);
    assert_eq!(mode(&dir.token_file()), 0o600);
    assert_eq!(service.path(), dir.path());
    assert_eq!(service.token().expose().len(), 2 * TOKEN_BYTES);
    assert_eq!(&dir.read_token().unwrap(), service.token());

    assert!(matches!(dir.read_endpoint(), Err(StateError::NotRunning { .. })));
    service.write_endpoint("http://127.0.0.1:1").unwrap();
    service.write_endpoint("http://127.0.0.1:2").unwrap();
    assert_eq!(mode(&dir.endpoint_file()), 0o600);
    assert_eq!(dir.read_endpoint().unwrap(), "http://127.0.0.1:2");

    drop(service);
    assert!(matches!(dir.read_token(), Err(StateError::NotHeld { .. })), "it is told to no one else");
    let refused = dir.read_endpoint().unwrap_err().to_string();
    assert_eq!(
        refused,
        format!(
            "no conductor is running with the state directory {}; start one with `conductor serve`, \
             or use one on another host after `conductor login --endpoint https://HOST:7420`",
            dir.path().display()
        )
    );
    let mut left: Vec<_> =
        fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    left.sort();
    assert_eq!(left, ["lock", "token"]);
}

#[test]
fn the_token_stays_the_same_and_differs_between_directories() {
    let (_root, dir) = temporary();
    let first = dir.open_for_service().unwrap().token().clone();
    assert_eq!(dir.open_for_service().unwrap().token(), &first);
    let (_other_root, other) = temporary();
    assert_ne!(other.open_for_service().unwrap().token(), &first);
}

#[test]
fn s08_a_second_service_is_told_who_came_first() {
    let (_root, dir) = temporary();
    let service = dir.open_for_service().unwrap();
    service.write_endpoint("http://127.0.0.1:1").unwrap();
    let refused = dir.open_for_service().unwrap_err().to_string();
    assert!(refused.contains(&format!("another conductor (pid {})", process::id())), "{refused}");
    assert_eq!(dir.read_endpoint().unwrap(), "http://127.0.0.1:1");
    // Without a readable pid it is refused all the same.
    fs::write(dir.path().join("lock"), "x").unwrap();
    let refused = dir.open_for_service().unwrap_err().to_string();
    assert!(refused.starts_with("another conductor is running"), "{refused}");
    drop(service);
    dir.open_for_service().unwrap();
}

#[test]
fn what_a_killed_service_left_is_cleared() {
    let (_root, dir) = temporary();
    drop(dir.open_for_service().unwrap());
    fs::write(dir.endpoint_file(), "http://127.0.0.1:1\n").unwrap();
    fs::write(dir.path().join("endpoint.tmp"), "half").unwrap();
    chmod(&dir.path().join("endpoint.tmp"), 0o644);
    let service = dir.open_for_service().unwrap();
    assert!(matches!(dir.read_endpoint(), Err(StateError::NotRunning { .. })));
    service.write_endpoint("http://127.0.0.1:2").unwrap();
    assert_eq!(mode(&dir.endpoint_file()), 0o600);
}

#[test]
fn clients_without_a_directory_are_told_to_start_a_service() {
    let (_root, dir) = temporary();
    assert!(matches!(dir.read_endpoint(), Err(StateError::NotRunning { .. })));
    assert!(matches!(dir.read_token(), Err(StateError::NotRunning { .. })));
    fs::create_dir_all(dir.path()).unwrap();
    fs::write(dir.endpoint_file(), "\n").unwrap();
    assert!(matches!(dir.read_endpoint(), Err(StateError::NotRunning { .. })));
    fs::write(dir.endpoint_file(), b"\xff").unwrap();
    assert!(matches!(dir.read_endpoint(), Err(StateError::Io { .. })));
}

#[test]
fn a_token_known_to_others_is_refused() {
    let (_root, dir) = temporary();
    drop(dir.open_for_service().unwrap());
    for open in [0o604, 0o640, 0o602, 0o620, 0o777] {
        chmod(&dir.token_file(), open);
        for refused in [dir.open_for_service().map(drop), dir.read_token().map(drop)] {
            let refused = refused.unwrap_err().to_string();
            assert!(refused.contains(&format!("mode {open:04o}")), "{refused}");
            assert!(refused.contains("makes a new one"), "{refused}");
        }
    }
    chmod(&dir.token_file(), 0o400);
    let _service = dir.open_for_service().unwrap();
    dir.read_token().unwrap();
}

#[test]
fn clients_do_not_take_each_other_for_a_service() {
    let (_root, dir) = temporary();
    drop(dir.open_for_service().unwrap());
    let looking = File::open(dir.lock_file()).unwrap();
    looking.try_lock_shared().unwrap();
    assert!(!dir.is_held().unwrap());
    // One that looks holds it for a moment, which a service waits for.
    let starting = thread::spawn(move || dir.open_for_service().map(drop));
    drop(looking);
    starting.join().unwrap().unwrap();
}

#[test]
fn a_file_without_a_token_is_refused_and_kept() {
    let (_root, dir) = temporary();
    drop(dir.open_for_service().unwrap());
    for bad in ["", "short\n", &"é".repeat(40), &format!("{} x", "a".repeat(40))] {
        fs::write(dir.token_file(), bad).unwrap();
        assert!(matches!(dir.open_for_service(), Err(StateError::BadToken { .. })), "{bad:?}");
        assert_eq!(fs::read_to_string(dir.token_file()).unwrap(), bad);
    }
    // The way out that the message names.
    fs::remove_file(dir.token_file()).unwrap();
    dir.open_for_service().unwrap();
}

#[test]
fn s07_directories_that_cannot_be_trusted_are_refused() {
    let (_root, dir) = temporary();
    let check = |is_dir, owner, mode| dir.check_directory(is_dir, owner, mode, 1000);
    assert!(check(true, 1000, 0o40700).is_ok());
    assert!(check(true, 1000, 0o40755).is_ok());
    assert!(matches!(check(false, 1000, 0o100_700), Err(StateError::NotADirectory { .. })));
    assert!(matches!(check(true, 1001, 0o40700), Err(StateError::Foreign { owner: 1001, .. })));
    assert!(matches!(check(true, 0, 0o40700), Err(StateError::Foreign { owner: 0, .. })));
    assert!(matches!(check(true, 1000, 0o40720), Err(StateError::Shared { mode: 0o720, .. })));
    assert!(matches!(check(true, 1000, 0o40702), Err(StateError::Shared { mode: 0o702, .. })));
}

#[test]
fn s07_a_shared_directory_or_a_file_in_its_place_is_refused() {
    let (_root, dir) = temporary();
    fs::create_dir_all(dir.path()).unwrap();
    chmod(dir.path(), 0o770);
    let refused = dir.open_for_service().unwrap_err().to_string();
    assert!(refused.contains("mode 0770") && refused.contains("chmod go-w"), "{refused}");
    fs::remove_dir(dir.path()).unwrap();
    fs::write(dir.path(), "").unwrap();
    let refused = dir.open_for_service().unwrap_err().to_string();
    assert!(refused.contains("is not a directory"), "{refused}");
    let beneath = StateDir { path: dir.path().join("deeper") };
    let refused = beneath.open_for_service().unwrap_err().to_string();
    assert!(refused.contains("cannot create the state directory"), "{refused}");
}

#[cfg(target_os = "linux")]
#[test]
fn s07_a_directory_that_cannot_be_written_is_refused() {
    let (root, _) = temporary();
    // Nobody, root included, can create files in here.
    let link = root.path().join("link");
    std::os::unix::fs::symlink("/proc/self/fdinfo", &link).unwrap();
    let refused = StateDir { path: link }.open_for_service().unwrap_err().to_string();
    assert!(refused.contains("cannot write") && refused.contains("permissions"), "{refused}");
}

#[test]
fn tokens_are_compared_whole_and_never_shown() {
    let text = "0123456789abcdef0123456789abcdef";
    let token = Token::parse(&format!("{text}\n")).unwrap();
    assert_eq!(format!("{token:?}"), "Token(…)");
    assert!(token.matches(text.as_bytes()));
    assert!(!token.matches(b""));
    assert!(!token.matches(&text.as_bytes()[..31]));
    assert!(!token.matches(format!("{text}0").as_bytes()));
    assert!(!token.matches(b"1123456789abcdef0123456789abcdef"));
    assert!(!token.matches(b"0123456789abcdef0123456789abcdeF"));
    let (_root, dir) = temporary();
    let service = dir.open_for_service().unwrap();
    assert!(!format!("{service:?}").contains(service.token().expose()));
}
