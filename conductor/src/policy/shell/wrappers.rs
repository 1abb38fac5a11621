//! Programs that start other programs named in their arguments.
//!
//! A few do nothing else, and are opened: what they start is judged in their place. The others do
//! more than their words show, or take more words from elsewhere; they stay, together with a doubt,
//! and what they seem to start is named too, for rules that deny.

/// What a wrapper's words say. Positions count from the program, which is 0.
#[derive(Debug, PartialEq, Eq)]
pub enum Opened {
    /// It is no wrapper.
    Plain,
    /// It starts what stands there and does nothing else.
    Starts(usize),
    /// It gives the line that stands there to a shell.
    Line(usize),
    /// It may start something that cannot be told; it looks as if that stood in these places.
    Opaque(Vec<Guess>),
}

/// What an opaque wrapper seems to start.
#[derive(Debug, PartialEq, Eq)]
pub enum Guess {
    /// The words from the first place up to the second.
    Words(usize, usize),
    /// A line for a shell.
    Line(usize),
}

/// More guesses at one wrapper are not worth their time; it is not allowed anyway.
const MOST_GUESSES: usize = 8;

/// Shells whose language is read here.
const SHELLS: &[&str] = &["ash", "bash", "dash", "ksh", "mksh", "rbash", "sh", "zsh"];

/// Programs that start others in ways that are not followed.
const OPAQUE: &[&str] = &[
    "abduco",
    "at",
    "batch",
    "busybox",
    "bwrap",
    "choom",
    "chpst",
    "chronic",
    "chroot",
    "chrt",
    "cpulimit",
    "crontab",
    "csh",
    "daemonize",
    "dbus-run-session",
    "doas",
    "docker",
    "dtach",
    "elvish",
    "entr",
    "exec",
    "expect",
    "fakeroot",
    "faketime",
    "firejail",
    "fish",
    "flock",
    "gdb",
    "gosu",
    "hyperfine",
    "i386",
    "ifne",
    "ionice",
    "ld.so",
    "linux32",
    "linux64",
    "lldb",
    "ltrace",
    "lxc-attach",
    "mosh",
    "nerdctl",
    "nsenter",
    "nsjail",
    "nu",
    "numactl",
    "parallel",
    "pee",
    "perf",
    "pkexec",
    "podman",
    "prlimit",
    "proot",
    "proxychains",
    "proxychains4",
    "pwsh",
    "retry",
    "rlwrap",
    "rsh",
    "run-parts",
    "runcon",
    "runuser",
    "screen",
    "script",
    "setarch",
    "setpriv",
    "setsid",
    "sg",
    "slogin",
    "socat",
    "softlimit",
    "ssh",
    "ssh-agent",
    "start-stop-daemon",
    "strace",
    "su",
    "sudo",
    "sudoedit",
    "systemd-run",
    "taskset",
    "tcsh",
    "tmux",
    "torify",
    "torsocks",
    "toybox",
    "tsocks",
    "uname26",
    "unbuffer",
    "unshare",
    "valgrind",
    "watch",
    "watchexec",
    "xonsh",
    "xterm",
    "xvfb-run",
    "yash",
    "zellij",
];

/// Looks at a command by its program's name and all its words, the program first.
pub fn open(name: &str, words: &[&str]) -> Opened {
    match name {
        "env" => env(words),
        "timeout" => timeout(words),
        "nice" => nice(words),
        "stdbuf" => stdbuf(words),
        "nohup" | "time" | "builtin" => first(words),
        "command" => match words.get(1) {
            // These only look a name up.
            Some(&"-v" | &"-V") => Opened::Plain,
            _ => first(words),
        },
        "xargs" => Opened::Opaque(xargs(words)),
        "find" => find(words),
        _ if SHELLS.contains(&name) => shell(words),
        // Only this starts nothing.
        "docker" if words.len() == 2 && words[1] == "--version" => Opened::Plain,
        _ if OPAQUE.contains(&name) || name.starts_with("ld-linux") => Opened::Opaque(after_options(words)),
        _ => Opened::Plain,
    }
}

