//! A change of a file as people know it: a unified diff, coloured.

use super::terminal::{Style, clean};
use crate::frame::escape;

/// Unchanged lines shown around a change.
const CONTEXT: usize = 3;

/// How many lines of a diff are shown.
const SHOWN_LINES: usize = 200;

/// How much of one line is shown.
const SHOWN_LINE: usize = 400;

/// How much of a path is shown.
const SHOWN_PATH: usize = 400;

/// Up to so many pairs of lines are compared to find the smallest change;
/// beyond, what differs is shown as removed and added as a whole.
const MOST_PAIRS: usize = 1 << 20;

/// What happened to a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Edit {
    Keep,
    Remove,
    Add,
}

/// The diff, each line indented, with a header that names the file.
pub(super) fn render(path: &str, old: Option<&str>, new: &str, style: Style) -> String {
    let path = escape(path.as_bytes(), SHOWN_PATH);
    let before: Vec<&str> = old.unwrap_or_default().lines().collect();
    let after: Vec<&str> = new.lines().collect();
    let edits = compare(&before, &after);
    let count = |edit| edits.iter().filter(|(e, _)| *e == edit).count();
    let what = if old.is_none() { "new file, " } else { "" };
    let header = format!("    {path} ({what}+{} −{})", count(Edit::Add), count(Edit::Remove));
    let mut lines = vec![style.bold(&header).into_owned()];
    for hunk in hunks(&edits) {
        lines.push(style.paint("36", &format!("    {}", hunk.header)).into_owned());
        for (edit, text) in hunk.lines {
            let (mark, code) = match edit {
                Edit::Keep => (' ', "2"),
                Edit::Remove => ('-', "31"),
                Edit::Add => ('+', "32"),
            };
            let text = shorten(text);
            lines.push(style.paint(code, &format!("    {mark}{}", clean(&text))).into_owned());
        }
    }
    if lines.len() > SHOWN_LINES {
        let more = lines.len() - SHOWN_LINES;
        lines.truncate(SHOWN_LINES);
        lines.push(style.dim(&format!("    … ({more} lines more)")).into_owned());
    }
    lines.join("\n") + "\n"
}

fn shorten(line: &str) -> String {
    match line.char_indices().nth(SHOWN_LINE) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line.to_string(),
    }
}

/// A run of changes with what is around them.
struct Hunk<'a> {
    header: String,
    lines: &'a [(Edit, &'a str)],
}

