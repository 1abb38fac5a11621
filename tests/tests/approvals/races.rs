//! E4, E5: whoever comes first, one outcome counts, and everybody is told the same. Each race
//! is run a thousand times, in an order that a seed gives.

use conductor::proto::{
    Answer, DecideApprovalRequest, GetApprovalRequest, ListApprovalsRequest, WatchApprovalsRequest,
    approvals_client::ApprovalsClient,
};
use conductor_tests::people::{Person, channel};
use serde_json::json;
use tokio::runtime::Runtime;
use tonic::{Code, transport::Channel};

use super::*;

const ROUNDS: u64 = 1000;

/// Numbers that look random, and are the same every time.
struct Seeded(u64);

impl Seeded {
    fn next(&mut self, below: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % below
    }

    fn pause(&mut self) {
        // Who is first is what the race is about; this makes it either of them.
        for _ in 0..self.next(20_000) {
            std::hint::spin_loop();
        }
    }
}

/// An approver who is on the line.
struct OnLine {
    runtime: Runtime,
    client: ApprovalsClient<Channel>,
    person: Person,
}

impl OnLine {
    fn new(service: &Service, person: Person) -> Self {
        let runtime = Runtime::new().unwrap();
        let client = ApprovalsClient::new(runtime.block_on(channel(service)));
        Self { runtime, client, person }
    }

    /// Waits for a question, and gives its id.
    fn question(&self) -> String {
        let mut client = self.client.clone();
        self.runtime.block_on(async {
            let watched = client.watch(self.person.request(WatchApprovalsRequest {})).await.unwrap();
            let mut messages = watched.into_inner();
            loop {
                let message = messages.message().await.unwrap().unwrap();
                if let Some(open) = message.open.first() {
                    return open.id.clone();
                }
            }
        })
    }

    /// Whether the answer counts; else what is said.
    fn decide(&self, id: &str, answer: Answer) -> Result<(), String> {
        let message =
            DecideApprovalRequest { id: id.to_owned(), answer: answer.into(), ..Default::default() };
        let mut client = self.client.clone();
        match self.runtime.block_on(client.decide(self.person.request(message))) {
            Ok(_) => Ok(()),
            Err(status) => {
                assert_eq!(status.code(), Code::Aborted, "{status}");
                Err(status.message().to_owned())
            }
        }
    }

    fn outcome(&self, id: &str) -> (String, String) {
        let mut client = self.client.clone();
        let got =
            self.runtime.block_on(client.get(self.person.request(GetApprovalRequest { id: id.to_owned() })));
        let outcome = got.unwrap().into_inner().approval.unwrap().outcome.expect("it has ended");
        (outcome.how, outcome.by)
    }

    fn open(&self) -> usize {
        let mut client = self.client.clone();
        let listed = client.list(self.person.request(ListApprovalsRequest::default()));
        self.runtime.block_on(listed).unwrap().into_inner().approvals.len()
    }
}

fn busy(ask: &str) -> Service {
    asking(ask).set("approvals.per_minute", 1_000_000).set("approvals.repeat_deny", "0s").start()
}

/// E4: the driver answers in the editor while an approver answers elsewhere.
#[test]
fn e04_driver_and_approver() {
    let service = busy("approvers = { user = ['lea'] }");
    let (ann, lea) = (Person::named(&service, "ann"), Person::named(&service, "lea"));
    let lea = OnLine::new(&service, lea);
    let (mut editor, session) = open(&service, &ann);
    let (mut seeded, mut wins) = (Seeded(0x5eed), [0, 0]);
    for round in 0..ROUNDS {
        let turn = editor.prompt_do(&session, &json!([run(&format!("make {round}"))]));
        let request = editor.next_request("session/request_permission");
        let asked = lea.question();
        let said = std::thread::scope(|scope| {
            let deciding = scope.spawn(|| lea.decide(&asked, Answer::Deny));
            seeded.pause();
            editor.answer(&request, &json!({ "outcome": { "outcome": "selected", "optionId": "once" } }));
            deciding.join().unwrap()
        });
        editor.stop_reason(&turn);
        let option = chosen(&told(&editor.chunks(&session))).to_owned();
        let (how, by) = lea.outcome(&asked);
        match said {
            Ok(()) => {
                assert_eq!((option.as_str(), how.as_str(), by.as_str()), ("no", "rejected", "lea"));
                wins[0] += 1;
            }
            Err(why) => {
                assert_eq!((option.as_str(), how.as_str(), by.as_str()), ("once", "allowed", "ann"));
                assert!(why.contains("it was allowed by ann at"), "{why}");
                wins[1] += 1;
            }
        }
    }
    assert_eq!(lea.open(), 0);
    assert!(wins.iter().all(|wins| *wins > 0), "one of them always won: {wins:?}");
}

