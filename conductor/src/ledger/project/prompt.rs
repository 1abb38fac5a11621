//! Prompts: their text, and the files that people name in them.

use super::{
    MOST_ITEMS, NAME, PATH, Step, TEXT, Turn,
    json::{cut, dig, elements, pick, text},
    requests::What,
};
use crate::ledger::table::{Fact, TURNS, Value};

/// Most prompts that wait in a session; it takes 16 itself.
const MOST_PROMPTS: usize = 64;

/// Most blocks of a prompt that are looked at.
const MOST_BLOCKS: usize = 1024;

impl Step<'_> {
    /// A prompt begins a turn, at once or when those before it have ended.
    pub(super) fn prompt(&mut self, params: &str) {
        let (seq, at) = (self.seq(), self.at());
        if self.state.turns.len() >= MOST_PROMPTS {
            self.state.turns.pop_front();
        }
        if self.state.turns.is_empty() {
            self.state.told.clear();
        }
        self.state.turns.push_back(Turn { seq, began_us: at, cancelled: false });
        self.state.had_turns = true;
        self.state.replaying = false;
        self.state.messages.close();
        self.wait(What::Prompt { turn: seq });

        let [blocks] = pick(params, ["prompt"]);
        let mut prompt = String::new();
        let mut named: Vec<(String, &'static str)> = Vec::new();
        for block in blocks.into_iter().flat_map(elements).take(MOST_BLOCKS) {
            let [kind, words, uri] = pick(block, ["type", "text", "uri"]);
            let said = match kind.and_then(text).as_deref() {
                Some("text") => {
                    let said = words.and_then(text).unwrap_or_default();
                    named.extend(mentions(&said).map(|path| (path, "mention")).take(MOST_ITEMS as usize));
                    said.into_owned()
                }
                Some("resource_link" | "resource") => {
                    let Some(uri) = uri.or_else(|| dig(block, &["resource", "uri"])).and_then(text) else {
                        continue;
                    };
                    named.extend(file(&uri).map(|path| (path, "resource")));
                    cut(&uri, PATH)
                }
                Some(other) => format!("[{}]", cut(other, NAME)),
                None => continue,
            };
            // Enough to know that it was cut.
            if prompt.len() <= TEXT {
                prompt.push_str(if prompt.is_empty() { "" } else { "\n" });
                prompt.push_str(&cut(&said, TEXT + 1));
            }
        }
        let mut fact = self.row(TURNS, [self.id().into(), seq.into()]).set("began_us", at);
        if let Some(by) = &self.told.by {
            fact.put("user_name", by.as_str());
            // Nobody noted that user's team, and it is not the owner's.
            fact.put("team", Value::Null);
        }
        fact.put("model", self.state.model.clone());
        fact.put("mode", self.state.mode.clone());
        fact.put("prompt", cut(&prompt, TEXT));
        self.facts.push(fact);
        self.session.put("turns", 1i64);

        named.dedup();
        for (path, source) in named {
            self.access(&path, "mention", source, None);
        }
        // It belongs to the turn that it begins, which may have to wait.
        for fact in &mut self.facts {
            fact.put("turn", seq);
        }
    }

    /// The answer to a prompt.
    pub(super) fn end_turn(&mut self, seq: i64, stop_reason: Option<String>, error: Option<String>) {
        let Some(at) = self.state.turns.iter().position(|turn| turn.seq == seq) else { return };
        let Some(turn) = self.state.turns.remove(at) else { return };
        self.state.messages.close();
        // The editor is told so, whatever the agent says.
        let (stop_reason, error) =
            if turn.cancelled { (Some("cancelled".into()), None) } else { (stop_reason, error) };
        // Whose it is was said at its beginning.
        let mut fact = Fact::new(TURNS, [self.id().into(), seq.into()]);
        fact.put("agent", self.state.agent.clone());
        fact.put("ended_us", self.at());
        fact.put("ended_seq", self.seq());
        fact.put("duration_us", self.at().saturating_sub(turn.began_us).max(0));
        fact.put("stop_reason", stop_reason);
        fact.put("error", error);
        self.facts.push(fact);
    }

    /// Ends the turns that will get no answer any more.
    pub(super) fn end_turns(&mut self, why: &str) {
        while let Some(turn) = self.state.turns.front_mut() {
            let seq = turn.seq;
            turn.cancelled = false;
            self.end_turn(seq, None, Some(why.to_string()));
        }
    }
}

