//! How near the memory is to its end: that of the control group the service is
//! in, or of the one above it, or of the machine, whichever is nearest.
//!
//! Looked at when a session is to be opened. Sessions that are there need what
//! is left; who opens one more can wait.

use std::{
    fs,
    path::{Path, PathBuf},
};

/// Why no session can be opened now, if more than so much of the memory is in
/// use, in percent.
pub fn short(high: u8) -> Option<String> {
    short_at(Path::new("/"), high)
}

fn short_at(root: &Path, high: u8) -> Option<String> {
    let fullest = places(root).into_iter().max_by_key(Place::percent)?;
    let percent = fullest.percent();
    (percent > u64::from(high)).then(|| {
        format!(
            "the service has no memory to spare ({percent} % of {} is in use, service.memory_high is {high} %); \
             close a session, or try again later",
            fullest.name
        )
    })
}

/// Memory that can run out.
#[derive(Debug, PartialEq, Eq)]
struct Place {
    name: &'static str,
    used: u64,
    most: u64,
}

impl Place {
    fn percent(&self) -> u64 {
        self.used.saturating_mul(100).checked_div(self.most).unwrap_or(100)
    }
}

/// All that can be told of. What cannot be read limits nothing: there may be no
/// control groups here.
fn places(root: &Path) -> Vec<Place> {
    let mut places: Vec<_> = machine(root).into_iter().collect();
    let groups = fs::read_to_string(root.join("proc/self/cgroup")).unwrap_or_default();
    for line in groups.lines() {
        let mut parts = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (parts.next(), parts.next()) else { continue };
        let names = match controllers {
            "" => Names {
                top: "sys/fs/cgroup",
                most: "memory.max",
                used: "memory.current",
                cache: "inactive_file",
            },
            _ if controllers.split(',').any(|name| name == "memory") => Names {
                top: "sys/fs/cgroup/memory",
                most: "memory.limit_in_bytes",
                used: "memory.usage_in_bytes",
                cache: "total_inactive_file",
            },
            _ => continue,
        };
        places.extend(names.groups(root, path));
    }
    places
}

/// The machine's own.
fn machine(root: &Path) -> Option<Place> {
    let text = fs::read_to_string(root.join("proc/meminfo")).ok()?;
    let most = field(&text, "MemTotal:")?;
    let used = most.saturating_sub(field(&text, "MemAvailable:")?);
    Some(Place { name: "the machine's memory", used, most })
}

/// What the files of a control group are called.
struct Names {
    top: &'static str,
    most: &'static str,
    used: &'static str,
    /// What the kernel gives back by itself: files that were read long ago.
    cache: &'static str,
}

impl Names {
    /// A group and all above it, as far as they have a limit.
    fn groups<'a>(&'a self, root: &'a Path, path: &'a str) -> impl Iterator<Item = Place> + 'a {
        let path = PathBuf::from(path.trim_start_matches('/'));
        let above: Vec<PathBuf> = path.ancestors().map(|path| root.join(self.top).join(path)).collect();
        above.into_iter().filter_map(|group| self.group(&group))
    }

    fn group(&self, group: &Path) -> Option<Place> {
        let number = |name| fs::read_to_string(group.join(name)).ok()?.trim().parse::<u64>().ok();
        // No limit is a word, or more than any machine has.
        let most = number(self.most).filter(|most| *most < 1 << 60)?;
        let stat = fs::read_to_string(group.join("memory.stat")).unwrap_or_default();
        let used = number(self.used)?.saturating_sub(field(&stat, self.cache).unwrap_or(0));
        Some(Place { name: "the control group's memory", used, most })
    }
}

/// A number behind a name, whatever its unit.
fn field(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find(|line| line.split_whitespace().next() == Some(name))?;
    line.split_whitespace().nth(1)?.parse().ok()
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests fail by panicking")]
mod tests {
    use super::*;

    fn host(files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (name, text) in files {
            let path = root.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        root
    }

    const MEMINFO: (&str, &str) =
        ("proc/meminfo", "MemTotal: 1000 kB\nMemFree: 10 kB\nMemAvailable: 400 kB\n");

    #[test]
    fn without_groups_the_machine_counts() {
        let root = host(&[MEMINFO]);
        assert_eq!(short_at(root.path(), 60), None);
        let why = short_at(root.path(), 59).unwrap();
        assert!(why.contains("60 % of the machine's memory") && why.contains("service.memory_high"), "{why}");
        assert_eq!(short_at(host(&[]).path(), 0), None, "what cannot be read limits nothing");
    }

    #[test]
    fn the_group_that_is_nearest_to_its_limit_counts() {
        let root = host(&[
            MEMINFO,
            ("proc/self/cgroup", "0::/team.slice/conductor.service\n"),
            ("sys/fs/cgroup/team.slice/memory.max", "1000\n"),
            ("sys/fs/cgroup/team.slice/memory.current", "950\n"),
            ("sys/fs/cgroup/team.slice/memory.stat", "anon 7\ninactive_file 50\n"),
            ("sys/fs/cgroup/team.slice/conductor.service/memory.max", "max\n"),
            ("sys/fs/cgroup/team.slice/conductor.service/memory.current", "950\n"),
        ]);
        assert!(short_at(root.path(), 89).unwrap().contains("90 % of the control group's memory"));
        assert_eq!(short_at(root.path(), 90), None);
    }

    #[test]
    fn older_groups_count_too() {
        let root = host(&[
            MEMINFO,
            ("proc/self/cgroup", "3:cpu,cpuacct:/x\n7:memory:/x\n"),
            ("sys/fs/cgroup/memory/x/memory.limit_in_bytes", "200"),
            ("sys/fs/cgroup/memory/x/memory.usage_in_bytes", "200"),
            ("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712"),
            ("sys/fs/cgroup/memory/memory.usage_in_bytes", "300"),
        ]);
        assert!(short_at(root.path(), 99).unwrap().contains("100 %"));
    }
}
