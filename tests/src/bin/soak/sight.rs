//! What one editor is told of one session, held against what the agent was asked to
//! say. Every chunk carries the number of its session, of its prompt and its own, so
//! each one that is lost, doubled or out of order is known by name. No I/O.
//!
//! An editor must have all of a turn that ended well, and of any other a beginning:
//! what was under way at a kill may be missing at its end, and nowhere else. Who loads
//! a session must be shown all of that again, and whatever anybody was shown before.

use std::collections::{BTreeMap, BTreeSet};

use crate::findings::{Kind, Trouble};

/// A prompt: the number of its session in this run, and its own in the session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Mark {
    pub session: u32,
    pub prompt: u32,
}

impl Mark {
    /// What the chunks of its answer begin with.
    pub fn prefix(self) -> String {
        format!("m{}.{} ", self.session, self.prompt)
    }

    /// The id of its tool call of this number.
    pub fn call(self, number: u64) -> String {
        format!("m{}.{}#{number}", self.session, self.prompt)
    }

    /// The mark that a text begins with, and what follows.
    pub fn parse(text: &str) -> Option<(Self, &str)> {
        let end = text.find([' ', '#'])?;
        let (session, prompt) = text[..end].strip_prefix('m')?.split_once('.')?;
        let mark = Self { session: session.parse().ok()?, prompt: prompt.parse().ok()? };
        Some((mark, &text[end + 1..]))
    }

    /// The mark and the number of a chunk.
    pub fn of_chunk(text: &str) -> Option<(Self, u64)> {
        let (mark, rest) = Self::parse(text)?;
        Some((mark, rest.split(' ').next()?.parse().ok()?))
    }
}

/// How a number came.
#[derive(Debug, PartialEq, Eq)]
pub enum Came {
    /// As the next one, or past some that are missing so far.
    On,
    /// Again.
    Again,
    /// After a later one.
    Late,
}

/// Numbers that should come as 0, 1, 2, and so on, each once.
#[derive(Debug, Default, Clone)]
pub struct Order {
    next: u64,
    missing: BTreeSet<u64>,
}

impl Order {
    pub fn take(&mut self, number: u64) -> Came {
        if number >= self.next {
            self.missing.extend(self.next..number);
            self.next = number + 1;
            return Came::On;
        }
        if self.missing.remove(&number) { Came::Late } else { Came::Again }
    }

    /// How many numbers there are, from 0 to the last one that came.
    pub fn reach(&self) -> u64 {
        self.next
    }

    /// How many are missing before the last one.
    pub fn holes(&self) -> u64 {
        self.missing.len() as u64
    }

    /// How many of the first so many are missing.
    pub fn short_of(&self, count: u64) -> u64 {
        self.holes() + count.saturating_sub(self.next)
    }
}

/// What became of a prompt, as its editor knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// Nothing yet.
    Waiting,
    /// The turn ended as it should.
    Done,
    /// It was cancelled, or answered with an error.
    Cut,
    /// Its editor went away before the answer.
    Abandoned,
}

/// A prompt and what came of it.
#[derive(Debug, Clone)]
pub struct Asked {
    pub mark: Mark,
    /// Our id of the session, for whoever looks for it.
    pub session: String,
    /// Chunks that the agent was asked to say.
    pub chunks: u64,
    pub answer: Answer,
    /// The most that an editor was shown of them.
    pub seen: u64,
}

/// One session as one editor sees it.
#[derive(Debug)]
pub struct Conversation {
    pub id: String,
    number: u32,
    asked: Vec<Asked>,
    /// What was shown since the editor opened the session, by prompt.
    told: BTreeMap<u32, Order>,
}

impl Conversation {
    pub fn new(id: String, number: u32) -> Self {
        Self { id, number, asked: Vec::new(), told: BTreeMap::new() }
    }

    /// The mark of the next prompt, which shall be answered with so many chunks.
    pub fn ask(&mut self, chunks: u64) -> Mark {
        let mark = self.next_mark();
        let session = self.id.clone();
        self.asked.push(Asked { mark, session, chunks, answer: Answer::Waiting, seen: 0 });
        mark
    }

    /// The mark that the next prompt will have.
    pub fn next_mark(&self) -> Mark {
        Mark { session: self.number, prompt: u32::try_from(self.asked.len()).unwrap_or(u32::MAX) }
    }

    /// So many prompts so far.
    pub fn prompts(&self) -> usize {
        self.asked.len()
    }

    /// All prompts, once nobody asks any more.
    pub fn into_asked(self) -> Vec<Asked> {
        self.asked
    }

    /// The editor is shown a chunk.
    pub fn chunk(&mut self, text: &str) -> Option<Trouble> {
        let (mark, number) = Mark::of_chunk(text)?;
        let name =
            format!("chunk {number} of prompt {} in session {} ({})", mark.prompt, self.id, self.number);
        if mark.session != self.number {
            return Some(Trouble::one(Kind::Strayed, format!("{name} is one of session {}", mark.session)));
        }
        let newest = self.told.last_key_value().map_or(0, |(newest, _)| *newest);
        let order = self.told.entry(mark.prompt).or_default();
        let came = order.take(number);
        if let Some(asked) = self.asked.get_mut(mark.prompt as usize) {
            asked.seen = asked.seen.max(order.reach());
        }
        match came {
            Came::On if mark.prompt < newest => {
                Some(Trouble::one(Kind::Reordered, format!("{name} came after prompt {newest}")))
            }
            Came::On => None,
            Came::Again => Some(Trouble::one(Kind::Duplicated, format!("{name} was shown again"))),
            Came::Late => Some(Trouble::one(Kind::Reordered, format!("{name} came after a later one"))),
        }
    }

