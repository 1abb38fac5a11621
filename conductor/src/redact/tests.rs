//! What is replaced, what is not, and that a frame stays a frame.
#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

fn redaction() -> Redaction {
    Redaction::new(&[7; KEY_BYTES], Vec::new())
}

fn redacted(known: &Known, frame: &Value) -> Value {
    let bytes = frame.to_string();
    let out = redaction().frame(known, bytes.as_bytes()).unwrap_or_else(|| bytes.into_bytes());
    serde_json::from_slice(&out).unwrap()
}

fn known(values: &[&str]) -> Known {
    Known::default()
        .with(values.iter().map(|value| Secret { kind: Kind::Env, value: value.as_bytes().to_vec() }))
}

#[test]
fn what_an_editor_hands_over_is_replaced_where_it_stands() {
    let frame = json!({ "jsonrpc": "2.0", "id": 1, "method": "session/new", "params": { "cwd": "/w", "mcpServers": [
        { "name": "a", "command": "npx", "args": ["-y", "srv", "--token", "tok", "--api-key=kkk", "--header",
            "Authorization: Bearer abcdef", "PGPASSWORD=pw", "postgres://u:p4ss@h/db", "--verbose", "plain"],
          "env": [{ "name": "A", "value": "1" }, { "value": "production", "name": "NODE_ENV" }, { "name": "N", "value": 7 },
            { "name": "E", "value": "" }] },
        { "name": "b", "type": "http", "url": "https://me:secret@h/x?apiKey=q1&page=2#f",
          "headers": [{ "name": "Authorization", "value": "Bearer xyz" }, { "name": "Accept", "value": "text/plain" }] },
        { "name": "c", "env": ["K=V"], "headers": { "X-Key": "v" }, "bearerToken": "t0" },
    ] } });
    let got = redacted(&Known::default(), &frame).to_string();
    let mark = |kind, value: &str| redaction().mark(kind, value.as_bytes());
    for (kind, value) in [
        (Kind::McpArg, "tok"),
        (Kind::McpArg, "kkk"),
        (Kind::McpArg, "abcdef"),
        (Kind::McpArg, "pw"),
        (Kind::McpArg, "p4ss"),
        (Kind::McpEnv, "1"),
        (Kind::McpEnv, "production"),
        (Kind::McpEnv, "7"),
        (Kind::McpUrl, "secret"),
        (Kind::McpUrl, "q1"),
        (Kind::McpHeader, "xyz"),
        (Kind::McpHeader, "text/plain"),
        (Kind::McpEnv, "V"),
        (Kind::McpHeader, "v"),
        (Kind::Mcp, "t0"),
    ] {
        assert!(got.contains(&mark(kind, value)), "{value}: {got}");
    }
    for kept in [
        "\"-y\"",
        "\"--token\"",
        "--api-key=<",
        "Authorization: Bearer <",
        "postgres://u:<",
        "@h/db",
        "\"plain\"",
        "\"NODE_ENV\"",
        "\"Bearer <",
        "https://me:<",
        "page=2#f",
        "\"value\":\"\"",
        "\"K=<",
    ] {
        assert!(got.contains(kept), "{kept}: {got}");
    }
}

#[test]
fn what_is_said_to_log_in_is_replaced() {
    for (method, params) in [
        (
            "authenticate",
            json!({ "methodId": "key", "_meta": { "api-key": "short", "gateway": { "headers": { "x": "yy" } } } }),
        ),
        ("_auth/token", json!({ "value": "a1b2c3d4e5" })),
        ("providers/set", json!({ "id": "openai", "baseUrl": "https://h/v1", "headers": { "x": "yy" } })),
    ] {
        let got =
            redacted(&Known::default(), &json!({ "id": 1, "params": params, "method": method })).to_string();
        assert!(!got.contains("short") && !got.contains("a1b2c3d4e5") && !got.contains("\"yy\""), "{got}");
        assert!(got.contains("<secret:auth:"), "{got}");
    }
}

