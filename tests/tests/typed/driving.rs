//! Sessions are created, prompted, asked for permission, set, cancelled, closed.

use conductor::proto::{
    CreateSessionRequest, PromptRequest, SetConfigOptionRequest, SetModeRequest, ToolStatus, config_option,
    content_block, event::Kind, set_config_option_request::Value as Setting,
};
use conductor_tests::{
    harness::{self, permission, service},
    shipping::PATIENCE,
};
use serde_json::{Value, json};
use tonic::Code;

use crate::client::{Typed, names, said};

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_session_is_created_prompted_and_closed() {
    let service = service(&json!({})).demo().start();
    let mut client = Typed::new(&service).await;
    let request = CreateSessionRequest {
        cwd: service.work().to_str().unwrap().to_owned(),
        model: "demo-large".into(),
        client: "test/1".into(),
        ..Default::default()
    };
    let created = client.calls.create(client.with(request)).await.unwrap().into_inner();
    let session = created.session_id;
    assert_eq!(created.agent, "demo");
    let raw: Value = serde_json::from_slice(&created.raw).unwrap();
    assert_eq!(raw["sessionId"], session.as_str());
    let model = created.config_options.iter().find(|option| option.category == "model").unwrap();
    assert!(model.choices.iter().any(|choice| choice.value == "demo-large"), "{model:?}");
    // The model that was asked for is set, and told; prompts wait for that.
    let mut live = client.observe(&session, 1).await;
    let large = Some(config_option::Value::Selected("demo-large".into()));
    live.find("the model that was asked for", |kind| match kind {
        Kind::ConfigOptions(all) => all.options.iter().find(|option| option.value == large).map(|_| ()),
        _ => None,
    })
    .await;

    let mut events = client.prompt(&session, "tool").await;
    let told = events.rest().await.unwrap();
    let Some(Kind::TurnStarted(begin)) = &told[0].kind else { panic!("{:?}", told[0]) };
    let user = begin.user.clone();
    assert_eq!(begin.prompt[0].kind, Some(content_block::Kind::Text("tool".into())));
    let calls = told.iter().filter_map(|event| match event.kind.as_ref().unwrap() {
        Kind::ToolCall(call) => Some(call),
        _ => None,
    });
    let calls: Vec<_> = calls.collect();
    let status: Vec<_> = calls.iter().map(|call| ToolStatus::try_from(call.status).unwrap()).collect();
    assert_eq!(status, [ToolStatus::Pending, ToolStatus::InProgress, ToolStatus::Completed]);
    assert!(calls.iter().all(|call| call.name == "pretend" && call.call == calls[0].call));
    assert_eq!(calls[2].output_json.as_deref(), Some(r#"{"matches":0}"#));
    assert_eq!(said(&told), "The tool call is complete; it only pretended.\n");
    let Some(Kind::TurnEnded(end)) = &told.last().unwrap().kind else { panic!("{:?}", names(&told)) };
    assert_eq!((end.stop_reason.as_str(), end.error.as_str()), ("end_turn", ""));
    assert!(told.iter().all(|event| event.turn == told[0].seq && !event.raw.is_empty()));
    assert!(told.is_sorted_by_key(|event| event.seq));

    let whoami = client.prompt(&session, "whoami").await.rest().await.unwrap();
    assert!(said(&whoami).contains("model: demo-large"), "{}", said(&whoami));

    let listed = client.list().await;
    assert_eq!(listed.len(), 1);
    assert_eq!((listed[0].session_id.as_str(), listed[0].role.as_str()), (session.as_str(), "owner"));
    assert!(listed[0].is_live && listed[0].owner == user && listed[0].agent == "demo");
    assert_eq!(listed[0].cwd, service.work().canonicalize().unwrap().to_str().unwrap());

    client.close(&session).await;
    let mut live = client.observe(&session, 1).await;
    live.find("the session's end", |kind| matches!(kind, Kind::SessionEnded(_)).then_some(())).await;
    // What was closed is opened again by the next prompt.
    let again = client.prompt(&session, "stream 2").await.rest().await.unwrap();
    assert_eq!(said(&again), "chunk 1 of 2\nchunk 2 of 2\n");
    assert!(client.list().await[0].is_live);
}

/// A plug-in shows whom the user talks to, so it must be the one that a route chose.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn whoever_creates_a_session_learns_which_agent_a_route_chose() {
    let service =
        service(&json!({})).agent("other", &json!({})).set("route", json!([{ "to": "other" }])).start();
    let mut client = Typed::new(&service).await;
    for (agent, chosen) in [("", "other"), ("fake", "fake")] {
        let request = CreateSessionRequest {
            cwd: service.work().to_str().unwrap().to_owned(),
            agent: agent.to_owned(),
            ..Default::default()
        };
        let created = client.calls.create(client.with(request)).await.unwrap().into_inner();
        assert_eq!(created.agent, chosen);
        let listed = client.list().await;
        let listed = listed.iter().find(|listed| listed.session_id == created.session_id).unwrap();
        assert_eq!(listed.agent, chosen);
    }
}

/// A caller may leave while the agent takes its time; nothing is left half done.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_session_that_nobody_waits_for_any_more_is_left_in_order() {
    let builder = service(&json!({}));
    let flag = builder.dir().join("go");
    let script = json!({ "before": { "session/new": [{ "wait_file": flag }] } });
    let service = builder.agent("fake", &script).start();
    let client = Typed::new(&service).await;
    let request = CreateSessionRequest {
        cwd: service.work().to_str().unwrap().to_owned(),
        client: "leaving/1".into(),
        ..Default::default()
    };
    let mut calls = client.calls.clone();
    let asked = client.with(request);
    let call = tokio::spawn(async move { calls.create(asked).await.map(drop) });
    service.wait_received("fake", "session/new", |entry| {
        entry.text.as_deref().is_some_and(|text| text.contains("session/new"))
    });
    call.abort();
    assert!(call.await.unwrap_err().is_cancelled());
    // Its connection has an end on record while the agent still waits.
    let query = "SELECT close_reason FROM connections WHERE client LIKE 'leaving%'";
    let mut told = String::new();
    let is_ended = harness::poll_until(PATIENCE, || {
        let said = service.run(&["ledger", "sql", "--json", query]);
        told = String::from_utf8_lossy(&said.stdout).into_owned();
        told.contains("the editor went away")
    });
    std::fs::write(&flag, "").unwrap();
    assert!(is_ended, "{told}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn permissions_are_answered_once() {
    let service = service(&json!({})).demo().start();
    let mut client = Typed::new(&service).await;
    let session = client.create(&service).await;
    let mut events = client.prompt(&session, "ask").await;
    let asked = events.find("the request", |kind| match kind {
        Kind::PermissionRequested(asked) => Some(asked.clone()),
        _ => None,
    });
    let asked = asked.await;
    let kinds: Vec<_> = asked.options.iter().map(|option| option.kind.as_str()).collect();
    assert_eq!(kinds, ["allow_once", "allow_always", "reject_once", "reject_always"]);
    assert_eq!(asked.tool_call.unwrap().title, "Do nothing at all");
    for (request, option) in [(asked.request + 1, "yes"), (asked.request, "perhaps")] {
        let refused = client.answer(&session, request, option).await.unwrap_err();
        assert_eq!(refused.code(), Code::NotFound, "{refused}");
    }
    client.answer(&session, asked.request, "yes").await.unwrap();
    let (outcome, option, kind, by) = events
        .find("the decision", |kind| match kind {
            Kind::PermissionResolved(it) if it.request == asked.request => {
                Some((it.outcome.clone(), it.option_id.clone(), it.option_kind.clone(), it.by.clone()))
            }
            _ => None,
        })
        .await;
    assert_eq!((outcome.as_str(), option.as_str(), kind.as_str()), ("selected", "yes", "allow_once"));
    let late = client.answer(&session, asked.request, "no").await.unwrap_err();
    assert_eq!(late.code(), Code::Aborted);
    assert!(late.message().starts_with(&by) && !by.is_empty(), "{late}");
    assert_eq!(events.end().await, "end_turn");
    assert!(said(&events.seen).contains("allow_once"), "{}", said(&events.seen));

    // Without an option it is cancelled.
    let mut events = client.prompt(&session, "ask").await;
    let request = events.find("the request", |kind| match kind {
        Kind::PermissionRequested(asked) => Some(asked.request),
        _ => None,
    });
    let request = request.await;
    client.answer(&session, request, "").await.unwrap();
    events.rest().await.unwrap();
    assert!(format!("{:?}", events.seen).contains("outcome: \"cancelled\""));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn an_editor_and_a_plug_in_share_a_session() {
    let service = service(&json!({})).start();
    let (mut editor, session) = service.session();
    let mut client = Typed::new(&service).await;
    // The plug-in prompts, the editor is asked and answers.
    let mut events = client.prompt_do(&session, &json!([permission()])).await;
    let request = editor.next_request("session/request_permission");
    let asked = events.find("the request", |kind| match kind {
        Kind::PermissionRequested(asked) => Some(asked.request),
        _ => None,
    });
    let asked = asked.await;
    editor.answer(&request, &json!({ "outcome": { "outcome": "selected", "optionId": "no" } }));
    assert_eq!(events.end().await, "end_turn");
    let late = client.answer(&session, asked, "yes").await.unwrap_err();
    assert_eq!(late.code(), Code::Aborted, "{late}");
    // An editor that chooses nothing leaves it to the plug-in, for the record, too.
    let mut events = client.prompt_do(&session, &json!([permission()])).await;
    let request = editor.next_request("session/request_permission");
    let third = events.find("the request", |kind| match kind {
        Kind::PermissionRequested(asked) => Some(asked.request),
        _ => None,
    });
    let third = third.await;
    editor.answer(&request, &json!({ "outcome": { "outcome": "cancelled" } }));
    let declined = |kind: &Kind| match kind {
        Kind::Other(other) => (other.method == "_conductor/declined").then_some(()),
        _ => None,
    };
    events.find("the editor's answer", declined).await;
    client.answer(&session, third, "yes").await.unwrap();
    let decided = events.find("the decision", |kind| match kind {
        Kind::PermissionResolved(it) => Some(it.option_id.clone()),
        _ => None,
    });
    assert_eq!(decided.await, "yes");
    assert_eq!(events.end().await, "end_turn");
    // The editor prompts, the plug-in answers; the editor's dialogue is withdrawn.
    let mut events = client.observe(&session, 1).await;
    let prompt = editor.prompt_do(&session, &json!([permission()]));
    let request = editor.next_request("session/request_permission");
    let request_id = request["id"].as_u64().unwrap();
    let second = |kind: &Kind| match kind {
        Kind::PermissionRequested(it) if it.request != asked && it.request != third => Some(it.request),
        _ => None,
    };
    let number = events.find("the second request", second).await;
    client.answer(&session, number, "yes").await.unwrap();
    assert_eq!(editor.stop_reason(&prompt), "end_turn");
    editor.wait_for("the withdrawal", |line| {
        (line.method() == "$/cancel_request" && line.json["params"]["requestId"] == request_id).then_some(())
    });
    // Closing it in the editor is no end for who watches.
    client.close(&session).await;
    events.find("the end", |kind| matches!(kind, Kind::SessionEnded(_)).then_some(())).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_turn_is_cancelled() {
    let service = service(&json!({})).demo().start();
    let mut client = Typed::new(&service).await;
    let session = client.create(&service).await;
    let mut events = client.prompt(&session, "slow 60").await;
    events.find("the first chunk", |kind| matches!(kind, Kind::AgentMessage(_)).then_some(())).await;
    client.cancel(&session).await;
    assert_eq!(events.end().await, "cancelled");
    assert!(events.next().await.unwrap().is_none(), "the end is the last event");
    let by = events.seen.iter().find_map(|event| match event.kind.as_ref()? {
        Kind::CancelRequested(cancel) => Some(cancel.user.clone()),
        _ => None,
    });
    assert_eq!(by, Some(client.list().await[0].owner.clone()));
    // There is nothing to cancel any more, which is fine.
    client.cancel(&session).await;
    assert_eq!(client.prompt(&session, "stream 1").await.end().await, "end_turn");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn options_and_modes_are_set() {
    let service = service(&json!({})).demo().start();
    let mut client = Typed::new(&service).await;
    let session = client.create(&service).await;
    let set = |config_id: &str, value: Option<Setting>| SetConfigOptionRequest {
        session_id: session.clone(),
        config_id: config_id.to_owned(),
        value,
    };
    let large = Some(Setting::Selected("demo-large".into()));
    let answer = client.calls.set_config_option(client.with(set("model", large))).await.unwrap().into_inner();
    let model = answer.config_options.iter().find(|option| option.id == "model").unwrap();
    assert_eq!(model.value, Some(config_option::Value::Selected("demo-large".into())));
    let huge = Some(Setting::Selected("demo-huge".into()));
    for wrong in [set("model", huge), set("nothing", Some(Setting::Flag(true))), set("model", None)] {
        let refused = client.calls.set_config_option(client.with(wrong)).await.unwrap_err();
        assert_eq!(refused.code(), Code::InvalidArgument, "{refused}");
        assert!(!refused.message().is_empty());
    }
    let mode = SetModeRequest { session_id: session.clone(), mode_id: "code".into() };
    client.calls.set_mode(client.with(mode)).await.unwrap();
    let whoami = client.prompt(&session, "whoami").await.rest().await.unwrap();
    assert!(said(&whoami).contains("model: demo-large\n- mode: code"), "{}", said(&whoami));
    let history = client.history(&session, 1).await;
    let set = history.iter().any(|event| match event.kind.as_ref().unwrap() {
        Kind::Modes(modes) => modes.current_mode_id == "code" && event.turn == 0,
        _ => false,
    });
    assert!(set, "{:?}", names(&history));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn content_reaches_the_agent_as_it_was_given() {
    use conductor::proto::{ContentBlock, ResourceLink};
    let service = service(&json!({})).start();
    let mut client = Typed::new(&service).await;
    let session = client.create(&service).await;
    let link = ResourceLink { uri: "file:///a".into(), name: "a".into(), ..Default::default() };
    let content = vec![ContentBlock { kind: Some(content_block::Kind::ResourceLink(link)) }];
    let request = PromptRequest { session_id: session.clone(), text: "look".into(), content };
    let mut stream = client.calls.prompt(client.with(request)).await.unwrap().into_inner();
    while stream.message().await.unwrap().is_some() {}
    let prompt = service.wait_received("fake", "the prompt", |entry| {
        entry.text.as_deref().is_some_and(|text| text.contains("session/prompt"))
    });
    let prompt: Value = serde_json::from_str(&prompt.text.unwrap()).unwrap();
    let wanted = json!([{ "type": "text", "text": "look" }, { "type": "resource_link", "uri": "file:///a", "name": "a" }]);
    assert_eq!(prompt["params"]["prompt"], wanted);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_turn_outlives_its_caller_and_its_agent_is_replaced() {
    let service = service(&json!({})).start();
    let mut client = Typed::new(&service).await;
    let session = client.create(&service).await;
    let gate = service.dir.join("gate");
    let steps =
        json!([{ "update": { "n": 1 } }, { "wait_file": gate }, { "update": { "n": 1, "text": "late " } }]);
    let mut events = client.prompt_do(&session, &steps).await;
    events.find("the first chunk", |kind| matches!(kind, Kind::AgentMessage(_)).then_some(())).await;
    let last = events.seen.last().unwrap().seq;
    drop(events);
    std::fs::write(&gate, "").unwrap();
    let mut rest = client.observe(&session, last + 1).await;
    assert_eq!(rest.end().await, "end_turn");
    assert!(said(&rest.seen).starts_with("late "), "{}", said(&rest.seen));

    // Whoever comes later may still decide what nobody was there for.
    let mut events = client.prompt_do(&session, &json!([permission()])).await;
    events.find("the turn", |kind| matches!(kind, Kind::TurnStarted(_)).then_some(())).await;
    drop(events);
    let mut later = client.observe(&session, rest.seen.last().unwrap().seq + 1).await;
    let asked = later.find("the request", |kind| match kind {
        Kind::PermissionRequested(asked) => Some(asked.request),
        _ => None,
    });
    let asked = asked.await;
    client.answer(&session, asked, "yes").await.unwrap();
    assert_eq!(later.end().await, "end_turn");

    // The agent dies in a turn: that ends with the reason, and the next one goes on.
    let mut events =
        client.prompt_do(&session, &json!([{ "stderr": "out of cheese\n" }, { "exit": 3 }])).await;
    let error = events.end().await;
    assert!(error.contains("exit") && error.contains("out of cheese"), "{error}");
    assert_eq!(client.prompt(&session, "hello").await.end().await, "end_turn");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_session_and_its_servers_survive_a_kill() {
    let mut service = harness::service(&json!({})).set("mcp.tools", json!({ "command": "true" })).start();
    let mut client = Typed::new(&service).await;
    let servers = json!([{ "name": "tools", "command": "true", "args": [], "env": [] }]);
    let request = CreateSessionRequest {
        cwd: service.work().to_str().unwrap().to_owned(),
        additional_directories: vec![service.dir.join("other").to_str().unwrap().to_owned()],
        mcp_servers_json: servers.to_string(),
        ..Default::default()
    };
    let session = client.calls.create(client.with(request)).await.unwrap().into_inner().session_id;
    let mut events = client.prompt_do(&session, &json!([{ "update": { "n": 3 } }, "wait_cancel"])).await;
    for _ in 0..3 {
        events.find("a chunk", |kind| matches!(kind, Kind::AgentMessage(_)).then_some(())).await;
    }
    let last = events.seen.last().unwrap().seq;
    service.kill9();
    events.rest().await.unwrap_err();
    service.start_again();

    let mut client = Typed::new(&service).await;
    let mut rest = client.observe(&session, last + 1).await;
    assert!(rest.end().await.contains("ended"), "{:?}", rest.seen);
    assert_eq!(client.prompt(&session, "again").await.end().await, "end_turn");
    let resumed = service.wait_received("fake", "the session again", |entry| {
        entry.text.as_deref().is_some_and(|text| text.contains("session/resume"))
    });
    let resumed: Value = serde_json::from_str(&resumed.text.unwrap()).unwrap();
    assert_eq!(resumed["params"]["mcpServers"], servers);
    assert_eq!(resumed["params"]["additionalDirectories"][0], service.dir.join("other").to_str().unwrap());
}
