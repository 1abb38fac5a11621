//! Can people come in: the certificate and its key, the CAs of theirs, the
//! issuer of their tokens.

use std::{
    path::Path,
    time::{Duration, SystemTime},
};

use serde_json::json;

use super::report::{Check, Verdict};
use crate::{
    clock::{rfc3339, span},
    config::{Config, Oidc, Tls},
    identity::oidc,
    tls::{
        files::{TlsError, roots},
        listener::{SOON, Served},
    },
};

/// What is to be said about the ways in; nothing about those that are not
/// configured, except that.
pub(super) async fn check(config: &Config) -> Vec<Check> {
    let mut checks = vec![certificate(config)];
    if let Some(file) = &config.service.tls.client_ca {
        checks.push(client_ca(file, &config.service.tls));
    }
    if config.identity.oidc.is_on() {
        checks.push(issuer(&config.identity.oidc).await);
    }
    checks
}

fn certificate(config: &Config) -> Check {
    let check = |verdict, detail: String| Check::new("access", "tls", verdict, detail);
    let Some((cert, _)) = config.service.tls.pair() else {
        return check(Verdict::Info, "off; the service is for this host alone".to_owned());
    };
    // The CAs of clients have a line of their own.
    let alone = Tls { client_ca: None, ..config.service.tls.clone() };
    let served = match Served::read(&alone) {
        Ok(Some(served)) => served,
        Ok(None) => return check(Verdict::Info, "off".to_owned()),
        Err(error) => return refused(check(Verdict::Broken, String::new()), &error),
    };
    let until = rfc3339(served.until).unwrap_or_default();
    let left = served.until.duration_since(SystemTime::now()).unwrap_or(Duration::ZERO);
    let detail = format!("{}, good until {until} ({} from now)", cert.display(), span(left));
    let data = json!({ "cert": cert, "expires": until, "left_seconds": left.as_secs() });
    if left < SOON {
        return check(Verdict::Info, detail)
            .remedy("renew it soon; new files are taken up without a restart")
            .data(data);
    }
    check(Verdict::Fine, detail).data(data)
}

fn client_ca(file: &Path, tls: &Tls) -> Check {
    let check = |verdict, detail: String| Check::new("access", "client certificates", verdict, detail);
    match roots(file) {
        Ok(found) => {
            let (count, auth) = (found.len(), tls.client_auth.name());
            check(Verdict::Fine, format!("{auth}, of {count} CAs in {}", file.display()))
                .data(json!({ "client_ca": file, "client_auth": auth, "cas": count }))
        }
        Err(error) => refused(check(Verdict::Broken, String::new()), &error),
    }
}

async fn issuer(oidc: &Oidc) -> Check {
    let check = |verdict, detail: String| Check::new("access", "oidc", verdict, detail);
    let data = json!({ "issuer": oidc.issuer, "audience": oidc.audience, "jwks_file": oidc.jwks_file });
    match oidc::load(oidc).await {
        Ok(keys) if keys.count() == 0 => {
            let why = format!("{} has no keys that tokens could be signed with", oidc.issuer);
            check(Verdict::Broken, why)
                .remedy("have it give out a key (RS, PS, ES or EdDSA, with a kid); until then its tokens let in nobody")
                .data(data)
        }
        Ok(keys) => {
            let from = oidc.jwks_file.as_ref().map_or_else(String::new, |file| format!(" in {}", file.display()));
            check(Verdict::Fine, format!("{}, {} keys{from}", oidc.issuer, keys.count())).data(data)
        }
        Err(why) => check(Verdict::Broken, why)
            .remedy(
                "see whether the issuer runs and is reached from this host, or name its keys with `jwks_file`; until \
                 then its tokens let in nobody",
            )
            .data(data),
    }
}

/// The last part of such an error is what to do.
fn refused(check: Check, error: &TlsError) -> Check {
    let text = error.to_string();
    let (what, remedy) = text.rsplit_once("; ").unwrap_or((&text, ""));
    Check { detail: what.to_owned(), ..check }.remedy(remedy)
}
