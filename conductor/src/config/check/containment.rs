//! What shuts an agent in, and what it is limited to.

use super::{Agent, Checker, ConfigError};
use crate::config::{Amount, Layer, Network};

/// With less than this no agent starts; what is meant is probably another unit.
const LEAST_MEMORY: u64 = 32 << 20;

/// Processes and threads: a program on Node has a dozen threads by itself.
const LEAST_PROCESSES: usize = 16;

/// Files: the same program has some twenty open.
const LEAST_FILES: usize = 64;

/// The kernel takes no other weight.
const MOST_WEIGHT: usize = 10_000;

impl Checker<'_> {
    pub(super) fn containment(&self, name: &str, agent: &mut Agent) -> Result<(), ConfigError> {
        let reach = |key| ["agents", name, "reach", key];
        let limits = |key| ["agents", name, "limits", key];
        self.paths(&reach("read"), &mut agent.reach.read)?;
        self.paths(&reach("write"), &mut agent.reach.write)?;
        for (key, value, least) in [
            ("processes", agent.limits.processes, LEAST_PROCESSES),
            ("cpu_weight", agent.limits.cpu_weight, 1),
            ("open_files", agent.limits.open_files, LEAST_FILES),
        ] {
            self.count(&limits(key), value, 1)?;
            if value < least {
                let what = format!("{key} = {value} is less than any agent needs");
                return Err(self.origins.refuse(&limits(key), what, format!("write {least} or more")));
            }
        }
        if agent.limits.cpu_weight > MOST_WEIGHT {
            let what = format!("cpu_weight = {} is too large", agent.limits.cpu_weight);
            return Err(self.origins.refuse(
                &limits("cpu_weight"),
                what,
                format!("write at most {MOST_WEIGHT}"),
            ));
        }
        if let Amount::Bytes(bytes) = agent.limits.memory
            && bytes < LEAST_MEMORY
        {
            let what = format!("{} KiB of memory are less than any agent needs", bytes >> 10);
            return Err(self.origins.refuse(&limits("memory"), what, "write \"32MiB\" or more"));
        }
        if matches!(agent.limits.file_size, Amount::Percent(_)) {
            let what = "a file's size is no part of anything";
            let hint = "write a size, as in \"16GiB\", or \"none\"";
            return Err(self.origins.refuse(&limits("file_size"), what.to_owned(), hint));
        }
        if agent.reach.network == Network::Open && agent.sandbox_layers.contains(&Layer::Network) {
            return Err(self.origins.refuse(
                &["agents", name, "sandbox_layers"],
                "the layer \"network\" is required, and every port is open".to_owned(),
                format!("name the ports in agents.{name}.reach.network, or leave the layer out"),
            ));
        }
        Ok(())
    }
}
