//! A command line, character by character, by an allow-list.
//!
//! This is the strict one of two readings of a line; the grammar is the other. It knows only what
//! bash, dash and zsh read alike, non-interactive or not: what is not on its list is a trouble.
//! With a trouble the line is never allowed, but the scan goes on as well as it can, so that rules
//! that deny still see what stands in the rest of it.

use super::super::text;

/// More troubles than this tell people nothing new.
const MOST_TROUBLES: usize = 8;

/// How a command is joined to what stands before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Join {
    And,
    Or,
    Pipe,
    Semicolon,
    Newline,
    /// Something that is a trouble: `&`, `|&`, `;;`, parentheses.
    Other,
}

/// What a redirection does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Arrow {
    /// `<`
    Read,
    /// `>`, `>>`, `>|`
    Write,
    /// `<>`
    Both,
    /// `>&`
    CopyOut,
    /// `<&`, which is always a trouble.
    CopyIn,
}

/// A word as written and as the program gets it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Written<'a> {
    /// With its quotes.
    pub raw: &'a str,
    /// Without them.
    pub text: String,
    /// Whether `text` is exactly what a shell makes of it.
    pub is_literal: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Token<'a> {
    Word(Written<'a>),
    /// With the file descriptor in front of it, if there is one. The next token is its target.
    Arrow(Option<&'a str>, Arrow),
    Join(Join),
}

/// What was found in a line.
#[derive(Debug, Default)]
pub struct Scanned<'a> {
    pub tokens: Vec<Token<'a>>,
    /// What is not literal, in words for people.
    pub troubles: Vec<String>,
    /// The lines inside substitutions.
    pub inner: Vec<&'a str>,
    /// Whether there are comments, which only some shells pass over.
    pub has_comments: bool,
}

impl Scanned<'_> {
    pub fn trouble(&mut self, what: &str) {
        if self.troubles.len() < MOST_TROUBLES && !self.troubles.iter().any(|known| known == what) {
            self.troubles.push(what.to_owned());
        }
    }
}

/// Reads a line.
pub fn scan(line: &str) -> Scanned<'_> {
    scan_as(line, false)
}

/// Reads a line as a shell does that a person types into: zsh knows no comments there, so they are
/// words like all others.
pub fn scan_typed(line: &str) -> Scanned<'_> {
    scan_as(line, true)
}

fn scan_as(line: &str, is_typed: bool) -> Scanned<'_> {
    let mut scanner = Scanner { line, at: 0, is_typed, found: Scanned::default(), heredocs: Vec::new() };
    while scanner.token() {}
    if !scanner.heredocs.is_empty() {
        scanner.found.trouble("a here-document");
    }
    scanner.found
}

struct Scanner<'a> {
    line: &'a str,
    at: usize,
    /// Whether what others take for comments are words.
    is_typed: bool,
    found: Scanned<'a>,
    /// The here-documents that begin with the next line: their end, and whether tabs are taken
    /// off.
    heredocs: Vec<(String, bool)>,
}

impl<'a> Scanner<'a> {
    fn peek(&self) -> Option<char> {
        self.rest().chars().next()
    }

