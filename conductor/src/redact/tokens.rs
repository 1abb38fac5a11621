//! Tokens that are known by their looks: keys of providers, JWTs, private keys, credentials in
//! headers and addresses.
//!
//! Every frame passes here, and hardly any holds one. So a frame is first looked through for
//! what all of them have: a long stretch without a gap, a telling word, or an `@`. That takes
//! a tenth of a nanosecond for a byte. What is found so is looked at where it stands, and only
//! what still looks like a token is worth taking the frame apart.

use std::sync::LazyLock;

use memchr::memmem;
use regex::bytes::Regex;

use super::{
    finder::Finder,
    words::{is_blank, is_dense, is_ordinary},
};

/// How a hit is looked at.
#[derive(Debug, Clone, Copy)]
enum Look {
    /// So many characters of a token behind, after what separates them.
    Behind(usize),
    /// One of these right in front.
    Before(&'static [&'static str]),
    /// One of these right behind.
    Begins(&'static [&'static str]),
    /// One of these somewhere behind, in the same command.
    Holds(&'static [&'static str]),
    /// An escaped letter, digit or joint, which no usual encoder makes: what is searched for
    /// may be hidden so.
    Escape,
    /// Any.
    Any,
}

/// Words that tell of a token, or of a part of the frame that holds secrets. None is shorter
/// than four bytes, which is what makes the search fast.
const HINTS: &[(&str, Look)] = &[
    ("earer ", Look::Behind(12)),
    ("EARER ", Look::Behind(12)),
    ("horization", Look::Behind(8)),
    ("HORIZATION", Look::Behind(8)),
    ("cess_key", Look::Behind(30)),
    ("CESS_KEY", Look::Behind(30)),
    ("cessKey", Look::Behind(30)),
    ("PRIVATE KEY", Look::Any),
    // Of this one signs may stand where others have a stretch.
    ("whsec_", Look::Any),
    ("ervers", Look::Before(&["mcpS", "mcp_s"])),
    ("\"auth", Look::Begins(&["/", "enticate\""])),
    ("\"_auth", Look::Any),
    ("\"providers/set\"", Look::Any),
    ("\\u00", Look::Escape),
    ("ASSWORD=", Look::Any),
    ("-password", Look::Begins(&["=", " "])),
    ("curl ", Look::Holds(&[" -u", " --user"])),
];

/// The shortest stretch of letters, digits, `-` and `_` that a token has.
const STRETCH: usize = 18;

/// Whether what was found is a token after all.
type Check = fn(&[u8]) -> bool;

