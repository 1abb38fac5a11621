//! A file system that fails when told to, and that knows what would be left
//! after the process is killed, or after the power goes, at any call.

use std::{
    collections::HashMap,
    fs::{self, File},
    os::unix::fs::MetadataExt as _,
    sync::atomic::AtomicBool,
};

use nix::errno::Errno;

use super::super::disk::Kernel;
use super::*;

/// What goes wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fault {
    /// The call fails.
    Error(Errno),
    /// The sync fails; only those are counted.
    Sync(Errno),
    /// A write takes one byte only; other calls work.
    Short,
    /// A write takes half and the next call fails.
    Half(Errno),
    /// Nothing goes wrong, but an image of the disk is taken before the call.
    Image,
}

pub(super) struct Flaky {
    dir: PathBuf,
    fault: Fault,
    /// The call that it happens at, counted from 1.
    at: u64,
    /// How many calls fail from there on.
    times: u64,
    calls: AtomicU64,
    pub hit: AtomicBool,
    /// What the test has been told so far is noted here.
    pub acknowledged: AtomicU64,
    medium: Mutex<Medium>,
}

/// What is on the medium, as opposed to the page cache.
#[derive(Default)]
struct Medium {
    /// Files by inode, as of their last sync; `None` once a sync failed.
    files: HashMap<u64, Option<Vec<u8>>>,
    /// Names as of the last sync of the directory.
    names: HashMap<String, u64>,
    /// At the wanted call: what a kill and what a power loss leave, and how much
    /// had been acknowledged.
    image: Option<(Names, Names, u64)>,
}

pub(super) type Names = HashMap<String, Vec<u8>>;

impl Flaky {
    pub(super) fn new(dir: &Path, fault: Fault, at: u64, times: u64) -> Arc<Self> {
        Arc::new(Self {
            dir: dir.to_path_buf(),
            fault,
            at,
            times,
            calls: AtomicU64::new(0),
            hit: AtomicBool::new(false),
            acknowledged: AtomicU64::new(0),
            medium: Mutex::default(),
        })
    }

    pub(super) fn image(&self) -> Option<(Names, Names, u64)> {
        self.medium.lock().unwrap().image.take()
    }

    fn call(&self, sync: bool) -> Option<Errno> {
        if matches!(self.fault, Fault::Sync(_)) && !sync {
            return None;
        }
        let call = self.calls.fetch_add(1, Ordering::SeqCst) + 1;
        if !(self.at..self.at + self.times).contains(&call) {
            return None;
        }
        self.hit.store(true, Ordering::SeqCst);
        match self.fault {
            Fault::Error(errno) | Fault::Sync(errno) => Some(errno),
            Fault::Half(errno) if call > self.at => Some(errno),
            Fault::Image => {
                let mut medium = self.medium.lock().unwrap();
                let acknowledged = self.acknowledged.load(Ordering::SeqCst);
                let killed =
                    names(&self.dir).map(|(name, path, _)| (name, fs::read(path).unwrap())).collect();
                let bytes = |inode| medium.files.get(inode).cloned().flatten().unwrap_or_default();
                let unpowered =
                    medium.names.iter().map(|(name, inode)| (name.clone(), bytes(inode))).collect();
                medium.image = Some((killed, unpowered, acknowledged));
                None
            }
            _ => None,
        }
    }

    fn fails(&self) -> io::Result<()> {
        self.call(false).map_or(Ok(()), |errno| Err(errno.into()))
    }

    fn synced(&self, file: &File) {
        let metadata = file.metadata().unwrap();
        let mut medium = self.medium.lock().unwrap();
        if metadata.is_dir() {
            medium.names = names(&self.dir).map(|(name, _, inode)| (name, inode)).collect();
            return;
        }
        let mut bytes = vec![0; metadata.len() as usize];
        std::os::unix::fs::FileExt::read_exact_at(file, &mut bytes, 0).unwrap();
        let entry = medium.files.entry(metadata.ino()).or_insert(Some(Vec::new()));
        if entry.is_some() {
            *entry = Some(bytes);
        }
    }

    /// After a failed sync the kernel thinks that the pages are clean.
    fn sync(&self, file: &File, data: bool) -> io::Result<()> {
        if let Some(errno) = self.call(data) {
            if errno != Errno::EINTR {
                let inode = file.metadata().unwrap().ino();
                let mut medium = self.medium.lock().unwrap();
                // What was synced before is still there, but no more will be.
                medium.files.entry(inode).or_insert(None);
            }
            return Err(errno.into());
        }
        self.synced(file);
        Ok(())
    }
}

fn names(dir: &Path) -> impl Iterator<Item = (String, PathBuf, u64)> {
    let entries = fs::read_dir(dir).unwrap().map(Result::unwrap);
    // Whoever else is at work here may just have removed one.
    entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_file())).filter_map(|entry| {
        let inode = entry.metadata().ok()?.ino();
        Some((entry.file_name().into_string().unwrap(), entry.path(), inode))
    })
}

impl Disk for Flaky {
    fn create(&self, path: &Path) -> io::Result<File> {
        self.fails()?;
        let file = Kernel.create(path)?;
        // An inode may be used again.
        self.medium.lock().unwrap().files.remove(&file.metadata()?.ino());
        Ok(file)
    }

    fn open(&self, path: &Path) -> io::Result<File> {
        self.fails()?;
        Kernel.open(path)
    }

    fn write_at(&self, file: &File, bytes: &[u8], at: u64) -> io::Result<usize> {
        let before = self.calls.load(Ordering::SeqCst) + 1;
        self.fails()?;
        let here = before == self.at;
        match self.fault {
            Fault::Short if here => Kernel.write_at(file, &bytes[..1], at),
            Fault::Half(_) if here => Kernel.write_at(file, &bytes[..bytes.len().div_ceil(2)], at),
            _ => Kernel.write_at(file, bytes, at),
        }
    }

    // Nothing is synced for real: that would take minutes, and no test cuts the
    // power for real.
    fn sync_data(&self, file: &File) -> io::Result<()> {
        self.sync(file, true)
    }

    fn sync_all(&self, file: &File) -> io::Result<()> {
        self.sync(file, false)
    }

    fn set_len(&self, file: &File, len: u64) -> io::Result<()> {
        self.fails()?;
        Kernel.set_len(file, len)
    }

    fn reserve(&self, file: &File, len: u64) -> io::Result<()> {
        self.fails()?;
        Kernel.reserve(file, len)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.fails()?;
        Kernel.rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.fails()?;
        Kernel.remove(path)
    }
}

/// Writes an image to a directory.
pub(super) fn restore(image: &Names, dir: &Path) {
    std::os::unix::fs::DirBuilderExt::mode(&mut fs::DirBuilder::new(), 0o700).create(dir).unwrap();
    for (name, bytes) in image {
        fs::write(dir.join(name), bytes).unwrap();
    }
}
