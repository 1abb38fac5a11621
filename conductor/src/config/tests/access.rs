//! TLS, certificates and the issuer: what is taken, and what is refused where.

use super::*;

/// The commented-out tables of the ways in, made real.
fn example() -> String {
    let tables = ["# [service.tls]", "# [identity.certificates]", "# [identity.oidc]"];
    let table = |start: &str| {
        let lines = DEFAULTS[DEFAULTS.find(start).unwrap()..].lines();
        lines
            .take_while(|line| !line.is_empty())
            .map(|line| format!("{}\n", line.strip_prefix("# ").unwrap_or(line)))
            .collect::<String>()
    };
    tables.map(table).concat()
}

#[test]
fn the_defaults_show_every_way_in_and_the_true_defaults() {
    let config = Fixture::new().text(&example()).unwrap();
    assert!(config.service.tls.pair().is_some() && config.identity.oidc.is_on());
    let text = example();
    let table: toml::Table = toml::from_str(&text).unwrap();
    for (path, place) in [
        ("service.tls", &table["service"]["tls"]),
        ("identity.certificates", &table["identity"]["certificates"]),
        ("identity.oidc", &table["identity"]["oidc"]),
    ] {
        let refused = Fixture::new().refusal(format!("[{path}]\nzzzzzzzz = 1\n"));
        let known: BTreeSet<_> =
            refused.split_once("keys here: ").unwrap().1.split(", ").map(str::to_owned).collect();
        let shown: BTreeSet<_> = place.as_table().unwrap().keys().cloned().collect();
        assert_eq!(shown, known, "{path}");
    }
    // What is called a default is one.
    let stated: String = text
        .lines()
        .filter(|line| line.starts_with('[') || line.contains("# default;"))
        .map(|line| format!("{line}\n"))
        .collect();
    let whole = "[service.tls]\ncert = \"/c\"\nkey = \"/k\"\nclient_ca = \"/a\"\n";
    let stated = stated.replace("[service.tls]\n", whole);
    let (stated, bare) = (Fixture::new().text(&stated).unwrap(), Fixture::new().text(whole).unwrap());
    assert_eq!(stated.service.tls, bare.service.tls);
    assert_eq!(stated.identity, bare.identity);
    assert_eq!(stated.identity.oidc.keys_max_age, Duration::from_secs(86_400));
}

fn refuses(text: &str, place: &str, what: &str, hint: &str) {
    let refused = Fixture::new().refusal(text);
    assert!(refused.starts_with(&format!("test.toml:{place}: ")), "{refused}");
    assert!(refused.contains(what) && refused.contains(hint), "{refused}");
}

#[test]
fn half_a_way_in_is_refused() {
    let pair = "[service.tls]\ncert = \"/c\"\nkey = \"/k\"\n";
    Fixture::new().text(&format!("[service]\nlisten = \"0.0.0.0:1\"\n{pair}")).unwrap();
    refuses("[service.tls]\ncert = \"/c\"\n", "2:8", "needs both", "both as PEM");
    refuses("[service.tls]\nkey = \"k\"\n", "2:7", "relative path", "from `/`");
    refuses(&format!("{pair}client_auth = \"required\"\n"), "4:15", "certificates of clients", "client_ca");
    refuses(&format!("{pair}client_auth = \"always\"\n"), "4:15", "`always`", "\"required\"");
    refuses("[service.tls]\nclient_ca = \"/a\"\n", "2:13", "certificates of clients", "client_ca");
    refuses(
        "[identity.certificates.users.\"ann@a\"]\nuser = \"ann\"\n",
        "1:11",
        "nobody can present",
        "client_ca",
    );
    let with_ca = format!("{pair}client_ca = \"/a\"\n[identity.certificates.users.ann]\n");
    refuses(&format!("{with_ca}role = \"god\"\n"), "6:8", "no role `god`", "developer");
    refuses(&format!("{with_ca}teams = [\"a,b\"]\n"), "6:9", "comma", "correct the list");
    refuses(&format!("{with_ca}user = \"\"\n"), "5:30", "name of a user is missing", "give a `user`");
}

#[test]
fn an_issuer_is_named_whole_and_reached_by_tls() {
    let oidc = |rest: &str| format!("[identity.oidc]\n{rest}\n");
    let good = "issuer = \"https://i.example\"\naudience = \"us\"";
    Fixture::new().text(&oidc(good)).unwrap();
    Fixture::new().text(&oidc(&good.replace("https://i.example", "http://127.0.0.1:8080/x"))).unwrap();
    refuses(&oidc("issuer = \"https://i.example\""), "2:10", "without `audience`", "client or API");
    refuses(&oidc("audience = \"us\""), "2:12", "issuer is missing", "https://");
    for wrong in
        ["http://i.example", "i.example", "ftp://127.0.0.1", "https://i.example?x=1", "https://u@i.example"]
    {
        refuses(&oidc(&good.replace("https://i.example", wrong)), "2:10", "`", "loopback alone");
    }
    refuses(&oidc(&format!("{good}\nroles = {{ a = \"god\" }}")), "4:15", "no role `god`", "admin");
    refuses(&oidc(&format!("{good}\ndefault_role = \"none\"")), "4:16", "no role `none`", "admin");
    Fixture::new().text(&oidc(&format!("{good}\ndefault_role = \"\""))).unwrap();
    refuses(&oidc(&format!("{good}\nkeys_max_age = \"0s\"")), "4:16", "must not be zero", "30s");
    refuses(&oidc(&format!("{good}\nuser_claim = \"\"")), "4:14", "no claim names the user", "sub");
}
