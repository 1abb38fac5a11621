//! From tokens to simple commands, and the second reading of the same line by a real grammar.

use std::panic;

use brush_parser::{
    Parser, ParserOptions, ast,
    word::{self, WordPiece, WordPieceWithSource},
};

use super::{
    builtins,
    scan::{Arrow, Join, Scanned, Token, Written},
};

/// A simple command, as written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Simple<'a> {
    /// How it is joined to the one before; `Newline` for the first.
    pub before: Join,
    /// Its words; the first is the program.
    pub words: Vec<Written<'a>>,
    /// Its redirections.
    pub arrows: Vec<Redirection<'a>>,
}

/// A redirection, as written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Redirection<'a> {
    pub descriptor: Option<&'a str>,
    pub arrow: Arrow,
    pub target: Written<'a>,
}

/// Puts tokens together. What does not fit becomes a trouble of the line.
pub fn simple_commands<'a>(scanned: &mut Scanned<'a>) -> Vec<Simple<'a>> {
    let mut commands: Vec<Simple<'a>> = Vec::new();
    let mut current = Simple { before: Join::Newline, words: Vec::new(), arrows: Vec::new() };
    let mut tokens = std::mem::take(&mut scanned.tokens).into_iter().peekable();
    while let Some(token) = tokens.next() {
        match token {
            Token::Word(word) => current.words.push(word),
            Token::Arrow(descriptor, arrow) => match tokens.next_if(|next| matches!(next, Token::Word(_))) {
                Some(Token::Word(target)) => current.arrows.push(Redirection { descriptor, arrow, target }),
                _ => scanned.trouble("a redirection to nothing"),
            },
            Token::Join(join) => {
                let is_empty = current.words.is_empty() && current.arrows.is_empty();
                let is_first = commands.is_empty() && matches!(current.before, Join::Newline);
                if is_empty {
                    match (current.before, join) {
                        // Lines may be empty, and a list may go on in the next line.
                        (_, Join::Newline) => continue,
                        (Join::Other, _) | (_, Join::Other) => {}
                        _ if is_first => scanned.trouble("an operator with nothing before it"),
                        _ => scanned.trouble("two operators in a row"),
                    }
                    current.before = join;
                } else {
                    let next = Simple { before: join, words: Vec::new(), arrows: Vec::new() };
                    commands.push(std::mem::replace(&mut current, next));
                }
            }
        }
    }
    if !current.words.is_empty() || !current.arrows.is_empty() {
        commands.push(current);
    } else if matches!(current.before, Join::And | Join::Or | Join::Pipe) {
        scanned.trouble("an operator with nothing behind it");
    }
    for command in &commands {
        let is_before = |raw| matches!(raw, "time" | "-p") || is_assignment(raw);
        let first = command.words.iter().find(|word| !is_before(word.raw));
        if let Some(reserved) = first.filter(|word| builtins::is_reserved(word.raw)) {
            scanned.trouble(&format!("`{}`, a word of a shell's grammar", reserved.raw));
        }
    }
    commands
}

