//! `conductor prompt` with everything on one screen: what people see of an answer, and what must not reach it.

use std::fs::File;

use nix::pty::{OpenptyResult, openpty};

use crate::hostile;
use crate::service::{Service, gather};

/// All that a terminal is sent by a command, and how it ended.
fn screen(service: &Service, args: &[&str], colour: bool) -> (String, Option<i32>) {
    let OpenptyResult { master, slave } = openpty(None, None).unwrap();
    let mut command = service.command(args);
    command.env("TERM", "xterm").env("NO_COLOR", if colour { "" } else { "1" });
    command.stdin(std::process::Stdio::null()).stdout(slave.try_clone().unwrap()).stderr(slave);
    let mut child = command.spawn().unwrap();
    // It ends when nobody holds the other side any more.
    drop(command);
    let shown = gather(File::from(master)).recv_timeout(crate::service::PATIENCE).unwrap();
    (shown.replace("\r\n", "\n"), child.wait().unwrap().code())
}

/// The text without the escapes that the command itself may send.
fn bare(shown: &str) -> String {
    let own = ["0", "1", "2", "3", "4", "1;4", "31", "32", "33", "36"];
    own.iter().fold(shown.to_string(), |text, code| text.replace(&format!("\x1b[{code}m"), ""))
}

fn odd(turn: &str, colour: bool) -> String {
    let (service, _directory) = hostile::service(turn);
    let (shown, code) = screen(&service, &["prompt", "--agent", "odd", "go"], colour);
    assert_eq!(code, Some(0), "{shown}");
    shown
}

#[test]
fn markdown_is_rendered_on_a_terminal_and_only_there() {
    let turn = r"chunk '# Ti'; chunk 'tle\nSome **bo'; chunk 'ld** and `code`\n'; chunk '- item\n```\n**raw**\n```\n'; stop end_turn";
    let shown = odd(turn, true);
    assert!(
        shown.starts_with(
            "\x1b[1;4mTitle\x1b[0m\nSome \x1b[1mbold\x1b[0m and \x1b[36mcode\x1b[0m\n• item\n\x1b[2m```\x1b[0m\n\x1b[36m**raw**\x1b[0m\n\x1b[2m```\x1b[0m\n"
        ),
        "{shown:?}"
    );
    let plain = odd(turn, false);
    assert!(plain.starts_with("# Title\nSome **bold** and `code`\n- item\n```\n**raw**\n```\n"), "{plain:?}");
    assert!(!plain.contains('\x1b'), "{plain:?}");
    let (service, _directory) = hostile::service(turn);
    let piped = service.run(&["prompt", "--agent", "odd", "go"]);
    assert_eq!(piped.stdout, "# Title\nSome **bold** and `code`\n- item\n```\n**raw**\n```\n");
}

#[test]
fn what_rules_say_is_coloured_on_a_terminal_and_stays_harmless() {
    let service = Service::start();
    let explain = ["policy", "explain", "--run", "sudo \u{1b}[2J"];
    let (shown, code) = screen(&service, &explain, true);
    assert!(code == Some(0) && shown.contains("\x1b[31mdeny \x1b[0m  run `sudo "), "{shown:?}");
    assert!(!bare(&shown).contains('\x1b'), "{shown:?}");
    assert!(!screen(&service, &explain, false).0.contains('\x1b'));
}

#[test]
fn m09_t02_t04_nothing_an_agent_says_reaches_the_terminal_raw() {
    let evil = r"\u001b[2J\u001b]0;x\u0007\u009b2J\u202e\r";
    let turn = format!(
        r#"chunk '# {evil}\n**{evil}** `{evil}` [{evil}]({evil})\n- {evil}\n```{evil}\n{evil}\n```\n> {evil}\n'
        update '{{"sessionUpdate":"agent_thought_chunk","content":{{"type":"text","text":"{evil}"}}}}'
        update '{{"sessionUpdate":"plan","entries":[{{"content":"{evil}","status":"in_progress"}},{{"content":"b","status":"{evil}"}}]}}'
        update '{{"sessionUpdate":"notice","severity":"warning","title":"{evil}","description":"{evil}"}}'
        update '{{"sessionUpdate":"tool_call","toolCallId":"1","title":"{evil}","kind":"{evil}","status":"{evil}"}}'
        update '{{"sessionUpdate":"tool_call_update","toolCallId":"1","status":"completed","content":[{{"type":"diff","path":"{evil}","oldText":"{evil}a","newText":"{evil}b"}},{{"type":"content","content":{{"type":"text","text":"{evil}"}}}},{{"type":"content","content":{{"type":"{evil}"}}}}]}}'
        update '{{"sessionUpdate":"tool_call","toolCallId":"2","title":"T","status":"failed","rawOutput":{{"stdout":"{evil}"}}}}'
        update '{{"sessionUpdate":"usage_update","used":1,"size":2,"cost":{{"amount":1,"currency":"{evil}"}}}}'
        stop end_turn"#
    );
    let shown = bare(&odd(&turn, true));
    let harmful = |c: char| (c.is_control() && c != '\n' && c != '\t') || c == '\u{202e}';
    assert!(!shown.contains(harmful), "{shown:?}");
    // It is all there, made harmless.
    assert!(shown.matches("\\u{1b}[2J").count() >= 16, "{shown}");
}