/// E5: a turn is cancelled while an approver answers.
#[test]
fn e05_cancel_and_approver() {
    let service = busy("driver = false");
    let (ann, lea) = (Person::named(&service, "ann"), approver(&service, "lea"));
    let lea = OnLine::new(&service, lea);
    let (mut editor, session) = open(&service, &ann);
    let (mut seeded, mut wins) = (Seeded(0xcafe), [0, 0]);
    for round in 0..ROUNDS {
        let turn = editor.prompt_do(&session, &json!([run(&format!("make {round}")), { "update": {} }]));
        let asked = lea.question();
        let said = std::thread::scope(|scope| {
            let deciding = scope.spawn(|| lea.decide(&asked, Answer::Allow));
            seeded.pause();
            editor.cancel(&session);
            deciding.join().unwrap()
        });
        let stopped = editor.stop_reason(&turn);
        let (how, by) = lea.outcome(&asked);
        match said {
            Ok(()) => {
                // It was allowed; the turn may have ended before the word to cancel it.
                assert_eq!((how.as_str(), by.as_str()), ("allowed", "lea"));
                wins[0] += 1;
            }
            Err(why) => {
                assert_eq!((stopped.as_str(), how.as_str(), by.as_str()), ("cancelled", "cancelled", ""));
                assert!(why.contains("it was cancelled at"), "{why}");
                wins[1] += 1;
            }
        }
    }
    assert_eq!(lea.open(), 0);
    assert!(wins.iter().all(|wins| *wins > 0), "one of them always won: {wins:?}");
}

/// Time runs out while an approver answers. Rules count in seconds, so this waits for one; the
/// thousand are spread over sessions that wait together.
#[test]
fn timeout_and_approver() {
    const SESSIONS: usize = 50;
    let service = busy("driver = false, timeout = '1s'");
    let (ann, lea) = (Person::named(&service, "ann"), approver(&service, "lea"));
    let lea = OnLine::new(&service, lea);
    let mut editor = ann.editor(&service);
    editor.decides();
    let sessions: Vec<String> = (0..SESSIONS).map(|_| editor.new_session(&service.work())).collect();
    let (mut seeded, mut wins) = (Seeded(0xbeef), [0, 0]);
    for round in 0..usize::try_from(ROUNDS).unwrap() / SESSIONS {
        let turns: Vec<_> = sessions
            .iter()
            .map(|session| editor.prompt_do(session, &json!([run(&format!("make {round}"))])))
            .collect();
        let all_asked = || lea.open() == SESSIONS;
        poll_until(DEADLINE, all_asked);
        let mut client = lea.client.clone();
        let listed =
            client.list(lea.person.request(ListApprovalsRequest { limit: 1000, ..Default::default() }));
        let listed = lea.runtime.block_on(listed).unwrap().into_inner().approvals;
        for asked in listed {
            // Each is answered about when its time is over.
            let now = || i64::try_from(std::time::UNIX_EPOCH.elapsed().unwrap().as_micros()).unwrap();
            let at = asked.due_us - 2000 + i64::try_from(seeded.next(4000)).unwrap();
            while now() < at {
                std::hint::spin_loop();
            }
            let said = lea.decide(&asked.id, Answer::Allow);
            let (how, by) = match &said {
                Ok(()) => ("allowed", "lea"),
                Err(why) => {
                    assert!(why.contains("it was timed out at"), "{why}");
                    ("timed_out", "")
                }
            };
            assert_eq!(lea.outcome(&asked.id), (how.to_owned(), by.to_owned()));
            wins[usize::from(said.is_err())] += 1;
        }
        for turn in turns {
            editor.stop_reason(&turn);
        }
    }
    assert_eq!(lea.open(), 0);
    assert!(wins[1] > 0, "time never ran out: {wins:?}");
}
