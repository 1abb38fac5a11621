//! What a token says about its bearer, after its signature was found good:
//! whether it is for us and in time, and who that makes the bearer.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::{Map, Value};

use super::LEEWAY;
use crate::{
    config::Oidc,
    identity::{Caller, MOST_TEAMS, Role, check_name},
};

/// What an issuer says about somebody.
#[derive(Debug, Clone)]
pub struct Claims {
    said: Map<String, Value>,
    /// When it says no more.
    pub expires: SystemTime,
}

impl Claims {
    /// Reads what was said; else why it does not count.
    pub(super) fn read(
        said: &Map<String, Value>,
        oidc: &Oidc,
        now: SystemTime,
    ) -> Result<Self, &'static str> {
        is_for(said, oidc)?;
        let expires = moment(said.get("exp").ok_or("a token that never ends")?)?;
        if expires + LEEWAY <= now {
            return Err("expired");
        }
        for begins in ["nbf", "iat"] {
            if let Some(begins) = said.get(begins)
                && moment(begins)? > now + LEEWAY
            {
                return Err("a token whose time has not come");
            }
        }
        Ok(Self { said: said.clone(), expires })
    }

    /// Who that is; else why nobody, which is for the log alone. Asked again when the
    /// configuration has changed, so that everything in it counts which does so for a
    /// new token.
    pub fn caller(&self, oidc: &Oidc) -> Result<Caller, &'static str> {
        is_for(&self.said, oidc)?;
        for (claim, wanted) in &oidc.require {
            let found = self.get(claim).ok_or("a token without a claim that is required")?;
            let is_so = match found {
                Value::Bool(_) | Value::Number(_) => {
                    serde_json::from_str::<Value>(wanted).is_ok_and(|wanted| wanted == *found)
                }
                found => texts(found).is_some_and(|texts| texts.contains(&wanted.as_str())),
            };
            if !is_so {
                return Err("a token in which a required claim says something else");
            }
        }
        let user = self.get(&oidc.user_claim).and_then(Value::as_str).ok_or("a token that names no user")?;
        check_name("user", user).map_err(|_| "a token whose user cannot be called so")?;
        // Some issuers say it as a text.
        let is_verified = match self.said.get("email_verified") {
            None | Some(Value::Bool(true)) => true,
            Some(said) => said == "true",
        };
        if oidc.user_claim == "email" && !is_verified {
            return Err("a token with a mail address that nobody has verified");
        }
        Ok(Caller { user: user.to_owned(), teams: self.teams(oidc)?, roles: self.roles(oidc)? })
    }

    /// Without one of them rules for that team would not hold, so a list that
    /// cannot be taken as a whole is not taken at all.
    fn teams(&self, oidc: &Oidc) -> Result<Vec<String>, &'static str> {
        if oidc.team_claim.is_empty() {
            return Ok(Vec::new());
        }
        let Some(found) = self.get(&oidc.team_claim) else { return Ok(Vec::new()) };
        let mut teams: Vec<_> =
            texts(found).ok_or("teams that are no texts")?.into_iter().map(str::to_owned).collect();
        teams.sort();
        teams.dedup();
        if teams.len() > MOST_TEAMS {
            return Err("a user of too many teams");
        }
        if teams.iter().any(|team| check_name("team", team).is_err()) {
            return Err("a team that cannot be called so");
        }
        Ok(teams)
    }

    fn roles(&self, oidc: &Oidc) -> Result<Vec<Role>, &'static str> {
        let values = self.get(&oidc.role_claim).and_then(texts).unwrap_or_default();
        let mut roles = Vec::new();
        for role in values.iter().filter_map(|value| Role::from_name(oidc.roles.get(*value)?)) {
            if !roles.contains(&role) {
                roles.push(role);
            }
        }
        if roles.is_empty() {
            roles.push(Role::from_name(&oidc.default_role).ok_or("a user without a role")?);
        }
        Ok(roles)
    }

    /// A claim by its name, which may have dots in it, or by its way through
    /// objects, as in `realm_access.roles`.
    fn get(&self, claim: &str) -> Option<&Value> {
        self.said.get(claim).or_else(|| {
            let (first, rest) = claim.split_once('.')?;
            rest.split('.').try_fold(self.said.get(first)?, |value, name| value.get(name))
        })
    }
}

/// Whether a token is of the issuer that counts, and meant for us.
fn is_for(said: &Map<String, Value>, oidc: &Oidc) -> Result<(), &'static str> {
    if !oidc.is_on() || said.get("iss").and_then(Value::as_str) != Some(&oidc.issuer) {
        return Err("a token of another issuer");
    }
    let audience = said.get("aud").ok_or("a token for nobody in particular")?;
    if !texts(audience).ok_or("an audience that is no text")?.contains(&oidc.audience.as_str()) {
        return Err("a token for another audience");
    }
    Ok(())
}

