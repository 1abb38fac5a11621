//! Compiles the protos with `protox`, so that no `protoc` has to be installed,
//! and makes the table of who may make which call from what they say.

use std::{env, error::Error, fmt::Write as _, fs, path::PathBuf};

use protox::{
    Compiler,
    prost_reflect::{DescriptorPool, MethodDescriptor, ReflectMessage as _, Value},
};

/// The option by which an rpc says who may call it.
const CALLERS: &str = "conductor.v1.callers";

/// The roles in the order of `identity::Role::ALL`.
const ROLES: [&str; 4] = ["developer", "approver", "auditor", "admin"];

fn main() -> Result<(), Box<dyn Error>> {
    let files = [
        "acp",
        "agents",
        "approvals",
        "events",
        "grants",
        "history",
        "identity",
        "limits",
        "options",
        "policy",
        "sessions",
        "sharing",
        "tokens",
    ]
    .map(|name| format!("conductor/v1/{name}.proto"));
    println!("cargo::rerun-if-changed=../proto");
    // sqlx compiles the migrations in, but does not notice a new file.
    println!("cargo::rerun-if-changed=../migrations");

    let mut compiler = Compiler::new(["../proto"])?;
    compiler.include_imports(true).include_source_info(true).open_files(files)?;
    let out = PathBuf::from(env::var("OUT_DIR")?);
    // Reflection serves the same descriptors that the code was made from.
    fs::write(out.join("descriptors.bin"), compiler.encode_file_descriptor_set())?;
    fs::write(out.join("rights.rs"), rights(&compiler.descriptor_pool())?)?;

    tonic_prost_build::configure()
        // An RPC named Connect would collide with the generated constructor.
        .build_transport(false)
        .codec_path("crate::grpc::codec::SmallCodec")
        // Frames are shared slices of the received message, not copies.
        .bytes(".conductor.v1.Run.frames")
        .compile_fds(compiler.file_descriptor_set())?;
    Ok(())
}

/// The table as the code of an array, in the order of its paths.
fn rights(pool: &DescriptorPool) -> Result<String, Box<dyn Error>> {
    let mut rows = Vec::new();
    for service in pool.services() {
        for method in service.methods() {
            let path = format!("/{}/{}", service.full_name(), method.name());
            let relations = callers(pool, &method)?;
            let (relations, is_stream) = (relations.join(", "), method.is_client_streaming());
            rows.push(format!("Row {{ path: {path:?}, relations: [{relations}], is_stream: {is_stream} }},"));
        }
    }
    rows.sort();
    let mut code = String::from("&[\n");
    for row in rows {
        writeln!(code, "    {row}")?;
    }
    code.push_str("]\n");
    Ok(code)
}

/// What an rpc says of each role.
fn callers(pool: &DescriptorPool, method: &MethodDescriptor) -> Result<Vec<String>, Box<dyn Error>> {
    let option = pool.get_extension_by_name(CALLERS).ok_or("options.proto does not define `callers`")?;
    let options = method.options();
    if !options.has_extension(&option) {
        let name = method.full_name();
        return Err(format!("rpc {name} does not say who may call it: give it `option (callers)`").into());
    }
    let said = options.get_extension(&option);
    let said = said.as_message().ok_or("`callers` is no message")?;
    let relation = |role: &str| -> Result<String, Box<dyn Error>> {
        let field = said.descriptor().get_field_by_name(role).ok_or(format!("`callers` has no {role}"))?;
        let number = match said.get_field(&field).as_ref() {
            Value::EnumNumber(number) => *number,
            other => return Err(format!("{role} of `callers` is {other:?}").into()),
        };
        Ok(match number {
            0 => "None".to_owned(),
            1 => "Some(Relation::Nothing)".to_owned(),
            2 => "Some(Relation::Own)".to_owned(),
            3 => "Some(Relation::Driven)".to_owned(),
            4 => "Some(Relation::Seen)".to_owned(),
            5 => "Some(Relation::Any)".to_owned(),
            _ => return Err(format!("`callers` knows no relation {number}").into()),
        })
    };
    let relations = ROLES.iter().map(|role| relation(role)).collect::<Result<Vec<_>, _>>()?;
    if relations.iter().all(|relation| relation == "None") {
        return Err(format!("rpc {} can be called by nobody", method.full_name()).into());
    }
    Ok(relations)
}
