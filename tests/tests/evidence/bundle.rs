//! An exported session, checked with the public key alone.

use conductor::ledger::evidence::{
    bundle::{self, Checked, Line, Writer},
    finding::What,
    key::{Key, PublicKey},
    log::Log,
    verify::export::export,
};
use conductor_tests::shipping::{Bench, turn};
use uuid::Uuid;

use crate::fixture::{Dice, recorded, shipped, slowly};

/// Bytes that are flipped, one at a time.
const FLIPS: usize = 1000;

async fn exported(bench: &Bench, session: Uuid) -> String {
    let mut text = String::new();
    let settings = bench.settings();
    let put = |line: String| {
        text += &line;
        Ok::<_, conductor::ledger::LedgerError>(())
    };
    let done = export(&settings, session, |_| None, put).await;
    assert_eq!(done, Ok(true));
    text
}

fn check(text: &str, key: &PublicKey) -> Checked {
    bundle::check(text.as_bytes(), &[*key]).unwrap()
}

fn key(bench: &Bench) -> PublicKey {
    *Key::load(&bench.settings().evidence.key).unwrap().unwrap().public()
}

#[tokio::test]
async fn a_bundle_is_good_as_long_as_no_byte_is_changed() {
    for bench in Bench::both().await {
        let (_journal, streams) = recorded(&bench).await;
        let (text, key) = (exported(&bench, streams[0].id).await, key(&bench));
        let good = check(&text, &key);
        assert_eq!((good.findings, good.seen.frames, good.seen.unsigned), (Vec::new(), 26, 0));
        assert_eq!((good.signed_to, good.seen.decisions), (26, 2));
        let mut dice = Dice(5);
        for _ in 0..FLIPS {
            let mut bytes = text.clone().into_bytes();
            let bit = dice.below(bytes.len() * 8);
            bytes[bit / 8] ^= 1 << (bit % 8);
            let checked = bundle::check(bytes.as_slice(), &[key]).unwrap();
            assert!(!checked.findings.is_empty(), "bit {bit} is not missed");
        }
        let cut = &text[..text.len() - 1];
        assert!(!check(cut, &key).findings.is_empty());
        assert!(!check(&format!("{text}\n"), &key).findings.is_empty());
        assert!(!check("", &key).findings.is_empty());
        assert_eq!(check(&text, Key::generate().unwrap().public()).findings[0].what, What::BadSignature);
    }
}

/// What a forger writes whole, with all hashes made anew.
fn forged(text: &str, change: impl Fn(Line) -> Option<Line>) -> String {
    let mut writer = Writer::default();
    let mut out = String::new();
    for line in text.lines() {
        let line: Line = serde_json::from_str(line).unwrap();
        if !matches!(line, Line::End(_))
            && let Some(line) = change(line)
        {
            out += &writer.line(&line);
        }
    }
    out + &writer.end()
}

#[tokio::test]
async fn a_bundle_that_is_written_anew_is_found_by_its_signature() {
    let bench = Bench::sqlite();
    let (journal, streams) = recorded(&bench).await;
    let key = key(&bench);
    let text = exported(&bench, streams[0].id).await;
    assert_eq!(check(&forged(&text, Some), &key).findings, [], "the same lines are the same file");
    let without = |seq: i64| {
        forged(&text, |line| match line {
            Line::Frame(frame) if frame.seq == seq => None,
            line => Some(line),
        })
    };
    let found = check(&without(7), &key).findings;
    assert_eq!((found[0].what, found[0].number), (What::Missing, Some(7)));
    let found = check(&without(26), &key).findings;
    assert_eq!((found[0].what, found[0].number), (What::TailCut, Some(26)));
    let unsigned = forged(&text, |line| if matches!(line, Line::Signed(_)) { None } else { Some(line) });
    assert_eq!(check(&unsigned, &key).findings[0].what, What::Unsigned);
    let undecided = forged(&text, |line| if matches!(line, Line::Decision(_)) { None } else { Some(line) });
    assert_eq!(check(&undecided, &key).findings[0].what, What::DecisionDiffers);
    // Nothing shows that frames behind the last checkpoint were recorded: anybody can write some.
    let log = Log::new(bench.settings().evidence, journal.id());
    turn(&journal, streams[0], 9);
    let settings = slowly(&bench);
    let tasks = conductor::tasks::Tasks::default();
    let ledger = conductor_tests::shipping::ship(settings, &journal, &tasks).await;
    conductor_tests::shipping::caught_up(&ledger, &journal).await;
    let tail = check(&exported(&bench, streams[0].id).await, &key);
    assert_eq!((tail.findings[0].what, tail.findings[0].number), (What::Unsigned, Some(27)));
    assert_eq!((tail.findings.len(), tail.seen.unsigned, tail.signed_to), (1, 10, 26));
    ledger.stop().await;
    tasks.ended().await;
    // Whichever of its keys is known, the log leads to the one that signed.
    let (newer, _) = log.rotate().unwrap();
    shipped(slowly(&bench), &journal).await;
    let old = exported(&bench, streams[1].id).await;
    turn(&journal, streams[1], 3);
    shipped(slowly(&bench), &journal).await;
    let new = exported(&bench, streams[1].id).await;
    for text in [&old, &new] {
        for key in [&key, &newer] {
            assert_eq!(check(text, key).findings, []);
        }
    }
}
