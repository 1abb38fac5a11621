//! Agents that do what the demo agent does not: steer the terminal, stop early, ignore a cancel, offer odd options.

use nix::sys::signal::Signal;

use crate::service::{Done, Service, finish, read_until, signal};

/// The least of an agent. `TURN` is what it does with a prompt; `say` sends a line to the client, `$id` is the prompt's.
const AGENT: &str = r#"
say() { printf '%s\n' "$1"; }
update() { say '{"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"s","update":'"$1"'}}'; }
chunk() { update '{"sessionUpdate":"agent_message_chunk","content":{"type":"text","text":"'"$1"'"}}'; }
stop() { say '{"jsonrpc":"2.0","id":'"$id"',"result":{"stopReason":"'"$1"'"}}'; }
while IFS= read -r line; do
    case $line in
    *'"method":"initialize"'* | *'"method":"session/'*)
        id=$(printf '%s' "$line" | sed -n 's/^{"jsonrpc":"2.0","id":\([^,]*\),.*/\1/p') ;;
    esac
    case $line in
    *'"method":"initialize"'*) say '{"jsonrpc":"2.0","id":'"$id"',"result":{"protocolVersion":1}}' ;;
    *'"method":"session/new"'*) say '{"jsonrpc":"2.0","id":'"$id"',"result":{"sessionId":"s"}}' ;;
    *'"method":"session/prompt"'*) TURN ;;
    esac
done
"#;

/// A service whose agent `odd` does this with a prompt.
pub fn service(turn: &str) -> (Service, tempfile::TempDir) {
    let directory = tempfile::tempdir().unwrap();
    let script = directory.path().join("agent.sh");
    std::fs::write(&script, AGENT.replace("TURN", turn)).unwrap();
    let agents = format!("[agents.odd]\ncommand = \"sh\"\nargs = [{script:?}]\n");
    (Service::with_agents(&agents), directory)
}

fn prompt(turn: &str, flags: &[&str]) -> Done {
    let (service, _directory) = service(turn);
    service.run(&[&["prompt", "--agent", "odd", "go"], flags].concat())
}

#[test]
fn the_answer_cannot_steer_the_terminal() {
    let done = prompt(r"chunk 'a\u001b]0;x\u0007\tb\r\nc\u202ed'; stop end_turn", &[]);
    assert_eq!(done.stdout, "a\\u{1b}]0;x\\u{7}\tb\\r\nc\\u{202e}d\n", "{done:?}");
    assert_eq!(done.code, Some(0));
}

#[test]
fn notes_and_errors_cannot_steer_the_terminal() {
    let call = r#"update '{"sessionUpdate":"tool_call","toolCallId":"1","title":"A\u001b[2J\nB"}'"#;
    let fail = r#"say '{"jsonrpc":"2.0","id":'"$id"',"error":{"code":-32603,"message":"bad\u001b[1m"}}'"#;
    let done = prompt(&format!("{call}; {fail}"), &[]);
    assert_eq!(done.code, Some(1));
    assert_eq!(done.stderr, "· A\\u{1b}[2J\\nB (other): pending\nconductor prompt: bad\\u{1b}[1m\n");
}

#[test]
fn an_answer_without_a_last_newline_gets_one_and_messages_stay_apart() {
    let call = r#"update '{"sessionUpdate":"tool_call","toolCallId":"1","title":"Look"}'"#;
    let done = prompt(&format!("chunk 'I '; chunk 'look.'; {call}; chunk Done.; stop end_turn"), &[]);
    assert_eq!(done.stdout, "I look.\nDone.\n");
}

#[test]
fn limits_are_named() {
    for reason in ["max_tokens", "max_turn_requests"] {
        let done = prompt(&format!("chunk half; stop {reason}"), &[]);
        assert_eq!((done.code, &*done.stdout), (Some(3), "half\n"));
        assert!(done.stderr.contains(reason), "{done:?}");
    }
    let done = prompt("stop whatever", &[]);
    assert_eq!(done.code, Some(1));
    assert!(done.stderr.contains("unknown reason: whatever"), "{done:?}");
}

#[test]
fn allow_never_means_always() {
    let ask = r#"prompt=$id
        say '{"jsonrpc":"2.0","id":9,"method":"session/request_permission","params":{"sessionId":"s","toolCall":{"toolCallId":"1","title":"Everything"},"options":[{"optionId":"all","name":"Yes","kind":"allow_always"},{"optionId":"none","name":"No","kind":"reject_always"}]}}'
        IFS= read -r answer; id=$prompt
        case $answer in *'"optionId":"none"'*) chunk rejected ;; *) chunk "something else" ;; esac
        stop end_turn"#;
    let done = prompt(ask, &["--allow"]);
    assert_eq!(done.stdout, "rejected\n", "{done:?}");
    assert!(done.stderr.contains("does not offer to allow it once"), "{done:?}");
}

#[test]
fn unknown_requests_are_refused() {
    let ask = r#"prompt=$id
        say '{"jsonrpc":"2.0","id":9,"method":"_odd/request","params":{"sessionId":"s"}}'
        IFS= read -r answer; id=$prompt
        case $answer in *'"code":-32601'*) chunk refused ;; *) chunk "something else" ;; esac
        stop end_turn"#;
    assert_eq!(prompt(ask, &[]).stdout, "refused\n");
}

#[test]
fn a_second_ctrl_c_leaves_at_once() {
    // Hears the cancel, and keeps the turn.
    let (service, _directory) = service(r"chunk 'begun\n'; IFS= read -r cancel; chunk 'I do not mind\n'");
    let mut prompt = service.spawn(&["prompt", "--agent", "odd", "go"]);
    read_until(prompt.stdout.as_mut().unwrap(), "begun\n");
    signal(&prompt, Signal::SIGINT);
    read_until(prompt.stdout.as_mut().unwrap(), "I do not mind\n");
    let before = std::time::Instant::now();
    signal(&prompt, Signal::SIGINT);
    let done = finish(prompt, "");
    assert_eq!(done.code, Some(130));
    // The service would have waited ten seconds for the agent.
    assert!(before.elapsed().as_secs() < 5, "{:?}", before.elapsed());
}
