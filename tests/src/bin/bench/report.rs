//! Rows with their goals, as a table for people and as JSON for machines.

use std::fmt::Write as _;

use serde_json::{Value, json};

use crate::machine::{self, Machine};

/// What must hold for a goal to be reached.
#[derive(Debug, Clone, Copy)]
pub enum Goal {
    /// Conductor / direct is at most this.
    RatioAtMost(f64),
    /// Conductor / direct is at least this.
    RatioAtLeast(f64),
    /// Conductor − direct is at most this.
    AddedAtMost(f64),
    /// The conductor's own number is at most this.
    AtMost(f64),
    /// None: shown for information.
    None,
}

/// One measured thing: what it is, and one pair of numbers per round.
#[derive(Debug)]
pub struct Row {
    name: &'static str,
    unit: &'static str,
    goal: Goal,
    /// Where the goal comes from.
    source: &'static str,
    direct: Vec<f64>,
    /// The agent behind a plain relay.
    relay: Vec<f64>,
    conductor: Vec<f64>,
}

impl Row {
    pub fn new(name: &'static str, unit: &'static str, goal: Goal, source: &'static str) -> Self {
        Self { name, unit, goal, source, direct: Vec::new(), relay: Vec::new(), conductor: Vec::new() }
    }

    /// Adds a round of both.
    pub fn pair(&mut self, direct: f64, conductor: f64) {
        self.direct.push(direct);
        self.conductor.push(conductor);
    }

    /// Adds a round of all three.
    pub fn three(&mut self, [direct, relay, conductor]: [f64; 3]) {
        self.pair(direct, conductor);
        self.relay.push(relay);
    }

    /// Adds a round of a thing that only the conductor has.
    pub fn value(&mut self, conductor: f64) {
        self.conductor.push(conductor);
    }

    fn ratios(&self) -> Vec<f64> {
        self.direct.iter().zip(&self.conductor).map(|(direct, conductor)| conductor / direct).collect()
    }

    fn relay_ratios(&self) -> Vec<f64> {
        self.relay.iter().zip(&self.conductor).map(|(relay, conductor)| conductor / relay).collect()
    }

    fn added(&self) -> Vec<f64> {
        self.direct.iter().zip(&self.conductor).map(|(direct, conductor)| conductor - direct).collect()
    }

    /// Whether the goal was reached, if there is one and anything was measured.
    fn reached(&self) -> Option<bool> {
        if self.conductor.is_empty() {
            return None;
        }
        match self.goal {
            Goal::RatioAtMost(most) => Some(median(&self.ratios()) <= most),
            Goal::RatioAtLeast(least) => Some(median(&self.ratios()) >= least),
            Goal::AddedAtMost(most) => Some(median(&self.added()) <= most),
            Goal::AtMost(most) => Some(median(&self.conductor) <= most),
            Goal::None => None,
        }
    }

    fn goal(&self) -> String {
        let goal = match self.goal {
            Goal::RatioAtMost(most) => format!("≤ {} ×", number(most)),
            Goal::RatioAtLeast(least) => format!("≥ {} ×", number(least)),
            Goal::AddedAtMost(most) => format!("≤ {} {} added", number(most), self.unit),
            Goal::AtMost(most) => format!("≤ {} {}", number(most), self.unit),
            Goal::None => "–".into(),
        };
        if self.source.is_empty() { goal } else { format!("{goal} ({})", self.source) }
    }

    fn mark(&self) -> &'static str {
        match self.reached() {
            Some(true) => "✓",
            Some(false) => "✗",
            None => " ",
        }
    }

    fn cells(&self) -> [String; 10] {
        let show = |values: &[f64]| if values.is_empty() { "–".into() } else { number(median(values)) };
        let ratios = self.ratios();
        let spread =
            match ratios.iter().copied().reduce(f64::min).zip(ratios.iter().copied().reduce(f64::max)) {
                Some((least, most)) => format!("{}–{}", number(least), number(most)),
                None => "–".into(),
            };
        [
            format!("{}, {}", self.name, self.unit),
            show(&self.direct),
            show(&self.relay),
            show(&self.conductor),
            show(&ratios),
            spread,
            show(&self.relay_ratios()),
            self.conductor.len().to_string(),
            self.mark().into(),
            self.goal(),
        ]
    }

    fn json(&self) -> Value {
        let (ratios, added) = (self.ratios(), self.added());
        let middle = |values: &[f64]| if values.is_empty() { Value::Null } else { json!(median(values)) };
        json!({
            "metric": self.name,
            "unit": self.unit,
            "direct": middle(&self.direct),
            "relay": middle(&self.relay),
            "conductor": middle(&self.conductor),
            "ratio": middle(&ratios),
            "ratio_to_relay": middle(&self.relay_ratios()),
            "added": middle(&added),
            "goal": self.goal(),
            "reached": self.reached(),
            "rounds": { "direct": self.direct, "relay": self.relay, "conductor": self.conductor, "ratio": ratios },
        })
    }
}

/// The table, with a line on the machine above it.
pub fn table(rows: &[Row], machine: &Machine) -> String {
    let heads = ["metric", "direct", "relay", "conductor", "ratio", "of rounds", "× relay", "n", "", "goal"]
        .map(String::from);
    let lines: Vec<[String; 10]> = std::iter::once(heads).chain(rows.iter().map(Row::cells)).collect();
    let width = |column: usize| lines.iter().map(|line| line[column].chars().count()).max().unwrap_or(0);
    let widths: [usize; 10] = std::array::from_fn(width);
    let mut out = format!("{}\n{}\n\n", machine::describe(), noise(machine));
    for (index, line) in lines.iter().enumerate() {
        let mut text = String::new();
        for (column, cell) in line.iter().enumerate() {
            let pad = " ".repeat(widths[column] - cell.chars().count());
            // Numbers end at the right, words begin at the left.
            let numbers = (1..=7).contains(&column);
            let _ = if numbers { write!(text, "{pad}{cell}  ") } else { write!(text, "{cell}{pad}  ") };
        }
        out += text.trim_end();
        out.push('\n');
        if index == 0 {
            out += &"─".repeat(widths.iter().sum::<usize>() + 18);
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
