//! What an agent takes that is everybody's: processes, memory, files. Each of these stops by
//! itself long before this host would suffer, whatever contains it.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests fail by panicking")]
#![allow(clippy::zombie_processes, reason = "leaving children behind is the fault to show")]

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Write as _},
    path::PathBuf,
    process::Stdio,
    thread,
    time::{Duration, Instant},
};

use nix::{
    fcntl::{FcntlArg, OFlag, fcntl},
    sys::signal::{SigSet, Signal},
    unistd::{ForkResult, alarm, pause, read, setsid, write},
};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{
    attempt::{Failure, Outcome},
    process::{BOMB, GLUTTON, LEAVES, descendant},
    syscall,
};

/// A bomb makes no more processes than so many, all in all; then they wait. As many that go on
/// trying would leave nobody else on a small host a processor.
const MOST_FORKS: usize = 1_500;

/// Every process of a bomb ends by itself after so many seconds.
const FUSE: u32 = 20;

/// How long a process of a bomb waits that was not let fork, before it tries again.
const AGAIN: Duration = Duration::from_millis(20);

/// Forks without end.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Bomb {
    /// Every process in a session of its own, the first one's parent gone.
    pub detach: bool,
    /// With no environment at all.
    pub clear_env: bool,
}

/// Takes memory and keeps it.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Memory {
    /// So many MiB.
    pub mib: usize,
    /// In so many children, each so much; in the process itself if 0.
    #[serde(default)]
    pub children: usize,
}

/// Writes a file until it is so long.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fill {
    /// The file.
    pub path: PathBuf,
    /// So many MiB.
    pub mib: usize,
}

fn after<E: Into<Failure>>(count: usize) -> impl FnOnce(E) -> Failure {
    move |error| Failure { after: Some(count), ..error.into() }
}

/// Starts a bomb, a descendant; tells its pid.
pub fn bomb(bomb: &Bomb) -> Outcome {
    let mut command = descendant(bomb.detach, bomb.clear_env);
    command.arg(BOMB).stdout(Stdio::null()).stderr(Stdio::null());
    if bomb.detach {
        command.arg(LEAVES);
    }
    Ok(json!(command.spawn()?.id()))
}

/// Lives the life of a bomb. Every process it has forks as fast as it can; what is shared by
/// all is a pipe with as many bytes as there may be processes, each of which takes one.
pub fn explode(leaves: bool) {
    let until = Instant::now() + Duration::from_secs(FUSE.into());
    let (tokens, purse) = io::pipe().unwrap();
    fcntl(&tokens, FcntlArg::F_SETFL(OFlag::O_NONBLOCK)).unwrap();
    write(&purse, &[0; MOST_FORKS]).unwrap();
    alarm::set(FUSE);
    while let Ok(1) = read(&tokens, &mut [0]) {
        match syscall::fork() {
            Ok(ForkResult::Child) => {
                // An alarm is not inherited.
                let left = until.saturating_duration_since(Instant::now()).as_secs();
                alarm::set(u32::try_from(left).unwrap().max(1));
                if leaves {
                    let _ = setsid();
                }
            }
            Ok(ForkResult::Parent { .. }) => {}
            Err(_) => {
                write(&purse, &[0]).unwrap();
                thread::sleep(AGAIN);
            }
        }
    }
    pause();
}

/// Takes memory, a page at a time, in pieces of a MiB.
pub fn take_memory(mib: usize) -> Result<Vec<Vec<u8>>, Failure> {
    let mut taken: Vec<Vec<u8>> = Vec::new();
    for count in 0..mib {
        let mut piece = Vec::new();
        let refused = |_| Failure { error: "ENOMEM".to_owned(), after: Some(count) };
        piece.try_reserve_exact(1 << 20).map_err(refused)?;
        for page in piece.spare_capacity_mut().chunks_mut(4096) {
            page[0].write(1);
        }
        taken.push(piece);
    }
    Ok(taken)
}

/// Takes memory and keeps it.
pub fn memory(memory: &Memory) -> Outcome {
    if memory.children == 0 {
        take_memory(memory.mib)?.leak();
    }
    for count in 0..memory.children {
        let mut child = descendant(false, false);
        child.args([GLUTTON, &memory.mib.to_string()]).stdout(Stdio::null());
        child.spawn().map_err(after(count))?;
    }
    Ok(Value::Null)
}

/// Opens files until there are enough; closes them again.
pub fn open_files(count: usize) -> Outcome {
    let mut open = Vec::new();
    while open.len() < count {
        open.push(File::open("/dev/null").map_err(after(open.len()))?);
    }
    Ok(json!(open.len()))
}

/// Starts threads until there are enough; they stay.
pub fn threads(count: usize) -> Outcome {
    let stay = || loop {
        thread::park();
    };
    for number in 0..count {
        let small = thread::Builder::new().stack_size(64 << 10);
        small.spawn(stay).map_err(after(number))?;
    }
    Ok(json!(count))
}

/// Writes until a file is long enough; tells how long it is otherwise.
pub fn fill(fill: &Fill) -> Outcome {
    // Who is told by a signal that a file is as long as it may be dies of it.
    let mut told = SigSet::empty();
    told.add(Signal::SIGXFSZ);
    told.thread_block().expect("mask");
    let mut file = OpenOptions::new().create(true).append(true).open(&fill.path)?;
    let piece = vec![b'x'; 1 << 20];
    for _ in 0..fill.mib {
        if let Err(error) = file.write_all(&piece) {
            let length = fs::metadata(&fill.path)?.len() >> 20;
            return Err(after(usize::try_from(length).unwrap())(error));
        }
    }
    Ok(Value::Null)
}
