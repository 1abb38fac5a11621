//! Ten thousand random edits, deletions, swaps and cut tails of a recorded
//! ledger: each is found, and the first bad frame is named. Some hundred more are
//! made in the databases themselves, by whoever has all rights to them and no key.

use conductor::ledger::evidence::{
    checkpoint::Head,
    finding::{Finding, What},
    sha256,
    stream::{By, Columns, OnRecord, Stands, StreamCheck},
};
use conductor_tests::shipping::{Bench, open_file, texts};
use sqlx::Row as _;
use uuid::Uuid;

use crate::fixture::{Dice, Intruder, checked, recorded};

const MUTATIONS: usize = 10_000;

/// Changes of a database take longer.
const IN_A_DATABASE: usize = 150;

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
    let signed = original.signed.iter().map(|head| (*head, By::Known)).collect();
    let mut check = StreamCheck::new(original.stream, OnRecord { signed, ..OnRecord::default() });
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

/// The places where something can be changed.
struct Target {
    journal: Uuid,
    streams: Vec<(Uuid, i64)>,
    /// Columns of decisions that are filled.
    filled: Vec<&'static str>,
}

/// One change, in SQL; `None` if there is nothing to change in that way.
async fn change(intruder: &mut Intruder, target: &Target, dice: &mut Dice) -> Option<String> {
    let (stream, last) = target.streams[dice.below(target.streams.len())];
    let seq = 1 + i64::try_from(dice.below(usize::try_from(last).unwrap())).unwrap();
    let at = format!("WHERE stream_id = '{stream}' AND seq = {seq}");
    let own = format!("WHERE stream_id = '{stream}'");
    let journal = target.journal;
    let (other, below) =
        (Uuid::from_u128(dice.below(usize::MAX) as u128), -i64::try_from(dice.below(3)).unwrap());
    let (bytes, hash) = (intruder.bytes(b"{}"), intruder.bytes(&sha256(b"{}")));
    let raw = intruder.bytes(&[1; 32]);
    let is_file = matches!(intruder, Intruder::Sqlite(_));
    let statement = match dice.below(38) {
        0 => format!("UPDATE frames SET raw = {bytes} {at}"),
        1 => format!("UPDATE frames SET raw = {bytes}, hash = {hash} {at}"),
        2 => format!("UPDATE frames SET at_us = at_us + 1 {at}"),
        3 => {
            format!("UPDATE frames SET origin = CASE origin WHEN 'agent' THEN 'editor' ELSE 'agent' END {at}")
        }
        4 => format!("UPDATE frames SET destination = destination || 'x' {at}"),
        5 => format!("UPDATE frames SET outgoing_id = COALESCE(outgoing_id, 0) + 7 {at}"),
        6 => format!("UPDATE frames SET stream_kind = 'grant' {at}"),
        7 => format!("UPDATE frames SET kind = kind || 'x' {at}"),
        8 => format!("UPDATE frames SET method = COALESCE(method, '') || 'x' {at}"),
        9 => format!("UPDATE frames SET request_id = COALESCE(request_id, '') || '1' {at}"),
        10 => format!("UPDATE frames SET json = NULL {at} AND json IS NOT NULL"),
        11 => {
            format!("UPDATE frames SET kind = 'opaque', method = NULL, request_id = NULL, json = NULL {at}")
        }
        12 => format!("UPDATE frames SET raw = NULL, json = NULL {at}"),
        13 => format!("DELETE FROM frames {at}"),
        14 => format!("DELETE FROM frames {own} AND seq >= {seq}"),
        15 => format!("DELETE FROM frames {own}"),
        16 => format!("DELETE FROM frames {own}; DELETE FROM stream_heads {own}"),
        17 => {
            intruder.copy_frame(stream, seq, ("stream_id", &below.to_string())).await;
            format!("-- frame {seq} of {stream} again as {below}")
        }
        18 => {
            intruder.copy_frame(stream, seq, ("stream_id", &(last + 1).to_string())).await;
            format!("-- frame {seq} of {stream} again at its end")
        }
        19 => {
            let to = if is_file { format!("'{other}'") } else { format!("CAST('{other}' AS uuid)") };
            intruder.copy_frame(stream, seq, (&to, &below.to_string())).await;
            format!("-- frame {seq} of {stream} again as {below} of {other}")
        }
        20 => format!("UPDATE frames SET seq = seq + 1000 {at}"),
        21 if seq > 1 => format!("UPDATE frames SET chain = NULL {at}"),
        22 => format!("UPDATE frames SET chain = {raw} {at}"),
        23 => format!("UPDATE frames SET hash = {raw} {at}"),
        24 => format!("UPDATE frames SET stream_id = '{other}' {own}"),
        25 if is_file => format!("UPDATE frames SET stream_id = upper(stream_id) {at}"),
        26 if is_file => format!("UPDATE frames SET stream_id = CAST(stream_id AS BLOB) {own}"),
        27 if is_file => format!("UPDATE frames SET origin = CAST(origin AS BLOB) {at}"),
        28 => {
            let column = target.filled[dice.below(target.filled.len())];
            format!(
                "UPDATE decisions SET {column} = NULL WHERE {column} IS NOT NULL AND session_id = '{stream}'"
            )
        }
        29 => format!("UPDATE decisions SET session_id = '{other}' WHERE session_id = '{stream}'"),
        30 => format!("DELETE FROM decisions WHERE session_id = '{stream}'"),
        31 => format!("UPDATE stream_heads SET seq = seq + 1 - 2 * {} {own}", dice.below(2)),
        32 => format!("UPDATE stream_heads SET chain = {raw} {own}"),
        33 => {
            let number = 1 + dice.below(3);
            let column = ["at_us = at_us + 1", "note = note || 'x'", "leaves = leaves + 1"][dice.below(3)];
            format!("UPDATE checkpoints SET {column} WHERE number = {number}")
        }
        34 => format!("UPDATE checkpoints SET number = {below} WHERE number = {}", 1 + dice.below(2)),
        35 => format!("UPDATE checkpoint_heads SET seq = seq + 1 {own}"),
        // What was never signed takes the words of a frame away, or all of a stream.
        36 => format!(
            "INSERT INTO checkpoints (journal_id, number, kind, at_us, previous, root, leaves, key_id, signature, note) \
             VALUES ('{journal}', {below}, 'erased', 5, {raw}, {raw}, 1, 'k', {raw}, ''); \
             INSERT INTO checkpoint_heads (journal_id, number, stream_id, seq, chain) \
             VALUES ('{journal}', {below}, '{stream}', {last}, {raw}); UPDATE frames SET raw = NULL, json = NULL {own}"
        ),
        _ => format!(
            "INSERT INTO frame_conflicts (stream_id, seq, hash, raw, at_us, origin, journal_id, found_us) \
             VALUES ('{stream}', {seq}, {raw}, {bytes}, 1, 'agent', '{journal}', 1)"
        ),
    };
    if statement.starts_with("--") {
        return Some(statement);
    }
    (intruder.run(&statement).await > 0).then_some(statement)
}