/// A wrapper without options.
fn first(words: &[&str]) -> Opened {
    match words.get(1) {
        Some(word) if !word.starts_with('-') => Opened::Starts(1),
        _ => Opened::Opaque(after_options(words)),
    }
}

/// With a variable set, a program may do anything: `GIT_PAGER`, `LD_PRELOAD`, `PATH`.
fn env(words: &[&str]) -> Opened {
    match words.get(1) {
        None => Opened::Plain,
        Some(word) if !word.starts_with('-') && !word.contains('=') => Opened::Starts(1),
        Some(_) => {
            let is_set = |word: &&str| word.starts_with('-') || word.contains('=');
            let at = 1 + words[1..].iter().take_while(|word| is_set(word)).count();
            Opened::Opaque(guesses(words, at))
        }
    }
}

fn timeout(words: &[&str]) -> Opened {
    let mut at = 1;
    loop {
        match words.get(at) {
            Some(&"--foreground" | &"--preserve-status" | &"-v" | &"--verbose") => at += 1,
            Some(&"-k") if words.get(at + 1).is_some_and(|word| is_duration(word)) => at += 2,
            Some(&"-s") if words.get(at + 1).is_some_and(|word| is_name(word)) => at += 2,
            Some(word) if word.strip_prefix("--kill-after=").is_some_and(is_duration) => at += 1,
            Some(word) if word.strip_prefix("--signal=").is_some_and(is_name) => at += 1,
            Some(word) if is_duration(word) && starts(words, at + 1) => return Opened::Starts(at + 1),
            _ => return Opened::Opaque(after_options(words)),
        }
    }
}

fn nice(words: &[&str]) -> Opened {
    let at = match words.get(1..3) {
        Some(["-n", number]) if is_integer(number) => 3,
        _ => 1,
    };
    match words.len() {
        1 => Opened::Plain,
        _ if starts(words, at) => Opened::Starts(at),
        _ => Opened::Opaque(after_options(words)),
    }
}

fn stdbuf(words: &[&str]) -> Opened {
    let is_mode = |word: &&str| {
        let mode = ["-i", "-o", "-e", "--input=", "--output=", "--error="];
        let mode = mode.iter().find_map(|option| word.strip_prefix(option));
        mode.is_some_and(|mode| mode == "L" || (!mode.is_empty() && mode.bytes().all(|b| b.is_ascii_digit())))
    };
    let at = 1 + words[1..].iter().take_while(|word| is_mode(word)).count();
    if at > 1 && starts(words, at) { Opened::Starts(at) } else { Opened::Opaque(after_options(words)) }
}

/// Only `sh -c LINE`: other options load files or change how the line is read.
fn shell(words: &[&str]) -> Opened {
    match words {
        [_, "-c", _] => Opened::Line(2),
        // Some agents wrap every line so. A login shell reads profiles first, which lie in the home or beneath
        // `/etc`: no session may write there, and names like `.profile` are protected in a workspace, too.
        [program, "-lc", _] if is_usual_shell(program) => Opened::Line(2),
        [_, "--version"] => Opened::Plain,
        _ => {
            // `-lc`, `-ec`, `-o pipefail -c`: a line all the same.
            let has_line =
                |word: &&str| word.starts_with('-') && !word.starts_with("--") && word.ends_with('c');
            let at = words.iter().position(has_line).map(|at| at + 1);
            Opened::Opaque(at.filter(|at| *at < words.len()).map(Guess::Line).into_iter().collect())
        }
    }
}

/// A shell by its bare name or where systems have it.
fn is_usual_shell(program: &str) -> bool {
    let bare = program.strip_prefix("/usr/bin/").or_else(|| program.strip_prefix("/bin/")).unwrap_or(program);
    matches!(bare, "bash" | "sh" | "zsh")
}

