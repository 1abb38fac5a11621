//! Refuses a command the system calls that no agent needs: those that reach into other
//! processes, change what is mounted, load code into the kernel or enter name spaces, where
//! a plain user becomes root over much of the kernel.
//!
//! A list of what is refused, not of what is allowed: agents run compilers, browsers and
//! interpreters, and nobody knows all that these call.

use std::collections::BTreeMap;

use nix::{errno::Errno, libc};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
    TargetArch, apply_filter, sock_filter,
};

use crate::{config::Layer, contain::Held};

/// Refused however they are called.
const REFUSED: &[libc::c_long] = &[
    // Other processes.
    libc::SYS_ptrace,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_kcmp,
    libc::SYS_pidfd_getfd,
    // What is mounted, and name spaces.
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_pivot_root,
    libc::SYS_chroot,
    libc::SYS_move_mount,
    libc::SYS_open_tree,
    libc::SYS_fsopen,
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_fspick,
    libc::SYS_mount_setattr,
    libc::SYS_setns,
    libc::SYS_unshare,
    // Files by number instead of by name.
    libc::SYS_open_by_handle_at,
    // Code in the kernel, and large parts of it that few programs use.
    libc::SYS_bpf,
    libc::SYS_perf_event_open,
    libc::SYS_userfaultfd,
    libc::SYS_io_uring_setup,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_kexec_load,
    // Keys that all processes of a user share.
    libc::SYS_keyctl,
    libc::SYS_add_key,
    libc::SYS_request_key,
    // The whole machine.
    libc::SYS_reboot,
    libc::SYS_swapon,
    libc::SYS_swapoff,
    libc::SYS_acct,
    libc::SYS_quotactl,
    libc::SYS_syslog,
    libc::SYS_settimeofday,
    libc::SYS_clock_settime,
    libc::SYS_clock_adjtime,
    libc::SYS_adjtimex,
    libc::SYS_sethostname,
    libc::SYS_setdomainname,
    libc::SYS_vhangup,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_kexec_file_load,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_iopl,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_ioperm,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_modify_ldt,
];

/// Change how much another process gets; refused unless they name the caller itself. Which
/// argument names it.
const ABOUT_OTHERS: &[(libc::c_long, u8)] = &[
    (libc::SYS_prlimit64, 0),
    (libc::SYS_sched_setscheduler, 0),
    (libc::SYS_sched_setparam, 0),
    (libc::SYS_sched_setattr, 0),
    (libc::SYS_sched_setaffinity, 0),
    (libc::SYS_setpriority, 1),
    (libc::SYS_ioprio_set, 1),
    (libc::SYS_migrate_pages, 0),
    (libc::SYS_move_pages, 0),
];

/// Other ways to a port than those that Landlock holds.
const OTHER_PROTOCOLS: [u64; 3] =
    [libc::IPPROTO_MPTCP as u64, libc::IPPROTO_SCTP as u64, libc::IPPROTO_DCCP as u64];

/// Calls that connect by sending, and the argument that says so.
const SENDING: [(libc::c_long, u8); 3] =
    [(libc::SYS_sendto, 3), (libc::SYS_sendmsg, 2), (libc::SYS_sendmmsg, 3)];

/// Asks of a terminal that type into it, or paste, for somebody else.
const REFUSED_IOCTLS: [u64; 2] = [libc::TIOCSTI, libc::TIOCLINUX];

/// The name spaces that a new process may not get.
const NAME_SPACES: u64 = (libc::CLONE_NEWUSER
    | libc::CLONE_NEWNS
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWNET
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWCGROUP) as u64;

/// Numbers from here on are those of another way to call the same kernel, which the list
/// would not see.
#[cfg(target_arch = "x86_64")]
const X32: u32 = 0x4000_0000;

/// Where the number of the call is in what a filter looks at.
#[cfg(target_arch = "x86_64")]
const NUMBER_AT: u32 = 0;

/// Refuses them to this process from now on, and says what holds. Where ports are limited,
/// so is what would reach one in another way.
pub fn apply(limits_ports: bool, held: &mut Held) {
    match refuse(limits_ports).map_err(|error| error.to_string()).and_then(|()| probe()) {
        Ok(()) => held.has(Layer::Seccomp),
        Err(why) => held.lacks(Layer::Seccomp, why),
    }
}

