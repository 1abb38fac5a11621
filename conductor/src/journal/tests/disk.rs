//! A disk that is full for a while, one without inodes, and one that takes its time.

use std::{
    fs::File,
    sync::{
        Condvar,
        atomic::{AtomicBool, AtomicI64},
    },
};

use nix::errno::Errno;

use super::{super::disk::Kernel, *};

/// A disk with little room, of which files take what was set aside for them or
/// written, and whose syncs can be held.
#[derive(Default)]
struct Small {
    /// Bytes that are left.
    room: AtomicI64,
    /// There is room, but no file can be made: the inodes are used up.
    is_out_of_inodes: AtomicBool,
    held: AtomicBool,
    gate: Mutex<()>,
    opened: Condvar,
}

impl Small {
    fn take(&self, bytes: u64) -> io::Result<()> {
        let bytes = i64::try_from(bytes).unwrap();
        let left = self.room.fetch_sub(bytes, Ordering::SeqCst) - bytes;
        if left >= 0 {
            return Ok(());
        }
        self.room.fetch_add(bytes, Ordering::SeqCst);
        Err(Errno::ENOSPC.into())
    }

    fn hold(&self, held: bool) {
        let _gate = self.gate.lock().unwrap();
        self.held.store(held, Ordering::SeqCst);
        self.opened.notify_all();
    }
}

impl Disk for Small {
    fn create(&self, path: &Path) -> io::Result<File> {
        if self.is_out_of_inodes.load(Ordering::SeqCst) {
            return Err(Errno::ENOSPC.into());
        }
        self.take(1)?;
        Kernel.create(path)
    }

    fn open(&self, path: &Path) -> io::Result<File> {
        Kernel.open(path)
    }

    fn write_at(&self, file: &File, bytes: &[u8], at: u64) -> io::Result<usize> {
        // What lies within the room set aside is there already.
        let aside = std::os::unix::fs::MetadataExt::blocks(&file.metadata()?) * 512;
        let end = at + bytes.len() as u64;
        self.take(end.saturating_sub(aside.max(at)))?;
        Kernel.write_at(file, bytes, at)
    }

    fn sync_data(&self, _file: &File) -> io::Result<()> {
        let mut gate = self.gate.lock().unwrap();
        while self.held.load(Ordering::SeqCst) {
            gate = self.opened.wait(gate).unwrap();
        }
        Ok(())
    }

    fn sync_all(&self, _file: &File) -> io::Result<()> {
        Ok(())
    }

    fn set_len(&self, file: &File, len: u64) -> io::Result<()> {
        Kernel.set_len(file, len)
    }

    fn reserve(&self, file: &File, len: u64) -> io::Result<()> {
        self.take(len)?;
        Kernel.reserve(file, len)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        Kernel.rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        let bytes = std::os::unix::fs::MetadataExt::blocks(&std::fs::metadata(path)?) * 512;
        Kernel.remove(path)?;
        self.room.fetch_add(i64::try_from(bytes).unwrap(), Ordering::SeqCst);
        Ok(())
    }
}

fn settings() -> Settings {
    Settings { segment_bytes: 64 << 10, reserve_bytes: 64 << 10, sync_bytes: 4096, ..small() }
}

