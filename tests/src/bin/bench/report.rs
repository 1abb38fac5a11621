//! Rows with their goals, as a table for people and as JSON for machines.

use std::fmt::Write as _;

use serde_json::{Value, json};

use crate::{
    machine::{self, Machine},
    targets::{Each, Target},
};

/// The columns of the table: words first and last, numbers between.
const HEADS: [&str; COLUMNS] = [
    "metric",
    "direct",
    "relay",
    "ssh",
    "acp",
    "conductor",
    "× direct",
    "of rounds",
    "× ssh",
    "× acp",
    "n",
    "goal",
];
const COLUMNS: usize = 12;

/// What must hold for a goal to be reached.
#[derive(Debug, Clone, Copy)]
pub enum Goal {
    /// Conductor / direct is at most this.
    RatioAtMost(f64),
    /// Conductor / direct is at least this.
    RatioAtLeast(f64),
    /// Conductor / ssh is at most the first. Without ssh it is taken to be direct times the second.
    SshAtMost(f64, f64),
    /// Conductor / ssh is at least the first, likewise.
    SshAtLeast(f64, f64),
    /// Conductor / the ACP conductor is at most this.
    AcpAtMost(f64),
    /// Conductor / the ACP conductor is at least this.
    AcpAtLeast(f64),
    /// Conductor / what it does under another condition, which is named, is at least this.
    OwnAtLeast(f64, &'static str),
    /// Conductor − direct is at most this.
    AddedAtMost(f64),
    /// The conductor's own number is at most this.
    AtMost(f64),
    /// The conductor's own number is at least this.
    AtLeast(f64),
}

/// One measured thing: what it is, and the numbers of each round.
#[derive(Debug)]
pub struct Row {
    name: &'static str,
    unit: &'static str,
    goals: &'static [Goal],
    direct: Vec<f64>,
    /// The agent behind a plain relay.
    relay: Vec<f64>,
    /// The agent behind ssh.
    ssh: Vec<f64>,
    /// The agent behind the ACP conductor.
    acp: Vec<f64>,
    conductor: Vec<f64>,
    /// The conductor under the other condition that a goal names.
    own: Vec<f64>,
}

impl Row {
    pub fn new(name: &'static str, unit: &'static str, goals: &'static [Goal]) -> Self {
        let [direct, relay, ssh, acp, conductor, own] = [const { Vec::new() }; 6];
        Self { name, unit, goals, direct, relay, ssh, acp, conductor, own }
    }

    /// Adds a round of direct and conductor.
    pub fn pair(&mut self, direct: f64, conductor: f64) {
        self.direct.push(direct);
        self.conductor.push(conductor);
    }

    /// Adds a round of every target that was measured. `ours` says in which of its variants the conductor counts.
    pub fn each(&mut self, each: &Each<f64>, ours: Target) {
        let Self { direct, relay, ssh, acp, conductor, .. } = self;
        let columns = [
            (direct, Target::Direct),
            (relay, Target::Relay),
            (ssh, Target::Ssh),
            (acp, Target::Acp),
            (conductor, ours),
        ];
        for (column, target) in columns {
            column.extend(each.get(target).copied());
        }
    }

    /// Adds a round of what the conductor does under the other condition that a goal names.
    pub fn own(&mut self, own: f64) {
        self.own.push(own);
    }

    /// Adds a round of a thing that only the conductor has.
    pub fn value(&mut self, conductor: f64) {
        self.conductor.push(conductor);
    }

    /// Conductor / another target, round by round.
    fn ratios(&self, to: &[f64]) -> Vec<f64> {
        to.iter().zip(&self.conductor).map(|(other, conductor)| conductor / other).collect()
    }

    fn added(&self) -> Vec<f64> {
        self.direct.iter().zip(&self.conductor).map(|(direct, conductor)| conductor - direct).collect()
    }

