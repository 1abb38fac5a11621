//! Limits without a service: what counts, for whom, and when it is free again.

#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

use super::*;

fn caller(user: &str, teams: &[&str]) -> Caller {
    let teams = teams.iter().map(|team| (*team).to_owned()).collect();
    Caller { user: user.into(), teams, roles: Vec::new() }
}

fn limits(text: &str) -> Limits {
    Limits::new(toml::from_str(text).unwrap(), Unsaved::default())
}

#[test]
fn what_is_held_is_given_back() {
    let limits = limits("sessions = 1\n[users.bob]\nsessions = 3\n[teams.web]\nsessions = 3");
    let (ann, bob) = (caller("ann", &["web"]), caller("bob", &["web"]));
    let held = limits.hold(Kind::Sessions, &ann).unwrap();
    let refused = limits.hold(Kind::Sessions, &ann).unwrap_err().to_string();
    assert_eq!(refused, "user ann has 1 of 1 sessions open (limits.sessions); close a session first");
    let _others = [(); 2].map(|()| limits.hold(Kind::Sessions, &bob).unwrap());
    let refused = limits.hold(Kind::Sessions, &bob).unwrap_err().to_string();
    assert_eq!(
        refused,
        "team web has 3 of 3 sessions open (limits.teams.web.sessions); close a session first"
    );
    assert!(limits.hold(Kind::Processes, &bob).is_ok(), "another count");
    drop(held);
    let _again = limits.hold(Kind::Sessions, &bob).unwrap();
    let refused = limits.hold(Kind::Sessions, &bob).unwrap_err().to_string();
    assert!(refused.contains("limits.users.bob.sessions"), "{refused}");
}

#[tokio::test(start_paused = true)]
async fn prompts_are_free_again_after_a_minute() {
    let limits = limits("prompts_per_minute = 2");
    let ann = caller("ann", &[]);
    limits.prompt(&ann).unwrap();
    tokio::time::advance(Duration::from_secs(30)).await;
    limits.prompt(&ann).unwrap();
    let refused = limits.prompt(&ann).unwrap_err().to_string();
    assert_eq!(
        refused,
        "user ann has made 2 of 2 prompts in the last minute (limits.prompts_per_minute); try again in 30 s"
    );
    assert!(limits.prompt(&caller("bob", &[])).is_ok(), "others do not notice");
    tokio::time::advance(Duration::from_secs(30)).await;
    limits.prompt(&ann).unwrap();
    assert!(limits.prompt(&ann).is_err());
    tokio::time::advance(Duration::from_secs(7200)).await;
    assert!(limits.prompt(&ann).is_ok() && limits.prompt(&ann).is_ok() && limits.prompt(&ann).is_err());
    limits.apply(toml::from_str("prompts_per_minute = 0").unwrap());
    let refused = limits.prompt(&ann).unwrap_err().to_string();
    assert!(refused.ends_with("ask an administrator"), "{refused}");
    limits.apply(config::Limits::default());
    assert!(limits.prompt(&ann).is_ok(), "a reload counts for the next prompt");
}

#[test]
fn tokens_and_money_count_by_the_day_for_user_and_team() {
    let limits = limits("tokens_per_day = 1000\n[teams.web]\ncost_per_day = 1.5");
    let (ann, bob) = (caller("ann", &["web"]), caller("bob", &["web"]));
    let noon = UNIX_EPOCH + day(SystemTime::now()).0.unsigned_abs() as u32 * DAY + DAY / 2;
    let session = Uuid::now_v7();
    let cost = |agent: &str, amount: f64, in_turn: bool| {
        limits.cost(session, agent, &ann, micros(amount).unwrap(), in_turn);
    };
    cost("claude", 0.75, true);
    cost("claude", 1.0, false);
    // Nothing of this is money.
    assert_eq!([-1.0, f64::NAN, f64::INFINITY, 1e30].map(micros), [None; 4]);
    // Outside of a turn it tells its history again.
    for told in [0.25, 0.75, 1.0, 1.0] {
        cost("claude", told, false);
    }
    limits.prompt_at(&bob, noon).unwrap();
    // Another agent has a sum of its own, and so has the first one still.
    cost("codex", 0.25, true);
    cost("claude", 1.0, true);
    limits.prompt_at(&bob, noon).unwrap();
    // An agent that was started again counts from nothing.
    cost("codex", 0.25, true);
    cost("codex", 0.0, true);
    cost("codex", 0.25, true);
    let refused = limits.prompt_at(&bob, noon).unwrap_err().to_string();
    assert_eq!(
        refused,
        "team web has spent 1.50 of 1.50 today (limits.teams.web.cost_per_day); try again after 00:00 UTC, in 12 h 0 min"
    );
    let cleo = caller("cleo", &[]);
    limits.tokens(&cleo, 999);
    limits.prompt_at(&cleo, noon).unwrap();
    limits.tokens(&cleo, u64::MAX);
    let refused = limits.prompt_at(&cleo, noon).unwrap_err().to_string();
    assert!(refused.starts_with("user cleo has used 1000000999 of 1000 tokens today"), "{refused}");
    assert!(limits.prompt_at(&cleo, noon + DAY).is_ok(), "the next day is another one");
}

#[test]
fn what_was_saved_counts_again() {
    let first = limits("tokens_per_day = 10");
    let ann = caller("ann", &["web"]);
    first.tokens(&ann, 10);
    first.cost(Uuid::from_u128(7), "claude", &ann, 2_000_000, true);
    let unsaved = first.take_changed();
    assert_eq!((unsaved.days.len(), unsaved.sums.len()), (2, 1));
    assert_eq!(first.take_changed(), Unsaved::default());
    first.not_saved(&unsaved);
    assert_eq!(first.take_changed().days.len(), 2);
    let second = Limits::new(toml::from_str("tokens_per_day = 10").unwrap(), unsaved);
    assert!(second.prompt(&ann).is_err());
    // What the session has cost before is not paid twice.
    second.cost(Uuid::from_u128(7), "claude", &ann, 2_500_000, true);
    let told = second.statements(SystemTime::now(), |party| *party == Party::User("ann".into()));
    assert_eq!((told.len(), told[0].today.cost_micros), (1, 2_500_000));
}
