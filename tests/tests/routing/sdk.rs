//! The picker as a client of the official SDK sees it: typed, and strict about shapes.

use std::sync::{Arc, Mutex};

use agent_client_protocol::{
    AcpAgent, AcpAgentConfig, Agent, Client, on_receive_notification,
    schema::ProtocolVersion,
    v1::{
        ConnectionTo,
        schema::{
            ContentBlock, InitializeRequest, NewSessionRequest, PromptRequest, SessionNotification,
            SessionUpdate, SetSessionConfigOptionRequest, SetSessionModeRequest, TextContent,
        },
    },
};
use serde_json::{Value, json};

use super::{prompts, shown, teach, two, values};

#[tokio::test]
async fn p18_a_client_of_the_sdk_picks_models_and_modes_of_all_agents() {
    let service = two().start();
    teach(&service, "b");
    let command = service.command(&["connect"]);
    let text = |text: &std::ffi::OsStr| text.to_str().unwrap().to_owned();
    let env = command.get_envs().filter_map(|(name, value)| Some((text(name), text(value?))));
    let bridge = AcpAgent::new(AcpAgentConfig::new(command.get_program()).arg("connect").envs(env));
    let updates: Arc<Mutex<Vec<Value>>> = Arc::default();
    let (told, cwd) = (updates.clone(), service.work());
    let chosen = Client
        .v1()
        .on_receive_notification(
            async move |notification: SessionNotification, _connection: ConnectionTo<Agent>| {
                if !matches!(notification.update, SessionUpdate::AgentMessageChunk(_)) {
                    told.lock().unwrap().push(serde_json::to_value(&notification.update).unwrap());
                }
                Ok(())
            },
            on_receive_notification!(),
        )
        .connect_with(bridge, async move |agent: ConnectionTo<Agent>| {
            agent.send_request(InitializeRequest::new(ProtocolVersion::V1)).block_task().await?;
            let opened = agent.send_request(NewSessionRequest::new(&cwd)).block_task().await?;
            let session = opened.session_id.clone();
            let say = |text: &str| {
                PromptRequest::new(session.clone(), vec![ContentBlock::Text(TextContent::new(text))])
            };
            agent.send_request(say("one")).block_task().await?;
            let model = SetSessionConfigOptionRequest::new(session.clone(), "model", "b/b2");
            let set = agent.send_request(model).block_task().await?;
            agent.send_request(say("two")).block_task().await?;
            agent.send_request(SetSessionModeRequest::new(session.clone(), "write")).block_task().await?;
            agent.send_request(say("three")).block_task().await?;
            Ok(json!({
                "opened": serde_json::to_value(&opened).unwrap(),
                "set": { "configOptions": serde_json::to_value(&set.config_options).unwrap() },
            }))
        })
        .await
        .unwrap();
    // What the typed decoder has kept is all there was.
    assert_eq!(values(shown(&chosen["opened"], "model")), ["a/a1", "a/a2", "b/b1", "b/b2"]);
    assert_eq!(chosen["opened"]["modes"]["currentModeId"], "ask");
    assert_eq!(shown(&chosen["set"], "model")["currentValue"], "b/b2");
    assert_eq!(chosen["set"]["configOptions"].as_array().unwrap().len(), 3, "{chosen}");
    assert_eq!((prompts(&service, "a").len(), prompts(&service, "b").len()), (1, 2));
    let updates = updates.lock().unwrap();
    let last = |kind: &str| updates.iter().rfind(|update| update["sessionUpdate"] == kind).unwrap().clone();
    let options = last("config_option_update");
    assert_eq!(shown(&options, "model")["currentValue"], "b/b2");
    assert_eq!(shown(&options, "mode")["currentValue"], "write");
    assert_eq!(last("current_mode_update")["currentModeId"], "write");
}