    /// Whether a goal was reached, if it can be told.
    fn reached(&self, goal: Goal) -> Option<bool> {
        if self.conductor.is_empty() {
            return None;
        }
        let to_direct = median(&self.ratios(&self.direct));
        // Without ssh, its ratio to direct that was noted elsewhere must do.
        let to_ssh = |noted: f64| match self.ssh[..] {
            [] => Some(to_direct / noted).filter(|ratio| !ratio.is_nan()),
            _ => Some(median(&self.ratios(&self.ssh))),
        };
        let to_acp = (!self.acp.is_empty()).then(|| median(&self.ratios(&self.acp)));
        match goal {
            Goal::RatioAtMost(most) => Some(to_direct <= most),
            Goal::RatioAtLeast(least) => Some(to_direct >= least),
            Goal::SshAtMost(most, noted) => to_ssh(noted).map(|ratio| ratio <= most),
            Goal::SshAtLeast(least, noted) => to_ssh(noted).map(|ratio| ratio >= least),
            Goal::AcpAtMost(most) => to_acp.map(|ratio| ratio <= most),
            Goal::AcpAtLeast(least) => to_acp.map(|ratio| ratio >= least),
            Goal::OwnAtLeast(least, _) => Some(median(&self.ratios(&self.own)) >= least),
            Goal::AddedAtMost(most) => Some(median(&self.added()) <= most),
            Goal::AtMost(most) => Some(median(&self.conductor) <= most),
            Goal::AtLeast(least) => Some(median(&self.conductor) >= least),
        }
    }

    fn goal(&self, goal: Goal) -> String {
        let noted = |times: f64, noted: f64| {
            let known = self.ssh.is_empty() && !noted.is_nan();
            if known { format!(" (noted: {} × direct)", number(times * noted)) } else { String::new() }
        };
        // Some rows compare with something else, which their name tells.
        let direct = if self.relay.is_empty() { "" } else { " direct" };
        match goal {
            Goal::RatioAtMost(most) => format!("≤ {} ×{direct}", number(most)),
            Goal::RatioAtLeast(least) => format!("≥ {} ×{direct}", number(least)),
            Goal::SshAtMost(most, ssh) => format!("≤ {} × ssh{}", number(most), noted(most, ssh)),
            Goal::SshAtLeast(least, ssh) => format!("≥ {} × ssh{}", number(least), noted(least, ssh)),
            Goal::AcpAtMost(most) => format!("≤ {} × acp", number(most)),
            Goal::AcpAtLeast(least) => format!("≥ {} × acp", number(least)),
            Goal::OwnAtLeast(least, of) => {
                let ratio = number(median(&self.ratios(&self.own)));
                format!("≥ {} × {of} ({ratio})", number(least))
            }
            Goal::AddedAtMost(most) => format!("≤ {} {} added", number(most), self.unit),
            Goal::AtMost(most) => format!("≤ {} {}", number(most), self.unit),
            Goal::AtLeast(least) => format!("≥ {} {}", number(least), self.unit),
        }
    }

    /// Each goal with its verdict.
    fn goals(&self) -> String {
        let show = |goal: &Goal| {
            let mark = match self.reached(*goal) {
                Some(true) => "✓",
                Some(false) => "✗",
                None => "–",
            };
            format!("{mark} {}", self.goal(*goal))
        };
        self.goals.iter().map(show).collect::<Vec<_>>().join(", ")
    }

    fn cells(&self) -> [String; COLUMNS] {
        let show = |values: &[f64]| if values.is_empty() { "–".into() } else { number(median(values)) };
        let ratios = self.ratios(&self.direct);
        let spread =
            match ratios.iter().copied().reduce(f64::min).zip(ratios.iter().copied().reduce(f64::max)) {
                Some((least, most)) => format!("{}–{}", number(least), number(most)),
                None => "–".into(),
            };
        [
            format!("{}, {}", self.name, self.unit),
            show(&self.direct),
            show(&self.relay),
            show(&self.ssh),
            show(&self.acp),
            show(&self.conductor),
            show(&ratios),
            spread,
            show(&self.ratios(&self.ssh)),
            show(&self.ratios(&self.acp)),
            self.conductor.len().to_string(),
            self.goals(),
        ]
    }

