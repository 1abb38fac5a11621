//! The parts of a round, each of which can be measured alone.

/// A part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    RoundTrips,
    Decisions,
    Instructions,
    Streams,
    Crowds,
    Terminal,
    Starts,
    Held,
    New,
    Memory,
    Journal,
    Recording,
    Shipping,
    Restart,
    Reattach,
    Idle,
    Reconnect,
}

impl Part {
    pub const ALL: [(&'static str, Self); 17] = [
        ("round-trips", Self::RoundTrips),
        ("decisions", Self::Decisions),
        ("instructions", Self::Instructions),
        ("streams", Self::Streams),
        ("crowds", Self::Crowds),
        ("terminal", Self::Terminal),
        ("starts", Self::Starts),
        ("held", Self::Held),
        ("new", Self::New),
        ("memory", Self::Memory),
        ("journal", Self::Journal),
        ("recording", Self::Recording),
        ("shipping", Self::Shipping),
        ("restart", Self::Restart),
        ("reattach", Self::Reattach),
        ("idle", Self::Idle),
        ("reconnect", Self::Reconnect),
    ];

    /// The parts that a name stands for: itself, all that has to do with the record, or all that has to do with
    /// sessions that outlive whoever serves them.
    pub fn parse(name: &str) -> Option<Vec<Self>> {
        match name {
            "ledger" => Some(vec![Self::Journal, Self::Recording, Self::Shipping, Self::Restart]),
            "sessions" => Some(vec![Self::Restart, Self::Reattach, Self::Idle, Self::Reconnect]),
            _ => Self::ALL.iter().find(|(known, _)| *known == name).map(|(_, part)| vec![*part]),
        }
    }
}
