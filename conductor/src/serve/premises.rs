//! What processes are started on, cleared of what a former run has left there.

use std::{collections::BTreeMap, fs, path::Path};

use serde_json::json;
use tracing::{info, warn};
use uuid::Uuid;

use crate::{
    contain::{
        Premises,
        cells::Cells,
        leftovers::{self, Leftover},
    },
    journal::{Class, Journal},
    record::{Stream, StreamKind, note},
    recorder::Recorder,
};

/// Finds what this host offers, ends what is left of a former run, and records that. The
/// state directory has to be locked, and nothing started yet.
pub(super) fn take(state: &Path, journal: &Journal) -> Premises {
    let instance = leftovers::instance(state);
    let cells = Cells::find(&instance);
    let ended = leftovers::end(&instance, &cells);
    if !ended.is_empty() {
        record(&ended, journal);
    }
    let premises = Premises::new(state, cells);
    // Nobody uses what is in there any more; what cannot be removed is not in the way.
    fs::remove_dir_all(premises.temporary()).ok();
    info!(groups = premises.cells.bases().len(), ended = ended.len(), "processes can be started");
    premises
}

/// Writes down what was ended, with each process of an agent that it belonged to.
fn record(ended: &BTreeMap<i32, Leftover>, journal: &Journal) {
    let mut by_process: BTreeMap<Uuid, Vec<serde_json::Value>> = BTreeMap::new();
    for (pid, Leftover { process, command }) in ended {
        warn!(pid, command, "a process of a former run was left over and is ended");
        // What is known by its group alone gets a stream of its own.
        let process = process.unwrap_or_else(Uuid::now_v7);
        by_process.entry(process).or_default().push(json!({ "pid": pid, "command": command }));
    }
    for (id, processes) in by_process {
        let mut recorder = Recorder::new(Some(journal.clone()), Stream { id, kind: StreamKind::Process });
        recorder.note(note::LEFTOVERS_ENDED, &json!({ "processes": processes }));
        recorder.commit(Class::Stop).ok();
    }
}