#[test]
fn what_is_said_in_answer_to_a_form_is_replaced() {
    let answer = |content: Value| json!({ "id": 7, "result": { "action": "accept", "content": content } });
    let frame =
        answer(json!({ "password": "letmein", "host": "db.example.com", "otp": 4711, "note": "a1b2c3d4" }));
    let bytes = frame.to_string();
    let got = redaction().said(&Known::default(), bytes.as_bytes()).into_owned();
    let got: Value = serde_json::from_slice(&got).unwrap();
    let content = &got["result"]["content"];
    assert_eq!((&content["host"], &got["result"]["action"]), (&json!("db.example.com"), &json!("accept")));
    for (name, value) in [("password", "letmein"), ("otp", "4711"), ("note", "a1b2c3d4")] {
        assert_eq!(content[name], redaction().mark(Kind::Auth, value.as_bytes()), "{got}");
    }
    let values: Vec<_> = handed_over(bytes.as_bytes()).into_iter().map(|secret| secret.value).collect();
    assert_eq!(values, [b"a1b2c3d4".to_vec()], "those that are worth searching for");
    // Other answers are what they are.
    for other in [
        json!({ "id": 7, "result": { "content": "the action of a file a1b2c3d4" } }),
        json!({ "id": 7, "result": { "action": "cancel" } }),
        json!({ "method": "x", "params": { "action": "accept", "content": { "note": "a1b2c3d4" } } }),
    ] {
        let bytes = other.to_string();
        assert_eq!(*redaction().said(&Known::default(), bytes.as_bytes()), *bytes.as_bytes());
    }
}

#[test]
fn known_values_are_found_in_base64() {
    let encode = |bytes: &[u8]| {
        use base64::Engine as _;
        let standard = base64::engine::general_purpose::STANDARD.encode(bytes);
        [standard, base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(bytes)]
    };
    for value in ["cnry12-aB3dE6gH9jK2mN", "\u{7f}~~~???>>>\u{7f}ÿÿÿ~~~???>>>", "twelve-bytes"] {
        let known = known(&[value]);
        for before in ["", "a", "me", "me:", "user:", "{\"a\":\""] {
            for after in ["", "\n", "!!", ", and more"] {
                for coded in encode(format!("{before}{value}{after}").as_bytes()) {
                    let got = redacted(&known, &json!({ "text": format!("it is {coded} here") })).to_string();
                    assert!(got.contains(&redaction().mark(Kind::Env, value.as_bytes())), "{coded}: {got}");
                    assert!(got.len() < 80 + (before.len() + after.len()) * 2, "{got}");
                }
            }
        }
        let other = encode(b"something else that is as long as it");
        assert!(redaction().frame(&known, json!({ "text": other }).to_string().as_bytes()).is_none());
    }
}

#[test]
fn passwords_that_commands_are_given_are_replaced() {
    for (command, secret) in [
        ("PGPASSWORD=hunter2 psql -h db", "hunter2"),
        ("export MYSQL_PASSWORD='hunter2'", "hunter2"),
        ("docker run -e POSTGRES_PASSWORD=\"s3cret\" postgres", "s3cret"),
        ("mysql --password=letmein app", "letmein"),
        ("tool --user me --password s3cr3t! run", "s3cr3t!"),
        ("curl -u me:hunter2 https://example.com", "hunter2"),
        ("curl -sS -X POST --user 'me:hunter2' https://example.com", "hunter2"),
        ("curl -H 'Authorization: Bearer aB3dE6gH9jK2mN5p' https://example.com", "aB3dE6gH9jK2mN5p"),
    ] {
        for text in [command.to_owned(), json!({ "command": command }).to_string()] {
            let got = redacted(&Known::default(), &json!({ "rawInput": { "command": text } })).to_string();
            assert!(!got.contains(secret) && got.contains("<secret:token:"), "{text}: {got}");
        }
    }
    for text in [
        "the --password option and --password to be asked; --password=$PW, --password=<password>",
        "PGPASSWORD=$PW psql; PASSWORD= make; PASSWORD=process.env.PASSWORD; DB_PASSWORD=${PASSWORD}",
        "curl -u user:password https://h, curl -u me https://h:80 and curl -u $ME:$PW",
        "curl -sS https://example.com:8080/a -o b",
        "servers \"author\" and \"authors\"",
    ] {
        let frame = json!({ "text": text });
        assert_eq!(redacted(&Known::default(), &frame), frame, "{text}");
    }
}