/// Tokens in text without escapes. The group is the secret.
const PATTERNS: &[(&[&str], &str, Check)] = &[
    (&["sk-"], r"sk-[A-Za-z0-9_-]{20,}", |token| is_dense(token, 12)),
    (&["ghp_", "gho_", "ghu_", "ghs_", "ghr_"], r"gh[pousr]_[A-Za-z0-9]{36,}", |_| true),
    (&["github_pat_"], r"github_pat_[A-Za-z0-9_]{22,}", |_| true),
    (&["glpat-", "gldt-", "glrt-"], r"gl(?:pat|dt|rt)-[A-Za-z0-9_-]{20,}", |token| is_dense(token, 8)),
    (&["xox"], r"xox[abeoprs]-[A-Za-z0-9-]{14,}", |token| token.iter().any(u8::is_ascii_digit)),
    (&["xapp-"], r"xapp-[0-9]-[A-Za-z0-9-]{14,}", |_| true),
    (&["AKIA", "ASIA"], r"A(?:KIA|SIA)[A-Z0-9]{16}", |_| true),
    (&["AIza"], r"AIza[A-Za-z0-9_-]{35}", |_| true),
    (&["ya29."], r"ya29\.[A-Za-z0-9_-]{20,}", |_| true),
    (
        &["eyJ"],
        r"eyJ[A-Za-z0-9_-]{15,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{4,}(?:\.[A-Za-z0-9_-]+){0,2}",
        |_| true,
    ),
    (&["sk_live_", "sk_test_", "rk_live_", "rk_test_"], r"[sr]k_(?:live|test)_[A-Za-z0-9]{16,}", |_| true),
    (&["whsec_"], r"whsec_[A-Za-z0-9+/]{24,}=*", |_| true),
    (&["npm_"], r"npm_[A-Za-z0-9]{36}", |_| true),
    (&["pypi-Ag"], r"pypi-Ag[A-Za-z0-9_-]{40,}", |_| true),
    (&["hf_"], r"hf_[A-Za-z0-9]{30,}", |_| true),
    (&["gsk_"], r"gsk_[A-Za-z0-9]{40,}", |_| true),
    (&["xai-", "pplx-"], r"(?:xai|pplx)-[A-Za-z0-9]{40,}", |_| true),
    (&["nvapi-"], r"nvapi-[A-Za-z0-9_-]{40,}", |_| true),
    (&["dop_v1_"], r"dop_v1_[a-f0-9]{64}", |_| true),
    (&["lin_api_"], r"lin_api_[A-Za-z0-9]{30,}", |_| true),
    (&["SG."], r"SG\.[A-Za-z0-9_-]{18,}\.[A-Za-z0-9_-]{30,}", |_| true),
    (&["hvs."], r"hvs\.[A-Za-z0-9_-]{20,}", |_| true),
    (&["shpat_"], r"shpat_[a-fA-F0-9]{32}", |_| true),
    (&["dckr_pat_"], r"dckr_pat_[A-Za-z0-9_-]{20,}", |_| true),
    (&["ATATT3"], r"ATATT3[A-Za-z0-9_=-]{60,}", |_| true),
    (&["AGE-SECRET-KEY-"], r"AGE-SECRET-KEY-1[A-Z0-9]{50,}", |_| true),
    // Our own.
    (&["cdt_"], r"cdt_[a-f0-9]{64}", |_| true),
];

