//! System calls that no agent needs, and those that reach for other processes. They are made
//! raw: a library would refuse some of them before the kernel can.
#![allow(unsafe_code, reason = "what is tried here has no safe form, on purpose")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests fail by panicking")]

use std::{os::fd::AsRawFd as _, ptr, thread};

use nix::{
    errno::Errno,
    libc::{self, c_long},
    sys::wait::{WaitStatus, waitpid},
    unistd::ForkResult,
};
use rustix::process::{PidfdFlags, PidfdGetfdFlags, Resource, Rlimit, pidfd_getfd, pidfd_open, prlimit};
use serde_json::{Value, json};

use super::attempt::Outcome;

/// An address where nothing is.
const NOWHERE: c_long = 1;

/// What makes a number one of the x32 calls, which filters for x86-64 tend to forget.
#[cfg(target_arch = "x86_64")]
const X32: c_long = 0x4000_0000;

/// Bits of an ioctl's number that the kernel does not look at, and a filter might.
const IGNORED: c_long = 1 << 32;

/// A system call with arguments by which nothing comes of it.
#[derive(Debug)]
pub struct Call {
    /// Its name in scripts.
    pub name: &'static str,
    /// Whether somebody without rights who is not contained gets past the question of
    /// rights, so that the error tells a filter from the lack of one.
    pub is_telling: bool,
    number: c_long,
    args: [c_long; 5],
}

const fn call(name: &'static str, is_telling: bool, number: c_long, args: [c_long; 5]) -> Call {
    Call { name, is_telling, number, args }
}

const TIOCSTI: c_long = libc::TIOCSTI as c_long;
const NEW_USER: c_long = libc::CLONE_NEWUSER as c_long;
const CHILD: c_long = libc::SIGCHLD as c_long;

/// Calls that no agent needs.
pub const CALLS: &[Call] = &[
    // File systems, the old way and the new one.
    call("mount", true, libc::SYS_mount, [NOWHERE, NOWHERE, NOWHERE, 0, 0]),
    call("umount2", true, libc::SYS_umount2, [NOWHERE, 0, 0, 0, 0]),
    call("pivot_root", false, libc::SYS_pivot_root, [NOWHERE, NOWHERE, 0, 0, 0]),
    call("chroot", true, libc::SYS_chroot, [NOWHERE, 0, 0, 0, 0]),
    call("fsopen", false, libc::SYS_fsopen, [NOWHERE, 0, 0, 0, 0]),
    call("open_tree", false, libc::SYS_open_tree, [-1, NOWHERE, 1, 0, 0]),
    call("move_mount", false, libc::SYS_move_mount, [-1, NOWHERE, -1, NOWHERE, 0]),
    call("open_by_handle_at", false, libc::SYS_open_by_handle_at, [-1, NOWHERE, 0, 0, 0]),
    // Namespaces, in which one is root.
    call("unshare_user", false, libc::SYS_unshare, [NEW_USER, 0, 0, 0, 0]),
    call("clone_user", false, libc::SYS_clone, [NEW_USER | CHILD, 0, 0, 0, 0]),
    call("setns", true, libc::SYS_setns, [-1, 0, 0, 0, 0]),
    // Keys that the user has in the kernel.
    call("keyctl", true, libc::SYS_keyctl, [0, -4, 0, 0, 0]),
    call("add_key", true, libc::SYS_add_key, [NOWHERE, NOWHERE, 0, 0, -4]),
    call("request_key", true, libc::SYS_request_key, [NOWHERE, NOWHERE, 0, 0, 0]),
    // Where the holes of kernels tend to be.
    call("bpf", true, libc::SYS_bpf, [0, NOWHERE, 8, 0, 0]),
    call("userfaultfd", false, libc::SYS_userfaultfd, [1, 0, 0, 0, 0]),
    call("perf_event_open", false, libc::SYS_perf_event_open, [NOWHERE, 0, -1, -1, 0]),
    call("io_uring_setup", false, libc::SYS_io_uring_setup, [1, NOWHERE, 0, 0, 0]),
    // The whole host.
    call("kexec_load", false, libc::SYS_kexec_load, [0, 0, 0, 0, 0]),
    call("init_module", false, libc::SYS_init_module, [NOWHERE, 0, NOWHERE, 0, 0]),
    call("reboot", false, libc::SYS_reboot, [0, 0, 0, 0, 0]),
    call("swapon", false, libc::SYS_swapon, [NOWHERE, 0, 0, 0, 0]),
    call("acct", false, libc::SYS_acct, [NOWHERE, 0, 0, 0, 0]),
    // Words put into the terminal of whoever started us.
    call("tiocsti", true, libc::SYS_ioctl, [0, TIOCSTI, NOWHERE, 0, 0]),
    call("tiocsti_in_disguise", true, libc::SYS_ioctl, [0, TIOCSTI | IGNORED, NOWHERE, 0, 0]),
    // The same under other numbers.
    #[cfg(target_arch = "x86_64")]
    call("mount_x32", false, libc::SYS_mount | X32, [NOWHERE, NOWHERE, NOWHERE, 0, 0]),
    #[cfg(target_arch = "x86_64")]
    call(MOUNT_I386, true, 21, [NOWHERE, NOWHERE, NOWHERE, 0, 0]),
];