    fn rest(&self) -> &'a str {
        self.line.get(self.at..).unwrap_or_default()
    }

    fn take(&mut self) -> Option<char> {
        let c = self.peek()?;
        self.at += c.len_utf8();
        Some(c)
    }

    /// Takes `text` if it comes next.
    fn took(&mut self, text: &str) -> bool {
        let comes = self.rest().starts_with(text);
        if comes {
            self.at += text.len();
        }
        comes
    }

    fn join(&mut self, join: Join) {
        self.found.tokens.push(Token::Join(join));
    }

    fn other(&mut self, trouble: &str) {
        self.found.trouble(trouble);
        self.join(Join::Other);
    }

    /// Reads the next token, if there is one.
    fn token(&mut self) -> bool {
        let Some(c) = self.peek() else { return false };
        match c {
            ' ' => self.at += 1,
            '\t' => {
                // Typed into a terminal, a tab asks for the rest of the word before it.
                if matches!(self.found.tokens.last(), Some(token) if *token != Token::Join(Join::Newline)) {
                    self.found.trouble("a tab inside of a line");
                }
                self.at += 1;
            }
            '\n' => {
                self.at += 1;
                self.join(Join::Newline);
                self.skip_heredocs();
            }
            '#' => self.comment(),
            ';' => {
                self.at += 1;
                if matches!(self.peek(), Some(';' | '&')) {
                    self.at += 1;
                    self.other("`;;` outside of a `case`");
                } else {
                    self.join(Join::Semicolon);
                }
            }
            '&' => self.ampersand(),
            '|' => {
                if self.took("||") {
                    self.join(Join::Or);
                } else if self.took("|&") {
                    self.other("`|&`");
                } else {
                    self.at += 1;
                    self.join(Join::Pipe);
                }
            }
            '(' | ')' => {
                self.at += 1;
                self.other("parentheses: a subshell, a function or a list");
            }
            '<' | '>' => self.arrow(None),
            _ => self.word(),
        }
        true
    }

    fn ampersand(&mut self) {
        if self.took("&&") {
            self.join(Join::And);
        } else if self.took("&>>") || self.took("&>") {
            self.found.trouble("`&>`");
            self.found.tokens.push(Token::Arrow(None, Arrow::Write));
        } else {
            self.at += 1;
            self.other("`&`: a command in the background");
        }
    }

    /// A shell that a person types into may know no comments, so one is harmless only if its words
    /// are: whoever asks reads the line in both ways.
    fn comment(&mut self) {
        let text = self.rest().split('\n').next().unwrap_or_default();
        self.at += text.len();
        self.found.has_comments = true;
        if self.is_typed {
            let words = text.split(' ').filter(|word| !word.is_empty());
            let written = |raw: &'a str| Written { raw, text: raw.to_owned(), is_literal: true };
            self.found.tokens.extend(words.map(|raw| Token::Word(written(raw))));
        }
        let plain = |c: char| c.is_ascii_alphanumeric() || " _-.,:/+#".contains(c);
        if !text.chars().all(plain) {
            self.found.trouble("a comment with special characters");
        }
    }

    fn arrow(&mut self, descriptor: Option<&'a str>) {
        let arrow = if self.took("<<<") {
            self.found.trouble("a here-string");
            Arrow::Read
        } else if self.rest().starts_with("<<") {
            self.heredoc();
            return;
        } else if self.rest().starts_with("<(") || self.rest().starts_with(">(") {
            self.at += 2;
            self.other("a process substitution");
            return;
        } else if self.took("<>") {
            Arrow::Both
        } else if self.took("<&") {
            self.found.trouble("`<&`");
            Arrow::CopyIn
        } else if self.took(">&") {
            Arrow::CopyOut
        } else if self.took(">>") || self.took(">|") || self.took(">") {
            Arrow::Write
        } else {
            self.at += 1;
            Arrow::Read
        };
        self.found.tokens.push(Token::Arrow(descriptor, arrow));
    }

    /// The text of a here-document is no list of commands.
    fn heredoc(&mut self) {
        self.found.trouble("a here-document");
        self.at += 2;
        let strips = self.took("-");
        while matches!(self.peek(), Some(' ' | '\t')) {
            self.at += 1;
        }
        let known = self.found.tokens.len();
        if self.peek().is_some_and(|c| !"\n;&|()<>".contains(c)) {
            self.word();
        }
        // A descriptor before a second arrow would be no end.
        if let Some(Token::Word(end)) = self.found.tokens.get(known) {
            self.heredocs.push((end.text.clone(), strips));
        }
        self.found.tokens.truncate(known);
    }

    fn skip_heredocs(&mut self) {
        for (end, strips) in std::mem::take(&mut self.heredocs) {
            while !self.rest().is_empty() {
                let line = self.rest().split('\n').next().unwrap_or_default();
                self.at = (self.at + line.len() + 1).min(self.line.len());
                let line = if strips { line.trim_start_matches('\t') } else { line };
                if line == end {
                    break;
                }
            }
        }
    }

    fn word(&mut self) {
        let start = self.at;
        let digits = self.rest().bytes().take_while(u8::is_ascii_digit).count();
        if digits > 0 && self.rest()[digits..].starts_with(['<', '>']) {
            self.at += digits;
            if digits > 1 || self.line[start..].starts_with(|c: char| c > '2') {
                self.found.trouble("a redirection of other descriptors than 0, 1 and 2");
            }
            self.arrow(Some(&self.line[start..self.at]));
            return;
        }
        let mut word = Word { text: String::new(), is_literal: true };
        while let Some(c) = self.peek() {
            match c {
                ' ' | '\t' | '\n' | ';' | '&' | '|' | '<' | '>' | '(' | ')' => break,
                '\'' => self.single_quoted(&mut word),
                '"' => self.double_quoted(&mut word),
                '\\' => self.escaped(&mut word),
                '$' | '`' => self.expansion(&mut word),
                _ => self.unquoted(start, &mut word),
            }
        }
        let raw = &self.line[start..self.at];
        let mut bare = raw;
        while let Some(rest) = bare.strip_prefix("''").or_else(|| bare.strip_prefix("\"\"")) {
            bare = rest;
        }
        if bare.len() > 1 && bare.starts_with('=') {
            self.doubt(&mut word, "`=` at the start of a word, which zsh expands");
        }
        if let Some(hidden) = text::hidden(&word.text) {
            self.doubt(&mut word, &format!("a word with {hidden}"));
        }
        self.found.tokens.push(Token::Word(Written { raw, text: word.text, is_literal: word.is_literal }));
    }

    fn doubt(&mut self, word: &mut Word, what: &str) {
        word.is_literal = false;
        self.found.trouble(what);
    }

    fn unquoted(&mut self, start: usize, word: &mut Word) {
        let Some(c) = self.take() else { return };
        let so_far = &self.line[start..self.at - c.len_utf8()];
        let is_first = so_far.is_empty();
        word.text.push(c);
        match c {
            '/' if is_stepping(so_far) => {
                self.doubt(word, "`^` or `~` before a slash, which some shells take for a pattern");
            }
            c if c.is_ascii_alphanumeric() || "_-./,:@%+=".contains(c) => {}
            // Whatever is no ASCII is no syntax; what hides is found in the whole word.
            c if !c.is_ascii() => {}
            // `HEAD^`, `HEAD~2`; with some settings of zsh both are patterns, elsewhere `~` is a home.
            '^' | '~'
                if is_revision(so_far)
                    && self.peek().is_none_or(|c| c.is_ascii_digit() || " \n;&|^~{.:".contains(c)) => {}
            // `HEAD@{1}`, `v1^{commit}`: without a comma or two dots nothing is expanded.
            '{' if so_far.ends_with(['@', '^']) => {
                let plain = |c: &u8| c.is_ascii_alphanumeric() || matches!(c, b'_' | b'-');
                let inside = &self.rest()[..self.rest().bytes().take_while(plain).count()];
                if self.rest()[inside.len()..].starts_with('}') {
                    word.text.push_str(inside);
                    word.text.push('}');
                    self.at += inside.len() + 1;
                } else {
                    self.doubt(word, "an expansion of braces");
                }
            }
            // `find . ! -name x`; whether it stands first is seen later.
            '!' if is_first && self.peek() == Some(' ') => {}
            '!' => self.doubt(word, "`!`, which may stand for an earlier command"),
            // `[ -f x ]`: alone it is a name and its last word, and no pattern.
            '[' if is_first && self.peek() == Some(' ') => {}
            ']' if is_first && self.peek().is_none_or(|c| " \n;&|".contains(c)) => {}
            '*' | '?' | '[' | ']' => self.doubt(word, "a pattern for file names"),
            '~' => self.doubt(word, "`~`, somebody's home or a pattern"),
            '{' | '}' => self.doubt(word, "an expansion of braces"),
            '#' => self.doubt(word, "`#` inside of a word"),
            '^' => self.doubt(word, "`^`, which some shells take for a pattern"),
            _ => self.doubt(word, "a character that means nothing here"),
        }
    }

    fn single_quoted(&mut self, word: &mut Word) {
        self.at += 1;
        let Some(length) = self.rest().find('\'') else {
            word.text.push_str(self.rest());
            self.at = self.line.len();
            self.doubt(word, "a quote that is not closed");
            return;
        };
        let inside = &self.rest()[..length];
        self.at += length + 1;
        word.text.push_str(inside);
        // Some shells take these two for a quote inside of the quotes.
        if inside.ends_with('\\') {
            self.doubt(word, "a backslash before a closing quote");
        } else if self.peek() == Some('\'') {
            self.doubt(word, "two quotes in a row");
        }
    }

    fn double_quoted(&mut self, word: &mut Word) {
        self.at += 1;
        loop {
            let Some(c) = self.peek() else {
                self.doubt(word, "a quote that is not closed");
                return;
            };
            match c {
                '"' => {
                    self.at += 1;
                    return;
                }
                '$' | '`' => self.expansion(word),
                '\\' => {
                    self.at += 1;
                    match self.peek() {
                        Some(c @ ('$' | '"' | '\\')) => {
                            self.at += 1;
                            word.text.push(c);
                        }
                        // A backslash before any other character is one.
                        Some(c) if c.is_ascii_graphic() && !matches!(c, '`' | '!') || c == ' ' => {
                            self.at += c.len_utf8();
                            word.text.extend(['\\', c]);
                        }
                        Some(c) => {
                            self.at += c.len_utf8();
                            self.doubt(word, "a backslash before a character of its own meaning");
                        }
                        None => {}
                    }
                }
                '!' => {
                    self.at += 1;
                    word.text.push(c);
                    self.doubt(word, "`!`, which may stand for an earlier command");
                }
                _ => {
                    self.at += c.len_utf8();
                    word.text.push(c);
                }
            }
        }
    }

    fn escaped(&mut self, word: &mut Word) {
        self.at += 1;
        match self.take() {
            // To some shells that is another character: `\x2e`, `\n`.
            Some(c) if c.is_ascii_alphanumeric() => {
                word.text.push(c);
                self.doubt(word, "a backslash before a letter or a digit");
            }
            Some(c) if (c.is_ascii_graphic() && c != '`') || c == ' ' => word.text.push(c),
            Some('\n') => self.doubt(word, "a line that goes on after a backslash"),
            Some(c) => {
                word.text.push(c);
                self.doubt(word, "a backslash before a character of its own meaning");
            }
            None => self.doubt(word, "a backslash at the end"),
        }
    }

    /// `$…` or a backtick, in a word or in double quotes.
    fn expansion(&mut self, word: &mut Word) {
        let start = self.at;
        if self.took("`") {
            let length = closing(self.rest(), |_| false, |c| c == '`');
            self.found.inner.push(&self.rest()[..length]);
            self.at = (self.at + length + 1).min(self.line.len());
            self.doubt(word, "a command substitution");
        } else if self.took("$(") {
            let length = closing(self.rest(), |c| c == '(', |c| c == ')');
            self.found.inner.push(&self.rest()[..length]);
            self.at = (self.at + length + 1).min(self.line.len());
            self.doubt(word, "a command substitution");
        } else {
            self.at += 1;
            self.doubt(word, "an expansion with `$`");
        }
        word.text.push_str(&self.line[start..self.at]);
    }
}

