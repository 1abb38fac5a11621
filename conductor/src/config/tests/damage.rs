//! Files damaged at random, but repeatably.

use std::panic;

use super::{ConfigError, DEFAULTS, Fixture, Place, example};

/// A small generator of our own, so that a failure can be repeated by seed.
struct Seeded(u64);

impl Seeded {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) as usize) % bound.max(1)
    }
}

/// Changes a text in one to four places.
fn mutate(text: &str, random: &mut Seeded) -> Vec<u8> {
    const PIECES: [&[u8]; 16] = [
        b"\"",
        b"[",
        b"]",
        b"=",
        b"\n",
        b"\xff",
        b"\0",
        b"0",
        b"-1",
        b"{",
        b"}",
        b".",
        b"\xc3\xa9",
        b"''",
        b"99999999999999999999",
        b"..",
    ];
    let mut bytes = text.as_bytes().to_vec();
    for _ in 0..=random.below(4) {
        let at = random.below(bytes.len());
        match random.below(6) {
            0 => drop(bytes.remove(at)),
            1 => bytes.insert(at, bytes[at]),
            2 => bytes[at] = random.below(256) as u8,
            3 => drop(bytes.splice(at..at, PIECES[random.below(PIECES.len())].iter().copied())),
            change => {
                let mut lines: Vec<Vec<u8>> =
                    bytes.split_inclusive(|byte| *byte == b'\n').map(<[u8]>::to_vec).collect();
                let line = random.below(lines.len());
                if change == 4 {
                    drop(lines.remove(line));
                } else {
                    let other = lines[random.below(lines.len())].clone();
                    lines.insert(line, other);
                }
                bytes = lines.concat();
            }
        }
    }
    bytes
}

#[test]
fn f01_g15_no_damaged_file_makes_it_panic_and_every_refusal_has_a_line() {
    let whole = format!("{DEFAULTS}\n{}", example());
    let fixture = Fixture::new();
    let (mut accepted, mut refused) = (0, 0);
    for seed in 0..1500 {
        // Without the comments most changes would change nothing.
        let bare: String =
            whole.lines().filter(|line| !line.starts_with('#')).map(|line| format!("{line}\n")).collect();
        let bytes = mutate(&bare, &mut Seeded(seed));
        let path = fixture.write("damaged.toml", &bytes);
        let outcome = panic::catch_unwind(panic::AssertUnwindSafe(|| fixture.load(Some(&path))));
        match outcome.unwrap_or_else(|_| panic!("seed {seed} panicked")) {
            Ok(_) => accepted += 1,
            Err(ConfigError { place: Place::Line { file, line, column }, what, hint }) => {
                refused += 1;
                let lines = bytes.iter().filter(|byte| **byte == b'\n').count() + 1;
                assert_eq!(file, path, "seed {seed}");
                assert!((1..=lines).contains(&line) && column >= 1, "seed {seed}: {line}:{column}");
                assert!(!what.is_empty() && !hint.is_empty(), "seed {seed}");
                assert!(!what.contains('\n') && !what.contains('\u{1b}'), "seed {seed}: {what:?}");
            }
            Err(other) => panic!("seed {seed} without a line: {other}"),
        }
    }
    assert!(accepted > 50 && refused > 500, "{accepted} accepted, {refused} refused");
}