/// The same for what does not begin a word. The first group is the secret.
const OTHERS: &[(&[&str], &str, Check)] = &[
    // Line ends may be written as text, once or more often.
    (
        &["PRIVATE KEY"],
        r"(-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----[\\nrt\s]*(?:[A-Za-z0-9+/=]{16}|Proc-Type|Version|Comment)(?:[^-]|-[^-])*(?:-----END [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----)?)",
        |_| true,
    ),
    (&["earer", "EARER"], r"(?i)\bbearer\s+([A-Za-z0-9._~+/=-]{16,})", |token| is_dense(token, 6)),
    (
        &["horization", "HORIZATION"],
        r#"(?i)authorization[\\"'\s]{0,6}[:=,][\\"'\s]{0,6}(?:basic|bearer|token|digest)\s+([A-Za-z0-9._~+/=-]{8,})"#,
        |token| token.iter().any(|byte| byte.is_ascii_digit() || byte.is_ascii_uppercase()),
    ),
    (
        &["cess_key", "CESS_KEY", "cessKey"],
        r#"(?i)aws_?secret_?access_?key[\\"'\s]{0,6}[:=,]?[\\"'\s]{0,6}([A-Za-z0-9/+]{40})(?:[^A-Za-z0-9/+]|$)"#,
        |_| true,
    ),
    (&["://"], r#"[A-Za-z][A-Za-z0-9+.-]*://[^\s/@:"'<>?#\\`]{0,200}:([^\s/@"'<>?#\\`]{1,400})@"#, |word| {
        !is_blank(&String::from_utf8_lossy(word))
    }),
    // What commands are given. Behind a space, and not `=`, prose may go on.
    (&["ASSWORD="], r#"\b[A-Z0-9_]*PASSWORD=[\\"']{0,2}([^\s"'\\$;&|<>(){}`,]{4,400})"#, is_given),
    (&["-password="], r#"[\s"'\\]--?password=[\\"']{0,2}([^\s"'\\$;&|<>(){}`,]{4,400})"#, is_given),
    (
        &["-password "],
        r#"[\s"'\\]--?password +[\\"']{0,2}([^\s"'\\$;&|<>(){}`,-][^\s"'\\$;&|<>(){}`,]{3,400})"#,
        |word| is_given(word) && !is_ordinary(&String::from_utf8_lossy(word)),
    ),
    (
        &["curl "],
        r#"\bcurl (?:[^\n;&|]{0,400} )?(?:-u|--user)[ =]?[\\"']{0,2}[^\s:"'\\$]{1,100}:([^\s"'\\$;&|<>`]{1,200})"#,
        |word| !is_blank(&String::from_utf8_lossy(word)),
    ),
];

/// Whether a password stands there, and not only where it comes from.
fn is_given(word: &[u8]) -> bool {
    let word = String::from_utf8_lossy(word);
    let is_elsewhere = word.contains('.') && is_ordinary(&word);
    !is_blank(&word) && !is_elsewhere
}

static TOKENS: LazyLock<Tokens> = LazyLock::new(Tokens::new);

/// What a token may begin with, by its first byte.
static FIRST: [bool; 256] = {
    let mut first = [false; 256];
    let mut which = 0;
    while which < PATTERNS.len() {
        let mut prefix = 0;
        while prefix < PATTERNS[which].0.len() {
            first[PATTERNS[which].0[prefix].as_bytes()[0] as usize] = true;
            prefix += 1;
        }
        which += 1;
    }
    first
};

/// What stretches consist of.
static IN_STRETCH: [bool; 256] = {
    let mut table = [false; 256];
    let mut byte = 0;
    while byte < 256 {
        table[byte] = (byte as u8).is_ascii_alphanumeric() || byte as u8 == b'_' || byte as u8 == b'-';
        byte += 1;
    }
    table
};

struct Pattern {
    /// What it begins with, or has in it; a text without that needs no further look.
    prefixes: Vec<memmem::Finder<'static>>,
    regex: Regex,
    check: Check,
}

struct Tokens {
    hints: Finder,
    patterns: Vec<Pattern>,
}

impl Tokens {
    fn new() -> Self {
        let words = PATTERNS
            .iter()
            .map(|(prefixes, text, check)| (*prefixes, format!(r"(?-u)(?:^|[^A-Za-z0-9_])({text})"), *check));
        let others = OTHERS.iter().map(|(parts, text, check)| (*parts, format!("(?-u){text}"), *check));
        let compiled = words.chain(others).filter_map(|(prefixes, text, check)| {
            let prefixes = prefixes.iter().map(|prefix| memmem::Finder::new(*prefix)).collect();
            Some(Pattern { prefixes, regex: Regex::new(&text).ok()?, check })
        });
        Self {
            hints: Finder::new(HINTS.iter().map(|(hint, _)| hint.as_bytes())),
            patterns: compiled.collect(),
        }
    }
}

/// Whether a frame has to be taken apart, because there may be a token in it, or a part that
/// holds secrets by its meaning.
#[inline]
pub(super) fn suspects(bytes: &[u8]) -> bool {
    has_stretch(bytes)
        || has_password(bytes)
        || TOKENS.hints.any(bytes, |which, start, end| {
            HINTS.get(which).is_none_or(|(_, look)| is_likely(*look, bytes, start, end))
        })
}

/// Whether there is a stretch that a token may be in. The last byte of what would be one is
/// looked at first: where that cannot be, none can begin before it.
fn has_stretch(bytes: &[u8]) -> bool {
    let mut start = 0;
    while let Some(window) = bytes.get(start..start + STRETCH) {
        if let Some(gap) = window.iter().rposition(|byte| !IN_STRETCH[usize::from(*byte)]) {
            start += gap + 1;
            continue;
        }
        let end = start + STRETCH + stretch_before_gap(&bytes[start + STRETCH..]);
        if is_stretch_of_token(bytes, start, end) {
            return true;
        }
        start = end + 1;
    }
    false
}

/// How many bytes there are before the first that is in no stretch. A stretch may be long (a file in
/// base64, a minified program), so it is looked at block by block, as arithmetic that needs no table.
fn stretch_before_gap(bytes: &[u8]) -> usize {
    let is_in = |byte: &u8| is_word(*byte) | (*byte == b'-');
    let (blocks, _) = bytes.as_chunks::<32>();
    let is_whole = |block: &&[u8; 32]| block.iter().fold(true, |all, byte| all & is_in(byte));
    let whole = blocks.iter().take_while(is_whole).count() * 32;
    let rest = &bytes[whole..];
    whole + rest.iter().position(|byte| !is_in(byte)).unwrap_or(rest.len())
}

fn is_stretch_of_token(bytes: &[u8], start: usize, end: usize) -> bool {
    let stretch = &bytes[start..end];
    let before = &bytes[..start];
    let begins_before = before.ends_with(b".")
        && ["ya29.", "hvs.", "SG."].iter().any(|prefix| before.ends_with(prefix.as_bytes()));
    // What is escaped in front of a word stands in the same stretch.
    let escaped: &[usize] = if before.ends_with(b"\\") { &[1, 5] } else { &[] };
    let behind_joints = memchr::memchr_iter(b'-', stretch).map(|at| at + 1);
    let mut places = std::iter::once(0).chain(escaped.iter().copied()).chain(behind_joints);
    (begins_before || places.any(|at| begins_token(&stretch[at..])))
        && stretch.iter().any(|byte| byte.is_ascii_digit() || byte.is_ascii_uppercase())
}

fn begins_token(text: &[u8]) -> bool {
    text.first().is_some_and(|byte| FIRST[usize::from(*byte)])
        && PATTERNS
            .iter()
            .any(|(prefixes, ..)| prefixes.iter().any(|prefix| text.starts_with(prefix.as_bytes())))
}

/// Whether there is an address with a password in it.
fn has_password(bytes: &[u8]) -> bool {
    memchr::memchr_iter(b'@', bytes).any(|at| {
        let before = &bytes[at.saturating_sub(LONGEST_USER)..at];
        let ends = |byte: &u8| matches!(byte, b'/' | b'"' | b' ' | b'?' | b'#' | b'<' | b'>');
        let Some(end) = before.iter().rposition(ends) else { return false };
        let scheme = &before[..=end];
        (scheme.ends_with(b"://") || scheme.ends_with(b":\\/\\/")) && before[end..].contains(&b':')
    })
}

/// Bytes of a command's options in front of the one with the password.
const LONGEST_COMMAND: usize = 400;

/// Bytes of a user and a password in an address.
const LONGEST_USER: usize = 640;

fn is_likely(look: Look, bytes: &[u8], start: usize, end: usize) -> bool {
    let behind = &bytes[end..];
    match look {
        Look::Any => true,
        Look::Before(parts) => parts.iter().any(|part| bytes[..start].ends_with(part.as_bytes())),
        Look::Begins(parts) => parts.iter().any(|part| behind.starts_with(part.as_bytes())),
        Look::Holds(parts) => {
            let near = &bytes[end - 1..bytes.len().min(end + LONGEST_COMMAND)];
            parts.iter().any(|part| memmem::find(near, part.as_bytes()).is_some())
        }
        Look::Behind(least) => {
            // Between a name and its value there are quotes, colons, a scheme.
            let near = &behind[..behind.len().min(48 + least)];
            near.split(|byte| !is_token(*byte)).any(|part| part.len() >= least)
        }
        Look::Escape => {
            let code = bytes.get(start + 4..start + 6).and_then(|code| std::str::from_utf8(code).ok());
            let code = code.and_then(|code| u8::from_str_radix(code, 16).ok());
            let is_joint = |code: u8| matches!(code, b'-' | b'_' | b'.' | b':' | b'@' | b'~');
            code.is_some_and(|code| code.is_ascii_alphanumeric() || is_joint(code))
        }
    }
}

fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b'+' | b'/' | b'=' | b'~')
}