#[tokio::test]
async fn some_hundred_changes_in_the_databases_are_all_found() {
    for (bench, seed) in Bench::both().await.into_iter().zip([3, 4]) {
        let (journal, streams) = recorded(&bench).await;
        let settings = bench.settings();
        assert_eq!(checked(&settings).await.findings, []);
        let mut ends = Vec::new();
        for stream in &streams {
            let last = format!("SELECT max(seq) FROM frames WHERE stream_id = '{}'", stream.id);
            ends.push((stream.id, bench.number(&last).await));
        }
        let table = &conductor::ledger::table::TABLES[conductor::ledger::table::DECISIONS];
        let mut filled = Vec::new();
        for column in &table.columns[table.key..] {
            let some = format!("SELECT count(*) FROM decisions WHERE {} IS NOT NULL", column.name);
            if bench.number(&some).await > 0 {
                filled.push(column.name);
            }
        }
        assert!(filled.len() > 8, "{filled:?}");
        let target = Target { journal: journal.id(), streams: ends, filled };
        let mut intruder = Intruder::of(&bench).await;
        intruder.remember().await;
        let (mut dice, mut done) = (Dice(seed), 0);
        while done < IN_A_DATABASE {
            let Some(statement) = change(&mut intruder, &target, &mut dice).await else { continue };
            let findings = checked(&settings).await.findings;
            assert!(!findings.is_empty(), "not found: {statement}");
            intruder.undo().await;
            done += 1;
        }
        assert_eq!(checked(&settings).await.findings, [], "it was all put back");
        assert_eq!(
            texts(&settings, "SELECT kind FROM checkpoints WHERE number < 1").await,
            Vec::<String>::new()
        );
        intruder.close().await;
    }
}
