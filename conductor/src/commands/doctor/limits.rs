//! Whether the clock and the limits of this host let the service work.

use std::{
    fs,
    path::Path,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use nix::sys::resource::{Resource, getrlimit};
use serde_json::json;

use super::report::{Check, Verdict};
use crate::{clock, config::Config};

/// No clock that is right was ever before this: 2026-01-01.
const LEAST: Duration = Duration::from_secs(1_767_225_600);

/// What files may be ahead of the clock: file systems round, and clocks are set
/// by small steps.
const AHEAD: Duration = Duration::from_secs(60);

/// Open files of one process: its pipes, its control socket, its terminals.
const FILES_OF_PROCESS: usize = 8;

/// Open files of the service itself: journal, ledger, store, listeners.
const FILES_OF_SERVICE: usize = 256;

/// Looks at both. `holder` is the running service, if there is one.
pub(super) fn check(config: Option<&Config>, state: &Path, holder: Option<u32>) -> Vec<Check> {
    let now = SystemTime::now();
    let time = time(now, newest(state));
    match config {
        Some(config) => vec![time, files(needed(config), open_files(holder))],
        None => vec![time],
    }
}

/// Ids, tokens and certificates live by the clock.
fn time(now: SystemTime, newest: Option<SystemTime>) -> Check {
    let check = |verdict, detail: String| Check::new("host", "clock", verdict, detail);
    let shown = clock::rfc3339(now).unwrap_or_else(|| "a time before 1970".into());
    let remedy = "set it, and let systemd-timesyncd or chrony keep it";
    if now.duration_since(UNIX_EPOCH).unwrap_or_default() < LEAST {
        return check(Verdict::Broken, format!("{shown}, which cannot be")).remedy(remedy);
    }
    let ahead = newest.and_then(|newest| newest.duration_since(now).ok()).unwrap_or_default();
    if ahead > AHEAD {
        let age = clock::age(ahead);
        let detail = format!("{shown}, but the state directory was written {age} later");
        return check(Verdict::Broken, detail).remedy(remedy);
    }
    check(Verdict::Fine, shown)
}

/// When the journal or the store was written last.
fn newest(state: &Path) -> Option<SystemTime> {
    let segments = fs::read_dir(state.join("journal")).into_iter().flatten().filter_map(Result::ok);
    let files = segments.map(|file| file.path()).chain([state.join("store.sqlite")]);
    files.filter_map(|file| fs::metadata(file).and_then(|found| found.modified()).ok()).max()
}

/// Files that may be open at once when everything is in use that may be.
fn needed(config: &Config) -> u64 {
    let agents = config.agents.values().filter(|agent| agent.enabled);
    let most = agents.map(|agent| agent.max).max().unwrap_or_default();
    (config.service.max_connections + most * FILES_OF_PROCESS + FILES_OF_SERVICE) as u64
}

/// How many the service may have open; if none runs, how many we may.
fn open_files(holder: Option<u32>) -> Option<u64> {
    let of = |pid| fs::read_to_string(format!("/proc/{pid}/limits")).ok();
    match holder.and_then(of) {
        Some(limits) => soft_limit(&limits),
        None => getrlimit(Resource::RLIMIT_NOFILE).ok().map(|(soft, _)| soft),
    }
}

/// `Max open files            1024                 4096                 files`
fn soft_limit(limits: &str) -> Option<u64> {
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files"))?;
    match line.split_whitespace().next()? {
        "unlimited" => Some(u64::MAX),
        number => number.parse().ok(),
    }
}

fn files(needed: u64, most: Option<u64>) -> Check {
    let check = |verdict, detail: String| Check::new("host", "open files", verdict, detail);
    let data = json!({ "limit": most, "needed": needed });
    match most {
        None => check(Verdict::Info, "the limit cannot be seen".into()).data(data),
        Some(most) if most >= needed => check(Verdict::Fine, format!("at most {most}")).data(data),
        Some(most) => {
            let detail =
                format!("at most {most}, and {needed} may be needed for all connections and processes");
            let remedy =
                "raise it: LimitNOFILE=65536 in the unit, or ulimit -n 65536 before `conductor serve`";
            check(Verdict::Info, detail).remedy(remedy).data(data)
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests fail by panicking")]
mod tests {
    use super::*;

    #[test]
    fn a_clock_that_is_behind_what_was_written_is_broken() {
        let now = SystemTime::now();
        assert_eq!(time(now, None).verdict, Verdict::Fine);
        assert_eq!(time(now, Some(now + Duration::from_secs(5))).verdict, Verdict::Fine);
        assert_eq!(time(now, Some(now + Duration::from_secs(7200))).verdict, Verdict::Broken);
        assert_eq!(time(UNIX_EPOCH, None).verdict, Verdict::Broken);
    }

    #[test]
    fn limits_are_read_as_the_kernel_writes_them() {
        let limits = "Limit   Soft Limit   Hard Limit   Units\nMax open files   1024   4096   files\n";
        assert_eq!(soft_limit(limits), Some(1024));
        assert_eq!(soft_limit(&limits.replace("1024", "unlimited")), Some(u64::MAX));
        assert_eq!(soft_limit("nonsense"), None);
        assert_eq!(files(100, Some(100)).verdict, Verdict::Fine);
        assert_eq!(files(101, Some(100)).verdict, Verdict::Info);
    }
}
