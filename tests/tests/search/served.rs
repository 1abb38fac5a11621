//! Search of a running service: right after something happened, for those who
//! may know of it, by gRPC and by the commands.

use conductor::proto::{SearchRequest, SearchResponse, history_client::HistoryClient};
use conductor_tests::{
    harness::{Service, service},
    people::{Person, channel, owner},
};
use serde_json::{Value, json};
use tonic::{Code, Status, transport::Channel};

async fn search(
    client: &mut HistoryClient<Channel>,
    person: &Person,
    request: SearchRequest,
) -> Result<SearchResponse, Status> {
    client.search(person.request(request)).await.map(tonic::Response::into_inner)
}

fn words(text: &str) -> SearchRequest {
    SearchRequest { text: text.into(), ..Default::default() }
}

fn json(service: &Service, args: &[&str]) -> Value {
    let done = service.run(&[args, &["--json"]].concat());
    assert!(done.status.success(), "{done:?}");
    serde_json::from_slice(&done.stdout).unwrap()
}

#[test]
fn what_has_just_happened_is_found() {
    let service = service(&json!({})).start();
    let (mut editor, session) = service.session();
    for (nth, name) in ["badger", "weasel", "polecat"].into_iter().enumerate() {
        editor.turn(&session, &format!("find the {name}, number {nth}"));
        let hits = json(&service, &["search", name]);
        let kinds: Vec<_> = hits.as_array().unwrap().iter().map(|hit| &hit["label"]).collect();
        assert_eq!(kinds.len(), 2, "the prompt, and the agent's echo of it: {hits:#}");
        assert!(kinds.contains(&&json!("user")) && kinds.contains(&&json!("agent")), "{hits:#}");
        for hit in hits.as_array().unwrap() {
            assert_eq!((&hit["session_id"], &hit["kind"]), (&json!(session), &json!("message")));
            let [start, end] = [0, 1].map(|at| hit["snippet"]["ranges"][0][at].as_u64().unwrap());
            let text = hit["snippet"]["text"].as_str().unwrap();
            assert_eq!(&text[usize::try_from(start).unwrap()..usize::try_from(end).unwrap()], name);
        }
        let listed = json(&service, &["sessions", "ls", "--text", name]);
        assert_eq!(listed[0]["session_id"], json!(session));
    }
    assert_eq!(json(&service, &["sessions", "ls", "--text", "nowhere"]), json!([]));
    assert_eq!(
        json(&service, &["search", "find -weasel", "--session", &session[..13], "--limit", "1"])
            .as_array()
            .unwrap()
            .len(),
        1
    );

    let shown = service.run(&["search", "polecat", "--kind", "message,tool"]);
    let text = String::from_utf8(shown.stdout).unwrap();
    assert!(text.contains(&session) && text.contains("    find the polecat, number 2\n"), "{text}");
    assert!(!text.contains('\x1b'), "no colours in a pipe");
    let nothing = service.run(&["search", "nowhere"]);
    assert!(nothing.status.success() && nothing.stdout.is_empty());
    assert!(String::from_utf8(nothing.stderr).unwrap().contains("nothing was found"));
    for wrong in [&["search", "--", "-only"][..], &["search", "::"], &["search", "x", "--session", "no id"]] {
        assert_eq!(service.run(wrong).status.code(), Some(1), "{wrong:?}");
    }
    assert_eq!(service.run(&["search", "x", "--kind", "smell"]).status.code(), Some(2));
}

