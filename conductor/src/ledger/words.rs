//! Which columns hold words of people and agents: what they wrote, read, ran and named,
//! and where. An erasure takes these away and leaves the rest: ids, times, counts,
//! outcomes, names of rules, and who it was.

use super::table::Table;

/// By table: the columns that an erasure empties.
const WORDS: &[(&str, &[&str])] = &[
    ("sessions", &["title", "cwd", "repository", "end_reason"]),
    ("bindings", &[]),
    ("processes", &["cwd", "end_reason", "stderr_tail"]),
    ("connections", &["client", "close_reason"]),
    ("turns", &["prompt", "error"]),
    ("messages", &["text"]),
    ("tool_calls", &["title", "input", "output", "locations"]),
    ("file_accesses", &["path", "error"]),
    ("commands", &["line", "argv", "cwd", "error"]),
    ("usage", &[]),
    ("decisions", &["title", "input", "options", "reason", "sub_actions", "subject"]),
    ("models", &[]),
    ("routes_taken", &["reason", "failed"]),
    ("approvals", &["reason", "answer_reason"]),
    ("grants", &["scope_name", "reason", "what", "parts", "end_reason"]),
    ("grant_uses", &["sub_actions"]),
];

impl Table {
    /// The columns that hold words.
    pub fn words(&self) -> &'static [&'static str] {
        WORDS.iter().find(|(table, _)| *table == self.name).map_or(&[], |(_, columns)| columns)
    }

    /// Whether it has a column.
    pub fn has(&self, name: &str) -> bool {
        self.columns.iter().any(|column| column.name == name)
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::table::{TABLES, Type},
        WORDS,
    };

    /// By table: text that stays. A column that is new has to be put here or there.
    const STAYS: &[(&str, &[&str])] = &[
        ("sessions", &["user_name", "team", "agent", "model", "mode"]),
        ("bindings", &["agent", "agent_session", "how"]),
        (
            "processes",
            &[
                "agent",
                "command",
                "agent_name",
                "agent_version",
                "exit_signal",
                "sandbox_mode",
                "sandbox",
                "sandbox_missing",
            ],
        ),
        ("connections", &["user_name", "team"]),
        ("turns", &["user_name", "team", "agent", "model", "mode", "stop_reason"]),
        ("messages", &["role", "message_id"]),
        ("tool_calls", &["tool_call_id", "user_name", "team", "agent", "name", "kind", "status"]),
        ("file_accesses", &["user_name", "team", "agent", "access", "source", "tool_call_id"]),
        ("commands", &["user_name", "team", "agent", "source", "tool_call_id", "terminal_id", "exit_signal"]),
        ("usage", &["user_name", "team", "agent", "model", "currency"]),
        (
            "decisions",
            &[
                "user_name",
                "team",
                "agent",
                "tool_call_id",
                "tool",
                "kind",
                "decision",
                "option_id",
                "option_kind",
                "decided_by",
                "rule",
                "decided_user",
                "method",
                "verdict",
                "rules",
                "policy_revision",
                "ruled",
                "terms",
            ],
        ),
        ("models", &["agent", "kind", "value", "name", "agent_version"]),
        ("routes_taken", &["user_name", "team", "agent", "from_agent", "model", "mode", "route", "how"]),
        (
            "approvals",
            &[
                "user_name",
                "team",
                "agent",
                "for_user",
                "rule",
                "approvers",
                "terms",
                "outcome",
                "answered_by",
                "answered_via",
            ],
        ),
        ("grants", &["scope", "author", "team", "revoked_by"]),
        ("grant_uses", &["user_name", "team", "agent"]),
    ];

    #[test]
    fn every_text_goes_or_stays() {
        assert_eq!(WORDS.len(), TABLES.len());
        for (table, (name, stays)) in TABLES.iter().zip(STAYS) {
            assert_eq!(table.name, *name);
            for column in table.columns.iter().filter(|column| matches!(column.kind, Type::Text | Type::Json))
            {
                let goes = table.words().contains(&column.name);
                assert_ne!(goes, stays.contains(&column.name), "{name}.{}", column.name);
            }
            for column in table.words().iter().chain(*stays) {
                assert!(table.has(column), "{name} has no {column}");
            }
            let key = &table.columns[..table.key];
            assert!(key.iter().all(|column| !table.words().contains(&column.name)), "{name}");
        }
    }
}
