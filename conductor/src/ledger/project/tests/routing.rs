//! What agents offer, and where prompts went.

use super::*;

#[test]
fn what_an_agent_offers_is_merged_over_time() {
    let mut tape = Tape::of(StreamKind::Process);
    let told = |version: &str, models: serde_json::Value| {
        json!({
            "agent": "claude", "version": version, "models": models,
            "modes": [{ "value": "plan", "name": "Plan" }, { "name": "without a value" }],
        })
    };
    tape.note(note::CATALOGUE, told("1.0", json!([{ "value": "opus", "name": "Opus" }, { "value": "old" }])));
    let again = json!([{ "value": "opus", "name": "Opus, new" }, { "value": "opus" }, 7]);
    tape.note(note::CATALOGUE, told("2.0", again));
    tape.note(note::CATALOGUE, json!({ "models": [{ "value": "nobody's" }] }));
    let rows = tape.rows();
    assert_eq!(
        rows.get(MODELS, "agent kind value name agent_version first_us last_us process_id"),
        [
            format!("claude | mode | plan | Plan | 2.0 | 1000 | 2000 | {SESSION}"),
            format!("claude | model | old | - | 1.0 | 1000 | 1000 | {SESSION}"),
            format!("claude | model | opus | Opus, new | 2.0 | 1000 | 2000 | {SESSION}"),
        ]
    );
}

#[test]
fn where_a_prompt_went_is_told_with_every_attempt() {
    let mut tape = Tape::session();
    tape.note(note::BY, json!({ "user": "bob" }));
    let first = tape.note(
        note::ROUTED,
        json!({
            "agent": "codex", "from": "claude", "model": "gpt-5", "mode": null, "route": "reviews",
            "how": "route", "reason": "route reviews: it is for mode `review`", "attempt": 0, "failed": null,
        }),
    );
    let second = tape.note(
        note::ROUTED,
        json!({ "agent": "gemini", "how": "route", "reason": "a fallback", "attempt": 1, "failed": "no quota" }),
    );
    tape.prompt("go");
    let columns = "seq user_name team agent from_agent model mode route how attempt failed at_us";
    let rows = tape.rows();
    assert_eq!(
        rows.get(ROUTES_TAKEN, columns),
        [
            format!(
                "{first} | ann | core,web | codex | claude | gpt-5 | - | reviews | route | 0 | - | {first}000"
            ),
            format!(
                "{second} | ann | core,web | gemini | - | - | - | - | route | 1 | no quota | {second}000"
            ),
        ]
    );
    // Whose prompt it is is told in front of that.
    assert_eq!(rows.get(TURNS, "user_name prompt"), ["bob | go"]);
    // A bare one is a row all the same.
    let mut tape = Tape::session();
    tape.note(note::ROUTED, json!({}));
    assert_eq!(tape.rows().get(ROUTES_TAKEN, "agent how attempt"), ["- | - | 0"]);
}
