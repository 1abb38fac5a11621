//! Making the derived tables anew from `frames`, and carrying the frames of
//! another ledger over.
//!
//! A rebuild is one transaction: who reads sees the old rows until it is done,
//! who writes frames waits, and a rebuild that fails has changed nothing.

use std::path::Path;

use bytes::Bytes;
use sqlx::AssertSqlSafe;
use tracing::{error, warn};
use uuid::Uuid;

use super::{
    error::LedgerError,
    evidence::{
        EvidenceError, NOTHING,
        checkpoint::{Head, Kind},
        log::Log,
        signer::{blocking, fill},
        verify::Table,
    },
    project::State,
    reader::Reader,
    row::Row,
    settings::{Place, Settings},
    sink::{Sink, Written},
    table::{DECISIONS, TABLES},
};
use crate::config::DatabaseUrl;

/// So many frames' facts are merged before they are written.
const ROWS: usize = 4096;

/// So many ends of streams are signed by one checkpoint.
const HEADS: usize = 4096;

/// How far it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// Frames that are done.
    pub done: u64,
    /// Frames there are.
    pub total: u64,
}

/// Makes the derived tables anew. Returns how many frames they are made from.
pub async fn rebuild(settings: &Settings, mut tell: impl FnMut(Progress) + Send) -> Result<u64, LedgerError> {
    let done = rebuild_in(settings, &mut tell).await;
    done.map_err(|error| settings.hide(error))
}

async fn rebuild_in(
    settings: &Settings,
    tell: &mut (dyn FnMut(Progress) + Send),
) -> Result<u64, LedgerError> {
    let mut writer = Sink::open_as_owner(settings).await?;
    // Another connection reads: in Postgres one cannot do both at once, and
    // the writer's lock keeps the frames as they are.
    let mut reader = Sink::open_as_owner(settings).await?;
    writer.without_limits().await?;
    writer.begin(true).await?;
    let total = count(&mut reader, None).await?;
    writer.forget_index().await?;
    let lifted = writer.lift(TABLES[DECISIONS].name).await?;
    for table in TABLES {
        let rebuilt = rebuilt(table.name);
        writer.run_long(AssertSqlSafe(format!("DELETE FROM {}{rebuilt}", table.name))).await?;
    }
    let (mut stream, mut seq, mut done) = (Uuid::nil(), 0, 0);
    let mut state = State::default();
    let mut rows: Vec<Row> = Vec::new();
    // It was erased, so what is left of it stays as it is.
    let mut stays = false;
    loop {
        let page = reader.frames_after(stream, seq).await?;
        for frame in page.iter().cloned() {
            if frame.stream.id != stream {
                stream = frame.stream.id;
                state = State::default();
                stays = frame.seq == 1 && frame.erased.is_some();
            }
            seq = frame.seq;
            if stays {
                continue;
            }
            let row = frame.project(&mut state);
            // Only what it says is needed.
            rows.push(Row { raw: Bytes::new(), ..row });
        }
        done += page.len() as u64;
        if rows.len() >= ROWS || page.is_empty() {
            writer.write_facts(&rows).await?;
            rows.clear();
        }
        tell(Progress { done, total: total.max(done) });
        if page.is_empty() {
            break;
        }
    }
    writer.put_back(lifted).await?;
    writer.run("COMMIT").await?;
    index(&mut writer).await?;
    Ok(done)
}

/// Which rows of a table are made anew. What frames said whose words were erased cannot be
/// made again: those rows stay.
fn rebuilt(table: &str) -> String {
    let erased = "(SELECT stream_id FROM frames WHERE raw IS NULL AND seq = 1)";
    match table {
        "processes" => format!(" WHERE process_id NOT IN {erased}"),
        "connections" => format!(" WHERE connection_id NOT IN {erased}"),
        "models" => format!(" WHERE process_id IS NULL OR process_id NOT IN {erased}"),
        // Uses in a session that was erased are counted here, too.
        "grants" => format!(
            " WHERE grant_id NOT IN {erased} AND (session_id IS NULL OR session_id NOT IN {erased}) \
             AND grant_id NOT IN (SELECT grant_id FROM grant_uses WHERE grant_id IS NOT NULL AND session_id IN {erased})"
        ),
        _ => format!(" WHERE session_id IS NULL OR session_id NOT IN {erased}"),
    }
}

/// Carries the frames of a SQLite ledger over. Those that are there already are
/// left alone, so that it can be done again at any time.
pub async fn import(
    settings: &Settings,
    file: &Path,
    mut tell: impl FnMut(Progress) + Send,
) -> Result<Written, LedgerError> {
    let done = import_from(settings, file, &mut tell).await;
    done.map_err(|error| settings.hide(error))
}

