//! Secrets from a program of the operator's. It runs under a guard, with the service's
//! own environment, and prints `{"env": {"NAME": "VALUE"}, "files": {"PATH": "TEXT"}}`.

use std::{collections::BTreeMap, path::PathBuf};

use serde::Deserialize;
use tokio::{io::AsyncReadExt as _, time::timeout};

use super::{NoSecrets, Secrets};
use crate::{
    agent::process::{self, Environment, Errand},
    config::SecretSource,
    identity::Person,
};

/// Bytes that the program may print.
const MOST_OUTPUT: usize = 4 << 20;

/// What it prints.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Printed {
    #[serde(default)]
    env: BTreeMap<String, String>,
    #[serde(default)]
    files: BTreeMap<PathBuf, String>,
}

/// Runs it for a person.
pub(super) async fn ask(source: &SecretSource, agent: &str, person: &Person) -> Result<Secrets, NoSecrets> {
    let refused = |why: &str| {
        NoSecrets(format!(
            "secrets.command {why}; try it by hand with SECRETS_USER, SECRETS_TEAMS and SECRETS_AGENT set"
        ))
    };
    if source.command.is_empty() {
        return Err(NoSecrets("there is neither secrets.dir nor secrets.command".into()));
    }
    let mut env: Environment = std::env::vars_os().collect();
    // Names have no comma in them.
    let told = [
        ("SECRETS_USER", person.user.clone()),
        ("SECRETS_TEAMS", person.teams.join(",")),
        ("SECRETS_AGENT", agent.into()),
    ];
    env.extend(told.map(|(name, value)| (name.into(), value.into())));
    let errand = Errand::of(&source.command, env).map_err(|why| refused(&format!("cannot be run: {why}")))?;
    let run = async {
        let mut running =
            process::run_errand(errand).await.map_err(|why| refused(&format!("cannot be run: {why}")))?;
        let mut printed = Vec::new();
        let mut output = (&mut running.output).take(MOST_OUTPUT as u64 + 1);
        output.read_to_end(&mut printed).await.map_err(|_| refused("cannot be read"))?;
        if printed.len() > MOST_OUTPUT {
            running.guarded.kill().await;
            return Err(refused(&format!("printed more than {} MiB and was ended", MOST_OUTPUT >> 20)));
        }
        let status = running.guarded.wait().await.ok();
        if !status.is_some_and(|status| status.success()) {
            return Err(refused(&process::describe(status)));
        }
        Ok(printed)
    };
    // Given up, it is dropped, and its guard ends all of it.
    let printed = timeout(source.timeout, run).await.unwrap_or_else(|_| {
        Err(refused(&format!("did not end within {:?} and was ended", source.timeout)))
    })?;
    read(&printed)
}

fn read(printed: &[u8]) -> Result<Secrets, NoSecrets> {
    // The error's own words would show what was printed.
    let Printed { env, files } = serde_json::from_slice(printed).map_err(|error| {
        NoSecrets(format!(
            "secrets.command did not print what it should (line {}, column {}); it is to print \
             {{\"env\": {{\"NAME\": \"VALUE\"}}, \"files\": {{\"PATH\": \"TEXT\"}}}}",
            error.line(),
            error.column()
        ))
    })?;
    let secrets = Secrets {
        env: env.into_iter().map(|(name, value)| (name, value.into())).collect(),
        files: files.into_iter().map(|(path, text)| (path, text.into_bytes())).collect(),
    };
    secrets.check("secrets.command")?;
    Ok(secrets)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests fail by panicking")]
mod tests {
    use super::*;

    #[test]
    fn what_is_printed_is_read_strictly_and_never_shown() {
        let secrets = read(br#"{"env":{"KEY":"v"},"files":{".a/b":"text"}}"#).unwrap();
        assert_eq!(secrets.names(), ["KEY", "~/.a/b"]);
        assert_eq!(read(b"{}"), Ok(Secrets::default()));
        for bad in [
            "",
            "canary",
            r#"{"env":"canary"}"#,
            r#"{"env":{"KEY":["canary"]}}"#,
            r#"{"canary":{}}"#,
            r#"{"env":{"LD_PRELOAD":"canary"}}"#,
            r#"{"env":{"KEY":"canary\u0000"}}"#,
            r#"{"files":{"../x":"canary"}}"#,
            r#"{"env":{}} canary"#,
        ] {
            let refused = read(bad.as_bytes()).unwrap_err().to_string();
            assert!(!refused.contains("canary"), "{refused}");
        }
    }
}
