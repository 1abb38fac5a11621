//! What holds a process of an agent, whatever it does: which files it can reach, how much
//! of the machine it may have, and how all of it is ended.
//!
//! The policy decides what an agent asks; what it does not ask, only the kernel can keep it
//! from. The conductor says here what shall hold ([`Terms`]), the guard makes it so between
//! fork and exec and says what it achieved ([`Held`]), and that is recorded and shown. What
//! is not achieved is never assumed.
//!
//! - [`reach`] is which files an agent needs.
//! - [`bubble`] is what it cannot change even there.
//! - [`cells`] are control groups, where this host lets us make some.
//! - [`leftovers`] are processes of a former run.

pub mod bubble;
pub mod cells;
pub mod leftovers;
pub mod reach;

use std::{
    fs, io,
    os::unix::fs::DirBuilderExt as _,
    path::{Path, PathBuf},
    sync::Arc,
};

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use self::{
    bubble::Bubble,
    cells::{Cell, Cells},
};
use crate::config::{self, Layer, Network, Sandbox};

/// Tells the processes of an agent from all others: the service they belong to and our id of
/// the process.
pub const TAG: &str = "CONDUCTOR_PROCESS";

/// What the guard is told.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Terms {
    /// What is asked for.
    pub layers: Vec<Layer>,
    /// All of that has to hold, or the command is not started.
    pub is_required: bool,
    /// What it can reach; `None` for everything.
    pub reach: Option<Files>,
    /// TCP ports that it may connect to; `None` for all.
    pub ports: Option<Vec<u16>>,
    /// System calls that no agent needs are refused.
    pub seccomp: bool,
    /// Name spaces of its own.
    pub bubble: Option<Bubble>,
    /// Something that must be out of reach then.
    pub probe: Option<PathBuf>,
    /// How much it may have.
    pub limits: Limits,
    /// The control groups that it is to be in.
    pub cell: cells::Places,
}

/// Files and directories, with all beneath them.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Files {
    /// May be read and run.
    pub read: Vec<PathBuf>,
    /// May be changed, too.
    pub write: Vec<PathBuf>,
    /// Devices that may be used in every way, with nothing beneath them to be made.
    pub devices: Vec<PathBuf>,
}

/// How much a command may have, with all that it starts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// Bytes of memory.
    pub memory: Option<u64>,
    /// Processes and threads.
    pub processes: Option<u64>,
    /// Files that one process may have open.
    pub open_files: Option<u64>,
    /// The longest file, in bytes.
    pub file_size: Option<u64>,
    /// How much it steps back behind others; only where no control group weighs it.
    pub nice: i32,
}

/// What the guard achieved.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Held {
    /// What holds.
    pub layers: Vec<Layer>,
    /// What was asked for and does not hold, each with the reason.
    pub missing: Vec<Missing>,
    /// Protected places that no layer holds, such as links: they can be replaced.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub open: Vec<PathBuf>,
}

/// A layer that does not hold.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Missing {
    /// Which.
    pub layer: Layer,
    /// Why, in words.
    pub why: String,
}

impl Held {
    /// A layer holds.
    pub fn has(&mut self, layer: Layer) {
        self.layers.push(layer);
    }

    /// A layer does not hold.
    pub fn lacks(&mut self, layer: Layer, why: impl Into<String>) {
        self.missing.push(Missing { layer, why: why.into() });
    }

    /// Whether it is known if a layer holds.
    pub fn knows(&self, layer: Layer) -> bool {
        self.layers.contains(&layer) || self.missing.iter().any(|missing| missing.layer == layer)
    }

    /// The first of these layers that does not hold, in words.
    pub fn refusal(&self, required: &[Layer]) -> Option<String> {
        let Missing { layer, why } = self.missing.iter().find(|missing| required.contains(&missing.layer))?;
        let name = layer.name();
        Some(format!(
            "its sandbox is required, and the layer \"{name}\" does not hold: {why}; mend that, leave the layer out of \
             sandbox_layers, or set sandbox = \"preferred\""
        ))
    }
}

/// How a process is held, for those who look at it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Shown {
    /// What was wished for.
    pub mode: &'static str,
    /// What holds.
    pub layers: Vec<Layer>,
    /// What does not.
    pub missing: Vec<Missing>,
    /// Protected places that can be replaced all the same.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub open: Vec<PathBuf>,
}

impl Shown {
    /// In a few words.
    pub fn summary(&self) -> String {
        let names = |layers: &mut dyn Iterator<Item = Layer>| -> String {
            layers.map(Layer::name).collect::<Vec<_>>().join(", ")
        };
        let mut text = match self.mode {
            "off" if self.layers.is_empty() => return "off".into(),
            _ if self.layers.is_empty() => "none".to_owned(),
            _ => names(&mut self.layers.iter().copied()),
        };
        if !self.missing.is_empty() {
            text.push_str("; without ");
            text.push_str(&names(&mut self.missing.iter().map(|missing| missing.layer)));
        }
        text
    }
}