#[test]
fn known_values_are_found_however_they_are_written() {
    let value = "pa\"ss/w\\ord é\n1x";
    let known = known(&[value]);
    let text = json!({ "text": value });
    let nested = json!({ "text": json!({ "inner": value }).to_string() });
    let deeper = json!({ "text": json!({ "inner": json!([value]).to_string() }).to_string() });
    for frame in [&text, &nested, &deeper] {
        let got = redacted(&known, frame).to_string();
        assert!(got.contains(&redaction().mark(Kind::Env, value.as_bytes())), "{got}");
        assert!(!got.contains("ord"), "{got}");
    }
    // As other encoders write it.
    for raw in [r#"{"t":"pa\"ss\/w\\ord \u00e9\n1x"}"#, r#"{"t":"pa\"ss\/w\\\u006frd \u00E9\n1x"}"#] {
        let got = redaction().frame(&known, raw.as_bytes()).unwrap();
        assert_eq!(
            String::from_utf8_lossy(&got),
            format!(r#"{{"t":"{}"}}"#, redaction().mark(Kind::Env, value.as_bytes()))
        );
    }
    let in_address = json!({ "text": "https://h/?k=pa%22ss%2Fw%5Cord%20%C3%A9%0A1x&b=1" });
    assert!(redacted(&known, &in_address).to_string().contains(">&b=1"));
}

#[test]
fn a_long_value_that_was_cut_is_found_as_far_as_it_goes() {
    let value: String = (0..400).map(|n| char::from(b'a' + (n * 7 % 26) as u8)).collect();
    let frame = json!({ "text": format!("it is {} and so on", &value[..300]) });
    let got = redacted(&known(&[&value]), &frame);
    assert!(got["text"].as_str().unwrap().starts_with("it is <secret:env:"), "{got}");
    assert!(got["text"].as_str().unwrap().ends_with("> and so on"), "{got}");
}

#[test]
fn lines_of_a_value_are_found_alone() {
    let known = known(&["first-l1ne\nsecond-l1ne\nplain"]);
    let text = redaction().text(&known, "x second-l1ne y plain").into_owned();
    assert!(text.starts_with("x <secret:env:") && text.ends_with("> y plain"), "{text}");
}

#[test]
fn tokens_are_known_by_their_looks() {
    let letters = "aB3dE6gH9jK2mN5pQ8sT1vW4yZ7aB3dE6gH9jK2mN5pQ8sT1vW4yZ7aB3dE6gH9jK2mN5pQ8";
    let digits: String =
        letters.bytes().map(|byte| char::from(b"0123456789abcdef"[usize::from(byte % 16)])).collect();
    let cut = |start: &str, n: usize| format!("{start}{}", &letters[..n]);
    let tokens = [
        cut("sk-", 48),
        cut("sk-ant-api03-", 60),
        cut("sk-proj-", 60),
        cut("ghp_", 36),
        cut("github_pat_", 40),
        cut("glpat-", 20),
        cut("xoxb-123456789012-", 24),
        "AKIAIOSFODNN7EXAMPLE".into(),
        cut("AIza", 35),
        cut("ya29.", 40),
        cut("sk_live_", 24),
        cut("npm_", 36),
        cut("hf_", 34),
        cut("gsk_", 52),
        cut("hvs.", 30),
        format!("dop_v1_{}", &digits[..64]),
        format!("cdt_{}", &digits[..64]),
        format!("eyJ{}.eyJ{}.{}", &letters[..20], &letters[..30], &letters[..43]),
        format!("SG.{}.{}", &letters[..22], &letters[..43]),
    ];
    for token in &tokens {
        for text in [
            token.clone(),
            format!("key={token}"),
            format!("a\n{token}\n"),
            format!("\"{token}\","),
            format!("({token})"),
        ] {
            let got = redacted(&Known::default(), &json!({ "method": "x", "params": { "text": text } }))
                .to_string();
            assert!(!got.contains(token.as_str()) && got.contains("<secret:token:"), "{text}: {got}");
            assert!(!redaction().text(&Known::default(), &text).contains(token.as_str()), "{text}");
        }
    }
    let key =
        format!("-----BEGIN RSA PRIVATE KEY-----\n{letters}\n{letters}\n-----END RSA PRIVATE KEY-----\n");
    let header = format!("curl -H 'Authorization: Bearer {}' x", &letters[..30]);
    let basic = "Authorization: Basic dXNlcjpwYXNz";
    let aws = format!("aws_secret_access_key = {}", &letters[..40]);
    let url = "postgres://app:s3cr3t@db/x";
    for (text, secret) in [
        (key.as_str(), &letters[..40]),
        (&json!(key).to_string(), &letters[..40]),
        (&header, &letters[..30]),
        (basic, "dXNlcjpwYXNz"),
        (&aws, &letters[..40]),
        (url, "s3cr3t"),
    ] {
        let got = redacted(&Known::default(), &json!({ "text": text })).to_string();
        assert!(!got.contains(secret) && got.contains("<secret:token:"), "{text}: {got}");
    }
}

#[test]
fn what_is_no_secret_stays() {
    for text in [
        "task-oriented desk-top risk-free ask-me-anything sk-estimator-doc-link sk-toggleable__control-label",
        "the sk-learn library, sk-folding-cube and sk-cube-grid-animation-delay-loop classes",
        "commit 3f2a9c4b5d6e7f8091a2b3c4d5e6f708192a3b4c and sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
        "01a1e59e-36a4-77fa-9541-e2cf6575c745 550E8400-E29B-41D4-A716-446655440000",
        "/home/me/src/task-1234567890abcdefghij/sk-build/xoxo/AKIAB.txt",
        "git@github.com:acme/app.git ssh://git@host/x https://example.com/a@b:c file:///home/me/a:b@c",
        "postgres://user:password@localhost/db and https://user:$TOKEN@h and redis://:<password>@h and http://a:***@h",
        "Bearer tokens are used for authorization: bearer authentication-is-required-here",
        "use the Authorization header; authorization: none; the token is eyJ",
        "-----BEGIN CERTIFICATE-----\nMIIBszCCAVmgAwIBAgIUQ\n-----END CERTIFICATE-----",
        "-----BEGIN PUBLIC KEY-----\nMFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAE\n-----END PUBLIC KEY-----",
        "a file begins with `-----BEGIN PRIVATE KEY-----` and has no more",
        "npm_config_registry=https://r/ npm_lifecycle_event hf_hub_download xoxo-loves-you ghp_ AIza",
        "import { mcpServers } from './config'; const password = process.env.PASSWORD;",
        "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==",
        "SG.something hvs.x cdt_ dop_v1_ lin_api_ pypi-server whsec_ xai-org/grok pplx-api nvapi-doc glpat-",
        "<secret:env:0123abcd> stays, and <secret:x> too",
        "ユニコード 🎉 \u{7f} \\u0073k-",
    ] {
        let frame =
            json!({ "method": "session/update", "params": { "update": { "content": { "text": text } } } });
        assert_eq!(redacted(&known(&["not-in-there-1"]), &frame), frame, "{text}");
        assert_eq!(redaction().text(&Known::default(), text), text);
    }
}

#[test]
fn an_id_that_looks_like_a_token_stays_what_others_are_found_by() {
    let id = "sk-aB3dE6gH9jK2mN5pQ8sT1vW4yZ7aB3dE6gH9";
    let frame = json!({ "id": id, "method": "x", "params": { "sessionId": id, "text": id } });
    let got = redacted(&Known::default(), &frame);
    assert_eq!((&got["id"], &got["params"]["sessionId"]), (&json!(id), &json!(id)));
    assert_ne!(got["params"]["text"], json!(id));
    // A secret that is known stays nowhere.
    let got = redacted(&known(&[id]), &frame);
    assert_ne!(got["params"]["sessionId"], json!(id));
}

#[test]
fn tags_tell_equal_secrets_from_others() {
    let redaction = redaction();
    let tag = |mark: String| mark[mark.len() - 9..mark.len() - 1].to_owned();
    let (a, b) = (tag(redaction.mark(Kind::Env, b"one")), tag(redaction.mark(Kind::McpEnv, b"one")));
    assert_eq!(a, b);
    assert_ne!(a, tag(redaction.mark(Kind::Env, b"two")));
    assert_ne!(a, tag(Redaction::new(&[8; KEY_BYTES], Vec::new()).mark(Kind::Env, b"one")));
}

#[test]
fn what_is_no_json_is_text() {
    let known = known(&["canary-1234"]);
    let got = redaction().frame(&known, b"panic: \"canary-1234\" {").unwrap();
    assert!(got.starts_with(b"panic: \"<secret:env:") && got.ends_with(b">\" {"));
    for text in [
        "a=&> and canary-1234 then",
        "1 canary-1234",
        "true canary-1234",
        "{} canary-1234",
        "[1]canary-1234",
        "-canary-1234",
    ] {
        let got = redaction().frame(&known, text.as_bytes()).unwrap();
        assert!(!String::from_utf8_lossy(&got).contains("canary"), "{text}");
    }
}

#[test]
fn patterns_of_the_configuration_count_as_well() {
    let redaction = Redaction::new(&[7; KEY_BYTES], vec![Regex::new(r"ACME-[0-9]{6}").unwrap()]);
    let got = redaction.frame(&Known::default(), br#"{"t":"x ACME-123456 y"}"#).unwrap();
    assert!(String::from_utf8_lossy(&got).contains("<secret:pattern:"));
    let got = redaction.frame(&Known::default(), br#"{"t":"x AC\u004dE-123456 y"}"#).unwrap();
    assert!(String::from_utf8_lossy(&got).contains("x <secret:pattern:"));
    assert!(redaction.frame(&Known::default(), br#"{"t":"x ACME-12345 y"}"#).is_none());
}

#[test]
fn secrets_of_a_file_are_its_values() {
    let values = |content: &str| {
        let found = Secret::in_file(Kind::File, content.as_bytes());
        found.into_iter().map(|secret| String::from_utf8(secret.value).unwrap()).collect::<Vec<_>>()
    };
    assert_eq!(values(r#"{"a":{"token":"abcdefgh"},"u":"https://h/","n":1}"#), ["abcdefgh"]);
    assert_eq!(
        values("[default]\naws_access_key_id = AK12345678\naws_secret_access_key = abc/def+gh1\n"),
        ["AK12345678", "abc/def+gh1",]
    );
    assert_eq!(values("machine h login me password s3cr3t-1\n"), ["s3cr3t-1"]);
    assert_eq!(values("one-long-t0ken\n"), ["one-long-t0ken", "one-long-t0ken"]);
}

/// Arbitrary JSON, with secrets here and there.
fn json_value() -> impl Strategy<Value = Value> {
    let text = prop_oneof![
        4 => "\\PC{0,24}",
        2 => "[ -~]{0,40}",
        1 => Just("canary-0123456789".to_owned()),
        1 => "[a-z\"\\\\ ]{0,6}canary-0123456789[a-z\"\\\\ ]{0,6}",
        1 => "(Bearer |sk-|ghp_|eyJ|https://a:b|mcpServers|<secret:env:0)[A-Za-z0-9@./:>_-]{0,60}",
    ];
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        text.prop_map(Value::from),
    ];
    leaf.prop_recursive(5, 48, 6, |inner| {
        let name = prop_oneof![
            "[a-zA-Z]{0,8}",
            prop::sample::select(vec![
                "mcpServers",
                "env",
                "headers",
                "args",
                "url",
                "name",
                "value",
                "params",
                "method",
                "id",
                "_meta",
                "canary-0123456789",
            ])
            .prop_map(str::to_owned),
        ];
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..6).prop_map(Value::from),
            prop::collection::vec((name, inner), 0..6)
                .prop_map(|members| Value::Object(members.into_iter().collect())),
        ]
    })
}

proptest! {
    #[test]
    fn a_frame_stays_json_and_nothing_is_replaced_twice(value in json_value()) {
        let known = known(&["canary-0123456789"]);
        let redaction = redaction();
        let frame = value.to_string();
        let out = redaction.frame(&known, frame.as_bytes()).unwrap_or_else(|| frame.clone().into_bytes());
        let read: Value = serde_json::from_slice(&out).unwrap();
        prop_assert!(redaction.frame(&known, &out).is_none(), "{}", String::from_utf8_lossy(&out));
        let is_array = |value: &Value| value.is_array();
        prop_assert_eq!(is_array(&read), is_array(&value));
        // Only a name of the envelope may hold it.
        let inner = value.as_object().map_or_else(|| read.to_string(), |members| {
            let read = read.as_object().unwrap();
            let values = members.keys().filter(|name| !matches!(name.as_str(), "id" | "method" | "jsonrpc"));
            values.map(|name| read[name].to_string()).collect()
        });
        prop_assert!(!inner.contains("canary-0123456789"), "{inner}");
    }

    #[test]
    fn any_bytes_are_taken(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let known = known(&["canary-0123456789"]);
        if let Some(out) = redaction().frame(&known, &bytes) {
            prop_assert!(redaction().frame(&known, &out).is_none());
        }
    }
}