/// Made as a 32-bit program would.
#[cfg(target_arch = "x86_64")]
const MOUNT_I386: &str = "mount_i386";

/// Makes a call, in a child: some of them change whoever makes them, and some filters end them.
pub fn call_by_name(name: &str) -> Outcome {
    let call = CALLS.iter().find(|call| call.name == name).unwrap_or_else(|| panic!("no call is {name}"));
    match fork().map_err(|errno| format!("fork: {errno:?}"))? {
        ForkResult::Child => {
            let errno = match call.make() {
                Ok(_) => 0,
                Err(errno) => errno as i32,
            };
            // SAFETY: ends this process, without a look at what it shares with the agent.
            unsafe { libc::_exit(errno) }
        }
        ForkResult::Parent { child } => match waitpid(child, None)? {
            WaitStatus::Exited(_, 0) => Ok(Value::Null),
            WaitStatus::Exited(_, errno) => Err(Errno::from_raw(errno).into()),
            WaitStatus::Signaled(_, signal, _) => Err(signal.as_str().to_owned().into()),
            other => panic!("{other:?}"),
        },
    }
}

impl Call {
    fn make(&self) -> nix::Result<c_long> {
        let [a, b, c, d, e] = self.args;
        #[cfg(target_arch = "x86_64")]
        if self.name == MOUNT_I386 {
            return make_i386(self.number, self.args);
        }
        // SAFETY: no argument is an address of ours, and this process ends at once.
        Errno::result(unsafe { libc::syscall(self.number, a, b, c, d, e, 0) })
    }
}

/// Makes a call by the door of 32-bit programs, which has numbers of its own.
#[cfg(target_arch = "x86_64")]
fn make_i386(number: c_long, [a, b, c, d, e]: [c_long; 5]) -> nix::Result<c_long> {
    let result: c_long;
    // SAFETY: no argument is an address of ours, and `rbx`, which no operand may be, is put back.
    unsafe {
        std::arch::asm!(
            "xchg rbx, {first}",
            "int 0x80",
            "xchg rbx, {first}",
            first = inout(reg) a => _,
            inlateout("rax") number => result,
            in("rcx") b,
            in("rdx") c,
            in("rsi") d,
            in("rdi") e,
            lateout("r8") _, lateout("r9") _, lateout("r10") _, lateout("r11") _,
        );
    }
    let result = i64::from(result as i32);
    if result < 0 { Err(Errno::from_raw(i32::try_from(-result).unwrap())) } else { Ok(result) }
}

/// Forks. A child of a process with threads may do little more than end.
pub fn fork() -> nix::Result<ForkResult> {
    // SAFETY: the children here have one thread, or make one call and end.
    unsafe { nix::unistd::fork() }
}

/// Sends a signal, if there is one with this number; 0 only asks whether it could be sent.
pub fn kill(pid: i32, signal: i32) -> Outcome {
    // SAFETY: takes two numbers.
    Errno::result(unsafe { libc::kill(pid, signal) })?;
    Ok(Value::Null)
}

fn other(pid: i32) -> rustix::process::Pid {
    rustix::process::Pid::from_raw(pid).expect("a pid")
}