/// Paths after an `@` at the beginning of a word: `@src/main.rs`,
/// `@"a b.txt"`. A name without a dot or a slash may be a person.
fn mentions(words: &str) -> impl Iterator<Item = String> {
    let mut rest = words;
    let mut before = None;
    std::iter::from_fn(move || {
        loop {
            let at = rest.find('@')?;
            let last = rest[..at].chars().next_back().or(before);
            let after = &rest[at + 1..];
            (rest, before) = (after, Some('@'));
            if last.is_some_and(|last| !last.is_whitespace() && !"([{<,;:\"'`".contains(last)) {
                continue;
            }
            let quoted =
                after.strip_prefix('"').and_then(|after| after.split_once('"')).map(|(path, _)| path);
            let path = quoted.unwrap_or_else(|| {
                let end = after.find(|c: char| c.is_whitespace() || ")]}>,;\"'`".contains(c));
                let path = &after[..end.unwrap_or(after.len())];
                path.split('#').next().unwrap_or_default().trim_end_matches(['.', ':', '!', '?'])
            });
            if path.len() <= PATH && path.contains(['.', '/']) && !path.contains(['\n', '@']) {
                return Some(path.to_string());
            }
        }
    })
}

/// The path that a URI names, if it names a file.
fn file(uri: &str) -> Option<String> {
    let path = match uri.split_once("://") {
        Some(("file", rest)) => &rest[rest.find('/')?..],
        Some(_) => return None,
        None => uri.strip_prefix("file:").unwrap_or(uri),
    };
    let path = path.split(['?', '#']).next().filter(|path| !path.is_empty())?;
    // Neither an address of another sort nor a word.
    if !path.starts_with('/') && path.split('/').next().is_some_and(|first| first.contains(':')) {
        return None;
    }
    Some(decode(path))
}

/// Undoes percent-encoding, unless that yields no text.
fn decode(path: &str) -> String {
    let mut bytes = Vec::with_capacity(path.len());
    let mut rest = path.as_bytes();
    while let Some((&byte, after)) = rest.split_first() {
        let code = after.get(..2).and_then(|code| std::str::from_utf8(code).ok());
        match code.filter(|_| byte == b'%').and_then(|code| u8::from_str_radix(code, 16).ok()) {
            Some(decoded) => {
                bytes.push(decoded);
                rest = &after[2..];
            }
            None => {
                bytes.push(byte);
                rest = after;
            }
        }
    }
    String::from_utf8(bytes).unwrap_or_else(|_| path.to_string())
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests fail by panicking")]
mod tests {
    use super::*;

    #[test]
    fn files_that_people_mention_are_found() {
        let said = "@src/a.rs: see (@b.txt), [@c](file:///c) and @\"d e.md\"; not me@example.com, @alice, @ @@ @x/y#L3 @é/ü. @";
        assert_eq!(mentions(said).collect::<Vec<_>>(), ["src/a.rs", "b.txt", "d e.md", "x/y", "é/ü"]);
    }

    #[test]
    fn file_uris_become_paths() {
        assert_eq!(file("file:///a%20b/c.rs?x=1#L3").unwrap(), "/a b/c.rs");
        assert_eq!(file("file://host/a%ff%").unwrap(), "/a%ff%");
        assert_eq!(file("/plain/path").unwrap(), "/plain/path");
        assert_eq!(file("src/x.rs").unwrap(), "src/x.rs");
        for none in ["https://example.com/a", "mailto:a@b.c", "", "file://host", "zed:///x"] {
            assert_eq!(file(none), None, "{none}");
        }
    }
}