/// Tells of every token in a text without escapes, and where it is.
pub(super) fn find(text: &[u8], mut found: impl FnMut(usize, usize)) {
    for Pattern { prefixes, regex, check } in &TOKENS.patterns {
        if !prefixes.iter().any(|prefix| prefix.find(text).is_some()) {
            continue;
        }
        // A match begins in front of its word, so the next search does where the token ends.
        let mut from = 0;
        while let Some(token) = regex.captures_at(text, from).and_then(|captures| captures.get(1)) {
            if check(token.as_bytes()) {
                found(token.start(), token.end());
            }
            from = token.end().max(from + 1);
            if from > text.len() {
                break;
            }
        }
    }
}

/// How far before a seam a token may begin that goes on there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reach {
    /// As far as the longest has been said.
    Long,
    /// No stretch of the frame looks like a token's ([`suspects`]), so that of any only a part of a
    /// stretch can be there, or, where a sign divides it, a few of them.
    Short,
}

impl Reach {
    fn bytes(self) -> usize {
        match self {
            Self::Long => 2048,
            // The longest with signs in it that may come before the first long stretch.
            Self::Short => 64,
        }
    }
}

/// A token of which a text may hold the beginning only, and what it may have in it beside letters,
/// digits, `-` and `_`. It begins before `seam`, at the beginning of a word, and goes on to
/// beyond it, or to the end if that is where the seam is.
pub(super) fn begun(
    text: &[u8],
    seam: usize,
    is_begin: bool,
    reach: Reach,
) -> Option<(usize, usize, &'static [u8])> {
    let floor = seam.saturating_sub(reach.bytes());
    // In the middle of a long word nothing begins: mostly that is all there is to see.
    let window = &text[floor.saturating_sub(1)..seam];
    if floor > 0 && window.iter().fold(true, |all, byte| all & is_word(*byte)) {
        return None;
    }
    let is_part = |byte: u8| IN_STRETCH[usize::from(byte)] || matches!(byte, b'.' | b'+' | b'/' | b'=');
    let (mut start, mut found) = (seam, None);
    while start > floor && is_part(text[start - 1]) {
        start -= 1;
        let begins = start.checked_sub(1).map_or(is_begin, |before| !is_word(text[before]));
        if begins && FIRST[usize::from(text[start])] {
            found = token_at(text, start, seam).or(found);
        }
    }
    // Nothing that a generator has made goes on for long without one of these.
    let near = &text[start..text.len().min(seam + STRETCH * 2)];
    found.filter(|_| near.iter().any(|byte| byte.is_ascii_digit() || byte.is_ascii_uppercase()))
}

