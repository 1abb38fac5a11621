//! What was found, for people and for machines.

use serde_json::{Value, json};

use crate::commands::terminal::{Style, clean, fold};

/// Columns that a text gets at least, however narrow the terminal is.
const NARROWEST: usize = 30;

/// How something is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    /// As it should be.
    Fine,
    /// Needed, and not so.
    Broken,
    /// Worth knowing.
    Info,
}

/// One thing that was looked at.
#[derive(Debug)]
pub(super) struct Check {
    /// What it belongs to.
    pub(super) group: &'static str,
    /// What it is.
    pub(super) name: String,
    /// How it is.
    pub(super) verdict: Verdict,
    /// In words; further lines say more.
    pub(super) detail: String,
    /// What to do about it; empty if nothing.
    pub(super) remedy: String,
    /// More for machines.
    pub(super) data: Value,
}

impl Check {
    pub(super) fn new(
        group: &'static str,
        name: impl Into<String>,
        verdict: Verdict,
        detail: impl Into<String>,
    ) -> Self {
        Self {
            group,
            name: name.into(),
            verdict,
            detail: detail.into(),
            remedy: String::new(),
            data: Value::Null,
        }
    }

    pub(super) fn remedy(mut self, remedy: impl Into<String>) -> Self {
        self.remedy = remedy.into();
        self
    }

    pub(super) fn data(mut self, data: Value) -> Self {
        self.data = data;
        self
    }
}

/// Whether nothing that is needed is broken.
pub(super) fn is_fine(checks: &[Check]) -> bool {
    checks.iter().all(|check| check.verdict != Verdict::Broken)
}

/// For machines.
pub(super) fn as_json(checks: &[Check]) -> Value {
    let check = |check: &Check| {
        json!({
            "group": check.group,
            "name": check.name,
            "status": match check.verdict {
                Verdict::Fine => "ok",
                Verdict::Broken => "broken",
                Verdict::Info => "info",
            },
            "detail": check.detail,
            "remedy": Some(&check.remedy).filter(|remedy| !remedy.is_empty()),
            "data": check.data,
        })
    };
    json!({
        "ok": is_fine(checks),
        "version": env!("CARGO_PKG_VERSION"),
        "checks": checks.iter().map(check).collect::<Value>(),
    })
}

/// For people, on a terminal of so many columns. Much of it comes from programs and files, and is
/// cleaned.
pub(super) fn as_text(checks: &[Check], style: Style, columns: Option<usize>) -> String {
    let width = checks.iter().map(|check| check.name.chars().count()).max().unwrap_or(0);
    let indent = " ".repeat(width + 6);
    let room = columns.map_or(usize::MAX, |columns| columns.saturating_sub(indent.len()).max(NARROWEST));
    let mut out = String::new();
    let mut group = "";
    for check in checks {
        if check.group != group {
            group = check.group;
            out.push_str(&format!("{}\n", style.bold(group)));
        }
        let mark = match check.verdict {
            Verdict::Fine => style.paint("32", "✓"),
            Verdict::Broken => style.paint("31", "✗"),
            Verdict::Info => style.dim("·"),
        };
        let detail = clean(&check.detail);
        let mut lines = detail.lines();
        let first = fold(lines.next().unwrap_or_default(), room).join(&format!("\n{indent}"));
        out.push_str(&format!("  {mark} {:width$}  {first}\n", clean(&check.name)));
        for line in lines.flat_map(|line| fold(line, room)) {
            out.push_str(&format!("{indent}{}\n", style.dim(&line)));
        }
        if !check.remedy.is_empty() {
            let remedy = clean(&check.remedy).replace('\n', " ");
            let remedy = fold(&remedy, room.saturating_sub(2)).join(&format!("\n{indent}  "));
            out.push_str(&format!("{indent}→ {remedy}\n"));
        }
    }
    let broken = checks.iter().filter(|check| check.verdict == Verdict::Broken).count();
    out.push_str(&match broken {
        0 => "Nothing that is needed is broken.\n".to_string(),
        1 => format!("{}\n", style.bold("1 thing is broken; its line says what to do.")),
        many => {
            format!("{}\n", style.bold(&format!("{many} things are broken; their lines say what to do.")))
        }
    });
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_narrow_terminal_gets_more_lines() {
        let check = [Check::new("host", "x", Verdict::Info, "word ".repeat(12)).remedy("this ".repeat(9))];
        let text = as_text(&check, Style::default(), Some(20));
        assert!(text.lines().all(|line| line.chars().count() <= NARROWEST + 7), "{text}");
        assert!(text.lines().skip(2).take(2).all(|line| line.starts_with("       ")), "{text}");
    }

    #[test]
    fn lines_are_aligned_and_harmless() {
        let checks = [
            Check::new("config", "file", Verdict::Fine, "/x"),
            Check::new("agents", "longer", Verdict::Broken, "a\u{1b}[2J\nb").remedy("do\nthis"),
            Check::new("agents", "c", Verdict::Info, ""),
        ];
        let expected = "\
config
  ✓ file    /x
agents
  ✗ longer  a\\u{1b}[2J
            b
            → do this
  · c       
1 thing is broken; its line says what to do.
";
        assert_eq!(as_text(&checks, Style::default(), None), expected);
        assert_eq!(as_json(&checks)["ok"], false);
        assert_eq!(as_json(&checks[..1])["checks"][0]["remedy"], Value::Null);
    }
}
