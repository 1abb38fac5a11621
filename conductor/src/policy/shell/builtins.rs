//! Names that a shell knows by itself.
//!
//! Some of them start nothing and change nothing; the rest changes what the following commands
//! mean, or evaluates its arguments once more. The list is that of bash, dash and zsh together,
//! since it is the agent that chooses the shell.

/// Words that are part of a shell's grammar where a program is expected.
const RESERVED: &[&str] = &[
    "!",
    "{",
    "}",
    "[[",
    "]]",
    "((",
    "case",
    "coproc",
    "do",
    "done",
    "elif",
    "else",
    "end",
    "esac",
    "fi",
    "for",
    "foreach",
    "function",
    "if",
    "in",
    "nocorrect",
    "repeat",
    "select",
    "then",
    "until",
    "while",
];

/// Whether the word is one of the grammar.
pub fn is_reserved(word: &str) -> bool {
    RESERVED.contains(&word)
}

/// Built in everywhere, and harmless as far as `trouble` says: no file is started for them.
const PLAIN: &[&str] = &[":", "[", "echo", "exit", "false", "printf", "pwd", "test", "true", "type"];

/// Whether every shell has it built in.
pub fn is_plain(name: &str) -> bool {
    PLAIN.contains(&name)
}

/// Built in somewhere, and able to change what follows or to run something else.
const CHANGING: &[&str] = &[
    ".",
    "alias",
    "autoload",
    "bg",
    "bind",
    "bindkey",
    "break",
    "bye",
    "caller",
    "chdir",
    "compadd",
    "compctl",
    "compgen",
    "complete",
    "compopt",
    "continue",
    "coproc",
    "declare",
    "dirs",
    "disable",
    "disown",
    "echotc",
    "echoti",
    "emulate",
    "enable",
    "eval",
    "exec",
    "export",
    "fc",
    "fg",
    "float",
    "functions",
    "getln",
    "getopts",
    "hash",
    "help",
    "history",
    "integer",
    "jobs",
    "let",
    "limit",
    "local",
    "log",
    "logout",
    "mapfile",
    "newgrp",
    "noglob",
    "popd",
    "print",
    "private",
    "pushd",
    "pushln",
    "r",
    "read",
    "readarray",
    "readonly",
    "rehash",
    "return",
    "sched",
    "set",
    "setcap",
    "setopt",
    "shift",
    "shopt",
    "source",
    "suspend",
    "sysopen",
    "sysread",
    "syswrite",
    "times",
    "trap",
    "ttyctl",
    "typeset",
    "ulimit",
    "umask",
    "unalias",
    "unfunction",
    "unhash",
    "unlimit",
    "unset",
    "unsetopt",
    "vared",
    "wait",
    "whence",
    "where",
    "zcompile",
    "zformat",
    "zftp",
    "zle",
    "zmodload",
    "zparseopts",
    "zprof",
    "zpty",
    "zregexparse",
    "zselect",
    "zsocket",
    "zstat",
    "zstyle",
    "zsystem",
    "ztcp",
    "-",
    "%",
    "@",
    "always",
];

/// Why a command that a shell has built in cannot be judged by its words. `cd` and the wrappers
/// among them are not here.
pub fn trouble(name: &str, words: &[&str]) -> Option<String> {
    let why = match name {
        _ if is_reserved(name) => "is part of a shell's grammar",
        _ if CHANGING.contains(&name) => "is built into the shell and may change what follows, or run more",
        "cd" => "would change the directory in a way that is not followed",
        "printf" if !is_plain_printf(words) => "may set variables, or evaluate its arguments, in some shells",
        "[" if !words.split_last().is_some_and(|(last, words)| *last == "]" && is_plain_test(words)) => {
            "may evaluate its arguments in some shells"
        }
        "test" if !is_plain_test(words) => "may evaluate its arguments in some shells",
        // zsh takes the number for an expression.
        "exit" if !matches!(words, [] | [_]) || !words.iter().all(|word| is_number(word)) => {
            "may evaluate its argument in some shells"
        }
        _ => return None,
    };
    Some(format!("`{name}` {why}"))
}

fn is_number(word: &str) -> bool {
    let digits = word.strip_prefix(['-', '+']).unwrap_or(word);
    !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.')
}

/// `printf -v` sets a variable, so does `%n`; zsh evaluates what is given for a number, and bash
/// takes `%(…)T` for a format of its own.
fn is_plain_printf(words: &[&str]) -> bool {
    let words = if words.first() == Some(&"--") { &words[1..] } else { words };
    let [format, values @ ..] = words else { return true };
    if format.starts_with('-') {
        return false;
    }
    let mut rest = *format;
    while let Some(at) = rest.find('%') {
        rest = rest[at + 1..].trim_start_matches(|c: char| "-+ #0.123456789".contains(c));
        let Some(conversion) = rest.chars().next() else { return false };
        let is_plain = match conversion {
            's' | 'b' | 'q' | 'c' | '%' => true,
            'd' | 'i' | 'u' | 'o' | 'x' | 'X' | 'f' | 'e' | 'g' => {
                values.iter().all(|value| is_number(value))
            }
            _ => false,
        };
        if !is_plain {
            return false;
        }
        rest = &rest[conversion.len_utf8()..];
    }
    true
}

/// `test -v` looks at a variable by name, whose index is evaluated; zsh evaluates what it compares
/// as numbers.
fn is_plain_test(words: &[&str]) -> bool {
    let words = if words.first() == Some(&"!") { &words[1..] } else { words };
    let is_operator = |word: &str| word.starts_with('-') || matches!(word, "!" | "(" | ")");
    match words {
        [operator, _] => {
            let known = ["-e", "-f", "-d", "-r", "-w", "-x", "-s", "-L", "-h", "-n", "-z"];
            known.contains(operator)
        }
        [left, "=" | "==" | "!=", right] => !is_operator(left) && !is_operator(right),
        [left, "-eq" | "-ne" | "-lt" | "-le" | "-gt" | "-ge", right] => is_number(left) && is_number(right),
        _ => false,
    }
}
