//! Who plays: for every role somebody with tokens in every state, and somebody
//! else, whose sessions they have something to do with, or nothing.

use std::path::PathBuf;

use conductor_tests::{
    editor::Editor,
    harness::{Service, poll_until, service},
    people::Person,
};
use serde_json::{Value, json};
use uuid::Uuid;

/// The roles, by their names.
pub const ROLES: [&str; 4] = ["developer", "approver", "auditor", "admin"];

/// What a caller has to do with the session that a call names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bond {
    Own,
    Drives,
    Watches,
    Stranger,
    NoSuch,
}

pub const BONDS: [Bond; 5] = [Bond::Own, Bond::Drives, Bond::Watches, Bond::Stranger, Bond::NoSuch];

/// The state of the token that a caller presents.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pass {
    Valid,
    Missing,
    Unknown,
    Expired,
    Revoked,
}

pub const PASSES: [Pass; 5] = [Pass::Valid, Pass::Missing, Pass::Unknown, Pass::Expired, Pass::Revoked];

/// Somebody with a role.
pub struct Player {
    pub role: &'static str,
    valid: Person,
    expired: Person,
    revoked: Person,
    own: String,
    driven: String,
    watched: String,
}

impl Player {
    /// What they present.
    pub fn presents(&self, pass: Pass) -> Option<Person> {
        match pass {
            Pass::Valid => Some(self.valid.clone()),
            Pass::Missing => None,
            Pass::Unknown => Some(Person { token: format!("cdt_{}", "0".repeat(64)), id: String::new() }),
            Pass::Expired => Some(self.expired.clone()),
            Pass::Revoked => Some(self.revoked.clone()),
        }
    }
}

/// Everybody, and the service.
pub struct Cast {
    /// Goes before the service does.
    _olga: Editor,
    pub service: Service,
    pub players: Vec<Player>,
    /// The session that is shared with nobody; it is open all the time.
    pub hidden: String,
    /// A directory whose name nobody shall read who may not see that session.
    pub secret: &'static str,
}

impl Cast {
    pub fn new() -> Self {
        let service = service(&json!({})).set("service.bad_tokens_per_minute", 1_000_000).start();
        let olga = Person::named(&service, "olga");
        let secret = "plans-of-olga";
        std::fs::create_dir(service.work().join(secret)).unwrap();
        let mut editor = olga.editor(&service);
        let hidden = editor.new_session(&service.work().join(secret));
        editor.turn(&hidden, "hello");
        let players = ROLES.map(|role| player(&service, &olga, &mut editor, role)).into();
        let cast = Self { _olga: editor, service, players, hidden, secret };
        cast.await_expiry();
        cast
    }

    /// The session that a player has this to do with.
    pub fn session(&self, player: &Player, bond: Bond) -> String {
        match bond {
            Bond::Own => player.own.clone(),
            Bond::Drives => player.driven.clone(),
            Bond::Watches => player.watched.clone(),
            Bond::Stranger => self.hidden.clone(),
            Bond::NoSuch => Uuid::now_v7().to_string(),
        }
    }

    pub fn work(&self) -> PathBuf {
        self.service.work()
    }

    /// Waits until the tokens whose time is short are over.
    fn await_expiry(&self) {
        let states = || {
            let listed: Value =
                serde_json::from_slice(&self.service.run(&["token", "ls", "--json"]).stdout).unwrap();
            let listed = listed["tokens"].as_array().unwrap().clone();
            listed.iter().filter(|token| token["state"] == "expired").count()
        };
        assert!(poll_until(std::time::Duration::from_secs(30), || states() == ROLES.len()));
    }
}

fn player(service: &Service, olga: &Person, editor: &mut Editor, role: &'static str) -> Player {
    let user = format!("the-{role}");
    let token = |args: &[&str]| Person::new(service, &[&["--user", &user, "--role", role], args].concat());
    let revoked = token(&[]);
    assert!(service.run(&["token", "revoke", &revoked.id]).status.success());
    // Their own session is one of a former time, when all of them were developers.
    let mut former = Person::named(service, &user).editor(service);
    let own = former.new_session(&service.work());
    former.turn(&own, "hello");
    former.call("session/close", &json!({ "sessionId": own }));
    let mut shared = |access: &str| {
        let session = editor.new_session(&service.work());
        editor.turn(&session, "hello");
        editor.call("session/close", &json!({ "sessionId": session }));
        let share = ["sessions", "share", &session, "--with", &user, "--as", access];
        let done = olga.run(service, &share);
        assert!(done.status.success(), "{done:?}");
        session
    };
    let (driven, watched) = (shared("driver"), shared("observer"));
    Player { role, valid: token(&[]), expired: token(&["--ttl", "1s"]), revoked, own, driven, watched }
}
