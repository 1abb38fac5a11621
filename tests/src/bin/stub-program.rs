//! A program that does nothing, under any name: what a shell starts in place of real ones when a
//! test watches what it would start. It fails if its name begins with `no`.

use std::{env, path::Path, process::ExitCode};

fn main() -> ExitCode {
    let name = env::args_os().next().unwrap_or_default();
    let name = Path::new(&name).file_name().unwrap_or_default().to_string_lossy().into_owned();
    if name.starts_with("no") { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}
