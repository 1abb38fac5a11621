//! One message for every call there is.

use bytes::Bytes;
use conductor::proto::{
    Answer, AnswerPermissionRequest, CancelQueuedRequest, CancelRequest, CloseSessionRequest, ConnectRequest,
    CreateGrantRequest, CreateSessionRequest, CreateTokenRequest, DecideApprovalRequest,
    EraseSessionsRequest, ExplainRequest, GetApprovalRequest, GetGrantRequest, GetRecordStatusRequest,
    GetRevisionRequest, GetSessionRequest, GetUsageRequest, GrantAction, GrantLike, GrantScope,
    ListAgentsRequest, ListApprovalsRequest, ListFileAccessesRequest, ListGrantsRequest, ListModelsRequest,
    ListQueueRequest, ListRequest, ListSessionsRequest, ListSharesRequest, ListTokensRequest, LoginRequest,
    LoginStart, ObserveRequest, Party, PromptRequest, ReadFramesRequest, RestartAgentRequest,
    RevokeGrantRequest, RevokeTokenRequest, SearchRequest, SetConfigOptionRequest, SetModeRequest, ShareRole,
    ShareSessionRequest, TailRequest, UnshareSessionRequest, WatchAgentsRequest, WatchApprovalsRequest,
    WhoAmIRequest, WithdrawSessionsRequest, connect_request, grant_action, grant_scope, login_request, party,
    set_config_option_request,
};
use conductor_tests::tunnel::hello;
use prost::Message;
use tonic::Code;