/// Whether what stands before `^` or `~` is a commit by one of the usual names. Taken for a pattern, such a
/// word stands for files whose names begin so, in which nobody keeps secrets.
fn is_revision(so_far: &str) -> bool {
    let last = so_far.rsplit("..").next().unwrap_or_default();
    let last = last.strip_prefix('.').unwrap_or(last);
    let name = last.split(['^', '~']).next().unwrap_or_default();
    let steps = |c: char| c.is_ascii_alphanumeric() || "^~{}_-".contains(c);
    let bare = name.split("@{").next().unwrap_or_default();
    let is_known = matches!(bare.strip_prefix("origin/").unwrap_or(bare), "HEAD" | "main" | "master")
        || matches!(name, "@" | "ORIG_HEAD" | "FETCH_HEAD" | "MERGE_HEAD");
    let is_hash = name.len() >= 7 && name.bytes().all(|byte| byte.is_ascii_hexdigit());
    let version = name.strip_prefix('v').unwrap_or_default();
    let is_version = version.starts_with(|c: char| c.is_ascii_digit())
        && version.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    (is_known || is_hash || is_version) && last[name.len()..].chars().all(steps)
}

/// Whether `^` or `~` stands in the last name of a range, or before the path in a commit.
fn is_stepping(so_far: &str) -> bool {
    let last = so_far.rsplit(':').next().unwrap_or_default();
    last.rsplit("..").next().is_some_and(|last| last.contains(['^', '~']))
}

struct Word {
    text: String,
    is_literal: bool,
}

/// How far it is to what closes a construct that has just been opened: a guess, since quotes are
/// not minded, which does for a line that is not allowed anyway.
fn closing(text: &str, opens: impl Fn(char) -> bool, closes: impl Fn(char) -> bool) -> usize {
    let mut depth = 1usize;
    let mut is_escaped = false;
    for (at, c) in text.char_indices() {
        if is_escaped {
            is_escaped = false;
        } else if c == '\\' {
            is_escaped = true;
        } else if opens(c) {
            depth += 1;
        } else if closes(c) {
            depth -= 1;
            if depth == 0 {
                return at;
            }
        }
    }
    text.len()
}
