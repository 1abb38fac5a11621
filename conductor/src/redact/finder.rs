//! Searches for several short texts at once, by vector instructions where there are some.

use aho_corasick::{AhoCorasick, Span, packed};

/// Texts in one searcher: with more, too much is taken for one of them that is none.
pub(super) const AT_ONCE: usize = 20;

/// Searches for texts.
#[derive(Debug)]
pub(super) struct Finder {
    groups: Vec<Group>,
}

#[derive(Debug)]
enum Group {
    Packed(Box<packed::Searcher>),
    /// On processors without such instructions.
    Plain(AhoCorasick),
    /// They cannot be searched for; so each place may have one.
    Anywhere,
}

impl Finder {
    /// For these texts, none of which is empty.
    pub(super) fn new<'a>(texts: impl Iterator<Item = &'a [u8]>) -> Self {
        let texts: Vec<&[u8]> = texts.collect();
        let groups =
            texts.chunks(AT_ONCE).map(|texts| match packed::Config::new().builder().extend(texts).build() {
                Some(packed) => Group::Packed(Box::new(packed)),
                None => AhoCorasick::new(texts).map_or(Group::Anywhere, Group::Plain),
            });
        Self { groups: groups.collect() }
    }

    /// Whether one is there that `is_it`, which is told which one, and where it begins and ends.
    #[inline]
    pub(super) fn any(&self, bytes: &[u8], is_it: impl Fn(usize, usize, usize) -> bool) -> bool {
        self.groups.iter().enumerate().any(|(group, finder)| {
            let mut from = 0;
            loop {
                let (which, start, end) = match finder {
                    Group::Packed(packed) => {
                        match packed.find_in(bytes, Span { start: from, end: bytes.len() }) {
                            Some(found) => (found.pattern().as_usize(), found.start(), found.end()),
                            None => return false,
                        }
                    }
                    Group::Plain(plain) => match plain.find(&bytes[from..]) {
                        Some(found) => (found.pattern().as_usize(), from + found.start(), from + found.end()),
                        None => return false,
                    },
                    Group::Anywhere => return true,
                };
                if is_it(group * AT_ONCE + which, start, end) {
                    return true;
                }
                from = start + 1;
            }
        })
    }
}