/// The token that begins at a place and reaches beyond the seam.
fn token_at(text: &[u8], start: usize, seam: usize) -> Option<(usize, usize, &'static [u8])> {
    PATTERNS.iter().flat_map(|(prefixes, ..)| *prefixes).find_map(|prefix| {
        let behind = text[start..].strip_prefix(prefix.as_bytes())?;
        let signs: &'static [u8] = match *prefix {
            "eyJ" | "SG." => b".",
            "whsec_" => b"+/=",
            "ATATT3" => b"=",
            _ => b"",
        };
        let len = more(behind, signs);
        let end = start + prefix.len() + len;
        let reaches = end > seam || (end == seam && seam == text.len());
        (reaches && is_made(prefix, &behind[..len])).then_some((start, end, signs))
    })
}

/// What words consist of. As arithmetic, so that many are looked at together.
fn is_word(byte: u8) -> bool {
    ((byte | 0x20).wrapping_sub(b'a') < 26) | (byte.wrapping_sub(b'0') < 10) | (byte == b'_')
}

/// How much of a text's beginning goes on with a token.
pub(super) fn more(text: &[u8], signs: &[u8]) -> usize {
    let goes_on = |byte: &u8| IN_STRETCH[usize::from(*byte)] || signs.contains(byte);
    text.iter().position(|byte| !goes_on(byte)).unwrap_or(text.len())
}

