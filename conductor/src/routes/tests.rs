//! Decisions, case by case.

#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

use super::*;
use crate::{catalogue::Offer, options::Choice};

/// A configuration of three agents with these routes.
fn config(routes: &str) -> Config {
    let text = format!(
        "default = \"a\"\n{routes}\n[agents.a]\ncommand = \"a\"\nlabels = {{ tier = \"fast\" }}\n[agents.b]\n\
         command = \"b\"\nlabels = {{ tier = \"fast\" }}\nmodels = {{ b1 = {{ aliases = \"best\" }} }}\n[agents.c]\n\
         command = \"c\"\n"
    );
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("agents.toml");
    std::fs::write(&file, text).unwrap();
    let home = [("HOME".into(), "/nowhere".into())];
    Config::load(Some(&file), home).unwrap().config
}

fn offers() -> Offers {
    let choice = |value: &&str| Choice { value: (*value).into(), name: (*value).into(), description: None };
    let offer = |models: &[&str], modes: &[&str]| Offer {
        models: models.iter().map(choice).collect(),
        modes: modes.iter().map(choice).collect(),
        ..Offer::default()
    };
    [
        ("a".into(), offer(&["a1", "vendor/x"], &["plan"])),
        ("b".into(), offer(&["b1", "b2"], &["plan", "review"])),
        ("c".into(), offer(&[], &[])),
    ]
    .into()
}