/// `NAME=…` or `NAME+=…`, unquoted up to there.
pub fn is_assignment(raw: &str) -> bool {
    let Some((name, _)) = raw.split_once('=') else { return false };
    let name = name.strip_suffix('+').unwrap_or(name);
    name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

/// Whether the grammar reads the same commands in a line without troubles. The scan has seen to it
/// that there is nothing in it that nests, so this takes time in proportion to its length.
pub fn agrees(line: &str, commands: &[Simple<'_>]) -> bool {
    // What the grammar panics at, it does not agree with.
    panic::catch_unwind(|| is_same_program(line, commands)).unwrap_or(false)
}

fn is_same_program(line: &str, commands: &[Simple<'_>]) -> bool {
    let options = ParserOptions { tilde_expansion_after_colon: true, ..ParserOptions::default() };
    let Ok(program) = Parser::new(line.as_bytes(), &options).parse_program() else { return false };
    let mut read = Reading { options, commands: commands.iter(), is_same: true };
    for list in &program.complete_commands {
        for (at, ast::CompoundListItem(and_or, separator)) in list.0.iter().enumerate() {
            read.is_same &= matches!(separator, ast::SeparatorOperator::Sequence);
            let first = if at == 0 { Join::Newline } else { Join::Semicolon };
            read.pipeline(first, &and_or.first);
            for next in &and_or.additional {
                match next {
                    ast::AndOr::And(pipeline) => read.pipeline(Join::And, pipeline),
                    ast::AndOr::Or(pipeline) => read.pipeline(Join::Or, pipeline),
                }
            }
        }
    }
    read.is_same && read.commands.next().is_none()
}

/// Goes through the grammar's tree beside the scan's list.
struct Reading<'a, 'b> {
    options: ParserOptions,
    commands: std::slice::Iter<'a, Simple<'b>>,
    is_same: bool,
}

impl Reading<'_, '_> {
    fn pipeline(&mut self, before: Join, pipeline: &ast::Pipeline) {
        let timed = match pipeline.timed {
            None => None,
            Some(ast::PipelineTimed::Timed(_)) => Some("time"),
            Some(ast::PipelineTimed::TimedWithPosixOutput(_)) => return self.is_same = false,
        };
        if pipeline.bang || pipeline.seq.is_empty() {
            self.is_same = false;
        }
        for (at, command) in pipeline.seq.iter().enumerate() {
            let before = if at == 0 { before } else { Join::Pipe };
            let timed = timed.filter(|_| at == 0);
            let same = match (self.commands.next(), command) {
                (Some(scanned), ast::Command::Simple(read)) => {
                    self.is_same_command(before, timed, scanned, read)
                }
                _ => false,
            };
            self.is_same &= same;
        }
    }

    fn is_same_command(
        &self,
        before: Join,
        timed: Option<&str>,
        scanned: &Simple<'_>,
        read: &ast::SimpleCommand,
    ) -> bool {
        // A line that ends in `;` begins its next as another line.
        let joined =
            scanned.before == before || (before == Join::Newline && scanned.before == Join::Semicolon);
        let mut words = scanned.words.iter();
        let mut arrows = scanned.arrows.iter();
        if timed.is_some_and(|timed| words.next().is_none_or(|word| word.raw != timed)) {
            return false;
        }
        let mut items = |items: &[ast::CommandPrefixOrSuffixItem]| {
            items.iter().all(|item| match item {
                ast::CommandPrefixOrSuffixItem::IoRedirect(read) => {
                    arrows.next().is_some_and(|scanned| self.is_same_arrow(scanned, read))
                }
                ast::CommandPrefixOrSuffixItem::Word(read)
                | ast::CommandPrefixOrSuffixItem::AssignmentWord(_, read) => {
                    words.next().is_some_and(|scanned| self.is_same_word(scanned, read))
                }
                ast::CommandPrefixOrSuffixItem::ProcessSubstitution(..) => false,
            })
        };
        let prefix = read.prefix.as_ref().is_none_or(|prefix| items(&prefix.0));
        let program: Vec<_> =
            read.word_or_name.iter().map(|word| ast::CommandPrefixOrSuffixItem::Word(word.clone())).collect();
        let program = items(&program);
        let suffix = read.suffix.as_ref().is_none_or(|suffix| items(&suffix.0));
        joined && prefix && program && suffix && words.next().is_none() && arrows.next().is_none()
    }

    fn is_same_arrow(&self, scanned: &Redirection<'_>, read: &ast::IoRedirect) -> bool {
        use ast::{IoFileRedirectKind as Kind, IoFileRedirectTarget as Target};
        let ast::IoRedirect::File(descriptor, kind, target) = read else { return false };
        let kind = match kind {
            Kind::Read => Arrow::Read,
            Kind::Write | Kind::Append | Kind::Clobber => Arrow::Write,
            Kind::ReadAndWrite => Arrow::Both,
            Kind::DuplicateInput => Arrow::CopyIn,
            Kind::DuplicateOutput => Arrow::CopyOut,
        };
        let (Target::Filename(target) | Target::Duplicate(target)) = target else { return false };
        let number = descriptor.map(|number| number.to_string());
        scanned.arrow == kind
            && scanned.descriptor == number.as_deref()
            && self.is_same_word(&scanned.target, target)
    }

    fn is_same_word(&self, scanned: &Written<'_>, read: &ast::Word) -> bool {
        let plain = |c: char| c.is_ascii_alphanumeric() || "_-./".contains(c);
        if scanned.raw != read.value {
            return false;
        }
        // Most words have nothing to be read twice.
        if scanned.raw.chars().all(plain) {
            return scanned.text == scanned.raw;
        }
        let Ok(pieces) = word::parse(&read.value, &self.options) else { return false };
        let mut text = String::new();
        unquoted(&pieces, &mut text) && text == scanned.text
    }
}

/// What the grammar makes of a word, if it is literal.
fn unquoted(pieces: &[WordPieceWithSource], text: &mut String) -> bool {
    pieces.iter().all(|piece| match &piece.piece {
        WordPiece::Text(part) | WordPiece::SingleQuotedText(part) => {
            text.push_str(part);
            true
        }
        WordPiece::EscapeSequence(part) => {
            text.push_str(part.strip_prefix('\\').unwrap_or(part));
            true
        }
        WordPiece::DoubleQuotedSequence(inner) => unquoted(inner, text),
        _ => false,
    })
}
