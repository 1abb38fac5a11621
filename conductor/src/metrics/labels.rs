//! The closed sets of names that counts are told apart by.

/// A closed set of names.
pub trait Label: Copy + 'static {
    /// All of them, in the order of their numbers.
    const ALL: &'static [Self];

    /// Its place in `ALL`.
    fn index(self) -> usize;

    /// Its name in a label.
    fn name(self) -> &'static str;
}

macro_rules! labels {
    ($(#[$about:meta])* $type:ident: $($(#[$doc:meta])* $variant:ident $name:literal),+ $(,)?) => {
        $(#[$about])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum $type { $($(#[$doc])* $variant),+ }

        impl Label for $type {
            const ALL: &'static [Self] = &[$(Self::$variant),+];

            fn index(self) -> usize {
                self as usize
            }

            fn name(self) -> &'static str {
                match self { $(Self::$variant => $name),+ }
            }
        }
    };
}

labels! {
    /// How a turn has ended.
    TurnEnd:
    /// The agent was done.
    EndTurn "end_turn",
    /// The model's limit was reached.
    MaxTokens "max_tokens",
    /// The agent's limit of requests was reached.
    MaxTurnRequests "max_turn_requests",
    /// The agent would not go on.
    Refusal "refusal",
    /// Somebody or something has ended it.
    Cancelled "cancelled",
    /// The answer was an error, or the process has ended.
    Error "error",
    /// The agent gave a reason that the protocol does not know.
    Other "other",
}

impl TurnEnd {
    /// From the stop reason of an answer, as it stands there.
    pub fn from_reason(raw: &[u8]) -> Self {
        let named = |end: &&Self| {
            raw.strip_prefix(b"\"").and_then(|raw| raw.strip_suffix(b"\"")) == Some(end.name().as_bytes())
        };
        let known = [Self::EndTurn, Self::MaxTokens, Self::MaxTurnRequests, Self::Refusal, Self::Cancelled];
        known.iter().find(named).copied().unwrap_or(Self::Other)
    }
}

labels! {
    /// What the policy has decided.
    Decided:
    /// It may be done.
    Allow "allow",
    /// People have allowed exactly this before.
    Granted "granted",
    /// People are asked.
    Ask "ask",
    /// It may not.
    Deny "deny",
}

labels! {
    /// What became of a question to people.
    Answered:
    /// Somebody has allowed it.
    Allowed "allowed",
    /// Somebody has declined it.
    Rejected "rejected",
    /// It was withdrawn, or its answer chose nothing.
    Cancelled "cancelled",
    /// Nobody was there to answer for too long.
    Unattended "unattended",
}

labels! {
    /// Why an editor was let go.
    Lost:
    /// It left its frames unread.
    Stalled "stalled",
    /// It did not come back in time.
    Expired "expired",
    /// More waited for it than may.
    Behind "behind",
}

labels! {
    /// What was wrong with the credentials of a call.
    Refused:
    /// There were none.
    Missing "missing",
    /// Nobody has them.
    Unknown "unknown",
    /// They are too old.
    Expired "expired",
    /// They were taken back.
    Revoked "revoked",
    /// Something else.
    Other "other",
}

impl Refused {
    /// From the reason that the log is given.
    pub fn from_reason(reason: &str) -> Self {
        Self::ALL.iter().find(|refused| refused.name() == reason).copied().unwrap_or(Self::Other)
    }
}

labels! {
    /// What became of reading a file again.
    Reloaded:
    /// A new configuration is in force.
    Config "config",
    /// The old one stays: the new one cannot be used.
    ConfigRefused "config_refused",
    /// A new policy is in force.
    Policy "policy",
    /// The old one stays: the new one cannot be used.
    PolicyRefused "policy_refused",
}

labels! {
    /// Where something is done as well as it can be, and goes on without.
    Branch:
    /// What stops something went out although the journal would not take it yet.
    StopUnrecorded "stop_unrecorded",
    /// A share was taken back although that could not be recorded.
    UnshareUnrecorded "unshare_unrecorded",
    /// The pool was too busy to hear that a session is likely soon.
    WarmHintLost "warm_hint_lost",
    /// An agent did not answer what it was to be set to, and gets prompts all the same.
    SettingUnanswered "setting_unanswered",
    /// The file of the sessions, the tokens or the catalogue could not be written, and is tried again.
    StoreNotSaved "store_not_saved",
    /// Those who may answer a question were not told of it.
    ApproversNotTold "approvers_not_told",
    /// Heads of the ledger's streams could not be signed, and are signed later.
    CheckpointNotMade "checkpoint_not_made",
    /// A stream ends in the ledger otherwise than was recorded, and that end was not signed.
    HeadNotSigned "head_not_signed",
    /// A checkpoint could not be handed to the command that takes it off the host, and is tried again.
    CheckpointNotSent "checkpoint_not_sent",
    /// Audit events were lost on their way to others: freed before they were told, or nobody
    /// knows any more how far that was.
    FeedLost "feed_lost",
    /// A span was dropped: the collector is down, or too slow.
    SpanDropped "span_dropped",
    /// Metrics could not be handed to the collector.
    MetricsNotSent "metrics_not_sent",
    /// An agent said more of a session before it told the session's id than is kept.
    EarlyDropped "early_dropped",
    /// An agent said so much while a session was reopened that some of it went ahead of the
    /// session's history.
    EarlyUnordered "early_unordered",
    /// Not all that is protected was looked at before and after a turn.
    PlacesUnseen "places_unseen",
    /// Orphans of a guard that is killed will not be found.
    OrphansNotAdopted "orphans_not_adopted",
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_of_agents_make_no_new_names() {
        assert_eq!(TurnEnd::from_reason(b"\"max_tokens\""), TurnEnd::MaxTokens);
        assert_eq!(TurnEnd::from_reason(b"\"error\""), TurnEnd::Other);
        assert_eq!(TurnEnd::from_reason(b"\"x\\ny\""), TurnEnd::Other);
        assert_eq!(TurnEnd::from_reason(b""), TurnEnd::Other);
        assert_eq!(Refused::from_reason("revoked"), Refused::Revoked);
        assert_eq!(Refused::from_reason("a reason of the log"), Refused::Other);
    }

    #[test]
    fn places_and_names_agree() {
        for (place, branch) in Branch::ALL.iter().enumerate() {
            assert_eq!(branch.index(), place);
        }
    }
}
