//! A decision as it is written down: who asked, what was found, what became of it. Enough
//! to judge a request again, by other rules and without the disk as it was then.

use std::{cmp::Ordering, sync::Arc};

use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Map, Value};

use super::{AskTerms, Effect, Policy, SubAction, Subject, Verdict, text};

/// Characters of what a parser says about a record.
const SHOWN: usize = 200;

/// Who asked, as it counted.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Standing {
    /// Who and where, in the mode that people have chosen.
    #[serde(flatten)]
    pub subject: Subject,
    /// The mode that the agent says it is in, if it is another one: it may forbid something,
    /// and allows nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agent_mode: Option<Option<String>>,
    /// The frame of the session that has what a repository or a user adds to the rules; 0 if
    /// that is too much to be recorded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub narrowing: Option<u64>,
}

impl Standing {
    /// Reads it from a record.
    pub fn from_json(json: &str) -> Result<Self, String> {
        let mut members: Map<String, Value> = parse(json)?;
        Ok(Self {
            agent_mode: members.remove("agent_mode").map(read).transpose()?,
            narrowing: members.remove("narrowing").map(read).transpose()?,
            subject: read(Value::Object(members))?,
        })
    }
}

impl Policy {
    /// Judges sub-actions in every mode that counts: the strictest outcome holds.
    pub fn judge(&self, standing: &Standing, actions: &[SubAction]) -> Verdict {
        let verdict = self.evaluate(&standing.subject, actions);
        let Some(mode) = &standing.agent_mode else { return verdict };
        let other = self.evaluate(&Subject { mode: mode.clone(), ..standing.subject.clone() }, actions);
        match other.decision.cmp(&verdict.decision) {
            Ordering::Greater => other,
            Ordering::Less => verdict,
            // What is asked in either of them has to be allowed by people.
            Ordering::Equal if verdict.decision == Effect::Ask => verdict.and(other),
            Ordering::Equal => verdict,
        }
    }
}

/// A part of a request, and what the rules said to it then.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Recorded {
    /// What would have been done.
    pub action: SubAction,
    /// A rule of then has found it in the words of a command.
    pub derived: bool,
    /// What the rules of then said.
    pub decision: Effect,
    /// The rules behind that; none if no rule matched.
    pub rules: Vec<String>,
}

impl Recorded {
    /// Reads all parts of a request from a record. One that cannot be read makes the
    /// request unreadable: the rest of it is another request.
    pub fn list(json: &str) -> Result<Vec<Self>, String> {
        let parts: Vec<Map<String, Value>> = parse(json)?;
        parts.into_iter().map(Self::from_members).collect()
    }

    fn from_members(mut members: Map<String, Value>) -> Result<Self, String> {
        let mut take = |name: &str| members.remove(name).unwrap_or_default();
        let (decision, rules, derived) = (take("decision"), take("rules"), take("derived"));
        take("reason");
        Ok(Self {
            decision: read(decision)?,
            derived: derived == true,
            rules: read(rules)?,
            action: read(Value::Object(members))?,
        })
    }
}

/// Reads how something was to be asked from a record.
pub(super) fn terms(json: &str) -> Result<Vec<Arc<AskTerms>>, String> {
    let noted: Value = parse(json)?;
    let terms: Vec<AskTerms> = read(noted.clone())?;
    // What a newer version demands besides would be lost in silence.
    match serde_json::to_value(&terms) {
        Ok(known) if known == noted => Ok(terms.into_iter().map(Arc::new).collect()),
        _ => Err("terms that are not known here".to_owned()),
    }
}

fn parse<T: DeserializeOwned>(json: &str) -> Result<T, String> {
    serde_json::from_str(json).map_err(|error| unreadable(&error))
}

fn read<T: DeserializeOwned>(value: Value) -> Result<T, String> {
    serde_json::from_value(value).map_err(|error| unreadable(&error))
}

fn unreadable(error: &serde_json::Error) -> String {
    // It may quote the record, which an agent has a hand in.
    text::shown(&error.to_string(), SHOWN)
}

