//! Which names speak of a secret, and which values are plainly none. No list is complete, so
//! a value counts as a secret unless it is plainly something else.

/// What names of secrets have in them, once what joins their words is left out.
const SECRET_WORDS: &[&str] = &[
    "token",
    "secret",
    "password",
    "passwd",
    "passphrase",
    "passwort",
    "apikey",
    "accesskey",
    "privatekey",
    "signingkey",
    "encryptionkey",
    "masterkey",
    "licensekey",
    "credential",
    "cookie",
    "bearer",
    "jwt",
    "connectionstring",
    "databaseurl",
    "webhook",
    "signature",
    "authkey",
];

/// Names, or last words of names, that are one.
const SECRET_ENDS: &[&str] =
    &["key", "auth", "authorization", "pat", "pass", "pw", "pwd", "dsn", "pin", "otp", "creds"];

/// Variables that end like a secret's name and hold none.
const HARMLESS: &[&str] = &["pwd", "oldpwd"];

/// Shorter values are not searched for: they would be found in words that mean nothing.
pub(super) const SHORTEST: usize = 8;

/// Letters or digits in a row that a word of some language may have.
const LONGEST_WORD: usize = 20;

/// Whether a name (of a variable, a header, a flag, a parameter) says that its value is a
/// secret.
pub fn speaks_of_secret(name: &str) -> bool {
    let name = name.trim_start_matches('-');
    if HARMLESS.iter().any(|harmless| name.eq_ignore_ascii_case(harmless)) {
        return false;
    }
    let mut joined = String::with_capacity(name.len());
    let mut last = 0;
    let mut before = ' ';
    for c in name.chars() {
        let begins = !c.is_ascii_alphanumeric() || (c.is_ascii_uppercase() && before.is_ascii_lowercase());
        if begins {
            last = joined.len();
        }
        if c.is_ascii_alphanumeric() {
            joined.push(c.to_ascii_lowercase());
        }
        before = c;
    }
    SECRET_WORDS.iter().any(|word| joined.contains(word))
        || SECRET_ENDS.iter().any(|end| &joined[last..] == *end || joined == *end)
}

/// Whether a value is plainly no secret: a path, an address without credentials, numbers and
/// words. What mixes letters and digits, or has signs that no word has, may be one.
pub(super) fn is_ordinary(value: &str) -> bool {
    let is_path = ["/", "~/", "./", "../", "file://"].iter().any(|start| value.starts_with(start));
    if is_path {
        return !value.contains(char::is_whitespace) || value.len() < 256;
    }
    if let Some((scheme, rest)) = value.split_once("://")
        && scheme.bytes().all(|byte| byte.is_ascii_alphanumeric())
    {
        let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
        return !authority.contains('@') && !rest.contains(['?', '#']) && segments_are_words(rest);
    }
    segments_are_words(value)
}

fn segments_are_words(value: &str) -> bool {
    let is_joint = |c: char| " -_./:,;=~@+()[]\t\n".contains(c);
    value.split(is_joint).all(|segment| {
        segment.len() <= LONGEST_WORD
            && (segment.bytes().all(|byte| byte.is_ascii_digit())
                || segment.bytes().all(|byte| byte.is_ascii_alphabetic()))
    })
}

/// Whether a value is worth searching for wherever it may turn up later.
pub(super) fn is_searched(name: &str, value: &str) -> bool {
    value.len() >= SHORTEST && (speaks_of_secret(name) || !is_ordinary(value))
}

/// Whether a text has a stretch that only a generator makes: letters and digits, mixed.
pub(super) fn is_dense(text: &[u8], least: usize) -> bool {
    text.split(|byte| !byte.is_ascii_alphanumeric()).any(|run| {
        run.len() >= least && run.iter().any(u8::is_ascii_digit) && run.iter().any(u8::is_ascii_alphabetic)
    })
}

/// Whether a value only says where the secret is, or is none at all.
pub(super) fn is_reference(value: &str) -> bool {
    value.is_empty() || value.starts_with('$')
}

/// Whether somebody has left a blank there for a secret to be put in.
pub(super) fn is_blank(value: &str) -> bool {
    const NAMES: &[&str] = &["password", "passwd", "pass", "pwd", "secret", "token", "user", "redacted"];
    value.is_empty()
        || value.starts_with(['$', '{', '%', '<', '['])
        || value.bytes().all(|byte| matches!(byte, b'*' | b'x' | b'X' | b'.' | b'-'))
        || NAMES.iter().any(|name| value.eq_ignore_ascii_case(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_secrets_are_known() {
        for name in [
            "API_KEY",
            "apiKey",
            "OPENAI_API_KEY",
            "X-Api-Key",
            "Authorization",
            "GITHUB_TOKEN",
            "--token",
            "dbPassword",
            "DB_PASS",
            "client_secret",
            "SENTRY_DSN",
            "Cookie",
            "AUTH",
            "GH_PAT",
            "DATABASE_URL",
            "MYSQL_PWD",
            "key",
        ] {
            assert!(speaks_of_secret(name), "{name}");
        }
        for name in [
            "PATH",
            "HOME",
            "PWD",
            "NODE_ENV",
            "LOG_LEVEL",
            "author",
            "keyboard",
            "monkey",
            "Content-Type",
            "Accept",
            "compass",
            "LANG",
            "DEBUG",
            "--port",
            "patch",
            "spin",
        ] {
            assert!(!speaks_of_secret(name), "{name}");
        }
    }

    #[test]
    fn what_is_plainly_no_secret_is_known() {
        for value in [
            "production",
            "/home/me/app2/bin",
            "true",
            "8080",
            "en_US.UTF-8",
            "claude-sonnet-4-5",
            "localhost:5432",
            "https://mcp.example.com/sse",
            "application/json, text/plain",
            "debug",
            "info,hyper=warn",
            "~/x1y2z3",
        ] {
            assert!(is_ordinary(value), "{value}");
        }
        for value in [
            "hunter2!",
            "a1b2c3d4e5f6",
            "p@ss!word",
            "https://me:pw@host/",
            "https://host/?key=abc",
            "AKIAX1Y2",
            "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
        ] {
            assert!(!is_ordinary(value), "{value}");
        }
    }
}
