//! What `deploy/` ships is true of this program.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use conductor::config::Config;
use conductor_tests::{
    admin::{get, watched},
    harness::{program, service},
};
use serde_json::{Value, json};

fn deploy(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().join("deploy").join(file)
}

#[test]
fn the_examples_for_a_team_are_taken() {
    let loaded = Config::load(Some(&deploy("examples/team/agents.toml")), Vec::new());
    let config = loaded.unwrap_or_else(|refused| panic!("{refused}")).config;
    assert!(config.service.admin.is_some() && !config.telemetry.otlp_endpoint.is_empty());
    let checked = Command::new(program("conductor"))
        .args(["policy", "check"])
        .arg(deploy("examples/team/policy.toml"))
        .output()
        .unwrap();
    assert!(checked.status.success(), "{checked:?}");
}

#[test]
fn the_charts_own_configuration_is_taken() {
    let values = fs::read_to_string(deploy("helm/conductor/values.yaml")).unwrap();
    // What stands beneath a key as a block of text.
    let block = |key: &str| -> String {
        let lines = values.lines().skip_while(|line| *line != format!("{key}: |")).skip(1);
        let block = lines.take_while(|line| line.is_empty() || line.starts_with("  "));
        block.map(|line| format!("{}\n", line.strip_prefix("  ").unwrap_or(line))).collect()
    };
    let temp = tempfile::tempdir().unwrap();
    let [config, policy] = ["config", "policy"].map(|key| {
        let file = temp.path().join(format!("{key}.toml"));
        assert!(!block(key).is_empty(), "{key}");
        fs::write(&file, block(key)).unwrap();
        file
    });
    if let Err(refused) = Config::load(Some(&config), Vec::new()) {
        panic!("{refused}");
    }
    let checked = Command::new(program("conductor")).args(["policy", "check"]).arg(policy).output().unwrap();
    assert!(checked.status.success(), "{checked:?}");
}

#[test]
fn every_variable_of_the_deployments_is_a_key() {
    for file in ["compose/compose.yaml", "helm/conductor/templates/statefulset.yaml"] {
        let text = fs::read_to_string(deploy(file)).unwrap();
        let part = |c: char| !(c.is_ascii_uppercase() || c == '_');
        let names: BTreeSet<&str> = text.split(part).filter(|word| word.starts_with("CONDUCTOR_")).collect();
        assert!(names.len() >= 3, "{file}: {names:?}");
        for name in names {
            let value = if name.ends_with("ADMIN") { "127.0.0.1:1" } else { "http://127.0.0.1:1" };
            let is_ledger = name.contains("LEDGER__") && name.ends_with("URL");
            let value = if is_ledger { "postgres://u@h/d" } else { value };
            let value = if name.ends_with("_FILE") { "/run/secrets/x" } else { value };
            let loaded = Config::load(None, [(name.into(), value.into()), ("HOME".into(), "/".into())]);
            assert!(loaded.is_ok(), "{file}: {name}: {}", loaded.err().unwrap());
        }
    }
}

/// What serves can add to the record and not change it: the owner's password is for what makes the
/// tables, which ends before.
#[test]
fn the_deployments_serve_with_the_services_role_alone() {
    let compose = fs::read_to_string(deploy("compose/compose.yaml")).unwrap();
    let part = |name: &str| -> String {
        let lines = compose.lines().skip_while(|line| *line != format!("  {name}:")).skip(1);
        lines
            .take_while(|line| line.is_empty() || line.starts_with("    "))
            .map(|line| format!("{line}\n"))
            .collect()
    };
    let (serves, migrates, roles) = (part("conductor"), part("migrate"), part("roles"));
    assert!(serves.contains("postgres://conductor_service@") && !serves.to_lowercase().contains("owner"));
    assert!(serves.contains("migrate:") && !serves.contains("postgres-password"));
    assert!(migrates.contains("OWNER_URL: postgres://conductor_owner@") && migrates.contains("\"migrate\""));
    assert!(!migrates.contains("- ledger-password") && roles.contains("../postgres/roles.sql:/roles.sql:ro"));
    let sql = fs::read_to_string(deploy("postgres/roles.sql")).unwrap();
    for role in ["conductor_owner", "conductor_service"] {
        assert!(sql.contains(&format!(" {role}\n")), "{role}");
    }
    let chart = fs::read_to_string(deploy("helm/conductor/templates/statefulset.yaml")).unwrap();
    let (before, serves) = chart.split_once("      containers:\n").unwrap();
    let serves = serves.split_once("      volumes:\n").unwrap().0;
    assert!(
        before.contains("CONDUCTOR_LEDGER__OWNER_PASSWORD_FILE") && before.contains("args: [ledger, migrate")
    );
    assert!(!serves.to_lowercase().contains("owner"));
}