#[test]
fn tools_show_their_diffs_and_output_and_how_long_they_took() {
    let turn = r#"update '{"sessionUpdate":"tool_call","toolCallId":"1","title":"Edit","kind":"edit","content":[{"type":"diff","path":"/p/a.rs","oldText":"one\ntwo\n","newText":"one\n2\n"}]}'
        update '{"sessionUpdate":"tool_call_update","toolCallId":"1","status":"completed"}'
        update '{"sessionUpdate":"tool_call","toolCallId":"2","title":"Run","kind":"execute","status":"in_progress"}'
        update '{"sessionUpdate":"tool_call_update","toolCallId":"2","status":"failed","rawOutput":{"output":"boom\n","exitCode":1}}'
        stop end_turn"#;
    let shown = odd(turn, true);
    for part in [
        "\x1b[2m·\x1b[0m \x1b[2mEdit (edit): pending\x1b[0m\n",
        "\x1b[32m✓\x1b[0m \x1b[2mEdit (edit): completed in ",
        "\x1b[1m    /p/a.rs (+1 −1)\x1b[0m\n\x1b[36m    @@ -1,2 +1,2 @@\x1b[0m\n",
        "\x1b[2m     one\x1b[0m\n\x1b[31m    -two\x1b[0m\n\x1b[32m    +2\x1b[0m\n",
        "\x1b[31m✗\x1b[0m \x1b[2mRun (execute): failed in ",
        "\x1b[2m    boom\x1b[0m\n",
    ] {
        assert!(shown.contains(part), "{part:?} in {shown:?}");
    }
}

#[test]
fn a_plan_is_a_check_list() {
    let service = Service::start();
    let (shown, code) = screen(&service, &["prompt", "plan"], false);
    assert_eq!(code, Some(0));
    assert!(
        shown.starts_with(
            "Plan\n  [ ] Look around\n  [ ] Do the work\n  [ ] Tell what was done\n  [>] Look around\n  \
             [x] Look around\n  [>] Do the work\n"
        ),
        "{shown}"
    );
    assert_eq!(shown.matches("[x]").count(), 3, "{shown}");
}

#[test]
fn the_end_says_what_it_took_and_how_to_go_on() {
    let service = Service::start();
    let (shown, _) = screen(&service, &["prompt", "usage"], false);
    let lines: Vec<&str> = shown.lines().collect();
    let [.., usage, go_on] = lines.as_slice() else { panic!("{shown}") };
    assert!(usage.contains(" ms · context ") || usage.contains(" s · context "), "{usage}");
    assert!(usage.ends_with(" · 0.00 USD"), "{usage}");
    let id = go_on.strip_prefix("to go on: conductor prompt --session ").unwrap().trim_end_matches(" …");
    let done = service.run(&["prompt", "--session", id, "stream 1"]);
    assert_eq!((done.code, &*done.stdout), (Some(0), "chunk 1 of 1\n"), "{done:?}");
    // Some agents tell it just after the end.
    let late = r#"say '{"jsonrpc":"2.0","id":'"$id"',"result":{"stopReason":"end_turn"}}
{"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"s","update":{"sessionUpdate":"usage_update","used":7,"size":9}}}'"#;
    assert!(odd(late, false).contains(" · context 7 of 9\n"));
    // Sessions are on record, whatever their agent can do.
    assert!(odd("stop end_turn", false).contains("to go on"));
}
