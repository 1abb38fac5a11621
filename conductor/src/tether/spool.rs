//! Frames for an editor that is away, on disk: what does not fit in memory
//! waits here, in order.
//!
//! The file loses its name at once: whatever way the service ends, the kernel
//! removes it. Reads and writes go through the page cache and are made in
//! place, like those of the journal.

use std::{
    fs::{self, File, OpenOptions},
    io,
    os::unix::fs::{FileExt as _, OpenOptionsExt as _},
    path::PathBuf,
};

use bytes::{Buf as _, BufMut as _, BytesMut};
use uuid::Uuid;

use super::kept::Numbered;
use crate::session::Packet;

/// Most bytes that may wait for one editor.
const MOST_BYTES: u64 = 1 << 30;

/// Before each packet: number, count, length.
const HEADER: usize = 16;

/// Packets on disk.
#[derive(Debug)]
pub(super) struct Spool {
    directory: PathBuf,
    file: Option<File>,
    read: u64,
    written: u64,
    most: u64,
}

impl Spool {
    /// Takes no room before something is pushed.
    pub(super) fn new(directory: PathBuf) -> Self {
        Self { directory, file: None, read: 0, written: 0, most: MOST_BYTES }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.read == self.written
    }

    /// Adds a packet, or says why the editor can be kept no longer.
    pub(super) fn push(&mut self, run: &Numbered) -> Result<(), String> {
        let Packet { frames, count } = &run.packet;
        if self.written - self.read + (HEADER + frames.len()) as u64 > self.most {
            return Err(format!("more than {} MiB waited for the editor to come back", self.most >> 20));
        }
        let mut record = BytesMut::with_capacity(HEADER + frames.len());
        record.put_u64(run.first);
        record.put_u32(*count);
        record.put_u32(frames.len() as u32);
        record.put_slice(frames);
        let at = self.written;
        let written = self.file().and_then(|file| file.write_all_at(&record, at));
        written.map_err(|error| format!("what waits for the editor cannot be written to disk: {error}"))?;
        self.written += record.len() as u64;
        Ok(())
    }

    /// Takes the oldest packet.
    pub(super) fn pop(&mut self) -> Result<Option<Numbered>, String> {
        let Some(file) = self.file.as_ref().filter(|_| self.read < self.written) else { return Ok(None) };
        let run = read(file, self.read);
        let run = run.map_err(|error| format!("what waits for the editor cannot be read again: {error}"))?;
        self.read += (HEADER + run.packet.frames.len()) as u64;
        if self.read == self.written {
            self.clear();
        }
        Ok(Some(run))
    }

    /// Gives the room back.
    pub(super) fn clear(&mut self) {
        (self.file, self.read, self.written) = (None, 0, 0);
    }

    fn file(&mut self) -> io::Result<&File> {
        match &mut self.file {
            Some(file) => Ok(file),
            none => {
                let path = self.directory.join(format!("spool-{}", Uuid::now_v7()));
                let file =
                    OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(&path)?;
                fs::remove_file(&path)?;
                Ok(none.insert(file))
            }
        }
    }
}

fn read(file: &File, at: u64) -> io::Result<Numbered> {
    let mut header = [0; HEADER];
    file.read_exact_at(&mut header, at)?;
    let mut fields = &header[..];
    let (first, count, length) = (fields.get_u64(), fields.get_u32(), fields.get_u32());
    let mut frames = vec![0; length as usize];
    file.read_exact_at(&mut frames, at + HEADER as u64)?;
    Ok(Numbered { first, packet: Packet { frames: frames.into(), count } })
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests fail by panicking")]
mod tests {
    use super::*;

    fn run(first: u64) -> Numbered {
        Numbered { first, packet: Packet { frames: format!("{first}\n").into(), count: 1 } }
    }

    #[test]
    fn packets_come_back_in_order_and_leave_no_file() {
        let temp = tempfile::tempdir().unwrap();
        let mut spool = Spool::new(temp.path().to_path_buf());
        for first in 1..=3 {
            spool.push(&run(first)).unwrap();
        }
        assert_eq!(spool.pop().unwrap().unwrap().first, 1);
        spool.push(&run(4)).unwrap();
        assert_eq!(fs::read_dir(temp.path()).unwrap().count(), 0, "the file has no name");
        let rest: Vec<_> = std::iter::from_fn(|| spool.pop().unwrap()).collect();
        assert_eq!(rest.iter().map(|run| run.first).collect::<Vec<_>>(), [2, 3, 4]);
        assert_eq!(rest[2].packet.frames, "4\n");
        assert!(spool.is_empty() && spool.file.is_none());
    }

    #[test]
    fn it_is_bounded_and_says_so() {
        let temp = tempfile::tempdir().unwrap();
        let mut spool = Spool { most: 40, ..Spool::new(temp.path().to_path_buf()) };
        spool.push(&run(1)).unwrap();
        spool.push(&run(2)).unwrap();
        assert!(spool.push(&run(3)).unwrap_err().contains("waited for the editor"));
        spool.pop().unwrap();
        spool.push(&run(3)).unwrap();
    }

    #[test]
    fn a_disk_that_fails_is_told() {
        let mut spool = Spool::new("/nonexistent/spool".into());
        assert!(spool.push(&run(1)).unwrap_err().contains("cannot be written"));
    }
}
