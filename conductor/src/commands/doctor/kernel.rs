//! What the system offers for keeping agents apart. None of it is needed;
//! it says how much there is for the hardening that uses it.

use std::fs;

use super::report::{Check, Verdict};

/// Looks at all of it.
#[cfg(target_os = "linux")]
pub(super) fn check() -> Vec<Check> {
    let release = read("/proc/sys/kernel/osrelease");
    let version = version(&release);
    vec![
        Check::new("kernel", "linux", Verdict::Fine, if release.is_empty() { "unknown" } else { &release }),
        openat2(),
        since(version, (5, 3), "pidfd", "processes are named without mistaking one for another"),
        landlock(),
        seccomp(),
        cgroup(),
        namespaces(),
    ]
}

/// Elsewhere, agents run without any of it.
#[cfg(not(target_os = "linux"))]
pub(super) fn check() -> Vec<Check> {
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

#[cfg(target_os = "linux")]
fn openat2() -> Check {
    use nix::fcntl::{AT_FDCWD, OFlag, OpenHow, ResolveFlag, openat2};
    let how = OpenHow::new().flags(OFlag::O_PATH).resolve(ResolveFlag::RESOLVE_BENEATH);
    match openat2(AT_FDCWD, ".", how) {
        Ok(_) => info("openat2", true, "yes: paths are resolved beneath a directory by the kernel"),
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
    fn nothing_here_is_ever_broken() {
        let checks = check();
        assert!(
            !checks.is_empty() && checks.iter().all(|check| check.verdict != Verdict::Broken),
            "{checks:?}"
        );
    }
}