/// A call, and what comes of it for those who may make it.
pub struct Call {
    pub message: Bytes,
    /// Whether it names the session.
    pub names_session: bool,
    /// The code that it ends with, and words of its message, if it is not fine:
    /// there is no such question, prompt or token.
    pub outcome: Option<(Code, &'static str)>,
}

fn about(message: &impl Message) -> Call {
    Call { message: message.encode_to_vec().into(), names_session: true, outcome: None }
}

fn plain(message: &impl Message) -> Call {
    Call { names_session: false, ..about(message) }
}

impl Call {
    fn ends(self, code: Code, words: &'static str) -> Self {
        Self { outcome: Some((code, words)), ..self }
    }
}

/// A grant for a session of one's own, which is to be like what was asked in this one.
pub fn grant_like(own: &str, session: &str) -> Call {
    about(&CreateGrantRequest {
        scope: Some(GrantScope { scope: Some(grant_scope::Scope::SessionId(own.to_owned())) }),
        like: Some(GrantLike { session_id: session.to_owned(), seq: 1 }),
        dry_run: true,
        ..Default::default()
    })
    .ends(Code::NotFound, "has no request 1 that was asked about")
}

/// The call with this path, about this session. Whatever it does leaves the
/// others as they were.
pub fn call(path: &str, session: &str, cwd: &str) -> Option<Call> {
    let session_id = session.to_owned();
    let guest = Some(Party { party: Some(party::Party::User("guest".into())) });
    let nothing = "00000000-0000-7000-8000-000000000000".to_owned();
    Some(match path.strip_prefix("/conductor.v1.")? {
        "Acp/Connect" => plain(&ConnectRequest { kind: Some(connect_request::Kind::Hello(hello())) }),
        "Agents/List" => plain(&ListAgentsRequest {}),
        "Agents/ListModels" => plain(&ListModelsRequest {}),
        "Agents/Login" => {
            let start = LoginStart { agent: "nobody".into(), ..Default::default() };
            plain(&LoginRequest { kind: Some(login_request::Kind::Start(start)) })
                .ends(Code::NotFound, "nobody")
        }
        "Agents/Restart" => plain(&RestartAgentRequest { name: "fake".into(), force: false }),
        "Agents/Watch" => plain(&WatchAgentsRequest {}),
        "Approvals/Decide" => {
            plain(&DecideApprovalRequest { id: nothing, answer: Answer::Deny.into(), ..Default::default() })
                .ends(Code::NotFound, "no approval")
        }
        "Approvals/Get" => plain(&GetApprovalRequest { id: nothing }).ends(Code::NotFound, "no approval"),
        "Approvals/List" => plain(&ListApprovalsRequest::default()),
        "Approvals/Watch" => plain(&WatchApprovalsRequest {}),
        "Grants/Create" => about(&CreateGrantRequest {
            scope: Some(GrantScope { scope: Some(grant_scope::Scope::SessionId(session_id)) }),
            actions: vec![GrantAction {
                action: Some(grant_action::Action::Fetch("https://example.org/".into())),
                wide: false,
            }],
            dry_run: true,
            ..Default::default()
        }),
        "Grants/Get" => plain(&GetGrantRequest { id: nothing }).ends(Code::NotFound, "no grant"),
        "Grants/List" => plain(&ListGrantsRequest::default()),
        "Grants/Revoke" => {
            plain(&RevokeGrantRequest { id: nothing, ..Default::default() }).ends(Code::NotFound, "no grant")
        }
        "History/EraseSessions" => {
            plain(&EraseSessionsRequest { session_ids: vec![nothing], ..Default::default() })
        }
        "History/GetRecordStatus" => plain(&GetRecordStatusRequest {}),
        "History/GetSession" => about(&GetSessionRequest { session_id }),
        "History/ListFileAccesses" => plain(&ListFileAccessesRequest::default()),
        "History/ListSessions" => plain(&ListSessionsRequest::default()),
        "History/ReadFrames" => {
            about(&ReadFramesRequest { stream_id: session_id, from_seq: 1, ..Default::default() })
        }
        "History/Search" => plain(&SearchRequest { text: "hello".into(), ..Default::default() }),
        "History/Tail" => plain(&TailRequest { from: "now".into(), ..Default::default() }),
        "History/WithdrawSessions" => plain(&WithdrawSessionsRequest { session_ids: vec![nothing] }),
        "Identity/WhoAmI" => plain(&WhoAmIRequest {}),
        "Limits/GetUsage" => plain(&GetUsageRequest::default()),
        "Policy/Explain" => plain(&ExplainRequest {
            action_json: r#"{"argv":["true"]}"#.into(),
            agent: "fake".into(),
            ..Default::default()
        }),
        "Policy/GetRevision" => plain(&GetRevisionRequest {}),
        "Sessions/AnswerPermission" => {
            about(&AnswerPermissionRequest { session_id, request: 1, option_id: "yes".into() })
                .ends(Code::NotFound, "no request 1")
        }
        "Sessions/Cancel" => about(&CancelRequest { session_id }),
        "Sessions/CancelQueued" => {
            about(&CancelQueuedRequest { session_id, entry: 7 }).ends(Code::NotFound, "no prompt 7")
        }
        "Sessions/Close" => about(&CloseSessionRequest { session_id }),
        "Sessions/Create" => plain(&CreateSessionRequest { cwd: cwd.to_owned(), ..Default::default() }),
        "Sessions/List" => plain(&ListRequest::default()),
        "Sessions/ListQueue" => about(&ListQueueRequest { session_id }),
        "Sessions/Observe" => about(&ObserveRequest { session_id, from_seq: 1, history_only: true }),
        "Sessions/Prompt" => about(&PromptRequest { session_id, text: "hello".into(), ..Default::default() }),
        "Sessions/SetConfigOption" => about(&SetConfigOptionRequest {
            session_id,
            config_id: "mood".into(),
            value: Some(set_config_option_request::Value::Selected("good".into())),
        }),
        "Sessions/SetMode" => about(&SetModeRequest { session_id, mode_id: "haste".into() }),
        "Sharing/ListShares" => about(&ListSharesRequest { session_id }),
        "Sharing/Share" => {
            about(&ShareSessionRequest { session_id, with: guest, role: ShareRole::Observer.into() })
        }
        "Sharing/Unshare" => about(&UnshareSessionRequest { session_id, with: guest }),
        "Tokens/Create" => plain(&CreateTokenRequest { user: "guest".into(), ..Default::default() }),
        "Tokens/List" => plain(&ListTokensRequest {}),
        "Tokens/Revoke" => plain(&RevokeTokenRequest { id: nothing }).ends(Code::NotFound, "no token"),
        _ => return None,
    })
}