/// Whether what follows a prefix is of a generator's making already, and not the rest of a word.
fn is_made(prefix: &str, behind: &[u8]) -> bool {
    let mixes = |run: &[u8]| {
        let has = |is: fn(&u8) -> bool| run.iter().any(is);
        (has(u8::is_ascii_digit), has(u8::is_ascii_uppercase) && has(u8::is_ascii_lowercase))
    };
    let mut runs = behind.split(|byte| !byte.is_ascii_alphanumeric());
    if prefix == "sk-" {
        // There are words that begin so, of which some have a capital in them.
        let is_jumbled = |run: &[u8]| {
            let capitals = run.iter().filter(|byte| byte.is_ascii_uppercase()).count();
            run.len() >= 8 && capitals >= 3 && capitals < run.len()
        };
        return is_dense(behind, 12)
            || runs.any(|run| run.len() >= 6 && mixes(run) == (true, true) || is_jumbled(run));
    }
    let (has_digit, has_both) = mixes(behind);
    (has_digit && behind.len() >= 3)
        || (has_both && behind.len() >= 4)
        || runs.any(|run| run.len() >= STRETCH)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests fail by panicking")]
mod tests {
    use super::{super::finder::AT_ONCE, *};

    #[test]
    fn every_pattern_compiles_and_the_hints_are_searched_for_at_once() {
        assert_eq!(TOKENS.patterns.len(), PATTERNS.len() + OTHERS.len());
        assert!(HINTS.iter().all(|(hint, _)| hint.len() >= 4));
        assert!(HINTS.len() <= AT_ONCE, "one more pass over every frame");
        assert!(PATTERNS.iter().all(|(prefixes, ..)| !prefixes.is_empty()));
    }

    #[test]
    fn a_stretch_ends_where_its_table_says() {
        for byte in 0..=u8::MAX {
            for at in [0, 1, 31, 32, 33, 64, 70] {
                let mut text = [b'a'; 71];
                text[at] = byte;
                let expected = if IN_STRETCH[usize::from(byte)] { text.len() } else { at };
                assert_eq!(stretch_before_gap(&text), expected, "{byte:#x} at {at}");
            }
        }
    }

    #[test]
    fn a_token_is_found_wherever_it_begins_in_a_long_stretch() {
        let token = "ghp_0123456789abcdefghijABCDEFGHIJ012345";
        for length in [1, 2, 17, 18, 31, 32, 33, 500] {
            let filler = "z".repeat(length);
            assert!(suspects(format!("{filler}-{token}").as_bytes()), "behind {length}");
            assert!(suspects(format!("{token}-{filler}").as_bytes()), "before {length}");
            assert!(!suspects(format!("{filler}{token}").as_bytes()), "in the middle of a word of {length}");
            assert!(!suspects(format!("{filler}-").as_bytes()), "nothing behind the joint");
        }
        // Four or more letters of an escape stand in front of the word.
        assert!(suspects(format!("\\n{token}").as_bytes()));
        assert!(suspects(format!("\\u000a{token}").as_bytes()));
    }

    #[test]
    fn ordinary_frames_are_not_taken_apart() {
        for frame in [
            r#"{"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"01a1e59e-36a4-77fa-9541-e2cf6575c745","update":{"sessionUpdate":"agent_message_chunk","content":{"type":"text","text":"the task-list and disk-usage of https://example.com/a?b=c#d at risk-averse desk-tops"}}}}"#,
            r#"{"id":4,"result":{"content":"\u001b[31m\u003ca href=\u0022x\u0022\u003e caf\u00e9 \u2026"}}"#,
            r#"{"text":"git@github.com:a/b.git file:///home/me/x@y:z sk-estimator-doc-link"}"#,
        ] {
            assert!(!suspects(frame.as_bytes()), "{frame}");
        }
    }
}
