//! Compiles the protos with `protox`, so that no `protoc` has to be installed.

use std::{env, error::Error, fs, path::PathBuf};

use prost::Message as _;

fn main() -> Result<(), Box<dyn Error>> {
    let root = PathBuf::from("../proto");
    let files = ["acp", "agents", "events", "history", "policy", "sessions", "sharing", "tokens"]
        .map(|name| format!("conductor/v1/{name}.proto"));
    println!("cargo::rerun-if-changed=../proto");
    // sqlx compiles the migrations in, but does not notice a new file.
    println!("cargo::rerun-if-changed=../migrations");

    let descriptors = protox::compile(files, [&root])?;
    let out = PathBuf::from(env::var("OUT_DIR")?);
    // Reflection serves the same descriptors that the code was made from.
    fs::write(out.join("descriptors.bin"), descriptors.encode_to_vec())?;

    tonic_prost_build::configure()
        // An RPC named Connect would collide with the generated constructor.
        .build_transport(false)
        .codec_path("crate::grpc::codec::SmallCodec")
        // Frames are shared slices of the received message, not copies.
        .bytes(".conductor.v1.Run.frames")
        .compile_fds(descriptors)?;
    Ok(())
}