fn xargs(words: &[&str]) -> Vec<Guess> {
    let mut at = 1;
    while let Some(word) = words.get(at).filter(|word| word.starts_with('-')) {
        let takes_next = ["-I", "-n", "-L", "-P", "-s", "-d", "-E", "-a"].contains(word);
        at += if takes_next { 2 } else { 1 };
    }
    guesses(words, at)
}

fn find(words: &[&str]) -> Opened {
    let mut guesses = Vec::new();
    for (at, word) in words.iter().enumerate() {
        if guesses.len() == MOST_GUESSES {
            break;
        }
        if matches!(*word, "-exec" | "-execdir" | "-ok" | "-okdir") {
            let length = words[at + 1..].iter().take_while(|word| !matches!(**word, ";" | "+")).count();
            guesses.push(Guess::Words(at + 1, at + 1 + length));
        }
    }
    // To it this ends nothing: it goes on to read its expression.
    let has_dashes = words.iter().skip(1).any(|word| *word == "--");
    if guesses.is_empty() && !has_dashes { Opened::Plain } else { Opened::Opaque(guesses) }
}

/// What becomes of a place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// It is written.
    Written,
    /// It is removed with all that is in it.
    Removed,
    /// Some of what is in it is removed: what has a certain name, or nothing in it.
    Thinned,
}

/// Tests of `find` that people use to leave most alone.
const NARROWING: &[&str] =
    &["-empty", "-iname", "-ipath", "-iregex", "-name", "-path", "-regex", "-wholename"];

/// What `find` would remove or write to, besides what it starts: positions of words; 0 stands for
/// the directory it runs in.
pub fn written_by_find(words: &[&str]) -> Vec<(usize, Fate)> {
    let mut written = Vec::new();
    let has = |tests: &[&str]| words.iter().skip(1).any(|word| tests.contains(word));
    // With one of the others, more may be meant.
    let is_narrow = has(NARROWING) && !has(&["-o", "-or", "!", "-not", ",", "--"]);
    let fate = if is_narrow { Fate::Thinned } else { Fate::Removed };
    for (at, word) in words.iter().enumerate().skip(1) {
        match *word {
            "-fprint" | "-fprint0" | "-fprintf" | "-fls" if at + 1 < words.len() => {
                written.push((at + 1, Fate::Written));
            }
            "-delete" => {
                // Options stand before the roots, `-D` and `-O` with what belongs to them.
                let is_root = |word: &&str| !word.starts_with('-') && !["(", "!", ","].contains(word);
                let options = words[1..].iter().take_while(|word| {
                    matches!(**word, "-H" | "-L" | "-P" | "-D" | "--") || word.starts_with("-O")
                });
                let from = 1 + options.count();
                let roots = words[from..].iter().take_while(|word| is_root(word)).count();
                written.extend((from..from + roots).map(|at| (at, fate)));
                if roots == 0 {
                    written.push((0, fate));
                }
            }
            _ => {}
        }
    }
    written
}

/// The first word that is no option; and the one behind it, since it may be an option's value.
fn after_options(words: &[&str]) -> Vec<Guess> {
    let at = 1 + words.iter().skip(1).take_while(|word| word.starts_with('-')).count();
    let mut found = guesses(words, at);
    if at > 1 {
        found.extend(guesses(words, at + 1));
    }
    found
}

fn guesses(words: &[&str], at: usize) -> Vec<Guess> {
    if at < words.len() { vec![Guess::Words(at, words.len())] } else { Vec::new() }
}

fn starts(words: &[&str], at: usize) -> bool {
    words.get(at).is_some_and(|word| !word.starts_with('-'))
}

fn is_duration(word: &str) -> bool {
    let number = word.strip_suffix(['s', 'm', 'h', 'd']).unwrap_or(word);
    number.starts_with(|c: char| c.is_ascii_digit())
        && number.bytes().all(|b| b.is_ascii_digit() || b == b'.')
}

fn is_integer(word: &str) -> bool {
    let digits = word.strip_prefix('-').unwrap_or(word);
    !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit())
}

fn is_name(word: &str) -> bool {
    !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_alphanumeric())
}
