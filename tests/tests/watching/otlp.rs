//! Traces and metrics as a collector gets them.

use std::{collections::BTreeSet, fs, os::unix::fs::PermissionsExt as _};

use conductor::proto::{
    ConnectRequest, CreateSessionRequest, PromptRequest, connect_request, sessions_client::SessionsClient,
};
use conductor_tests::{
    admin::{get, metric, wait_metric, watched},
    collector::{Collector, hex},
    editor::DEADLINE,
    harness::{Builder, Service, permission, poll_until, service},
    people::{channel, owner},
    tunnel::{Tunnel, authorised, hello},
};
use serde_json::{Value, json};
use tokio::runtime::Runtime;

const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const PARENT: &str = "b7ad6b7169203331";

fn traceparent() -> String {
    format!("00-{TRACE}-{PARENT}-01")
}

fn told(builder: Builder, collector: &Collector) -> Builder {
    builder.set("telemetry.otlp_endpoint", collector.endpoint()).set("telemetry.metrics_interval", "100ms")
}

/// The last prompt that the agent received, as it came.
fn prompt(service: &Service) -> (String, Value) {
    let mut lines = service.received("fake").into_iter().filter_map(|entry| entry.text);
    let line = lines.rfind(|line| line.contains("session/prompt")).expect("a prompt");
    let json = serde_json::from_str(&line).unwrap_or_default();
    (line, json)
}