#[tokio::test]
async fn s03_a_full_disk_refuses_says_why_and_recovers() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("journal");
    let disk = Arc::new(Small::default());
    disk.room.store(300 << 10, Ordering::SeqCst);
    let (journal, _) = Journal::open_on(&dir, settings(), disk.clone()).unwrap();
    // As long as nothing is synced, no file is made ahead that could still bring
    // room when the disk is full already.
    disk.hold(true);
    let text = "x".repeat(1000);
    let mut seq = 1;
    let refused = loop {
        match journal.append(batch(stream(1), seq, &[&text]), Class::Stream) {
            Ok(_) => seq += 1,
            Err(refused) => break refused,
        }
    };
    assert_eq!(refused.cause, Cause::Disk);
    assert!(refused.why.contains("No space left") && refused.why.contains("free space"), "{refused}");
    assert!(seq > 100, "only {seq} frames fitted");
    assert_eq!(journal.append(batch(stream(2), 1, &["{}"]), Class::Effect).unwrap_err().cause, Cause::Disk);

    disk.hold(false);
    // The reserve makes room for what stops things, and for the reason.
    let stop = journal.append(batch(stream(2), 1, &["{}"]), Class::Stop).unwrap();
    journal.released(stop).await.unwrap();
    let mut synced = journal.synced();
    let own = Stream { id: journal.id(), kind: StreamKind::Process };
    while journal.read_stream(own.id, 1, 1000).unwrap().is_empty() {
        synced.changed().await.unwrap();
    }
    let why = journal.read_stream(own.id, 1, 1000).unwrap();
    assert!(String::from_utf8_lossy(&why[0].frames).contains("No space left"), "{why:?}");
    assert!(journal.refusing().is_some());

    disk.room.fetch_add(1 << 20, Ordering::SeqCst);
    journal.accepting().await;
    assert_eq!(journal.refusing(), None);
    assert!(dir.join("reserve").exists());
    let ticket = journal.append(refused.batch, Class::Effect).unwrap();
    journal.released(ticket).await.unwrap();
    let found = all(&journal);
    let ours = found.iter().filter(|record| record.stream == stream(1));
    assert!(ours.map(|record| record.first_seq).eq(1..=seq));
    journal.close();
    let (_, recovered) = Journal::open(&dir, settings()).unwrap();
    assert_eq!(recovered.findings, []);
}

#[tokio::test]
async fn s09_without_inodes_effects_are_refused_until_there_are_some() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("journal");
    let disk = Arc::new(Small::default());
    disk.room.store(1 << 30, Ordering::SeqCst);
    let (journal, _) = Journal::open_on(&dir, settings(), disk.clone()).unwrap();
    let text = "x".repeat(1000);
    let first = journal.append(batch(stream(1), 1, &[&text]), Class::Effect).unwrap();
    journal.released(first).await.unwrap();
    disk.is_out_of_inodes.store(true, Ordering::SeqCst);
    let mut seq = 2;
    // What there is of files is filled first.
    let refused = loop {
        match journal.append(batch(stream(1), seq, &[&text]), Class::Effect) {
            Ok(_) => seq += 1,
            Err(refused) => break refused,
        }
    };
    assert_eq!(refused.cause, Cause::Disk);
    assert!(refused.why.contains("No space left"), "{refused}");
    assert!(seq > 50, "only {seq} frames fitted");
    disk.is_out_of_inodes.store(false, Ordering::SeqCst);
    journal.accepting().await;
    let ticket = journal.append(refused.batch, Class::Effect).unwrap();
    journal.released(ticket).await.unwrap();
    let found = all(&journal);
    let ours = found.iter().filter(|record| record.stream == stream(1));
    assert!(ours.map(|record| record.first_seq).eq(1..=seq));
    journal.close();
    let (_, recovered) = Journal::open(&dir, settings()).unwrap();
    assert_eq!(recovered.findings, []);
}

#[tokio::test]
async fn s04_effects_wait_for_a_slow_sync_and_streams_flow() {
    use futures_util::FutureExt as _;
    let root = tempfile::tempdir().unwrap();
    let disk = Arc::new(Small::default());
    disk.room.store(1 << 30, Ordering::SeqCst);
    let settings = Settings { refuse_after: Duration::ZERO, ..settings() };
    let (journal, _) = Journal::open_on(&root.path().join("journal"), settings, disk.clone()).unwrap();
    disk.hold(true);
    let effect = journal.append(batch(stream(1), 1, &["{}"]), Class::Effect).unwrap();
    for seq in 1..=1000 {
        journal.append(batch(stream(2), seq, &["{}"]), Class::Stream).unwrap();
    }
    assert!(journal.released(effect).now_or_never().is_none());
    // Written, but not to be shipped.
    assert_eq!(journal.read_stream(stream(2).id, 900, 1 << 20).unwrap().len(), 101);
    assert!(all(&journal).is_empty());
    let late = journal.append(batch(stream(1), 2, &["{}"]), Class::Effect).unwrap();
    disk.hold(false);
    journal.released(effect).await.unwrap();
    journal.released(late).await.unwrap();
    assert_eq!(all(&journal).len(), 1002);
}