/// Sends a signal by a descriptor of the process.
pub fn kill_by_descriptor(pid: i32, signal: i32) -> Outcome {
    let process = pidfd_open(other(pid), PidfdFlags::empty())?;
    let process = c_long::from(process.as_raw_fd());
    let args = (c_long::from(signal), ptr::null::<libc::siginfo_t>());
    // SAFETY: without a siginfo the kernel makes one.
    Errno::result(unsafe { libc::syscall(libc::SYS_pidfd_send_signal, process, args.0, args.1, 0) })?;
    Ok(Value::Null)
}

/// Attaches to a process and lets go of it. That is for the thread that has attached, so it is
/// one of its own, whose end is the end of it.
pub fn trace(pid: i32, how: libc::c_uint) -> Outcome {
    let attach = move || -> nix::Result<()> {
        let nothing = ptr::null_mut::<libc::c_void>();
        // SAFETY: attaching takes no addresses.
        Errno::result(unsafe { libc::ptrace(how, pid, nothing, nothing) })?;
        if how == libc::PTRACE_ATTACH {
            let mut status = 0;
            // SAFETY: `status` is a valid place for the answer; it is stopped, so it can be let go.
            Errno::result(unsafe { libc::waitpid(pid, &mut status, libc::__WALL) })?;
            Errno::result(unsafe { libc::ptrace(libc::PTRACE_DETACH, pid, nothing, nothing) })?;
        }
        Ok(())
    };
    thread::spawn(attach).join().unwrap()?;
    Ok(Value::Null)
}

/// Reads the memory of a process where there is none.
pub fn read_memory(pid: i32) -> Outcome {
    let mut place = [0_u8; 8];
    let here = libc::iovec { iov_base: place.as_mut_ptr().cast(), iov_len: place.len() };
    let there = libc::iovec { iov_base: ptr::without_provenance_mut(8), iov_len: place.len() };
    // SAFETY: `here` is as long as it says; `there` is the other's.
    let count = Errno::result(unsafe { libc::process_vm_readv(pid, &here, 1, &there, 1, 0) })?;
    Ok(json!(count))
}

/// Takes the first descriptor of a process.
pub fn take_descriptor(pid: i32) -> Outcome {
    let process = pidfd_open(other(pid), PidfdFlags::empty())?;
    pidfd_getfd(&process, 0, PidfdGetfdFlags::empty())?;
    Ok(Value::Null)
}

/// Lets a process open no more files.
pub fn limit_other(pid: i32) -> Outcome {
    prlimit(Some(other(pid)), Resource::Nofile, Rlimit { current: Some(0), maximum: Some(0) })?;
    Ok(Value::Null)
}

/// Ways to have a process of the same user wait for others.
pub const DELAYS: &[&str] = &["priority", "scheduler", "attributes", "affinity", "io_priority"];

/// Has a process run late, or only when nothing else wants to.
pub fn slow_other(pid: i32, how: &str) -> Outcome {
    /// The first version of what the kernel takes as attributes: `SCHED_IDLE`, and nothing else.
    const ATTRIBUTES: [u32; 12] = [48, libc::SCHED_IDLE.cast_unsigned(), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    const OF_A_PROCESS: c_long = 1;
    /// The class of those that wait for everybody else's disk.
    const IDLE: c_long = 3 << 13;
    let last = libc::sched_param { sched_priority: 0 };
    let first_processor = 1_u64;
    // SAFETY: every address is that of a value as large as the call expects.
    let result = unsafe {
        match how {
            "priority" => c_long::from(libc::setpriority(libc::PRIO_PROCESS, pid.cast_unsigned(), 19)),
            "scheduler" => libc::syscall(libc::SYS_sched_setscheduler, pid, libc::SCHED_IDLE, &last),
            "attributes" => libc::syscall(libc::SYS_sched_setattr, pid, &ATTRIBUTES, 0),
            "affinity" => libc::syscall(libc::SYS_sched_setaffinity, pid, 8, &first_processor),
            "io_priority" => libc::syscall(libc::SYS_ioprio_set, OF_A_PROCESS, pid, IDLE),
            other => panic!("nobody is slowed by {other}"),
        }
    };
    Errno::result(result)?;
    Ok(Value::Null)
}

/// What the kernel has of Landlock: the version of its interface, 0 if none.
pub fn landlock() -> u32 {
    const VERSION: c_long = 1;
    // SAFETY: with this flag nothing is read and nothing is made.
    let version = unsafe { libc::syscall(libc::SYS_landlock_create_ruleset, 0, 0, VERSION) };
    u32::try_from(version).unwrap_or(0)
}
