//! What grants cover, where they hold, and how often they are used.

use std::sync::Arc;

use super::*;
use crate::{
    identity::{Role, present::Present, tokens::Tokens},
    policy::{PathFact, Word},
    state::Token,
};

fn book(kept: Vec<(Grant, u64)>) -> Book {
    let tokens = Tokens::new(Token::random().unwrap(), Vec::new());
    Book::new(kept, Present::new(tokens))
}

fn run(words: &[&str], cwd: &str) -> Command {
    Command {
        program: words[0].into(),
        file: Some(format!("/usr/bin/{}", words[0]).into()),
        is_local: false,
        words: words[1..].iter().map(|word| Word { text: (*word).into(), path: None, value: None }).collect(),
        cwd: cwd.into(),
        is_piped: false,
    }
}

fn fact(path: &str) -> PathFact {
    PathFact {
        given: path.into(),
        resolved: Some(path.into()),
        root: Some("/srv".into()),
        ..PathFact::default()
    }
}

fn grant(scope: Scope, most_uses: Option<u64>) -> Grant {
    let given = SystemTime::now();
    Grant {
        id: Uuid::now_v7(),
        scope,
        parts: vec![Part::Exactly(SubAction::Run(run(&["npm", "test"], "/srv")))],
        by: Caller { user: "lea".into(), teams: Vec::new(), roles: vec![Role::Approver] },
        reason: String::new(),
        given,
        expires: given + USUAL_TIME,
        most_uses,
    }
}

fn npm_test() -> SubAction {
    SubAction::Run(run(&["npm", "test"], "/srv"))
}

#[test]
fn exactly_is_exactly_but_for_how_a_path_is_written() {
    let part = Part::Exactly(npm_test());
    assert!(part.covers(&npm_test()));
    for other in [
        run(&["npm", "test", "x"], "/srv"),
        run(&["npm"], "/srv"),
        run(&["npm", "test"], "/srv/other"),
        Command { is_local: true, ..run(&["npm", "test"], "/srv") },
        Command { is_piped: true, ..run(&["npm", "test"], "/srv") },
        Command { file: Some("/tmp/npm".into()), ..run(&["npm", "test"], "/srv") },
    ] {
        assert!(!part.covers(&SubAction::Run(other.clone())), "{other:?}");
    }
    let part = Part::Exactly(SubAction::Write(fact("/srv/a")));
    assert!(part.covers(&SubAction::Write(PathFact { given: "./a".into(), ..fact("/srv/a") })));
    assert!(!part.covers(&SubAction::Read(fact("/srv/a"))), "reading is something else");
    assert!(!part.covers(&SubAction::Write(PathFact { trouble: Some("odd".into()), ..fact("/srv/a") })));
    let nowhere = PathFact { resolved: None, ..fact("/srv/a") };
    assert!(!Part::Exactly(SubAction::Write(nowhere.clone())).covers(&SubAction::Write(nowhere)));
}

#[test]
fn a_wider_part_ends_at_its_words_and_its_directory() {
    let part = Part::Program {
        program: "npm".into(),
        file: "/usr/bin/npm".into(),
        words: vec!["run".into()],
        directory: "/srv/app".into(),
    };
    let covers = |command: Command| part.covers(&SubAction::Run(command));
    assert!(covers(run(&["npm", "run", "lint"], "/srv/app/web")));
    assert!(!covers(run(&["npm"], "/srv/app")));
    assert!(!covers(run(&["npm", "publish"], "/srv/app")));
    assert!(!covers(run(&["npm", "run", "lint"], "/srv/application")));
    assert!(!covers(Command { is_local: true, ..run(&["npm", "run"], "/srv/app") }));
    assert!(!covers(Command { is_piped: true, ..run(&["npm", "run"], "/srv/app") }));
    // One file that is many programs.
    assert!(!covers(Command { program: "npx".into(), ..run(&["npm", "run"], "/srv/app") }));

    let part = Part::Beneath { access: Access::Write, directory: "/srv/app".into() };
    assert!(part.covers(&SubAction::Write(fact("/srv/app/a/b"))));
    assert!(!part.covers(&SubAction::Write(fact("/srv/application"))));
    assert!(!part.covers(&SubAction::Read(fact("/srv/app/a"))));
    let protected = PathFact { protected: Some("hooks".into()), ..fact("/srv/app/.git/hooks/x") };
    assert!(!part.covers(&SubAction::Write(protected)));
}