/// A text, or a list of nothing but texts.
fn texts(value: &Value) -> Option<Vec<&str>> {
    match value {
        Value::String(text) => Some(vec![text]),
        Value::Array(list) => list.iter().map(Value::as_str).collect(),
        _ => None,
    }
}

/// A moment in seconds since 1970, which may have a fraction.
fn moment(value: &Value) -> Result<SystemTime, &'static str> {
    let wrong = "a time that is no number";
    let seconds = value.as_number().and_then(serde_json::Number::as_f64).ok_or(wrong)?;
    let since = Duration::try_from_secs_f64(seconds).map_err(|_| wrong)?;
    // Far from where sums of times overflow.
    let latest = Duration::from_secs(1 << 40);
    UNIX_EPOCH.checked_add(since.min(latest)).ok_or(wrong)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests fail by panicking")]
mod tests {
    use serde_json::json;

    use super::*;

    fn oidc() -> Oidc {
        Oidc { issuer: "https://i".into(), audience: "us".into(), ..Oidc::default() }
    }

    fn read(changes: &Value) -> Result<Claims, &'static str> {
        let now = UNIX_EPOCH + Duration::from_secs(1000);
        let mut said = json!({ "iss": "https://i", "aud": "us", "exp": 1100, "sub": "ann" });
        for (name, value) in changes.as_object().unwrap() {
            match value {
                Value::Null => drop(said.as_object_mut().unwrap().remove(name)),
                value => said[name] = value.clone(),
            }
        }
        Claims::read(said.as_object().unwrap(), &oidc(), now)
    }

    #[test]
    fn a_token_is_for_us_and_in_time() {
        for good in [
            json!({}),
            json!({ "aud": ["them", "us"] }),
            json!({ "exp": 1100.5, "nbf": 1005, "iat": 999 }),
            json!({ "exp": 995 }),
            json!({ "exp": 1e18 }),
        ] {
            assert!(read(&good).is_ok(), "{good}");
        }
        for bad in [
            json!({ "iss": "https://i/" }),
            json!({ "iss": null }),
            json!({ "iss": ["https://i"] }),
            json!({ "aud": null }),
            json!({ "aud": "them" }),
            json!({ "aud": ["us", 7] }),
            json!({ "aud": { "us": 1 } }),
            json!({ "exp": null }),
            json!({ "exp": "1100" }),
            json!({ "exp": 990 }),
            json!({ "exp": -5 }),
            json!({ "nbf": 1011 }),
            json!({ "nbf": "0" }),
            json!({ "iat": 1011 }),
        ] {
            assert!(read(&bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn who_somebody_is_stands_in_their_claims() {
        let claims = read(&json!({
            "email": "ann@a.example", "groups": ["web", "core", "web"], "hd": "a.example", "mfa": true,
            "realm_access": { "roles": ["ops", "x"] },
        }))
        .unwrap();
        let mut oidc = oidc();
        assert_eq!(claims.caller(&oidc).unwrap().user, "ann");
        oidc.user_claim = "email".into();
        oidc.team_claim = "groups".into();
        oidc.role_claim = "realm_access.roles".into();
        oidc.roles.insert("ops".into(), "admin".into());
        oidc.require.insert("hd".into(), "a.example".into());
        oidc.require.insert("mfa".into(), "true".into());
        let caller = claims.caller(&oidc).unwrap();
        assert_eq!((caller.user.as_str(), caller.teams.len()), ("ann@a.example", 2));
        assert!(caller.is_admin());
        oidc.require.insert("hd".into(), "b.example".into());
        assert!(claims.caller(&oidc).is_err());
        oidc.require.clear();
        for change in [
            |oidc: &mut Oidc| oidc.issuer = "https://other".into(),
            |oidc: &mut Oidc| oidc.issuer = String::new(),
            |oidc: &mut Oidc| oidc.audience = "them".into(),
        ] {
            let mut changed = oidc.clone();
            change(&mut changed);
            assert!(claims.caller(&changed).is_err(), "what has changed counts: {changed:?}");
        }
        oidc.roles.clear();
        assert!(!claims.caller(&oidc).unwrap().is_admin());
        oidc.default_role.clear();
        assert_eq!(claims.caller(&oidc), Err("a user without a role"));
        oidc.default_role = "developer".into();
        for bad in [
            json!({ "email": null }),
            json!({ "email": 7 }),
            json!({ "email": "a\nb" }),
            json!({ "email": "ann@a.example", "email_verified": false }),
            json!({ "email": "ann@a.example", "groups": ["a,b"] }),
            json!({ "email": "ann@a.example", "groups": 7 }),
            json!({ "email": "ann@a.example", "groups": (0..51).map(|n| n.to_string()).collect::<Vec<_>>() }),
        ] {
            assert!(read(&bad).unwrap().caller(&oidc).is_err(), "{bad}");
        }
    }
}