async fn import_from(
    settings: &Settings,
    file: &Path,
    tell: &mut (dyn FnMut(Progress) + Send),
) -> Result<Written, LedgerError> {
    if let Place::Sqlite(own) = settings.place()?
        && own.canonicalize().ok().is_some_and(|own| file.canonicalize().ok() == Some(own))
    {
        let why = format!("{} is the ledger itself; name the one to carry over", file.display());
        return Err(LedgerError::Settings(why));
    }
    let mut source = Sink::open_to_import(file).await?;
    let mut target = Sink::open(settings).await?;
    let total = count(&mut source, None).await?;
    let (mut stream, mut seq, mut done) = (Uuid::nil(), 0, 0);
    let (mut state, mut chain) = (State::default(), NOTHING);
    let mut written = Written::default();
    let mut mixed = false;
    let mut heads: Vec<Head> = Vec::new();
    // Whether the stream at hand was in the target before.
    let mut is_there = false;
    loop {
        let page = source.frames_after(stream, seq).await?;
        if page.is_empty() {
            break;
        }
        let mut rows = Vec::with_capacity(page.len());
        let mut any_there = is_there;
        for frame in page {
            if frame.stream.id != stream {
                stream = frame.stream.id;
                (state, chain) = (State::default(), NOTHING);
                is_there = count(&mut target, Some(stream)).await? > 0;
                any_there |= is_there;
            }
            seq = frame.seq;
            // The other ledger's chain is kept: what does not fit it there does not fit here.
            chain = frame.chained(&chain);
            match heads.last_mut().filter(|head| head.stream == stream) {
                Some(head) => (head.seq, head.chain) = (seq, chain),
                None => heads.push(Head { stream, seq, chain }),
            }
            rows.push(Row { chain: Some(chain), ..frame.project(&mut state) });
        }
        done += rows.len() as u64;
        // Where a stream is there in part, its chain goes on from that.
        let page_written = match any_there {
            true => target.write_carefully(&rows, None).await?,
            false => target.write(&rows, None).await?,
        };
        // A stream that was there in part has rows that were derived without
        // the frames which come now.
        mixed |= page_written.new > 0 && (page_written.new < rows.len() as u64 || any_there);
        written = written.and(page_written);
        tell(Progress { done, total: total.max(done) });
    }
    import_checkpoints(settings, file, &mut target).await?;
    sign(settings, heads, &mut target).await?;
    if !mixed {
        index(&mut target).await?;
    }
    drop(target);
    if mixed {
        rebuild_in(settings, tell).await?;
    }
    if written.conflicts > 0 {
        error!(
            conflicts = written.conflicts,
            "frames of the imported ledger differ from those under the same numbers"
        );
    }
    Ok(written)
}

/// Makes everything findable. Whoever interrupts this leaves the rest to the
/// service.
async fn index(sink: &mut Sink) -> Result<(), LedgerError> {
    while sink.index_some().await? {}
    Ok(())
}

/// Signs where the streams end that were carried over: nobody signs later what the journal does not
/// have. A stream that goes on otherwise here is left to whoever records it.
async fn sign(settings: &Settings, heads: Vec<Head>, target: &mut Sink) -> Result<(), LedgerError> {
    let mut brought = Vec::with_capacity(heads.len());
    for head in heads {
        if target.end_of_chain(head.stream).await? == (head.seq, head.chain) {
            brought.push(head);
        }
    }
    for part in brought.chunks(HEADS) {
        match sign_part(settings, part.to_vec(), target).await {
            Ok(()) => {}
            Err(EvidenceError::Ledger(error)) => return Err(error),
            Err(error) => {
                warn!(%error, "what was carried over is not signed; put that right and import it again");
                return Ok(());
            }
        }
    }
    Ok(())
}

async fn sign_part(settings: &Settings, heads: Vec<Head>, target: &mut Sink) -> Result<(), EvidenceError> {
    let log = Log::of_state(settings.evidence.clone())?;
    let (signing, signed) = (log.clone(), heads.clone());
    let entries = blocking(move || signing.append(Kind::Heads, signed, "imported")).await?;
    fill(&log, target).await?;
    if let Some(entry) = entries.last() {
        target.mark_signed(log.journal(), entry.checkpoint.number, &heads).await?;
    }
    Ok(())
}

/// What another ledger's conductor has signed stays signed by it.
async fn import_checkpoints(settings: &Settings, file: &Path, target: &mut Sink) -> Result<(), LedgerError> {
    let source = Settings { url: DatabaseUrl::default(), file: file.to_owned(), ..settings.clone() };
    let mut reader = Reader::open_for_long(&source).await?;
    if !reader.has_checkpoints().await? {
        return Ok(());
    }
    for journal in reader.journals().await? {
        let mut table = Table::new(journal);
        while let Some(entry) = table.next(&mut reader).await? {
            // One that is none is missed where it is looked for.
            if let Ok(entry) = entry
                && entry.checkpoint.number > 0
            {
                target.add_checkpoints(&[entry]).await?;
            }
        }
    }
    Ok(())
}

async fn count(sink: &mut Sink, stream: Option<Uuid>) -> Result<u64, LedgerError> {
    let counted = match sink {
        Sink::Postgres(sink) => sink.count(stream).await?,
        Sink::Sqlite(sink) => sink.count(stream).await?,
    };
    Ok(u64::try_from(counted).unwrap_or_default())
}
