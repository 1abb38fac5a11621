//! How somebody logs in to the fake agent: in a terminal, with `fake-agent login`, or by
//! `authenticate`. What is kept of it is a file in the home.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "tests fail by panicking; this is a terminal")]

use std::{
    env, fs,
    io::{BufRead as _, IsTerminal as _, Write as _, stdin, stdout},
    path::PathBuf,
    process::exit,
    sync::atomic::{AtomicU64, Ordering},
    thread,
    time::Duration,
};

use serde_json::Value;

/// Whether the program was started in order to log in.
pub fn is_wanted() -> bool {
    env::args().nth(1).is_some_and(|word| word == "login")
}

fn file() -> PathBuf {
    PathBuf::from(env::var_os("HOME").unwrap()).join(".fake-login")
}

/// Whether somebody is logged in.
pub fn is_done() -> bool {
    file().exists()
}

/// Keeps a login.
pub fn keep(how: &str) {
    fs::write(file(), how).unwrap();
}

/// Forgets it.
pub fn forget() {
    let _ = fs::remove_file(file());
}

/// The ways to log in that an account has of its own: those in a file of the home.
pub fn own_methods() -> Option<Value> {
    let text = fs::read(PathBuf::from(env::var_os("HOME")?).join(".fake-methods.json")).ok()?;
    serde_json::from_slice(&text).ok()
}

/// Writes until nobody takes it any more, and is then logged in.
fn flood() {
    static WRITTEN: AtomicU64 = AtomicU64::new(0);
    thread::spawn(|| {
        let line = [b'x'; 1024];
        while stdout().write_all(&line).is_ok() {
            WRITTEN.fetch_add(1, Ordering::Relaxed);
        }
    });
    let mut seen = 0;
    loop {
        thread::sleep(Duration::from_millis(300));
        let written = WRITTEN.load(Ordering::Relaxed);
        if std::mem::replace(&mut seen, written) == written && written > 0 {
            exit(0);
        }
    }
}

/// Asks for a code until the terminal ends; `right` is the right one.
pub fn run() {
    if env::args().nth(2).is_some_and(|word| word == "flood") {
        flood();
    }
    let is_terminal = stdin().is_terminal() && stdout().is_terminal();
    let size = rustix::termios::tcgetwinsize(stdin()).map(|size| (size.ws_col, size.ws_row)).ok();
    println!("terminal {is_terminal} size {size:?} mark {:?}", env::var("LOGIN_MARK").ok());
    print!("code: ");
    stdout().flush().unwrap();
    let mut code = String::new();
    stdin().lock().read_line(&mut code).unwrap();
    if code.trim() != "right" {
        println!("that is not it");
        exit(3);
    }
    keep("terminal");
    println!("welcome");
}
