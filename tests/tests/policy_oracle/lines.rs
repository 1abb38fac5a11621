//! Command lines by the thousand: harmless ones, nasty ones, and harmless ones with one character
//! changed, which are the best.

/// Lines as agents write them. Each starts at least one program.
pub const HARMLESS: &[&str] = &[
    "tool",
    "tool -la dir/sub",
    "tool log --oneline -n 5 -- file",
    "tool show HEAD~2 HEAD^ stash@{0} v1^{commit}",
    "tool 'a b' \"c d\" e\\ f g'h'\"i\"",
    "tool -E '^\\w+$' \"a\\.b\" \\$x \\* '*' '$(other)' '`other`'",
    "tool && other || nope ; tool | other\ntool",
    "nope || tool",
    "cd dir && tool && cd .. && other",
    "cd link && tool",
    "cd dir/sub && tool ../x | other",
    "tool 2>&1 | other -5",
    "tool >/dev/null 2>/dev/null </dev/null",
    ">&2 tool x 1>&2",
    "tool . ! -name x",
    "# look around\ntool # all of it",
    "env tool x",
    "timeout 5 tool x",
    "nice -n 5 tool x",
    "env timeout 5 nice tool x",
    "bash -c 'tool a && other b' | tool",
    "sh -c \"cd dir && tool 'x y'\" && other",
    "command tool x",
    "echo x && tool",
    "test -f file && tool",
    "printf '%s %d\\n' 1 2 | tool",
    "tool é 日本 -x=ö",
    "tool ''",
    "tool a=b --c=d = %x @y +z a:b a,b",
];

/// What is hit by mistake, or on purpose.
const KEYS: &str = " \t\n'\"\\$`;&|<>(){}[]*?~!#=^%@,-./:+12aé";

/// A generator of lines; the same seed makes the same lines.
#[derive(Debug)]
pub struct Lines {
    state: u64,
}

impl Lines {
    pub fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    /// The next line.
    pub fn next(&mut self) -> String {
        let mut line = match self.below(12) {
            0 | 1 => self.one_of(HARMLESS).to_owned(),
            2 | 3 => self.typed(),
            _ => self.list(0),
        };
        // Most accidents are one key away.
        while self.one_in(3) {
            self.change(&mut line);
        }
        line
    }

    fn random(&mut self) -> u64 {
        // SplitMix64.
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, limit: usize) -> usize {
        (self.random() % limit.max(1) as u64) as usize
    }

    fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }

    fn one_of(&mut self, all: &[&'static str]) -> &'static str {
        all[self.below(all.len())]
    }

    fn list(&mut self, depth: usize) -> String {
        let mut line = self.command(depth);
        for _ in 0..self.below(3) {
            let usual = [" && ", " | ", "; ", "\n", " || ", ";", "|", "&&", " &&\n", " |\n\t", " ;\n"];
            let nasty = [" & ", " |& ", " ;; ", "\\\n", "\n\n", " ", "&", "(", ")", "\r\n", " &&& "];
            line += if self.one_in(12) { self.one_of(&nasty) } else { self.one_of(&usual) };
            line += &self.command(depth);
        }
        line
    }

    fn command(&mut self, depth: usize) -> String {
        let mut words: Vec<String> = Vec::new();
        if self.one_in(8) {
            let usual = [
                "env",
                "timeout 5",
                "nice",
                "nice -n 3",
                "command",
                "time",
                "stdbuf -oL",
                "builtin",
                "nohup",
            ];
            let nasty = [
                "env X=1",
                "env -i",
                "X=1",
                "!",
                "exec",
                "eval",
                "time -p",
                "timeout",
                "command -p",
                "nocorrect",
                "sudo",
                "then",
                "if",
                "{",
                "PATH=.",
                "env -S",
                "xargs",
                "2>&1",
                ">/dev/null",
                "\\command",
                "'env'",
                "noglob",
                "-",
            ];
            words.push(if self.one_in(4) { self.one_of(&nasty) } else { self.one_of(&usual) }.to_owned());
        }
        match self.below(10) {
            0 => {
                let places = [
                    "dir", "dir/sub", "link", "..", "../home", ".", "-", "~", "", "dir/..", "link/..",
                    "./dir", "no", "'s p'",
                ];
                words.push(format!("cd {}", self.one_of(&places)));
            }
            1 if depth < 3 => {
                // No `-lc`: what a login shell's profiles do differs from machine to machine, and is not the line's.
                let shell = ["sh -c", "bash -c", "bash -c", "bash -lic", "env sh -c", "bash -ec", "dash -c"];
                let inner = self.list(depth + 1);
                let quoted = match self.below(3) {
                    0 => format!("\"{}\"", inner.replace('\\', "\\\\").replace('"', "\\\"")),
                    1 => inner.replace(' ', "\\ "),
                    _ => format!("'{}'", inner.replace('\'', "\"'\"")),
                };
                words.push(format!("{} {quoted}", self.one_of(&shell)));
            }
            _ => {
                let usual = [
                    "tool",
                    "other",
                    "git",
                    "ls",
                    "nope",
                    "echo",
                    "test",
                    "printf",
                    "true",
                    "false",
                    ":",
                    "pwd",
                    "./dir/local",
                    "type",
                ];
                let nasty = [
                    "\\tool",
                    "'tool'",
                    "t\"oo\"l",
                    "tool\\",
                    "$x",
                    "`tool`",
                    "*",
                    "dir/",
                    "link/local",
                    "hash",
                    "read",
                    "set",
                    "alias",
                    "[",
                    "exit",
                    "kill",
                    "wait",
                    "find",
                    "xargs",
                    "source",
                    ".",
                    "unset",
                    "export",
                    "trap",
                    "=tool",
                    "~/tool",
                    "%1",
                    "a=b",
                    "'s p'",
                ];
                words.push(if self.one_in(6) { self.one_of(&nasty) } else { self.one_of(&usual) }.to_owned());
                for _ in 0..self.below(4) {
                    let word = self.word();
                    words.push(word);
                }
            }
        }
        if self.one_in(5) {
            let usual = [
                ">/dev/null",
                "2>&1",
                "2>/dev/null",
                "</dev/null",
                ">&2",
                "1>&2",
                "> /dev/null",
                ">>/dev/null",
                "2> \"/dev/null\"",
            ];
            let nasty = [
                "> new",
                "< file",
                "2>new",
                ">&new",
                "&>/dev/null",
                "&>new",
                ">/dev/nul",
                ">| new",
                "<> file",
                "3>&1",
                "2>&-",
                "<<E",
                "<<<x",
                "{x}>/dev/null",
                ">/dev/null/../../new",
                "2 >&1",
                "a2>&1",
                ">'/dev/null'x",
                "> $x",
                "<(tool)",
                "2>&1x",
                "0</dev/null",
                "0>&1",
            ];
            let redirection = if self.one_in(4) { self.one_of(&nasty) } else { self.one_of(&usual) };
            let at = self.below(words.len() + 1);
            words.insert(at, redirection.to_owned());
        }
        let blanks = [" ", " ", " ", "  ", "\t"];
        let blank = self.one_of(&blanks);
        words.join(blank)
    }

    fn word(&mut self) -> String {
        let plain = [
            "a", "file", "dir/sub", "-l", "--x=y", "HEAD~2", "HEAD^", "s@{0}", "-n", "5", "a:b", "+x", "%s",
            "é", "..", "a,b", "=", "!", "-v", "-e", "-f", "[", "]", "if", "x=1", "then", "{}", "\\;", "--",
            "-eq", "a@{b-c}",
        ];
        let any = [
            "a b", "*", "f*", "?", "[a-z]", "~", "~root", "a~", "$x", "$HOME", "${x}", "$(tool)", "`tool`",
            "{a,b}", "{1..3}", "a{b}", "!x", "#x", "a#b", "=tool", "\\", "\\\\", "a\\", "a;b", "a|b", "a&b",
            "(a)", "<a", ">a", "\n", "\t", "x=~", "^a", "%1", "&", ";", "'", "\"", "\\n", "@(a)", "+(a)",
            "$'a'", "$((1))", "!", "a!", "$", "\u{a0}", "\u{200b}", "'a'", "\"a\"", "\\$x", "\\`", "@{a,b}",
            "x^{a..b}",
        ];
        if !self.one_in(3) {
            return self.one_of(&plain).to_owned();
        }
        let text = self.one_of(&any);
        match self.below(9) {
            0 => text.to_owned(),
            1 => format!("\"{text}\""),
            2 => text.chars().flat_map(|c| ['\\', c]).collect(),
            3 => format!("a'{text}'b"),
            4 => format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\"").replace('$', "\\$")),
            5 => format!("\"a\"'{text}'\\ "),
            _ => format!("'{text}'"),
        }
    }

    /// A command, and a few keys hit by a cat.
    fn typed(&mut self) -> String {
        let mut line = "tool a".to_owned();
        for _ in 0..=self.below(7) {
            line.push(self.key());
        }
        line
    }

    fn key(&mut self) -> char {
        let keys: Vec<char> = KEYS.chars().collect();
        keys[self.below(keys.len())]
    }

    fn change(&mut self, line: &mut String) {
        let mut chars: Vec<char> = line.chars().collect();
        let at = self.below(chars.len() + 1);
        let key = self.key();
        match self.below(4) {
            0 if at < chars.len() => drop(chars.remove(at)),
            1 if at < chars.len() => chars[at] = key,
            2 if at + 1 < chars.len() => chars.swap(at, at + 1),
            _ => chars.insert(at, key),
        }
        *line = chars.into_iter().collect();
    }
}
