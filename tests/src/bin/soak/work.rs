//! What editors ask of the fake agent: streams of numbered chunks, at once or slowly,
//! large and small, between permissions that the policy decides and some that people do.

use conductor_tests::dice::Dice;
use serde_json::{Value, json};

use crate::sight::Mark;

/// Rules that allow, deny and ask, so that all three are in every storm.
pub const RULES: &str = "use = ['default']\n\n[[rule]]\nid = 'never-reboot'\neffect = 'deny'\n\
    reason = 'not while others work'\nrun = { program = ['reboot'] }\n\n[[rule]]\nid = 'ask-sync'\n\
    effect = 'ask'\nreason = 'people decide'\nrun = { program = ['sync'] }\n";

/// The option that allows.
pub const ALLOW: &str = "once";

/// A turn to ask for.
#[derive(Debug)]
pub struct Turn {
    pub steps: Value,
    /// Chunks that its answer has.
    pub chunks: u64,
}

/// Writes a turn down.
struct Draft {
    mark: Mark,
    steps: Vec<Value>,
    chunks: u64,
    permissions: u64,
}

impl Draft {
    fn say(&mut self, count: u64, size: u64) {
        let (first, text) = (self.chunks, self.mark.prefix());
        self.steps.push(json!({ "update": { "n": count, "first": first, "text": text, "size": size } }));
        self.chunks += count;
    }

    fn ask(&mut self, command: &str) {
        let call = self.mark.call(self.permissions);
        self.permissions += 1;
        self.steps.push(json!({ "request": { "quiet": true, "method": "session/request_permission", "params": {
            "sessionId": "$sid",
            "toolCall": {
                "toolCallId": call, "title": "innocent", "kind": "execute", "rawInput": { "command": command },
                "_meta": { "claudeCode": { "toolName": "Bash" } },
            },
            "options": [
                { "optionId": "ever", "name": "Always", "kind": "allow_always" },
                { "optionId": ALLOW, "name": "Yes", "kind": "allow_once" },
                { "optionId": "no", "name": "No", "kind": "reject_once" },
            ],
        } } }));
    }
}

impl Turn {
    /// The shortest.
    pub fn plain(mark: Mark) -> Self {
        Self::draft(mark, |draft| draft.say(3, 0))
    }

    /// One by lot.
    pub fn any(mark: Mark, dice: &mut Dice) -> Self {
        Self::draft(mark, |draft| match dice.roll(10) {
            // A storm of permissions, decided by the policy.
            0 => {
                for _ in 0..dice.between(20, 60) {
                    draft.ask(if dice.one_in(4) { "reboot" } else { "ls -la" });
                    draft.say(1, 0);
                }
            }
            // One that people decide.
            1 => {
                draft.say(dice.between(1, 10), 50);
                draft.ask("sync");
                draft.say(dice.between(1, 10), 50);
            }
            // A slow one.
            2 | 3 => {
                for _ in 0..dice.between(3, 10) {
                    draft.say(dice.between(1, 6), 100);
                    draft.steps.push(json!({ "sleep": dice.between(5, 150) }));
                }
            }
            // Few large chunks.
            4 => draft.say(dice.between(1, 12), 20_000),
            // A flood.
            5 => draft.say(dice.between(100, 300), 100),
            _ => draft.say(dice.between(5, 40), dice.between(20, 400)),
        })
    }

    fn draft(mark: Mark, write: impl FnOnce(&mut Draft)) -> Self {
        let mut draft = Draft { mark, steps: Vec::new(), chunks: 0, permissions: 0 };
        write(&mut draft);
        Self { steps: json!(draft.steps), chunks: draft.chunks }
    }
}
