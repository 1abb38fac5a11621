//! `conductor completions` and `conductor man`.

use std::process::{Command, Stdio};

use crate::service::{finish, run_alone};

/// Every sub-command that people may use.
const COMMANDS: [&str; 9] =
    ["serve", "connect", "prompt", "agents", "policy", "demo-agent", "doctor", "completions", "man"];

fn print(args: &[&str]) -> String {
    let nowhere = tempfile::tempdir().unwrap();
    let done = run_alone(args, nowhere.path());
    assert_eq!((done.code, &*done.stderr), (Some(0), ""), "{args:?}");
    done.stdout
}

/// Gives a program this on stdin, if there is such a program.
fn feed(program: &str, args: &[&str], text: &str) -> Option<String> {
    let mut command = Command::new(program);
    command.args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let done = finish(command.spawn().ok()?, text);
    assert_eq!(done.code, Some(0), "{program}: {}", done.stderr);
    assert_eq!(done.stderr, "", "{program}");
    Some(done.stdout)
}

#[test]
fn every_shell_completes_every_command_and_none_the_guard() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = print(&["completions", shell]);
        for command in COMMANDS {
            assert!(script.contains(command), "{shell}: {command}");
        }
        assert!(script.contains("--session") || script.contains("-l session"), "{shell}");
        assert!(!script.contains("guard"), "{shell}");
        if ["bash", "zsh", "fish"].contains(&shell) {
            feed(shell, &["-n"], &script);
        }
    }
}

#[test]
fn bash_offers_what_fits() {
    let script = print(&["completions", "bash"]);
    let ask = "\nCOMP_WORDS=(conductor doctor --a); COMP_CWORD=2; _conductor conductor --a doctor; echo \"${COMPREPLY[@]}\"\n";
    if let Some(offered) = feed("bash", &["--norc"], &(script + ask)) {
        assert_eq!(offered, "--agent\n");
    }
}

#[test]
fn the_page_names_every_command_but_not_the_guard() {
    let page = print(&["man"]);
    assert!(page.contains(".TH conductor 1"), "{page}");
    for command in COMMANDS {
        assert!(
            page.contains(&format!("conductor\\-{}(1)", command.replace('-', "\\-"))),
            "{command}: {page}"
        );
    }
    assert!(!page.contains("guard"), "{page}");
    // Also what only a sub-command reads.
    assert!(page.contains("CONDUCTOR_STATE_DIR") && page.contains("RUST_LOG"), "{page}");
    // Not every machine can typeset it.
    if let Some(read) = feed("groff", &["-man", "-Tutf8", "-ww"], &page) {
        assert!(read.contains("conductor-doctor(1)"), "{read}");
    }
}

#[test]
fn all_pages_are_written_into_a_directory() {
    let directory = tempfile::tempdir().unwrap();
    let pages = directory.path().join("share/man1");
    assert_eq!(print(&["man", "--dir", pages.to_str().unwrap()]), "");
    let mut names: Vec<_> = std::fs::read_dir(&pages)
        .unwrap()
        .map(|file| file.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    for command in COMMANDS {
        assert!(names.contains(&format!("conductor-{command}.1")), "{command}: {names:?}");
    }
    assert!(names.contains(&"conductor.1".to_string()) && !names.iter().any(|name| name.contains("guard")));
    let page = |name: &str| std::fs::read_to_string(pages.join(name)).unwrap();
    let prompt = page("conductor-prompt.1");
    assert!(prompt.contains("\\-\\-state\\-dir"), "flags for every command are on every page: {prompt}");
    assert!(prompt.contains(".SH ENVIRONMENT\n") && prompt.contains("CONDUCTOR_ENDPOINT"), "{prompt}");
    assert!(prompt.contains(".SH NOTES\n") && page("conductor-completions.1").contains(".SH EXAMPLES\n"));
    for name in &names {
        assert!(!page(name).contains("EXTRA"), "{name}");
    }
}

#[test]
fn a_directory_that_cannot_be_written_is_named() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("file");
    std::fs::write(&file, "").unwrap();
    let done = run_alone(&["man", "--dir", file.to_str().unwrap()], directory.path());
    assert_eq!(done.code, Some(1));
    assert!(done.stderr.contains(file.to_str().unwrap()) && done.stderr.contains("--dir"), "{done:?}");
    let done = run_alone(&["completions", "tcsh"], directory.path());
    assert_eq!(done.code, Some(2));
    assert!(done.stderr.contains("bash"), "says which there are: {done:?}");
}