/// What comes of it: the agents in order with what they are set to, and how.
#[track_caller]
fn decided(config: &Config, ask: impl FnOnce(&mut Asked<'_>)) -> (Vec<String>, Decision) {
    let (labels, offers) = (BTreeMap::new(), offers());
    let teams = ["web".to_owned()];
    let mut asked = Asked {
        user: "ann",
        teams: &teams,
        cwd: Path::new("/srv/shop/api"),
        labels: &labels,
        agent: None,
        model: None,
        mode: None,
        last: None,
        bound: None,
    };
    ask(&mut asked);
    let busy = |agent: &str| if agent == "a" { 2 } else { 1 };
    let decision = decide(&asked, &Field { config, offers: &offers, busy: &busy }).unwrap();
    let shown = |target: &Target| {
        let set = [&target.model, &target.mode].map(|set| set.as_deref().unwrap_or("-").to_owned());
        format!("{} {} {}{}", target.agent, set[0], set[1], if target.is_fallback { " else" } else { "" })
    };
    (decision.targets.iter().map(shown).collect(), decision)
}

#[test]
fn who_names_an_agent_gets_it() {
    let config =
        config("[[route]]\nto = \"c\"\nfallback = \"b\"\n[[route]]\nto = \"b\"\nfallback = [\"a\", \"b\"]");
    for (model, wanted) in [
        ("acp:b", "b - -"),
        ("acp:b/b2", "b b2 -"),
        ("b/b1", "b b1 -"),
        ("b/best", "b b1 -"),
        ("b/unheard-of", "b unheard-of -"),
        ("b", "b - -"),
    ] {
        let (targets, decision) = decided(&config, |asked| asked.model = Some(model));
        assert_eq!((targets[0].as_str(), decision.how), (wanted, How::Named), "{model}");
        // The route that leads there says where else it may go.
        assert_eq!((targets.len(), targets[1].starts_with("a ")), (2, true), "{model}: {targets:?}");
    }
    let (targets, _) = decided(&config, |asked| (asked.agent, asked.model) = (Some("a"), Some("a1")));
    assert_eq!(targets, ["a a1 -"]);
    // The name of a vendor is not that of an agent.
    let (targets, decision) = decided(&config, |asked| asked.model = Some("vendor/x"));
    assert_eq!((targets[0].as_str(), decision.how), ("c vendor/x -", How::Route));
}

#[test]
fn names_that_are_none_are_refused() {
    let (config, offers, labels) = (config(""), offers(), BTreeMap::new());
    for (agent, model) in [(Some("x"), None), (None, Some("acp:x")), (None, Some("acp:x/m"))] {
        let asked = Asked {
            user: "ann",
            teams: &[],
            cwd: Path::new("/"),
            labels: &labels,
            agent,
            model,
            mode: None,
            last: None,
            bound: None,
        };
        let field = Field { config: &config, offers: &offers, busy: &|_| 0 };
        let refused = decide(&asked, &field).unwrap_err().to_string();
        assert!(refused.starts_with("there is no agent `x`; the agents are: a, b, c"), "{refused}");
    }
}

#[test]
fn the_first_route_that_matches_counts() {
    let config = config(
        "[[route]]\nmodel = \"b*\"\nto = \"b\"\n\
         [[route]]\nname = \"reviews\"\nmode = [\"review\", \"audit\"]\nto = \"b\"\nset = { model = \"b2\" }\n\
         [[route]]\nuser = \"bob\"\nto = \"b\"\n\
         [[route]]\nteam = \"core-*\"\nto = \"b\"\n\
         [[route]]\ncwd = \"/srv/shop-old\"\nto = \"b\"\n\
         [[route]]\nlabels = { urgent = \"yes\" }\nto = \"b\"\n\
         [[route]]\ncwd = [\"/srv/*/api\", \"/opt\"]\nteam = \"w*\"\nto = \"c\"\nfallback = \"a\"\n",
    );
    let (targets, decision) = decided(&config, |asked| asked.model = Some("b2"));
    assert_eq!((targets, decision.route.as_deref()), (vec!["b b2 -".to_owned()], Some("1")));
    let (targets, decision) = decided(&config, |asked| asked.mode = Some("audit"));
    assert_eq!((targets, decision.route.as_deref()), (vec!["b b2 -".to_owned()], Some("reviews")));
    let (targets, decision) = decided(&config, |_| {});
    assert_eq!(targets, ["c - -", "a - - else"]);
    assert_eq!(decision.route.as_deref(), Some("7"));
    let why: Vec<_> = decision.steps.iter().map(|step| (step.matches, step.why.as_str())).collect();
    assert_eq!(
        why,
        [
            (false, "no model was chosen"),
            (false, "no mode was chosen"),
            (false, "user `ann` is not `bob`"),
            (false, "the user is in no team that is `core-*`"),
            (false, "/srv/shop/api does not lie in `/srv/shop-old`"),
            (false, "the request has no label urgent = `yes`"),
            (true, "it is for team `w*`, cwd `/srv/*/api` or `/opt`"),
        ]
    );
    let labels = Box::leak(Box::new([("urgent".to_owned(), "yes".to_owned())].into()));
    let (targets, _) = decided(&config, |asked| asked.labels = labels);
    assert_eq!(targets, ["b - -"]);
}

#[test]
fn the_last_choice_wins() {
    let config = config("[[route]]\nmode = \"audit\"\nto = \"c\"\n");
    let both = |last| {
        decided(&config, move |asked| {
            (asked.model, asked.mode, asked.last) = (Some("b/b1"), Some("audit"), Some(last));
        })
    };
    assert_eq!(both(Category::Mode).0, ["c - -"]);
    assert_eq!(both(Category::Model).0, ["b b1 -"]);
    // A mode without a route stays with the agent that was named.
    let (targets, _) = decided(&config, |asked| {
        (asked.model, asked.mode, asked.last) = (Some("b/b1"), Some("review"), Some(Category::Mode));
    });
    assert_eq!(targets, ["b b1 review"]);
}

#[test]
fn without_a_route_the_model_then_the_session_then_the_default_counts() {
    let config = config("");
    let (targets, decision) = decided(&config, |asked| (asked.model, asked.bound) = (Some("b1"), Some("c")));
    assert_eq!((targets, decision.how), (vec!["b b1 -".to_owned()], How::Model));
    let (targets, decision) =
        decided(&config, |asked| (asked.mode, asked.bound) = (Some("review"), Some("b")));
    assert_eq!((targets, decision.how), (vec!["b - review".to_owned()], How::Bound));
    let (targets, decision) = decided(&config, |_| {});
    assert_eq!((targets, decision.how), (vec!["a - -".to_owned()], How::Default));
    // Whoever gets a model that nobody has will say so.
    let (targets, _) = decided(&config, |asked| asked.model = Some("unheard-of"));
    assert_eq!(targets, ["a unheard-of -"]);
}

#[test]
fn one_of_several_is_picked() {
    let busy =
        config("[[route]]\nto = \"label:tier=fast\"\npick = \"least-busy\"\nfallback = [\"b\", \"c\"]");
    assert_eq!(decided(&busy, |_| {}).0, ["b - -", "a - -", "c - - else"]);
    // Nobody is moved for it.
    assert_eq!(decided(&busy, |asked| asked.bound = Some("a")).0, ["a - -", "b - -", "c - - else"]);
    let first = config("[[route]]\nto = [\"a\", \"b\"]");
    assert_eq!(decided(&first, |_| {}).0, ["a - -", "b - -"]);
    assert_eq!(decided(&first, |asked| asked.model = Some("b2")).0, ["b b2 -", "a - -"]);
}

#[test]
fn modes_of_routes_are_known() {
    let config = config(
        "[[route]]\nmode = [\"audit\", \"x*\"]\nto = \"c\"\n[[route]]\nuser = \"bob\"\nmode = \"other\"\nto = \"c\"\n",
    );
    let labels = BTreeMap::new();
    let asked = Asked {
        user: "ann",
        teams: &[],
        cwd: Path::new("/"),
        labels: &labels,
        agent: None,
        model: None,
        mode: None,
        last: None,
        bound: None,
    };
    assert_eq!(routed_modes(&asked, &config), ["audit"]);
}