    fn json(&self) -> Value {
        let ratios = self.ratios(&self.direct);
        let middle = |values: &[f64]| if values.is_empty() { Value::Null } else { json!(median(values)) };
        let goal = |goal: &Goal| json!({ "goal": self.goal(*goal), "reached": self.reached(*goal) });
        json!({
            "metric": self.name,
            "unit": self.unit,
            "direct": middle(&self.direct),
            "relay": middle(&self.relay),
            "ssh": middle(&self.ssh),
            "acp": middle(&self.acp),
            "conductor": middle(&self.conductor),
            "ratio": middle(&ratios),
            "ratio_to_relay": middle(&self.ratios(&self.relay)),
            "ratio_to_ssh": middle(&self.ratios(&self.ssh)),
            "ratio_to_acp": middle(&self.ratios(&self.acp)),
            "ratio_to_own": middle(&self.ratios(&self.own)),
            "added": middle(&self.added()),
            "goals": self.goals.iter().map(goal).collect::<Vec<_>>(),
            "rounds": {
                "direct": self.direct,
                "relay": self.relay,
                "ssh": self.ssh,
                "acp": self.acp,
                "conductor": self.conductor,
                "own": self.own,
                "ratio": ratios,
            },
        })
    }
}

/// The table, with a line on the machine above it.
pub fn table(rows: &[Row], machine: &Machine) -> String {
    let heads = HEADS.map(String::from);
    let lines: Vec<[String; COLUMNS]> = std::iter::once(heads)
        .chain(rows.iter().filter(|row| !row.conductor.is_empty()).map(Row::cells))
        .collect();
    let width = |column: usize| lines.iter().map(|line| line[column].chars().count()).max().unwrap_or(0);
    let widths: [usize; COLUMNS] = std::array::from_fn(width);
    let mut out = format!("{}\n{}\n\n", machine::describe(), noise(machine));
    for (index, line) in lines.iter().enumerate() {
        let mut text = String::new();
        for (column, cell) in line.iter().enumerate() {
            let pad = " ".repeat(widths[column] - cell.chars().count());
            // Numbers end at the right, words begin at the left.
            let numbers = (1..COLUMNS - 1).contains(&column);
            let _ = if numbers { write!(text, "{pad}{cell}  ") } else { write!(text, "{cell}{pad}  ") };
        }
        out += text.trim_end();
        out.push('\n');
        if index == 0 {
            out += &"─".repeat(widths.iter().sum::<usize>() + 2 * (COLUMNS - 1));
            out.push('\n');
        }
    }
    out
}

/// Everything, the rounds included.
pub fn json(rows: &[Row], machine: &Machine, rounds: usize) -> Value {
    json!({
        "machine": machine::describe(),
        "rounds": rounds,
        "measurements": machine.waits,
        "begun_while_noisy": machine.noisy,
        "worst_use_by_others": machine.worst,
        "load_average": { "median": median(&machine.load), "all": machine.load },
        "rows": rows.iter().map(Row::json).collect::<Vec<_>>(),
    })
}

fn noise(machine: &Machine) -> String {
    let load = number(median(&machine.load));
    if machine.noisy == 0 {
        return format!("quiet before each of {} measurements (load average {load})", machine.waits);
    }
    format!(
        "NOT QUIET: {} of {} measurements had to begin while others used the machine (up to {:.0} % of it; load \
         average {load}); mind the spread of the rounds",
        machine.noisy,
        machine.waits,
        100.0 * machine.worst
    )
}

/// The middle of the values; of an even number, the mean of the middle two.
pub fn median(values: &[f64]) -> f64 {
    percentile(values, 0.5)
}

/// The value below which that part of the values lies.
pub fn percentile(values: &[f64], part: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let Some(last) = sorted.len().checked_sub(1) else { return f64::NAN };
    let place = part * last as f64;
    let (below, above) = (sorted[place.floor() as usize], sorted[place.ceil() as usize]);
    below + (above - below) * place.fract()
}

/// Three digits, and thousands as such.
fn number(value: f64) -> String {
    let places = match value.abs() {
        size if size >= 10_000.0 => return format!("{:.0}k", value / 1000.0),
        size if size >= 100.0 => return format!("{value:.0}"),
        size if size >= 10.0 => 1,
        size if size >= 1.0 => 2,
        size if size >= 0.1 => 3,
        _ => 4,
    };
    format!("{value:.places$}").trim_end_matches('0').trim_end_matches('.').into()
}
