//! What a turn took: time, and tokens and money if the agent says so.

use std::time::Duration;

use serde_json::{Value, json};

use crate::frame::escape;

/// What the agent has reported so far.
#[derive(Debug, Default)]
pub(super) struct Usage {
    /// The last `usage_update`.
    context: Value,
    /// The `usage` of the answer that ended the turn.
    turn: Value,
}

impl Usage {
    /// Takes a `usage_update`.
    pub(super) fn update(&mut self, update: &Value) {
        self.context = json!({ "used": update["used"], "size": update["size"], "cost": update["cost"] });
    }

    /// Takes the answer that ended the turn.
    pub(super) fn ended(&mut self, result: &Value) {
        self.turn = result["usage"].clone();
    }

    /// For machines; null if nothing was reported.
    pub(super) fn as_json(&self) -> Value {
        match (&self.context, &self.turn) {
            (Value::Null, Value::Null) => Value::Null,
            (context, turn) => json!({
                "used": context["used"],
                "size": context["size"],
                "cost": context["cost"],
                "turn": turn,
            }),
        }
    }

    /// For people, on one line.
    pub(super) fn line(&self, took: Duration) -> String {
        let mut parts = vec![self::took(took)];
        let turn = |name: &str| self.turn[name].as_u64().map(count);
        match (turn("inputTokens"), turn("outputTokens")) {
            (Some(read), Some(written)) => parts.push(format!("{read} tokens in, {written} out")),
            _ => parts.extend(turn("totalTokens").map(|total| format!("{total} tokens"))),
        }
        if let Some(used) = self.context["used"].as_u64().map(count) {
            parts.push(match self.context["size"].as_u64() {
                Some(size) if size > 0 => format!("context {used} of {}", count(size)),
                _ => format!("context {used}"),
            });
        }
        if let Some(amount) = self.context["cost"]["amount"].as_f64() {
            let currency = self.context["cost"]["currency"].as_str().unwrap_or_default();
            // Small amounts are all that is there to see, and nothing is nothing.
            let digits = if amount != 0.0 && amount.abs() < 1.0 { 4 } else { 2 };
            parts.push(format!("{amount:.digits$} {}", escape(currency.as_bytes(), 10)).trim().to_string());
        }
        parts.join(" · ")
    }
}

/// A number with its thousands apart.
pub(super) fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut out = String::new();
    for (position, digit) in digits.chars().enumerate() {
        if position > 0 && (digits.len() - position).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// A duration for people.
pub(super) fn took(time: Duration) -> String {
    match time.as_secs() {
        0 => format!("{} ms", time.as_millis()),
        seconds @ 1..60 => format!("{seconds}.{} s", time.subsec_millis() / 100),
        seconds => format!("{} min {} s", seconds / 60, seconds % 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_reported_is_shown() {
        let mut usage = Usage::default();
        assert_eq!(usage.line(Duration::from_millis(1250)), "1.2 s");
        assert_eq!(usage.as_json(), Value::Null);
        usage.update(&json!({ "used": 12_345, "size": 200_000, "cost": { "amount": 0.0125, "currency": "US\u{1b}D" } }));
        assert_eq!(
            usage.line(Duration::from_millis(7)),
            "7 ms · context 12,345 of 200,000 · 0.0125 US\\u{1b}D"
        );
        usage.ended(&json!({ "usage": { "totalTokens": 1500, "inputTokens": 1000, "outputTokens": 500 } }));
        let line = usage.line(Duration::from_secs(125));
        assert!(line.starts_with("2 min 5 s · 1,000 tokens in, 500 out · context"), "{line}");
        usage.ended(&json!({ "usage": "much" }));
        assert_eq!(usage.as_json()["turn"], "much");
    }
}
