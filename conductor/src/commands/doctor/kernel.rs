//! What the kernel offers for holding agents. None of it keeps the service from
//! starting: what an agent's `sandbox` requires and does not get is told where
//! that agent is looked at. Only `openat2` is needed, as no file of a workspace on
//! this host is opened without it.

use std::fs;

use super::report::{Check, Verdict};
use crate::config::Config;

/// Looks at all of it.
#[cfg(target_os = "linux")]
pub(super) fn check(config: Option<&Config>) -> Vec<Check> {
    let release = read("/proc/sys/kernel/osrelease");
    let version = version(&release);
    vec![
        Check::new("kernel", "linux", Verdict::Fine, if release.is_empty() { "unknown" } else { &release }),
        openat2(try_openat2(), config.is_none_or(has_host_workspaces)),
        since(version, (5, 3), "pidfd", "processes are named without mistaking one for another"),
        landlock(),
        seccomp(),
        cgroup(),
        namespaces(),
    ]
}

/// Elsewhere, agents run without any of it.
#[cfg(not(target_os = "linux"))]
pub(super) fn check(_: Option<&Config>) -> Vec<Check> {
    let detail = "not Linux: agents run without kernel isolation";
    vec![Check::new("kernel", "system", Verdict::Info, detail)]
}

fn read(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default().trim().to_string()
}

fn info(name: &str, able: bool, detail: impl Into<String>) -> Check {
    Check::new("kernel", name, if able { Verdict::Fine } else { Verdict::Info }, detail)
}

fn version(release: &str) -> (u32, u32) {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(|part| part.parse().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
}

fn since(version: (u32, u32), first: (u32, u32), name: &str, what: &str) -> Check {
    let able = version >= first;
    let (major, minor) = first;
    let detail = if able { format!("yes: {what}") } else { format!("no: comes with Linux {major}.{minor}") };
    info(name, able, detail)
}

/// Whether files are opened on this host for any agent.
#[cfg(target_os = "linux")]
fn has_host_workspaces(config: &Config) -> bool {
    use crate::config::Workspace;
    config.agents.values().any(|agent| agent.workspace == Workspace::Host)
}

/// From the root, which everybody may pass: it is the kernel that is asked.
#[cfg(target_os = "linux")]
fn try_openat2() -> nix::Result<()> {
    use nix::{
        fcntl::{OFlag, OpenHow, ResolveFlag, open, openat2},
        sys::stat::Mode,
    };
    let flags = OFlag::O_PATH | OFlag::O_CLOEXEC;
    let root = open("/", flags, Mode::empty())?;
    openat2(root, ".", OpenHow::new().flags(flags).resolve(ResolveFlag::RESOLVE_BENEATH)).map(drop)
}

#[cfg(target_os = "linux")]
fn openat2(tried: nix::Result<()>, is_needed: bool) -> Check {
    match tried {
        Ok(()) => info("openat2", true, "yes: paths are resolved beneath a directory by the kernel"),
        Err(error) if is_needed => {
            let detail = format!("no: {}; no file of a workspace on this host can be opened", error.desc());
            Check::new("kernel", "openat2", Verdict::Broken, detail)
                .remedy("Linux 5.6 or newer, or workspace = \"editor\"")
        }
        Err(error) => info("openat2", false, format!("no: {}", error.desc())),
    }
}

/// The kernel itself says which version of Landlock is switched on.
#[cfg(target_os = "linux")]
fn landlock() -> Check {
    match crate::guard::landlock_version() {
        Some(version @ 6..) => info("landlock", true, format!("yes: version {version}, with ports and signals")),
        Some(version @ 4..) => info("landlock", true, format!("yes: version {version}, with ports; signals come with Linux 6.12")),
        Some(version @ 3..) => info("landlock", true, format!("yes: version {version}; ports come with Linux 6.7, signals with 6.12")),
        Some(version) => info("landlock", false, format!("version {version} cannot keep files from being cut; that comes with Linux 6.2")),
        None => info("landlock", false, "no: it comes with Linux 5.13, and has to be switched on")
            .remedy("boot with `lsm=landlock,…`, or with a kernel that has it; else agents reach every file of this user"),
    }
}

fn seccomp() -> Check {
    let actions = read("/proc/sys/kernel/seccomp/actions_avail");
    if actions.is_empty() {
        return info("seccomp", false, "no: the kernel names no actions");
    }
    let notify = if actions.contains("user_notif") { ", with user notification" } else { "" };
    info("seccomp", true, format!("yes: system calls can be filtered{notify}"))
}

fn cgroup() -> Check {
    let offered = crate::contain::cells::offered();
    if offered.is_empty() {
        return info(
            "cgroup",
            false,
            "no group can be made here: limits are measured, and processes found one by one",
        )
        .remedy("run the service as a systemd unit with Delegate=yes, if the kernel is to hold the limits");
    }
    info("cgroup", true, format!("groups can be made here: {}", offered.join(", ")))
}

fn namespaces() -> Check {
    let most = read("/proc/sys/user/max_user_namespaces");
    if most.is_empty() || most == "0" {
        return info("namespaces", false, "user namespaces are switched off");
    }
    if read("/proc/sys/kernel/unprivileged_userns_clone") == "0" {
        return info("namespaces", false, "user namespaces are for root only (unprivileged_userns_clone)");
    }
    if read("/proc/sys/kernel/apparmor_restrict_unprivileged_userns") == "1" {
        return info("namespaces", false, "user namespaces are restricted by AppArmor");
    }
    info("namespaces", true, "user namespaces are available")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_leniently() {
        assert_eq!(version("6.18.44-fc-v490"), (6, 18));
        assert_eq!(version("5.4"), (5, 4));
        assert_eq!(version(""), (0, 0));
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn a_kernel_that_cannot_open_files_is_broken_where_files_are_opened() {
        let missing = Err(nix::errno::Errno::ENOSYS);
        let needed = openat2(missing, true);
        assert_eq!(needed.verdict, Verdict::Broken);
        assert_eq!(needed.remedy, "Linux 5.6 or newer, or workspace = \"editor\"");
        assert_eq!(openat2(missing, false).verdict, Verdict::Info);
    }

    #[test]
    fn nothing_is_broken_where_this_runs() {
        let checks = check(None);
        assert!(
            !checks.is_empty() && checks.iter().all(|check| check.verdict != Verdict::Broken),
            "{checks:?}"
        );
    }
}