#[test]
fn a_grant_is_for_its_scope_and_no_other() {
    let session = Uuid::now_v7();
    let teams = ["web".to_owned()];
    let here = Asker { session, root: Path::new("/srv"), user: "ann", teams: &teams };
    let elsewhere = Asker { session: Uuid::now_v7(), root: Path::new("/srv/x"), user: "bob", teams: &[] };
    let scopes = [
        Scope::Session(session),
        Scope::Root("/srv".into()),
        Scope::User("ann".into()),
        Scope::Team("web".into()),
    ];
    for scope in scopes {
        let book = book(vec![(grant(scope.clone(), None), 0)]);
        assert!(book.make_use(&here, &[&npm_test()], |_| true).is_some(), "{scope}");
        assert_eq!(book.make_use(&elsewhere, &[&npm_test()], |_| true), None, "{scope}");
        assert_eq!(book.make_use(&here, &[&npm_test()], |_| false), None, "{scope}");
        let both = [&npm_test(), &SubAction::Write(fact("/srv/a"))];
        assert_eq!(book.make_use(&here, &both, |_| true), None, "a part is not covered");
    }
}

#[test]
fn many_at_once_use_a_grant_as_often_as_it_may_be() {
    let given = grant(Scope::User("ann".into()), Some(25));
    let book = book(vec![(given.clone(), 5)]);
    let asker = Asker { session: Uuid::now_v7(), root: Path::new("/"), user: "ann", teams: &[] };
    let numbers: Vec<u64> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..8)
            .map(|_| {
                scope.spawn(|| {
                    let uses = (0..100).filter_map(|_| book.make_use(&asker, &[&npm_test()], |_| true));
                    uses.flatten().map(|used| used.number).collect::<Vec<_>>()
                })
            })
            .collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap_or_default()).collect()
    });
    let mut sorted = numbers;
    sorted.sort_unstable();
    assert_eq!(sorted, (6..=25).collect::<Vec<_>>(), "each number once, and no more");
    assert_eq!(book.get(given.id).map(|(_, uses)| uses), Some(25));
}

#[test]
fn what_is_done_twice_is_used_twice_and_what_is_done_together_once() {
    let asker = Asker { session: Uuid::now_v7(), root: Path::new("/"), user: "ann", teams: &[] };
    let write = SubAction::Write(fact("/srv/a"));
    let given = grant(Scope::User("ann".into()), Some(3));
    let parts = vec![Part::Exactly(npm_test()), Part::Exactly(write.clone())];
    let book = book(vec![(Grant { parts, ..given.clone() }, 0)]);
    let uses = |asked: &[&SubAction]| {
        book.make_use(&asker, asked, |_| true)
            .map(|uses| uses.iter().map(|used| (used.number, used.left)).collect::<Vec<_>>())
    };
    assert_eq!(uses(&[&npm_test(), &write]), Some(vec![(1, Some(2))]));
    assert_eq!(uses(&[&npm_test(), &npm_test(), &npm_test()]), None, "more than there is");
    assert_eq!(uses(&[&npm_test(), &npm_test()]), Some(vec![(3, Some(0))]));
    assert_eq!(uses(&[&write]), None);
    assert_eq!(book.get(given.id).map(|(_, uses)| uses), Some(3));
}

#[test]
fn uses_that_only_the_record_knows_are_saved_and_never_taken_back() {
    let given = grant(Scope::User("ann".into()), Some(25));
    let book = book(vec![(given.clone(), 5)]);
    let uses = |uses| std::collections::HashMap::from([(given.id, uses), (Uuid::now_v7(), 9)]);
    book.were_used(&uses(3));
    assert_eq!(book.take_changed().0, []);
    book.were_used(&uses(7));
    assert_eq!(book.take_changed().0, [Change::Kept(Arc::new(given.clone()), 7)]);
}

#[test]
fn what_has_ended_allows_nothing_and_leaves_nothing() {
    let asker = Asker { session: Uuid::now_v7(), root: Path::new("/"), user: "ann", teams: &[] };
    let scope = || Scope::User("ann".into());
    let over = Grant { expires: SystemTime::now(), ..grant(scope(), None) };
    let book = book(vec![(over.clone(), 0)]);
    assert_eq!(book.make_use(&asker, &[&npm_test()], |_| true), None);
    assert_eq!(book.take_changed().0, [Change::Gone(over.id)]);
    let given = book.give(grant(scope(), None));
    let id = given.map(|grant| grant.id).unwrap_or_default();
    assert!(book.make_use(&asker, &[&npm_test()], |_| true).is_some());
    assert!(book.revoke(id).is_some() && book.revoke(id).is_none());
    assert_eq!(book.make_use(&asker, &[&npm_test()], |_| true), None);
    let own = grant(Scope::Session(asker.session), None);
    let own = book.give(own).map(|grant| grant.id).unwrap_or_default();
    assert_eq!(book.session_deleted(Uuid::now_v7()).len(), 0);
    assert_eq!(book.session_deleted(asker.session).len(), 1);
    assert_eq!(book.get(own), None);
}

#[test]
fn nobody_fills_the_book() {
    let book = book(Vec::new());
    for _ in 0..MOST_OF_SCOPE {
        assert!(book.give(grant(Scope::Team("web".into()), None)).is_ok());
    }
    assert_eq!(book.give(grant(Scope::Team("web".into()), None)), Err(TooMany::OfScope));
    assert!(book.give(grant(Scope::Team("core".into()), None)).is_ok());
}
