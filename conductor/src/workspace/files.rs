//! Text files, read and written beneath the session's directories. All of this
//! blocks, so it runs on a thread of its own.

use std::{
    borrow::Cow,
    fs::{File, Metadata},
    io::{self, BufRead as _, BufReader, Read as _, Write as _},
    os::{fd::OwnedFd, unix::fs::MetadataExt as _},
    path::Path,
};

use bytes::Bytes;
use nix::{
    errno::Errno,
    fcntl::{OFlag, openat, renameat},
    sys::stat::{Mode, fchmod},
    unistd::{UnlinkatFlags, unlinkat},
};
use serde::Deserialize;
use serde_json::json;
use uuid::Uuid;

use super::{
    Outcome,
    paths::{Roots, Target, not_regular, shown},
    read_params,
};
use crate::{
    acp::{Refusal, code},
    frame::{Frame, MAX_FRAME},
};

/// The most text that one request may read: escaped it still has to fit into
/// a frame in all but the oddest cases, and those are looked for.
const MOST_TEXT: u64 = 10 << 20;

#[derive(Deserialize)]
struct ReadParams<'a> {
    #[serde(borrow)]
    path: Cow<'a, str>,
    /// The first line, counted from 1.
    #[serde(default)]
    line: Option<u64>,
    /// How many lines.
    #[serde(default)]
    limit: Option<u64>,
}

#[derive(Deserialize)]
struct WriteParams<'a> {
    #[serde(borrow)]
    path: Cow<'a, str>,
    #[serde(borrow)]
    content: Cow<'a, str>,
}

/// `fs/read_text_file`. `judged` is where the path led when it was judged.
pub fn read(roots: &Roots, frame: &Frame, judged: Option<&Path>) -> Outcome {
    let ReadParams { path, line, limit } = read_params(frame)?;
    let invalid = |text: String| Refusal::new(code::INVALID_PARAMS, text);
    // Opening a FIFO would wait for a writer.
    let opened = roots.file(&path, judged, OFlag::O_RDONLY | OFlag::O_NONBLOCK | OFlag::O_NOCTTY)?;
    let file = File::from(opened);
    let failed = |error: io::Error| roots.explain(&path, errno(&error));
    let meta = file.metadata().map_err(failed)?;
    if meta.is_dir() {
        return Err(roots.explain(&path, Errno::EISDIR));
    }
    if !meta.is_file() {
        return Err(invalid(not_regular(&path)));
    }
    let too_large = |what: &str| {
        let text = format!(
            "{what} of `{}` is larger than the {} MiB that one request may read; \
             read it in parts with `line` and `limit`",
            shown(&path),
            MOST_TEXT >> 20
        );
        Err(Refusal::new(code::INVALID_PARAMS, text))
    };
    let whole = line.unwrap_or(1) <= 1 && limit.is_none();
    if whole && meta.len() > MOST_TEXT {
        return too_large("the text");
    }
    let text = if whole {
        let mut text = Vec::with_capacity(usize::try_from(meta.len()).unwrap_or_default() + 1);
        // It may have grown meanwhile.
        file.take(MOST_TEXT + 1).read_to_end(&mut text).map_err(failed)?;
        text
    } else {
        lines(BufReader::new(file), line.unwrap_or(1), limit).map_err(failed)?
    };
    if text.len() as u64 > MOST_TEXT {
        return too_large("that part");
    }
    let Ok(text) = String::from_utf8(text) else {
        return Err(invalid(format!("`{}` is not text in UTF-8; it cannot be read as text", shown(&path))));
    };
    let answer = json!({ "content": text }).to_string();
    if answer.len() + 1024 > MAX_FRAME {
        return too_large("the escaped text");
    }
    Ok(Bytes::from(answer))
}

/// The lines from `first` (counted from 1) on, at most `limit` of them, exactly
/// as they are; cut off beyond the bound, which the caller sees by the length.
fn lines(mut file: impl io::BufRead, first: u64, limit: Option<u64>) -> io::Result<Vec<u8>> {
    for _ in 1..first {
        if file.skip_until(b'\n')? == 0 {
            break;
        }
    }
    let mut file = file.take(MOST_TEXT + 1);
    let mut text = Vec::new();
    for _ in 0..limit.unwrap_or(u64::MAX) {
        if file.read_until(b'\n', &mut text)? == 0 {
            break;
        }
    }
    Ok(text)
}

/// `fs/write_text_file`: the file is complete or as it was, at any moment.
pub fn write(roots: &Roots, frame: &Frame, judged: Option<&Path>) -> Outcome {
    let WriteParams { path, content } = read_params(frame)?;
    let Target { directory, name, existing } = roots.target(&path, judged)?;
    let failed = |error: &io::Error| roots.explain(&path, errno(error));
    let old = match existing.map(File::from).map(|file| file.metadata()).transpose() {
        Ok(Some(meta)) if !meta.is_file() => {
            return Err(Refusal::new(code::INVALID_PARAMS, not_regular(&path)));
        }
        Ok(old) => old,
        Err(error) => return Err(failed(&error)),
    };
    // Everything happens in the open directory, wherever it is moved to.
    let draft = format!(".conductor-{}.tmp", Uuid::now_v7().simple());
    let done = fill(&directory, &draft, content.as_bytes(), old.as_ref())
        .and_then(|()| Ok(renameat(&directory, draft.as_str(), &directory, name.as_os_str())?));
    match done {
        Ok(()) => Ok(Bytes::from_static(b"{}")),
        Err(error) => {
            unlinkat(&directory, draft.as_str(), UnlinkatFlags::NoRemoveDir).ok();
            Err(failed(&error))
        }
    }
}

/// Writes the draft. A new file gets the usual mode, a replacement the mode and,
/// if we may, the owner of the file it replaces; until then nobody else may look.
fn fill(directory: &OwnedFd, draft: &str, content: &[u8], old: Option<&Metadata>) -> io::Result<()> {
    let first = Mode::from_bits_truncate(if old.is_some() { 0o600 } else { 0o644 });
    let flags = OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    let mut file = File::from(openat(directory, draft, flags, first)?);
    file.write_all(content)?;
    if let Some(old) = old {
        let kept = std::os::unix::fs::fchown(&file, Some(old.uid()), Some(old.gid())).is_ok();
        // Whose rights a program runs with must not change hands.
        let bits = old.mode() & if kept { 0o7777 } else { 0o777 };
        fchmod(&file, Mode::from_bits_truncate(bits))?;
    }
    file.sync_data()
}

fn errno(error: &io::Error) -> Errno {
    error.raw_os_error().map_or(Errno::EIO, Errno::from_raw)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests fail by panicking")]
mod tests {
    use super::*;

    #[test]
    fn lines_are_counted_from_one_and_kept_exactly() {
        let cut =
            |first, limit| String::from_utf8(lines(&b"a\r\nb\n\nd"[..], first, limit).unwrap()).unwrap();
        assert_eq!(cut(1, Some(1)), "a\r\n");
        assert_eq!(cut(0, Some(2)), "a\r\nb\n");
        assert_eq!(cut(2, None), "b\n\nd");
        assert_eq!(cut(3, Some(1)), "\n");
        assert_eq!(cut(4, Some(9)), "d");
        assert_eq!(cut(5, None), "");
        assert_eq!(cut(u64::MAX, Some(1)), "");
        assert_eq!(cut(1, Some(0)), "");
    }
}