#[test]
fn without_a_service_the_ledger_is_searched() {
    let mut service = service(&json!({})).start();
    let (mut editor, session) = service.session();
    editor.turn(&session, "look for \u{1b}[2J\u{202e}badgers");
    drop(editor);
    assert!(service.term().success());
    let shown = service.run(&["search", "badgers"]);
    let (out, said) = (String::from_utf8(shown.stdout).unwrap(), String::from_utf8(shown.stderr).unwrap());
    assert!(said.contains("no service answers; reading the ledger"), "{said}");
    assert!(out.contains("look for \\u{1b}[2J\\u{202e}badgers"), "{out}");
    assert!(!out.contains(['\x1b', '\u{202e}']), "nothing acts");
    assert_eq!(json(&service, &["search", "badgers"])[0]["session_id"], json!(session));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_finds_what_they_may_see() {
    let service = service(&json!({})).start();
    let (mut editor, session) = service.session();
    editor.turn(&session, "the badger sleeps");
    let mut client = HistoryClient::new(channel(&service).await);
    let [me, ann] = [owner(&service), Person::named(&service, "ann")];
    let auditor = Person::new(&service, &["--user", "eve", "--role", "auditor"]);
    let mut count = async |person: &Person, request: SearchRequest| {
        search(&mut client, person, request).await.unwrap().hits.len()
    };
    let within = || SearchRequest { session_id: session.clone(), ..words("badger") };
    assert_eq!(count(&me, words("badger")).await, 2);
    assert_eq!(count(&auditor, words("badger")).await, 2);
    assert_eq!(count(&ann, words("badger")).await, 0);
    assert_eq!(count(&ann, within()).await, 0, "as if there were no such session");

    assert!(
        service.run(&["sessions", "share", &session, "--with", "ann", "--as", "observer"]).status.success()
    );
    assert_eq!(count(&ann, words("badger")).await, 2);
    assert_eq!(count(&ann, within()).await, 2);
    assert_eq!(count(&ann, SearchRequest { user: "ann".into(), ..words("badger") }).await, 0);
    assert!(service.run(&["sessions", "unshare", &session, "--with", "user:ann"]).status.success());
    assert_eq!(count(&ann, words("badger")).await, 0);

    let own = ann.run(&service, &["search", "badger", "--json"]);
    assert_eq!(serde_json::from_slice::<Value>(&own.stdout).unwrap(), json!([]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pages_and_plain_answers_to_nonsense() {
    let service = service(&json!({})).start();
    let (mut editor, session) = service.session();
    for nth in 0..3 {
        editor.turn(&session, &format!("badger {nth} größe badger"));
    }
    let mut client = HistoryClient::new(channel(&service).await);
    let me = owner(&service);
    let mut request = SearchRequest { page_size: 2, ..words("BADGER größe") };
    let mut seqs = Vec::new();
    loop {
        let page = search(&mut client, &me, request.clone()).await.unwrap();
        assert_eq!(page.hint, "");
        for hit in page.hits {
            let marked: Vec<_> = hit
                .highlights
                .iter()
                .map(|part| &hit.snippet[part.start as usize..part.end as usize])
                .collect();
            assert_eq!(marked, ["badger", "größe", "badger"], "bytes of the snippet: {hit:?}");
            assert!(hit.score > 0.0 && hit.turn.is_some() && hit.agent.is_some(), "{hit:?}");
            seqs.push(hit.seq);
        }
        request.page_token = page.next_page_token;
        if request.page_token.is_empty() {
            break;
        }
    }
    seqs.sort_unstable();
    seqs.dedup();
    assert_eq!(seqs.len(), 6);
    let wrong = [
        (words(""), "text: "),
        (words("-a"), "text: "),
        (SearchRequest { kinds: vec!["smell".into()], ..words("a") }, "kinds: there is no kind `smell`"),
        (SearchRequest { session_id: "x".into(), ..words("a") }, "session_id: "),
        (SearchRequest { page_token: "x".into(), ..words("a") }, "page_token: "),
        (SearchRequest { text: "x".repeat(5000), ..words("") }, "text: "),
    ];
    for (request, says) in wrong {
        let refused = search(&mut client, &me, request).await.unwrap_err();
        assert_eq!(refused.code(), Code::InvalidArgument, "{refused:?}");
        assert!(refused.message().starts_with(says), "{refused:?}");
    }
}