/// What compose runs to make the roles.
#[test]
fn the_script_of_the_deployment_hands_passwords_over() {
    let script = fs::read_to_string(deploy("compose/roles.sh")).unwrap();
    let temp = tempfile::tempdir().unwrap();
    for (name, word) in
        [("postgres-password", "top"), ("ledger-owner-password", "own-1"), ("ledger-password", "serve-1")]
    {
        fs::write(temp.path().join(name), format!("{word}\n")).unwrap();
    }
    // Its psql tells what it was given.
    let psql = temp.path().join("psql");
    fs::write(&psql, "#!/bin/sh\necho \"$PGPASSWORD $*\"\ncat\n").unwrap();
    fs::set_permissions(&psql, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let there = temp.path().to_str().unwrap();
    let done = Command::new("/bin/sh")
        .args(["-c", &script.replace("/run/secrets", there)])
        .env("PATH", format!("{there}:/usr/bin:/bin"))
        .env_remove("PGHOST")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&done.stdout).into_owned();
    assert!(done.status.success(), "{done:?}");
    assert_eq!(
        said,
        "top --no-psqlrc --quiet --host postgres --username conductor --dbname conductor\n\
         \\set owner_password 'own-1'\n\\set service_password 'serve-1'\n\\i /roles.sql\n"
    );
}

/// Every expression of a dashboard.
fn expressions(value: &Value, found: &mut Vec<String>) {
    match value {
        Value::Object(members) => {
            found.extend(members.get("expr").and_then(Value::as_str).map(str::to_owned));
            members.values().for_each(|value| expressions(value, found));
        }
        Value::Array(items) => items.iter().for_each(|value| expressions(value, found)),
        _ => {}
    }
}

#[test]
fn every_number_of_the_dashboard_exists_and_every_alarm_is_shown() {
    let text = fs::read_to_string(deploy("grafana/conductor.json")).unwrap();
    let mut all = Vec::new();
    expressions(&serde_json::from_str(&text).unwrap(), &mut all);
    let part = |c: char| !(c.is_ascii_alphanumeric() || c == '_');
    let used: BTreeSet<String> = all
        .iter()
        .flat_map(|expression| expression.split(part))
        .filter(|word| word.starts_with("conductor_"))
        .map(|word| word.trim_end_matches("_bucket").to_owned())
        .collect();
    assert!(used.len() >= 30, "{used:?}");
    let service = watched(service(&json!({}))).start();
    let (_, metrics) = get(&service, "/metrics");
    let there: BTreeSet<String> = metrics
        .lines()
        .filter_map(|line| Some(line.strip_prefix("# TYPE ")?.split(' ').next()?.to_owned()))
        .collect();
    let missing: Vec<_> = used.difference(&there).collect();
    assert!(missing.is_empty(), "the dashboard shows what does not exist: {missing:?}");
    let mut unseen: Vec<_> = there.difference(&used).map(String::as_str).collect();
    // What only explains others.
    unseen.retain(|name| {
        ![
            "conductor_build_info",
            "conductor_sessions_opened_total",
            "conductor_queue_frames",
            "conductor_journal_appended_bytes_total",
            "conductor_journal_unsynced_bytes",
            "conductor_journal_sync_failures_total",
            "conductor_journal_damaged_parts",
            "conductor_ledger_batches_total",
            "conductor_ledger_conflicts_total",
        ]
        .contains(name)
    });
    assert!(unseen.is_empty(), "nobody sees on the dashboard: {unseen:?}");
}