/// What every process of this service is started on: where homes are, and by what the
/// service's processes are known and held.
#[derive(Debug, Clone)]
pub struct Premises {
    /// The state directory, which no agent may reach.
    pub state: PathBuf,
    /// By which the service's processes are known.
    pub instance: Arc<str>,
    /// Control groups can be made there.
    pub cells: Cells,
}

impl Premises {
    /// Those of a service with this state directory.
    pub fn new(state: &Path, cells: Cells) -> Self {
        let instance = leftovers::instance(state).into();
        Self { state: state.to_path_buf(), instance, cells }
    }

    /// Where homes of agents are.
    pub fn homes(&self) -> PathBuf {
        self.state.join("homes")
    }

    /// Where temporary files of agents are.
    pub fn temporary(&self) -> PathBuf {
        self.state.join("tmp")
    }
}

/// What is to hold a process of an agent, before it has a number.
#[derive(Debug, Clone)]
pub struct Containment {
    premises: Premises,
    mode: Sandbox,
    terms: Terms,
    weight: u64,
}

impl Containment {
    /// As the configuration says.
    pub fn new(premises: &Premises, agent: &config::Agent, needs: &reach::Needs<'_>) -> Self {
        let mode = reach::mode(agent, needs.profile);
        let bounds = &agent.limits;
        let limits = Limits {
            memory: bounds.memory.of(cells::host_memory()),
            processes: Some(bounds.processes as u64),
            open_files: Some(bounds.open_files as u64),
            file_size: bounds.file_size.of(u64::MAX),
            nice: 0,
        };
        let mut terms = Terms { limits, ..Terms::default() };
        if mode != Sandbox::Off {
            terms.reach = Some(reach::files(&premises.state, agent, needs));
            terms.ports = match &agent.reach.network {
                Network::Open => None,
                Network::Agent => {
                    Some(needs.profile.map(|profile| profile.ports.to_vec()).unwrap_or_default())
                }
                Network::Ports(ports) => Some(ports.clone()),
            };
            if agent.sandbox_layers.contains(&Layer::Bwrap) {
                let cut_network = terms.ports.as_ref().is_some_and(Vec::is_empty);
                terms.bubble = Some(Bubble::new(needs.roots, cut_network));
            }
            terms.seccomp = true;
            terms.probe = Some(premises.state.clone());
            terms.layers.clone_from(&agent.sandbox_layers);
            if terms.ports.is_some() && !terms.layers.contains(&Layer::Network) {
                terms.layers.push(Layer::Network);
            }
            terms.is_required = mode == Sandbox::Required;
        }
        Self { premises: premises.clone(), mode, terms, weight: bounds.cpu_weight as u64 }
    }

    /// Makes ready what one process is held by.
    pub fn container(&self, id: Uuid) -> io::Result<Container> {
        let mut terms = self.terms.clone();
        let temporary = self.terms.reach.as_ref().map(|_| self.premises.temporary().join(id.to_string()));
        if let (Some(temporary), Some(reach)) = (&temporary, &mut terms.reach) {
            fs::DirBuilder::new().recursive(true).mode(0o700).create(temporary)?;
            reach.write.push(temporary.clone());
        }
        let cell = self.premises.cells.make(id, &terms.limits, self.weight);
        terms.limits.nice = cell.nice(self.weight);
        terms.cell = cell.places().clone();
        let tag = format!("{}:{id}", self.premises.instance);
        Ok(Container { mode: self.mode, terms, tag, temporary, _cell: Arc::new(cell) })
    }
}

/// What holds one process, and the commands that it has us run.
#[derive(Debug, Clone)]
pub struct Container {
    mode: Sandbox,
    /// For the guard.
    pub terms: Terms,
    /// What [`TAG`] is set to.
    pub tag: String,
    /// A directory for temporary files of its own.
    pub temporary: Option<PathBuf>,
    // Removed with the last one who knows it.
    _cell: Arc<Cell>,
}

impl Container {
    /// How it is held, given what was achieved.
    pub fn shown(&self, held: &Held) -> Shown {
        let Held { layers, missing, open } = held.clone();
        Shown { mode: self.mode.name(), layers, missing, open }
    }

    /// The variables that tell a process of it.
    pub fn variables(&self) -> impl Iterator<Item = (std::ffi::OsString, std::ffi::OsString)> {
        let temporary = self.temporary.iter().map(|path| ("TMPDIR".into(), path.into()));
        temporary.chain([(TAG.into(), self.tag.clone().into())])
    }

    /// Takes the temporary files away. What an agent left there may take long to remove.
    pub fn clear(&self) {
        if let Some(temporary) = &self.temporary {
            // What cannot be removed now is at the next start.
            fs::remove_dir_all(temporary).ok();
        }
    }
}
