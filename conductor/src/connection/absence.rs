//! What a connection does when its editor goes away without ending it, and when
//! it comes back.

use serde_json::json;

use super::Connection;
use crate::{acp, record::note};

impl Connection {
    /// The editor has been away for a while. Sessions go on, but the turns of
    /// some agents are not wanted without anybody watching.
    pub(super) fn away(&mut self) {
        self.recorder.note(note::DETACHED, &json!({}));
        self.presence.send_replace(false);
        for seat in self.seats.values().filter(|seat| seat.cancels) {
            seat.at.handle().away();
        }
    }

    /// The editor is back, and has missed nothing.
    pub(super) fn resumed(&mut self) {
        self.recorder.note(note::REATTACHED, &json!({}));
        self.presence.send_replace(true);
        if !self.initialized.is_some_and(|able| able.notices) {
            return;
        }
        let open = self.seats.values().filter(|seat| seat.opening.is_none());
        let ids: Vec<String> = open.map(|seat| seat.id.to_string()).collect();
        for id in ids {
            let text = "The connection to the conductor was interrupted. Nothing was lost.";
            self.send(acp::notice(&id, "info", "Reconnected", text));
        }
    }
}
