//! Seeded mutations of a corpus, for runs without a fuzzer.

/// A small generator: the same seed, the same run.
#[derive(Debug, Clone)]
pub struct Random(u64);

impl Random {
    /// Begins with a seed.
    pub fn new(seed: u64) -> Self {
        // A state of zeros would stay one.
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// A number below `most`, which is not 0.
    pub fn below(&mut self, most: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as usize % most.max(1)
    }
}

/// What readers look at twice.
const SIGNS: &[&str] = &[
    "\"",
    "'",
    "\\",
    "\\u0000",
    "\\ud800",
    "{",
    "}",
    "[",
    "]",
    ",",
    ":",
    "\n",
    "\r\n",
    "\0",
    " ",
    "\t",
    "/",
    "..",
    "/../",
    "@/",
    "//",
    "~",
    "$",
    "`",
    "$(",
    "&&",
    "||",
    ";",
    "|",
    "&",
    ">",
    "<",
    "<<",
    "#",
    "=",
    "*",
    "?",
    "!",
    "-",
    "--",
    "null",
    "true",
    "-0",
    "1e400",
    "\u{202e}",
    "\u{200b}",
    "\u{feff}",
    "é",
    "id",
    "file://",
    "[[rule]]\n",
];

/// An input with a few changes, or with a part of another one.
pub fn mutated(input: &[u8], others: &[Vec<u8>], random: &mut Random) -> Vec<u8> {
    let mut bytes = input.to_vec();
    for _ in 0..=random.below(4) {
        let at = random.below(bytes.len() + 1);
        let until = (at + 1 + random.below(16)).min(bytes.len());
        match random.below(7) {
            0 if at < bytes.len() => bytes[at] ^= 1 << random.below(8),
            1 if at < bytes.len() => bytes[at] = random.below(256) as u8,
            2 => drop(bytes.drain(at..until)),
            3 => {
                let copy = bytes[at..until].to_vec();
                bytes.splice(at..at, copy);
            }
            4 => bytes.truncate(at),
            5 => {
                let other = &others[random.below(others.len())];
                let from = random.below(other.len() + 1);
                let to = (from + random.below(64)).min(other.len());
                bytes.splice(at..until, other[from..to].iter().copied());
            }
            _ => {
                let sign = SIGNS[random.below(SIGNS.len())];
                bytes.splice(at..at, sign.bytes());
            }
        }
    }
    bytes
}