    /// A prompt was answered, or never will be. Whatever was shown must be all of it, or a
    /// beginning.
    pub fn answered(&mut self, prompt: u32, answer: Answer) -> Option<Trouble> {
        let asked = self.asked.get_mut(prompt as usize)?;
        asked.answer = answer;
        let told = self.told.get(&prompt).cloned().unwrap_or_default();
        let lost = if answer == Answer::Done { told.short_of(asked.chunks) } else { told.holes() };
        Trouble::some(Kind::Lost, lost, || {
            let (id, chunks) = (&self.id, asked.chunks);
            format!("{lost} of {chunks} chunks of prompt {prompt} in session {id}, answered {answer:?}")
        })
    }

    /// The editor loads the session: it will be shown all of it from the beginning.
    pub fn begin_history(&mut self) {
        self.told.clear();
    }

    /// It was shown what was there.
    pub fn end_history(&mut self) -> Vec<Trouble> {
        let lost = |asked: &Asked| {
            let told = self.told.get(&asked.mark.prompt).cloned().unwrap_or_default();
            let due = if asked.answer == Answer::Done { asked.chunks } else { asked.seen };
            let (lost, prompt) = (told.short_of(due), asked.mark.prompt);
            Trouble::some(Kind::Lost, lost, || {
                format!("{lost} of {due} chunks of prompt {prompt} in the history of session {}", self.id)
            })
        };
        self.asked.iter().filter_map(lost).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn talk() -> (Conversation, Mark) {
        let mut talk = Conversation::new("id".to_owned(), 7);
        let mark = talk.ask(3);
        (talk, mark)
    }

    /// The kinds of trouble that these chunks make.
    fn shown(talk: &mut Conversation, mark: Mark, numbers: &[u64]) -> Vec<Kind> {
        let texts = numbers.iter().map(|number| format!("{}{number} xx", mark.prefix()));
        texts.filter_map(|text| Some(talk.chunk(&text)?.kind)).collect()
    }

    #[test]
    fn marks_are_read_as_they_are_written() {
        let mark = Mark { session: 12, prompt: 5 };
        assert_eq!(Mark::of_chunk("m12.5 33 xxx"), Some((mark, 33)));
        assert_eq!(Mark::of_chunk(&format!("{}4", mark.prefix())), Some((mark, 4)));
        assert_eq!(Mark::parse(&mark.call(9)), Some((mark, "9")));
        assert_eq!(Mark::of_chunk("echo: m12.5 3"), None);
    }

    #[test]
    fn all_of_a_turn_in_order_is_no_trouble() {
        let (mut talk, mark) = talk();
        assert_eq!(shown(&mut talk, mark, &[0, 1, 2]), []);
        assert_eq!(talk.answered(0, Answer::Done), None);
        talk.begin_history();
        assert_eq!(shown(&mut talk, mark, &[0, 1, 2]), []);
        assert_eq!(talk.end_history(), []);
    }

    #[test]
    fn what_is_missing_at_the_end_is_lost_if_the_turn_ended_well() {
        let (mut talk, mark) = talk();
        assert_eq!(shown(&mut talk, mark, &[0, 1]), []);
        assert_eq!(talk.answered(0, Answer::Cut), None);
        let lost = talk.answered(0, Answer::Done).map(|trouble| (trouble.kind, trouble.count));
        assert_eq!(lost, Some((Kind::Lost, 1)));
    }

    #[test]
    fn a_hole_is_a_loss_however_the_turn_ended() {
        let (mut talk, mark) = talk();
        assert_eq!(shown(&mut talk, mark, &[0, 2]), []);
        assert_eq!(talk.answered(0, Answer::Cut).map(|trouble| trouble.count), Some(1));
    }

    #[test]
    fn again_and_late_are_told_apart() {
        let (mut talk, mark) = talk();
        assert_eq!(shown(&mut talk, mark, &[0, 0, 2, 1]), [Kind::Duplicated, Kind::Reordered]);
        assert_eq!(talk.answered(0, Answer::Done), None, "what came late is not lost");
    }

    #[test]
    fn turns_keep_their_order_and_sessions_their_frames() {
        let (mut talk, mark) = talk();
        let next = talk.ask(1);
        assert_eq!(shown(&mut talk, next, &[0]), []);
        assert_eq!(shown(&mut talk, mark, &[0]), [Kind::Reordered]);
        assert_eq!(shown(&mut talk, Mark { session: 8, prompt: 0 }, &[0]), [Kind::Strayed]);
    }

    #[test]
    fn history_must_have_what_anybody_was_shown() {
        let (mut talk, mark) = talk();
        shown(&mut talk, mark, &[0, 1]);
        talk.answered(0, Answer::Abandoned);
        talk.begin_history();
        assert_eq!(shown(&mut talk, mark, &[0]), []);
        let lost = talk.end_history();
        assert_eq!(lost.iter().map(|trouble| trouble.count).collect::<Vec<_>>(), [1]);
    }
}
