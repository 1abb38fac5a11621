//! Keeps a command from files, ports and processes that are not its own (Landlock).
//!
//! The kernel only grants: what no rule names is out of reach, and stays so for all that the
//! command starts. An older kernel knows less; what it lacks is said, never assumed.

use std::{fs::File, io};

use landlock::{
    ABI, Access as _, AccessFs, AccessNet, BitFlags, CompatLevel, Compatible as _, LandlockStatus, NetPort,
    Ruleset, RulesetAttr as _, RulesetCreatedAttr as _, RulesetError, RulesetStatus, Scope,
    path_beneath_rules,
};

use nix::libc;

use crate::{
    config::Layer,
    contain::{Files, Held, Terms},
};

/// What is asked for; the crate leaves out what this kernel does not know.
const NEWEST: ABI = ABI::V6;

/// Older kernels let a process truncate files that it cannot open.
const FILES_SINCE: ABI = ABI::V3;

const PORTS_SINCE: ABI = ABI::V4;
const SCOPE_SINCE: ABI = ABI::V6;

/// Shuts this process in, and says what holds.
pub fn apply(terms: &Terms, files: &Files, held: &mut Held) {
    let abi = match restrict(terms, files) {
        Ok(Some(abi)) => abi,
        Ok(None) => return lacks_all(terms, held, "this kernel has no Landlock, or it is not switched on"),
        Err(error) => return lacks_all(terms, held, &format!("Landlock refuses: {error}")),
    };
    let older = |since: &str| format!("this kernel's Landlock is too old; Linux {since} has it");
    match (abi >= FILES_SINCE, probe(terms)) {
        (true, Ok(())) => held.has(Layer::Landlock),
        (false, _) => held.lacks(Layer::Landlock, older("6.2")),
        (true, Err(why)) => held.lacks(Layer::Landlock, why),
    }
    if terms.ports.is_some() {
        match abi >= PORTS_SINCE || is_cut(terms, held) {
            true => held.has(Layer::Network),
            false => held.lacks(Layer::Network, older("6.7")),
        }
    }
    match abi >= SCOPE_SINCE {
        true => held.has(Layer::Scope),
        false => held.lacks(Layer::Scope, older("6.12")),
    }
}

fn lacks_all(terms: &Terms, held: &mut Held, why: &str) {
    held.lacks(Layer::Landlock, why);
    match &terms.ports {
        Some(_) if is_cut(terms, held) => held.has(Layer::Network),
        Some(_) => held.lacks(Layer::Network, why),
        None => {}
    }
    held.lacks(Layer::Scope, why);
}

/// Whether there is no network in the bubble that it is in.
fn is_cut(terms: &Terms, held: &Held) -> bool {
    held.layers.contains(&Layer::Bwrap) && terms.bubble.as_ref().is_some_and(|bubble| bubble.cut_network)
}

/// The version that is in force; `None` for nothing at all.
fn restrict(terms: &Terms, files: &Files) -> Result<Option<ABI>, RulesetError> {
    let mut ruleset = Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(AccessFs::from_all(NEWEST))?
        .scope(Scope::from_all(NEWEST))?;
    if terms.ports.is_some() {
        ruleset = ruleset.handle_access(AccessNet::BindTcp | AccessNet::ConnectTcp)?;
    }
    let read: BitFlags<AccessFs> = AccessFs::from_read(NEWEST);
    // Nothing that is changed there is a device of this host.
    let write = AccessFs::from_all(NEWEST) & !(AccessFs::MakeBlock | AccessFs::MakeChar | AccessFs::IoctlDev);
    let use_device = AccessFs::ReadFile | AccessFs::WriteFile | AccessFs::ReadDir | AccessFs::IoctlDev;
    let mut created = ruleset
        .create()?
        .add_rules(path_beneath_rules(&files.read, read))?
        .add_rules(path_beneath_rules(&files.write, write))?
        .add_rules(path_beneath_rules(&files.devices, use_device))?;
    for port in terms.ports.iter().flatten() {
        created = created.add_rule(NetPort::new(*port, AccessNet::ConnectTcp))?;
    }
    let status = created.restrict_self()?;
    Ok(match (status.ruleset, status.landlock) {
        (RulesetStatus::NotEnforced, _) => None,
        (_, LandlockStatus::Available { effective_abi, .. }) => Some(effective_abi),
        _ => None,
    })
}

/// Tries what must not be possible any more.
fn probe(terms: &Terms) -> Result<(), String> {
    let Some(path) = &terms.probe else { return Ok(()) };
    match File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Ok(()),
        Err(error) => Err(format!("it cannot be tried, since {} cannot be opened: {error}", path.display())),
        Ok(_) => Err(format!("{} can still be opened", path.display())),
    }
}

/// The version that this kernel has switched on, if any.
#[allow(unsafe_code, reason = "the crate tells only whoever shuts itself in")]
pub fn version() -> Option<i32> {
    /// Asks for the version instead of making anything.
    const VERSION: u32 = 1;
    // SAFETY: with this flag the kernel reads no memory.
    let version =
        unsafe { libc::syscall(libc::SYS_landlock_create_ruleset, std::ptr::null::<u8>(), 0_usize, VERSION) };
    i32::try_from(version).ok().filter(|version| *version > 0)
}
