//! Ten thousand random edits, deletions, swaps and cut tails of a recorded
//! ledger: each is found, and the first bad frame is named.

use conductor::ledger::evidence::{
    checkpoint::Head,
    finding::{Finding, What},
    sha256,
    stream::{Columns, Stands, StreamCheck},
};
use conductor_tests::shipping::{Bench, open_file};
use sqlx::Row as _;
use uuid::Uuid;

use crate::fixture::{Dice, checked, recorded};

const MUTATIONS: usize = 10_000;

/// A stream as it was recorded, with what was signed of it.
struct Original {
    stream: Uuid,
    rows: Vec<Stands>,
    signed: Vec<Head>,
    head: (Head, bool),
}

async fn originals(bench: &Bench) -> Vec<Original> {
    let mut file = open_file(&bench.file()).await;
    let hash = |bytes: Vec<u8>| bytes.try_into().unwrap();
    let heads = sqlx::query("SELECT stream_id, seq, chain, checkpoint IS NOT NULL FROM stream_heads");
    let mut all = Vec::new();
    for head in heads.fetch_all(&mut file).await.unwrap() {
        let id: String = head.get(0);
        let stream = id.parse().unwrap();
        let rows = sqlx::query(
            "SELECT seq, stream_kind, at_us, origin, destination, outgoing_id, raw, hash, chain, kind, method, \
             request_id, binding_id, json FROM frames WHERE stream_id = ? ORDER BY seq",
        );
        let rows = rows.bind(&id).fetch_all(&mut file).await.unwrap();
        let row = |row: &sqlx::sqlite::SqliteRow| Stands {
            seq: row.get(0),
            stream_kind: row.get(1),
            at_us: row.get(2),
            origin: row.get(3),
            destination: row.get(4),
            outgoing_id: row.get(5),
            raw: row.get(6),
            hash: row.get(7),
            chain: row.get(8),
            columns: Some(Columns {
                kind: row.get(9),
                method: row.get(10),
                request_id: row.get(11),
                binding_id: row.get(12),
                json: row.get(13),
            }),
        };
        let signed = sqlx::query("SELECT seq, chain FROM checkpoint_heads WHERE stream_id = ? ORDER BY seq");
        let signed = signed.bind(&id).fetch_all(&mut file).await.unwrap();
        let leaf = |row: &sqlx::sqlite::SqliteRow| Head { stream, seq: row.get(0), chain: hash(row.get(1)) };
        all.push(Original {
            stream,
            rows: rows.iter().map(row).collect(),
            signed: signed.iter().map(leaf).collect(),
            head: (Head { stream, seq: head.get(1), chain: hash(head.get(2)) }, head.get(3)),
        });
    }
    all
}

fn check(original: &Original, rows: Vec<Stands>) -> Option<Finding> {
    let mut check = StreamCheck::new(original.stream, original.signed.clone(), 0);
    rows.into_iter().for_each(|row| check.row(row));
    check.end(Some(original.head)).finding
}

/// Changes one thing. Says what must be found: the frame, and of what kind.
fn mutate(rows: &mut Vec<Stands>, dice: &mut Dice) -> (i64, &'static [What]) {
    const EDITED: &[What] = &[What::Altered];
    const MOVED: &[What] = &[What::Displaced];
    let at = dice.below(rows.len());
    let seq = rows[at].seq;
    let flip = |bytes: &mut Vec<u8>, dice: &mut Dice| {
        let bit = dice.below(bytes.len() * 8);
        bytes[bit / 8] ^= 1 << (bit % 8);
    };
    match dice.below(16) {
        0 => flip(rows[at].raw.as_mut().unwrap(), dice),
        1 => {
            // A cleverer hand, who knows what the hash is of.
            let row = &mut rows[at];
            flip(row.raw.as_mut().unwrap(), dice);
            row.hash = sha256(row.raw.as_ref().unwrap()).to_vec();
            return (seq, MOVED);
        }
        2 => flip(&mut rows[at].hash, dice),
        3 => {
            flip(rows[at].chain.as_mut().unwrap(), dice);
            return (seq, MOVED);
        }
        4 => {
            rows[at].at_us += 1 + i64::try_from(dice.below(1_000_000)).unwrap();
            return (seq, MOVED);
        }
        5 => {
            let row = &mut rows[at];
            row.origin = if row.origin == "agent" { "editor".to_owned() } else { "agent".to_owned() };
            return (seq, MOVED);
        }
        6 => {
            rows[at].destination.push('x');
            return (seq, MOVED);
        }
        7 => {
            let row = &mut rows[at];
            row.outgoing_id = row.outgoing_id.map_or(Some(9), |_| None);
            return (seq, MOVED);
        }
        8 => rows[at].columns.as_mut().unwrap().method = Some("session/other".to_owned()),
        9 => rows[at].columns.as_mut().unwrap().json = Some("{\"jsonrpc\":\"2.0\"}".to_owned()),
        // Rows without a link are good at the begin of a stream: they are older than chains.
        10 if at > 0 => rows[at].chain = None,
        11 => rows[at].raw = None,
        12 => {
            rows.remove(at);
            let was_last = at == rows.len();
            return (seq, if was_last { &[What::TailCut] } else { &[What::Missing] });
        }
        13 => {
            rows.truncate(at);
            return (seq, &[What::TailCut]);
        }
        // Two frames change places, with or without what belongs to them.
        kind => {
            let other = (at + 1 + dice.below(rows.len() - 1)) % rows.len();
            let (first, second) = (at.min(other), at.max(other));
            let (low, high) = (rows[first].seq, rows[second].seq);
            rows.swap(first, second);
            (rows[first].seq, rows[second].seq) = (low, high);
            if kind == 14 {
                let (one, two) = (rows[first].chain.clone(), rows[second].chain.clone());
                (rows[first].chain, rows[second].chain) = (two, one);
            }
            return (low, MOVED);
        }
    }
    (seq, EDITED)
}

#[tokio::test]
async fn g11_ten_thousand_random_changes_are_all_found() {
    let bench = Bench::sqlite();
    recorded(&bench).await;
    let report = checked(&bench.settings()).await;
    assert_eq!((report.findings, report.seen.unsigned, report.seen.streams), (Vec::new(), 0, 3));
    let originals = originals(&bench).await;
    assert!(originals.iter().all(|original| check(original, original.rows.clone()).is_none()));
    assert!(originals.iter().any(|original| original.signed.len() == 2), "one was signed twice");
    let mut dice = Dice(11);
    for number in 0..MUTATIONS {
        let original = &originals[dice.below(originals.len())];
        let mut rows = original.rows.clone();
        let (seq, kinds) = mutate(&mut rows, &mut dice);
        if rows.is_empty() {
            // Without any row nobody looks at the stream; see `database`.
            continue;
        }
        let found =
            check(original, rows).unwrap_or_else(|| panic!("change {number} at frame {seq} is not found"));
        assert_eq!(found.number, Some(seq), "change {number}: {found:?}");
        assert!(kinds.contains(&found.what), "change {number}: {found:?}");
    }
}