fn refuse(limits_ports: bool) -> Result<(), Box<dyn std::error::Error>> {
    let arch: TargetArch = std::env::consts::ARCH.try_into()?;
    let with = |action, rules| -> Result<BpfProgram, seccompiler::BackendError> {
        SeccompFilter::new(rules, SeccompAction::Allow, action, arch)?.try_into()
    };
    let errno = |errno: Errno| SeccompAction::Errno(errno as u32);
    let condition = |at, operator, value| SeccompCondition::new(at, SeccompCmpArgLen::Dword, operator, value);
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> = REFUSED.iter().map(|call| (*call, Vec::new())).collect();
    let ioctls = REFUSED_IOCTLS
        .into_iter()
        .map(|request| SeccompRule::new(vec![condition(1, SeccompCmpOp::Eq, request)?]));
    rules.insert(libc::SYS_ioctl, ioctls.collect::<Result<_, _>>()?);
    // One bit of those is enough.
    let spaces = (0..u32::BITS).map(|bit| 1_u64 << bit).filter(|bit| NAME_SPACES & bit != 0);
    let spaces = spaces.map(|bit| SeccompRule::new(vec![condition(0, SeccompCmpOp::MaskedEq(bit), bit)?]));
    rules.insert(libc::SYS_clone, spaces.collect::<Result<_, _>>()?);
    for (call, who) in ABOUT_OTHERS {
        rules.insert(*call, vec![SeccompRule::new(vec![condition(*who, SeccompCmpOp::Ne, 0)?])?]);
    }
    if limits_ports {
        // A socket that listens without a name is given a port.
        rules.insert(libc::SYS_listen, Vec::new());
        let protocols = OTHER_PROTOCOLS
            .into_iter()
            .map(|protocol| SeccompRule::new(vec![condition(2, SeccompCmpOp::Eq, protocol)?]));
        rules.insert(libc::SYS_socket, protocols.collect::<Result<_, _>>()?);
        let fast = libc::MSG_FASTOPEN as u64;
        for (call, flags) in SENDING {
            let rule = SeccompRule::new(vec![condition(flags, SeccompCmpOp::MaskedEq(fast), fast)?])?;
            rules.insert(call, vec![rule]);
        }
        let option = vec![
            condition(1, SeccompCmpOp::Eq, libc::IPPROTO_TCP as u64)?,
            condition(2, SeccompCmpOp::Eq, libc::TCP_FASTOPEN_CONNECT as u64)?,
        ];
        rules.insert(libc::SYS_setsockopt, vec![SeccompRule::new(option)?]);
    }
    let mut refused = with(errno(Errno::EPERM), rules)?;
    #[cfg(target_arch = "x86_64")]
    refused.splice(0..0, not_x32());
    // What the newer call is asked for stands in memory, which a filter cannot read: whoever is
    // told that it is not there uses the older one.
    let newer = with(errno(Errno::ENOSYS), BTreeMap::from([(libc::SYS_clone3, Vec::new())]))?;
    apply_filter(&newer)?;
    apply_filter(&refused)?;
    Ok(())
}

/// Loads the number of the call and refuses it if it is of the other kind.
#[cfg(target_arch = "x86_64")]
fn not_x32() -> [sock_filter; 3] {
    let load = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
    let jump = (libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K) as u16;
    let give = (libc::BPF_RET | libc::BPF_K) as u16;
    let refusal = libc::SECCOMP_RET_ERRNO | Errno::ENOSYS as u32;
    [
        sock_filter { code: load, jt: 0, jf: 0, k: NUMBER_AT },
        sock_filter { code: jump, jt: 0, jf: 1, k: X32 },
        sock_filter { code: give, jt: 0, jf: 0, k: refusal },
    ]
}

/// Tries what must not be possible any more, in a way that harms nobody if it is.
#[allow(unsafe_code, reason = "the call is made as an agent would make it")]
fn probe() -> Result<(), String> {
    // SAFETY: asks for a keyring's own number and reads no memory.
    let done = unsafe { libc::syscall(libc::SYS_keyctl, 0, 0, 0, 0, 0) };
    match Errno::result(done) {
        Err(Errno::EPERM) => Ok(()),
        other => Err(format!("a call that must be refused was not: {other:?}")),
    }
}