/// What became of a request that the rules left to people.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    /// Somebody allowed it.
    Allowed,
    /// Somebody rejected it.
    Rejected,
    /// Nobody answered in time.
    TimedOut,
    /// It was taken back, or the answer chose nothing.
    Cancelled,
    /// There is no answer on record.
    Open,
}

impl Answer {
    /// All of them, in the order in which they are shown.
    pub const ALL: [Self; 5] = [Self::Allowed, Self::Rejected, Self::TimedOut, Self::Cancelled, Self::Open];

    /// What a record's words mean; none if nobody was asked. `verdict` is what counted after
    /// grants; `decided_by` is `conductor` where no person chose.
    pub fn of(
        verdict: Option<&str>,
        method: Option<&str>,
        decision: Option<&str>,
        decided_by: Option<&str>,
    ) -> Option<Self> {
        if (verdict, method) != (Some("ask"), Some("session/request_permission")) {
            return None;
        }
        Some(match decision {
            None => Self::Open,
            Some("allow") => Self::Allowed,
            Some("reject") if decided_by == Some("conductor") => Self::TimedOut,
            Some("reject") => Self::Rejected,
            Some(_) => Self::Cancelled,
        })
    }

    /// In words.
    pub fn name(self) -> &'static str {
        match self {
            Self::Allowed => "allowed",
            Self::Rejected => "rejected",
            Self::TimedOut => "timed out",
            Self::Cancelled => "cancelled",
            Self::Open => "open",
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

    use super::*;
    use crate::policy::{Command, Network, PathFact, ServerFact, UrlFact, Word};

    fn path() -> PathFact {
        PathFact {
            given: "a/../b".into(),
            resolved: Some("/w/b".into()),
            root: Some("/w".into()),
            protected: Some("keys".into()),
            secret: true,
            trouble: Some("odd".into()),
        }
    }

    /// One of every kind, with every fact that it can have.
    fn every_kind() -> Vec<SubAction> {
        let word = Word { text: "--x=a".into(), path: Some(path()), value: Some(PathFact::default()) };
        let text = || "t \u{202e}\"\n".to_owned();
        vec![
            SubAction::Run(Command {
                program: "git".into(),
                file: Some("/usr/bin/git".into()),
                is_local: true,
                words: vec![word, Word { text: String::new(), path: None, value: None }],
                cwd: "/w".into(),
                is_piped: true,
            }),
            SubAction::Read(path()),
            SubAction::Write(PathFact::default()),
            SubAction::Fetch(UrlFact {
                given: "https://x:8443/p".into(),
                scheme: "https".into(),
                host: "x".into(),
                port: 8443,
                path: "/p".into(),
                network: Network::LinkLocal,
                trouble: Some("user".into()),
            }),
            SubAction::Mcp { server: text(), tool: text() },
            SubAction::Tool { name: text() },
            SubAction::Mode { id: text() },
            SubAction::Model { id: text() },
            SubAction::Setting { id: text(), value: text() },
            SubAction::Agent { name: text() },
            SubAction::Server(ServerFact {
                name: text(),
                known: Some("known".into()),
                transport: "http".into(),
                is_remote: true,
                shown: text(),
            }),
            SubAction::unknown("what"),
        ]
    }

    #[test]
    fn what_is_written_down_is_read_again() {
        let policy = Policy::load(None).unwrap();
        let standing = Standing {
            subject: Subject {
                user: "ann".into(),
                teams: vec!["core".into()],
                role: "driver".into(),
                agent: "demo".into(),
                mode: Some("plan".into()),
                model: None,
                cwd: "/w".into(),
            },
            agent_mode: Some(None),
            narrowing: Some(3),
        };
        let verdict = policy.judge(&standing, &every_kind());
        let parts = Recorded::list(&serde_json::to_string(&verdict.sub_actions).unwrap()).unwrap();
        let actions: Vec<SubAction> =
            parts.iter().filter(|part| !part.derived).map(|part| part.action.clone()).collect();
        assert_eq!(actions, every_kind());
        for (part, judged) in parts.iter().zip(&verdict.sub_actions) {
            assert_eq!((part.decision, &part.rules), (judged.decision, &judged.rules));
        }
        let asks = Policy::parse(
            "x",
            "[[rule]]\nid = 'a'\neffect = 'ask'\nreason = 'x'\ntool = ['*']\n\
             ask = { approvers = { team = ['leads'] }, self = false, timeout = '90s' }\n",
        );
        let asks = asks.unwrap().judge(&standing, &every_kind()).asks;
        assert_eq!((asks.len(), terms(&serde_json::to_string(&asks).unwrap())), (2, Ok(asks)));
        let json = serde_json::to_string(&standing).unwrap();
        assert_eq!(Standing::from_json(&json), Ok(standing));
        let plain = Standing::default();
        assert_eq!(Standing::from_json(&serde_json::to_string(&plain).unwrap()), Ok(plain));
    }

    #[test]
    fn what_rules_find_in_words_is_told_from_what_was_asked() {
        let rules = "[[rule]]\nid = 'r'\neffect = 'allow'\nreason = 'x'\n\
            run = { program = ['cat'], positionals = ['read'] }\n[[rule]]\nid = 's'\neffect = 'allow'\n\
            reason = 'y'\nread = {}\n";
        let policy = Policy::parse("x", rules).unwrap();
        let fact = PathFact { protected: None, secret: false, trouble: None, ..path() };
        let command = Command {
            program: "cat".into(),
            file: Some("/bin/cat".into()),
            is_local: false,
            words: vec![Word { text: "b".into(), path: Some(fact), value: None }],
            cwd: "/w".into(),
            is_piped: false,
        };
        let verdict = policy.judge(&Standing::default(), &[SubAction::Run(command)]);
        let parts = Recorded::list(&serde_json::to_string(&verdict.sub_actions).unwrap()).unwrap();
        assert_eq!(verdict.decision, Effect::Allow);
        assert_eq!(parts.iter().map(|part| part.derived).collect::<Vec<_>>(), [false, true]);
    }

    #[test]
    fn an_agents_own_mode_may_only_forbid() {
        let rules = "[[rule]]\nid = 'a'\neffect = 'allow'\nreason = 'x'\nmode = ['go']\n\
            set_model = ['*']\n[[rule]]\nid = 'd'\neffect = 'deny'\nreason = 'y'\n\
            mode = ['stop']\nset_model = ['*']\n";
        let policy = Policy::parse("x", rules).unwrap();
        let judged = |chosen: &str, agents: Option<&str>| {
            let subject = Subject { mode: Some(chosen.into()), ..Subject::default() };
            let agent_mode = agents.map(|mode| Some(mode.to_owned()));
            let standing = Standing { subject, agent_mode, narrowing: None };
            policy.judge(&standing, &[SubAction::Model { id: "m".into() }]).decision
        };
        assert_eq!(judged("go", None), Effect::Allow);
        assert_eq!(judged("go", Some("other")), Effect::Ask);
        assert_eq!(judged("go", Some("stop")), Effect::Deny);
        assert_eq!(judged("other", Some("go")), Effect::Ask);
        assert_eq!(judged("stop", Some("go")), Effect::Deny);
    }

    #[test]
    fn what_either_mode_asks_is_asked() {
        let rules = "[[rule]]\nid = 'go'\neffect = 'allow'\nreason = 'x'\nmode = ['go']\ntool = ['a']\n\
            [[rule]]\nid = 'other'\neffect = 'allow'\nreason = 'x'\nmode = ['other']\ntool = ['b']\n\
            [[rule]]\nid = 'with-leads'\neffect = 'ask'\nreason = 'leads know'\nmode = ['other']\n\
            tool = ['a']\nask = { approvers = { team = ['leads'] } }\n\
            [[rule]]\nid = 'any'\neffect = 'allow'\nreason = 'x'\nmode = ['go']\n\
            run = { program = ['cat'], words = 'any' }\n\
            [[rule]]\nid = 'read'\neffect = 'allow'\nreason = 'x'\nmode = ['other']\n\
            run = { program = ['cat'], positionals = ['read'] }\n";
        let policy = Policy::parse("x", rules).unwrap();
        let subject = Subject { mode: Some("go".into()), ..Subject::default() };
        let standing = Standing { subject, agent_mode: Some(Some("other".into())), narrowing: None };
        let fact = PathFact { protected: None, secret: false, trouble: None, ..path() };
        let cat = Command {
            program: "cat".into(),
            file: Some("/bin/cat".into()),
            is_local: false,
            words: vec![Word { text: "b".into(), path: Some(fact.clone()), value: None }],
            cwd: "/w".into(),
            is_piped: false,
        };
        let tool = |name: &str| SubAction::Tool { name: name.into() };
        let actions = [tool("a"), SubAction::Run(cat), tool("b"), tool("c")];
        let verdict = policy.judge(&standing, &actions);
        let parts: Vec<_> = verdict.sub_actions.iter().map(|part| (&part.action, part.decision)).collect();
        let read = SubAction::Read(fact);
        let wanted = [
            (&actions[0], Effect::Ask),
            (&actions[1], Effect::Allow),
            (&read, Effect::Ask),
            (&actions[2], Effect::Ask),
            (&actions[3], Effect::Ask),
        ];
        assert_eq!(parts, wanted);
        assert_eq!((verdict.decision, verdict.rule.as_deref()), (Effect::Ask, Some("with-leads")));
        assert!(verdict.reason.contains("leads know"), "{}", verdict.reason);
        assert_eq!(verdict.asks.len(), 2, "those of the rule, and the usual ones for the rest");
        // What is on record is what was judged, and comes out the same.
        let parts = Recorded::list(&serde_json::to_string(&verdict.sub_actions).unwrap()).unwrap();
        let own = parts.into_iter().filter(|part| !part.derived).map(|part| part.action);
        assert_eq!(policy.judge(&standing, &own.collect::<Vec<_>>()), verdict);
    }

    #[test]
    fn what_is_not_known_here_is_unreadable() {
        let good = r#"{"tool":{"name":"x"},"decision":"ask","rules":[],"reason":"y"}"#;
        assert!(Recorded::list(&format!("[{good}]")).is_ok());
        for bad in [
            r#"{"leap":{"name":"x"},"decision":"ask","rules":[]}"#,
            r#"{"tool":{"name":"x","far":1},"decision":"ask","rules":[]}"#,
            r#"{"tool":{"name":"x"},"decision":"maybe","rules":[]}"#,
            r#"{"tool":{"name":"x"},"mode":{"id":"y"},"decision":"ask","rules":[]}"#,
            r#"{"decision":"ask","rules":[]}"#,
            r#"{"tool":{"name":"x"},"rules":[]}"#,
        ] {
            assert!(Recorded::list(&format!("[{good},{bad}]")).is_err(), "{bad}");
        }
        assert!(terms(r#"[{"driver":true,"self":true}]"#).is_ok());
        for bad in [
            r#"[{"driver":true,"self":true,"two":1}]"#,
            r#"[{"driver":true,"self":true,"approvers":{"moon":["x"]}}]"#,
            r#"[{"driver":true}]"#,
            "{}",
        ] {
            assert!(terms(bad).is_err(), "{bad}");
        }
        assert!(Recorded::list(r#"{"truncated":true}"#).is_err());
        for bad in ["", "[]", "{}", r#"{"user":"u"}"#] {
            assert!(Standing::from_json(bad).is_err(), "{bad}");
        }
        let mut more = serde_json::to_value(Standing::default()).unwrap();
        more["label"] = "x".into();
        assert!(Standing::from_json(&more.to_string()).is_err());
    }

    #[test]
    fn answers_are_told_apart() {
        let of = |verdict, decision, by| {
            Answer::of(Some(verdict), Some("session/request_permission"), decision, by)
        };
        assert_eq!(of("allow", Some("allow"), Some("conductor")), None);
        assert_eq!(of("ask", Some("allow"), Some("editor")), Some(Answer::Allowed));
        assert_eq!(of("ask", Some("reject"), Some("editor")), Some(Answer::Rejected));
        assert_eq!(of("ask", Some("reject"), Some("conductor")), Some(Answer::TimedOut));
        assert_eq!(of("ask", Some("cancelled"), Some("conductor")), Some(Answer::Cancelled));
        assert_eq!(of("ask", None, None), Some(Answer::Open));
        assert_eq!(Answer::of(Some("ask"), Some("session/set_mode"), Some("allow"), Some("editor")), None);
    }
}
