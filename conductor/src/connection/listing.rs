//! Which sessions an editor has: listed, and hidden once it does not want them
//! any more.

use std::path::PathBuf;

use serde_json::{Value, json};
use uuid::Uuid;

use super::Connection;
use crate::{
    acp::{self, Refusal, SessionEntry, code},
    frame::Frame,
    grants,
    identity::Relation,
    router::{Access, Listed},
};

/// Sessions in one answer to `session/list`.
const PAGE: usize = 50;

/// Why a session cannot be deleted.
const OPEN_ELSEWHERE: &str = "this session is open in another editor; close it there first";

impl Connection {
    pub(super) fn list(&mut self, frame: &Frame) {
        let params: Value = frame.decode(frame.peek().params).unwrap_or_default();
        let cwd = params["cwd"].as_str().map(PathBuf::from);
        let after = match &params["cursor"] {
            Value::Null => None,
            cursor => match cursor.as_str().and_then(|text| Uuid::try_parse(text).ok()) {
                Some(id) => Some(id),
                None => {
                    let text = "the cursor is none of ours; list again from the start";
                    return self.refuse(frame, Refusal::new(code::INVALID_PARAMS, text));
                }
            },
        };
        self.record(frame);
        let Listed { page, has_more } =
            self.hub.router.list(&self.caller, Relation::Seen, cwd.as_deref(), after, PAGE);
        let next = page.last().filter(|_| has_more).map(|(id, ..)| id.simple().to_string());
        let sessions: Vec<SessionEntry> = page
            .into_iter()
            .map(|(id, entry, access)| SessionEntry {
                session_id: id.to_string(),
                cwd: match &self.cwd_map {
                    Some(map) => map.editor_path(&entry.cwd.to_string_lossy()),
                    None => entry.cwd.display().to_string(),
                },
                title: entry.title,
                updated_at: crate::clock::rfc3339(entry.updated),
                meta: (access < Access::Owner)
                    .then(|| json!({ "conductor": { "owner": entry.owner, "as": access.name() } })),
            })
            .collect();
        let mut result = json!({ "sessions": sessions });
        if let Some(next) = next {
            result["nextCursor"] = next.into();
        }
        self.send(acp::result(frame.get(frame.peek().id), result.to_string().as_bytes()));
    }

    pub(super) fn delete(&mut self, frame: &Frame) {
        let id = acp::session_id(frame);
        if let Some(id) = id {
            let own = self.seats.iter().find(|(_, seat)| seat.id == id);
            let (slot, leads) = (own.map(|(slot, _)| *slot), own.is_some_and(|(_, seat)| seat.leads));
            if !self.hub.router.deleted(id, &self.caller, leads) {
                return self.refuse(frame, Refusal::new(code::INVALID_PARAMS, OPEN_ELSEWHERE));
            }
            if let Some(slot) = slot {
                self.dismiss(slot);
            }
            self.take_back_grants(id);
            if self.hub.router.row(id).is_none() {
                self.hub.kept.forget(id);
            }
        }
        self.record(frame);
        let (router, id) = (self.hub.router.clone(), frame.copy(frame.peek().id));
        self.answer_later(id.clone(), async move {
            // Deleting what is not there is fine: the wish is fulfilled.
            if router.is_saved().await {
                return acp::result(&id, b"{}");
            }
            let text = "the session is hidden, but that could not be saved; the service's log says why";
            Refusal::new(code::INTERNAL, text).frame(&id)
        });
    }

    /// What was granted for a session that is no more goes with it.
    fn take_back_grants(&self, session: Uuid) {
        // One that is not the caller's is still there.
        if self.hub.router.row(session).is_some() {
            return;
        }
        for grant in self.hub.grants.session_deleted(session) {
            let reason = "its session was deleted";
            if let Err(why) = grants::record_revoked(&self.hub.journal, &grant, &self.caller.user, reason) {
                tracing::warn!(grant.id = %grant.id, %why, "that a grant has ended is recorded later");
            }
        }
    }
}