fn hunks<'a>(edits: &'a [(Edit, &'a str)]) -> Vec<Hunk<'a>> {
    let mut found = Vec::new();
    // Line numbers of the next edit in the old and in the new text.
    let (mut old, mut new) = (1, 1);
    let mut at = 0;
    while let Some(next) = edits[at..].iter().position(|(edit, _)| *edit != Edit::Keep) {
        let start = (at + next).saturating_sub(CONTEXT).max(at);
        old += start - at;
        new += start - at;
        // It goes on as long as the next change is near.
        let mut end = at + next + 1;
        let mut last = end;
        while end < edits.len() && end - last < 2 * CONTEXT {
            end += 1;
            if edits[end - 1].0 != Edit::Keep {
                last = end;
            }
        }
        let end = (last + CONTEXT).min(edits.len());
        let lines = &edits[start..end];
        let kept = |without| lines.iter().filter(|(edit, _)| *edit != without).count();
        let (removed, added) = (kept(Edit::Add), kept(Edit::Remove));
        // As in other unified diffs, an empty side stands before its line.
        let first = |line: usize, count: usize| if count == 0 { line - 1 } else { line };
        let header = format!("@@ -{},{removed} +{},{added} @@", first(old, removed), first(new, added));
        found.push(Hunk { header, lines });
        old += removed;
        new += added;
        at = end;
    }
    found
}

/// The smallest change by which one text becomes the other, line by line.
fn compare<'a>(before: &[&'a str], after: &[&'a str]) -> Vec<(Edit, &'a str)> {
    let same = before.iter().zip(after).take_while(|(a, b)| a == b).count();
    let (head, before) = before.split_at(same);
    let after = &after[same..];
    let same = before.iter().rev().zip(after.iter().rev()).take_while(|(a, b)| a == b).count();
    let (before, tail) = before.split_at(before.len() - same);
    let after = &after[..after.len() - same];

    let mut edits: Vec<_> = head.iter().map(|line| (Edit::Keep, *line)).collect();
    if before.len().saturating_mul(after.len()) <= MOST_PAIRS {
        edits.extend(middle(before, after));
    } else {
        edits.extend(before.iter().map(|line| (Edit::Remove, *line)));
        edits.extend(after.iter().map(|line| (Edit::Add, *line)));
    }
    edits.extend(tail.iter().map(|line| (Edit::Keep, *line)));
    edits
}

/// By the longest common subsequence.
fn middle<'a>(before: &[&'a str], after: &[&'a str]) -> Vec<(Edit, &'a str)> {
    let width = after.len() + 1;
    // How many lines the rests from here on have in common.
    let mut common = vec![0_u32; (before.len() + 1) * width];
    for i in (0..before.len()).rev() {
        for j in (0..after.len()).rev() {
            common[i * width + j] = if before[i] == after[j] {
                common[(i + 1) * width + j + 1] + 1
            } else {
                common[(i + 1) * width + j].max(common[i * width + j + 1])
            };
        }
    }
    let (mut i, mut j) = (0, 0);
    let mut edits = Vec::with_capacity(before.len() + after.len());
    while i < before.len() || j < after.len() {
        if i < before.len() && j < after.len() && before[i] == after[j] {
            edits.push((Edit::Keep, before[i]));
            (i, j) = (i + 1, j + 1);
        } else if j == after.len()
            || (i < before.len() && common[(i + 1) * width + j] >= common[i * width + j + 1])
        {
            edits.push((Edit::Remove, before[i]));
            i += 1;
        } else {
            edits.push((Edit::Add, after[j]));
            j += 1;
        }
    }
    edits
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_stand_in_their_context() {
        let old: String = (1..=20).map(|n| format!("line {n}\n")).collect();
        let new = old.replace("line 5\n", "five\n").replace("line 18\n", "");
        let expected = "    \
/x (+1 −2)
    @@ -2,7 +2,7 @@
     line 2
     line 3
     line 4
    -line 5
    +five
     line 6
     line 7
     line 8
    @@ -15,6 +15,5 @@
     line 15
     line 16
     line 17
    -line 18
     line 19
     line 20
";
        assert_eq!(render("/x", Some(&old), &new, Style::default()), expected);
    }

    #[test]
    fn near_changes_share_a_hunk_and_new_files_are_all_new() {
        let shown = render("/x", Some("a\nb\nc\nd\ne\n"), "A\nb\nc\nd\nE\n", Style::default());
        assert_eq!(shown.matches("@@ -1,5 +1,5 @@").count(), 1, "{shown}");
        let shown = render("/x", None, "a\nb", Style::default());
        assert_eq!(shown, "    /x (new file, +2 −0)\n    @@ -0,0 +1,2 @@\n    +a\n    +b\n");
    }

    #[test]
    fn nothing_in_it_steers_the_terminal() {
        let shown = render("/\u{1b}[2Jx\n", Some("a\u{1b}[1m\r"), "b\u{7}\u{202e}", Style::default());
        assert!(!shown.contains(['\u{1b}', '\r', '\u{7}', '\u{202e}']), "{shown:?}");
        assert_eq!(shown.lines().count(), 4, "{shown}");
    }

    #[test]
    fn much_is_cut() {
        let many: String = (0..3000).map(|n| format!("{n}\n")).collect();
        let other: String = (0..3000).map(|n| format!("x{n}\n")).collect();
        let shown = render("/x", Some(&many), &other, Style::default());
        assert_eq!(shown.lines().count(), SHOWN_LINES + 1);
        assert!(shown.ends_with("lines more)\n"));
        let long = render("/x", None, &"y".repeat(100_000), Style::default());
        assert!(long.len() < 1000);
    }
}