#[test]
fn one_trace_goes_from_the_editor_to_the_agent_and_back() {
    let collector = Collector::new();
    let service = told(service(&json!({})), &collector).start();
    let (mut editor, session) = service.session();
    let tool = |status: &str| {
        json!({ "notify": { "method": "session/update", "params": { "sessionId": "$sid", "update": {
            "sessionUpdate": if status == "pending" { "tool_call" } else { "tool_call_update" },
            "toolCallId": "call-1", "title": "canary-title", "kind": "execute", "status": status,
        } } } })
    };
    let steps = json!({ "do": [tool("pending"), permission(), tool("completed")] });
    let text = json!(steps.to_string());
    let params = format!(
        r#"{{"sessionId":"{session}","_meta":{{"big":1e400,"traceparent":"{}"}},"prompt":[{{"type":"text","text":{text}}},{{"type":"resource_link","name":"canary-prompt","uri":"file:///canary-path"}}]}}"#,
        traceparent()
    );
    let id = editor.request_raw("session/prompt", &params);
    let ask = editor.next_request("session/request_permission");
    editor.answer(&ask, &json!({ "outcome": { "outcome": "selected", "optionId": "yes" } }));
    editor.stop_reason(&id);

    let turn = collector.wait_span("turn", |span| span.name == "turn");
    assert_eq!((hex(&turn.trace_id).as_str(), hex(&turn.parent_span_id).as_str()), (TRACE, PARENT));
    // The agent goes on where the turn is, and everything else is as the editor said it.
    let (line, _) = prompt(&service);
    let handed = format!("00-{TRACE}-{}-01", hex(&turn.span_id));
    assert!(line.contains(&format!(r#""_meta":{{"big":1e400,"traceparent":"{handed}"}}"#)), "{line}");
    for step in ["route", "policy", "journal.sync", "tool"] {
        let span = collector.wait_span(step, |span| span.name == step && span.trace_id == turn.trace_id);
        assert_eq!(span.parent_span_id, turn.span_id, "{step}");
        assert!(span.start_time_unix_nano >= turn.start_time_unix_nano, "{step}");
        assert!(span.end_time_unix_nano <= turn.end_time_unix_nano, "{step}");
    }
    // The session was opened in a trace of its own, with the process it needed.
    let open = collector.wait_span("open", |span| span.name == "open");
    assert_ne!(open.trace_id, turn.trace_id);
    collector.wait_span("spawn", |span| span.name == "spawn" && span.parent_span_id == open.span_id);
    let all = collector.everything();
    let work = service.work();
    for word in ["canary", work.to_str().unwrap(), &service.token()] {
        assert!(!all.contains(word), "{word} is in the telemetry");
    }
}

#[test]
fn a_stream_that_was_opened_in_a_trace_lends_it_to_its_prompts() {
    let collector = Collector::new();
    let service = told(service(&json!({})), &collector).start();
    let mut metadata = authorised(&service);
    metadata.insert("traceparent", traceparent().parse().unwrap());
    let first = ConnectRequest { kind: Some(connect_request::Kind::Hello(hello())) };
    let mut tunnel = Tunnel::open_with(&service, metadata, Some(first));
    let mut ask = |id: u32, method: &str, params: Value| {
        let request = json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params });
        tunnel.send_frame(&request.to_string());
        loop {
            let frames = tunnel.next_frames();
            if let Some(answer) = frames.into_iter().find(|frame| frame["id"] == id) {
                return answer["result"].clone();
            }
        }
    };
    ask(1, "initialize", json!({ "protocolVersion": 1, "clientCapabilities": {} }));
    let opened = ask(2, "session/new", json!({ "cwd": service.work(), "mcpServers": [] }));
    let prompts =
        json!({ "sessionId": opened["sessionId"], "prompt": [{ "type": "text", "text": "hello" }] });
    ask(3, "session/prompt", prompts);
    let turn = collector.wait_span("turn", |span| span.name == "turn");
    assert_eq!(hex(&turn.trace_id), TRACE);
    let (_, received) = prompt(&service);
    let handed = received["params"]["_meta"]["traceparent"].as_str().unwrap();
    assert!(handed.starts_with(&format!("00-{TRACE}-")), "{received}");
}

#[test]
fn a_prompt_over_the_typed_api_goes_on_in_its_callers_trace() {
    let collector = Collector::new();
    let service = told(service(&json!({})), &collector).start();
    Runtime::new().unwrap().block_on(async {
        let mut sessions = SessionsClient::new(channel(&service).await);
        let cwd = service.work().to_str().unwrap().to_owned();
        let new = CreateSessionRequest { cwd, ..CreateSessionRequest::default() };
        let session_id = sessions.create(owner(&service).request(new)).await.unwrap().into_inner().session_id;
        let prompt = PromptRequest { session_id, text: "hello".into(), ..PromptRequest::default() };
        let mut call = owner(&service).request(prompt);
        call.metadata_mut().insert("traceparent", traceparent().parse().unwrap());
        let mut events = sessions.prompt(call).await.unwrap().into_inner();
        while events.message().await.unwrap().is_some() {}
    });
    let turn = collector.wait_span("turn", |span| span.name == "turn");
    assert_eq!((hex(&turn.trace_id).as_str(), hex(&turn.parent_span_id).as_str()), (TRACE, PARENT));
    let handed = format!("00-{TRACE}-{}-01", hex(&turn.span_id));
    assert_eq!(prompt(&service).1["params"]["_meta"]["traceparent"], handed);
}

#[test]
fn without_a_collector_prompts_pass_as_they_are() {
    let service = service(&json!({})).start();
    let (mut editor, session) = service.session();
    let given = format!(r#""_meta":{{"traceparent":"{}","x":1e400}}"#, traceparent());
    let params =
        format!(r#"{{{given},"sessionId":"{session}","prompt":[{{"type":"text","text":"hello"}}]}}"#);
    let id = editor.request_raw("session/prompt", &params);
    editor.stop_reason(&id);
    let (line, _) = prompt(&service);
    assert!(line.contains(&given), "{line}");
    editor.turn(&session, "hello");
    let (_, received) = prompt(&service);
    assert!(received["params"].get("_meta").is_none(), "{received}");
}

#[test]
fn metrics_go_to_the_collector_too() {
    let collector = Collector::new();
    let service = told(watched(service(&json!({}))), &collector).start();
    let (mut editor, session) = service.session();
    editor.turn(&session, "hello");
    let ended = |metric: &opentelemetry_proto::tonic::metrics::v1::Metric| {
        metric.name == "conductor_turn_seconds" && format!("{:?}", metric.data).contains("count: 1")
    };
    let came = poll_until(DEADLINE, || collector.metrics().iter().any(ended));
    assert!(came, "{:#?}", collector.metrics());
    let (_, text) = get(&service, "/metrics");
    let shown: BTreeSet<&str> =
        text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next()).collect();
    let sent = collector.metrics();
    let sent: BTreeSet<&str> = sent.iter().map(|metric| metric.name.as_str()).collect();
    assert_eq!(shown, sent, "both faces show the same families");
}

#[test]
fn headers_for_the_collector_come_from_a_file_and_go_nowhere_else() {
    let collector = Collector::new();
    let builder = told(service(&json!({})), &collector);
    let file = builder.dir().join("headers");
    fs::write(&file, "authorization: Bearer canary-header\n").unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
    let mut service = builder.set("telemetry.headers_file", file.to_str().unwrap()).start();
    let (mut editor, session) = service.session();
    editor.turn(&session, "hello");
    collector.wait_span("turn", |span| span.name == "turn");
    assert_eq!(collector.header("authorization").as_deref(), Some("Bearer canary-header"));
    drop(editor);
    service.term();
    assert!(!service.log().contains("canary-header"), "{}", service.log());
}

#[test]
fn a_collector_that_is_not_there_costs_spans_and_nothing_else() {
    // Nothing listens there.
    let mut service = watched(service(&json!({})))
        .set("telemetry.otlp_endpoint", "http://127.0.0.1:1")
        .set("telemetry.metrics_interval", "100ms")
        .start();
    let (mut editor, session) = service.session();
    for _ in 0..3 {
        editor.turn(&session, "hello");
    }
    wait_metric(&service, r#"conductor_best_effort_total{branch="span_dropped"}"#, |count| count >= 3.0);
    wait_metric(&service, r#"conductor_best_effort_total{branch="metrics_not_sent"}"#, |count| count >= 1.0);
    assert_eq!(metric(&service, r#"conductor_turns_total{end="end_turn"}"#), 3.0);
    drop(editor);
    assert!(service.term().success());
}

#[test]
fn a_collector_over_tls_is_reached_if_this_host_trusts_it() {
    let builder = watched(service(&json!({})));
    let certificate = builder.dir().join("collector.pem");
    let collector = Collector::over_tls(&certificate);
    let mut service = told(builder, &collector).env("SSL_CERT_FILE", certificate.to_str().unwrap()).start();
    let (mut editor, session) = service.session();
    editor.turn(&session, "hello");
    collector.wait_span("turn", |span| span.name == "turn");
    drop(editor);
    service.term();

    let builder = told(watched(conductor_tests::harness::service(&json!({}))), &collector);
    let stranger = builder.start();
    let (mut editor, session) = stranger.session();
    editor.turn(&session, "hello");
    wait_metric(&stranger, r#"conductor_best_effort_total{branch="span_dropped"}"#, |count| count >= 1.0);
}
