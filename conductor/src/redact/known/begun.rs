//! Values of which a text holds the beginning only, because the rest comes in the next one.

use super::{Known, Secret, Table};

/// So many bytes of a value are taken for it.
const LEAST: usize = 6;

/// Bytes of a form that are looked for at the end of a text.
const MOST: usize = 4096;

/// Bits that say which two bytes stand side by side in a form.
const BITS: usize = 1 << 13;

/// What the forms begin with, in order, and which pairs of bytes they have. Mostly the last two
/// bytes of a text are enough to tell that it ends in none of them.
pub(super) struct Starts {
    by_start: Vec<([u8; LEAST], usize)>,
    pairs: Box<[u64]>,
    longest: usize,
}

impl Starts {
    pub(super) fn new(written: &[(usize, Vec<u8>)]) -> Self {
        let mut by_start: Vec<_> = (written.iter().enumerate())
            .filter_map(|(form, (_, bytes))| Some((*bytes.first_chunk::<LEAST>()?, form)))
            .collect();
        by_start.sort_unstable();
        let mut pairs = vec![0_u64; BITS / 64].into_boxed_slice();
        let mut longest = 0;
        for (_, bytes) in written {
            let bytes = &bytes[..bytes.len().min(MOST)];
            longest = longest.max(bytes.len());
            for pair in bytes.windows(2) {
                let bit = bit(pair[0], pair[1]);
                pairs[bit / 64] |= 1 << (bit % 64);
            }
        }
        Self { by_start, pairs, longest }
    }

    fn has_pair(&self, text: &[u8], second: usize) -> bool {
        let bit = bit(text[second - 1], text[second]);
        self.pairs[bit / 64] & (1 << (bit % 64)) != 0
    }

    /// The forms that begin as a text does.
    fn forms(&self, text: &[u8]) -> impl Iterator<Item = usize> {
        let start = text.first_chunk::<LEAST>();
        let from = start.map_or(0, |start| self.by_start.partition_point(|(known, _)| known < start));
        let rest = self.by_start[from..].iter();
        rest.take_while(move |(known, _)| Some(known) == start).map(|(_, form)| *form)
    }

    /// Where a form may begin at the earliest that reaches from before `seam` to behind it, or to
    /// the end of the text.
    fn earliest(&self, text: &[u8], seam: usize, from: usize) -> usize {
        let from = from.max(seam.saturating_sub(self.longest));
        let mut first = seam.min(text.len());
        while first > from && (first == text.len() || self.has_pair(text, first)) {
            first -= 1;
        }
        first
    }
}

fn bit(first: u8, second: u8) -> usize {
    (usize::from(first) << 5 ^ usize::from(second)) % BITS
}

/// A value that has begun in a text.
pub(in crate::redact) struct Begun<'a> {
    pub(in crate::redact) start: usize,
    pub(in crate::redact) end: usize,
    /// The way it is written.
    pub(in crate::redact) form: usize,
    /// There is more of it to come.
    pub(in crate::redact) is_open: bool,
    pub(in crate::redact) secret: &'a Secret,
}

impl Table {
    /// The longest that begins at a place and is whole, or reaches the text's end.
    fn longest_at(&self, text: &[u8], start: usize) -> Option<Begun<'_>> {
        let rest = &text[start..];
        let found = self.starts.forms(rest).filter_map(|form| {
            let (whose, bytes) = &self.written[form];
            let len = common(bytes, rest);
            let is_open = len < bytes.len();
            (!is_open || len == rest.len()).then(|| Begun {
                start,
                end: start + len,
                form,
                is_open,
                secret: &self.secrets[*whose],
            })
        });
        found.max_by_key(|begun| (begun.end, begun.is_open))
    }
}

fn common(a: &[u8], b: &[u8]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

impl Known {
    /// A value that begins before a place in a text and goes on beyond it.
    pub(in crate::redact) fn begun(&self, text: &[u8], seam: usize) -> Option<Begun<'_>> {
        let table = self.0.as_ref()?;
        if seam == 0 || seam >= text.len() {
            return None;
        }
        let first = table.starts.earliest(text, seam, 0);
        let mut found = (first..seam).filter_map(|start| table.longest_at(text, start));
        found.find(|begun| begun.end > seam)
    }

    /// A value that begins at `from` or later and that the text ends in the middle of.
    pub(in crate::redact) fn ending(&self, text: &[u8], from: usize) -> Option<Begun<'_>> {
        let table = self.0.as_ref()?;
        let first = table.starts.earliest(text, text.len(), from);
        let last = (text.len() + 1).saturating_sub(LEAST);
        let mut found = (first..last).filter_map(|start| table.longest_at(text, start));
        found.find(|begun| begun.is_open)
    }

    /// How much of a text goes on with a form of which so much was there, or with another that
    /// begins in the same way: which one that is, and whether it is over.
    pub(in crate::redact) fn more(&self, form: usize, at: usize, text: &[u8]) -> (usize, usize, bool) {
        let Some(table) = &self.0 else { return (form, 0, true) };
        let Some((_, written)) = table.written.get(form) else { return (form, 0, true) };
        let was = written.get(..at).unwrap_or_default();
        let tried = table.starts.forms(was).chain([form]).filter_map(|form| {
            let rest = table.written[form].1.strip_prefix(was)?;
            let len = common(rest, text);
            Some((form, len, len == rest.len()))
        });
        tried.max_by_key(|(_, len, is_over)| (*len, !*is_over)).unwrap_or((form, 0, true))
    }
}
