//! TLS without its other half, people who cannot be called so, and an issuer
//! whose word would come over an open line.

use url::Url;

use super::{Checker, Config, ConfigError, ListenRefused, check_listen, quoted};
use crate::{
    identity::{MOST_TEAMS, Role, certificates::NO_ROLE, check_name},
    tls,
};

impl Checker<'_> {
    /// Refuses a way in that would not be one, or one for everybody, and
    /// expands `~`.
    pub(super) fn access(&self, config: &mut Config) -> Result<(), ConfigError> {
        self.tls(config)?;
        check_listen(config.service.listen, &config.service.tls).map_err(|refused| {
            self.origins.refuse(&["service", "listen"], refused.what, ListenRefused::REMEDY)
        })?;
        self.certificates(config)?;
        self.oidc(config)
    }

    fn tls(&self, config: &mut Config) -> Result<(), ConfigError> {
        let tls = &mut config.service.tls;
        let at = |key| ["service", "tls", key];
        for (key, file) in [("cert", &mut tls.cert), ("key", &mut tls.key), ("client_ca", &mut tls.client_ca)]
        {
            if let Some(file) = file {
                self.path(&at(key), file)?;
            }
        }
        let one_of = [&at("cert")[..], &at("key"), &at("client_ca"), &at("client_auth")];
        if tls.cert.is_some() != tls.key.is_some() {
            let what = "TLS needs both `service.tls.cert` and `service.tls.key`";
            return Err(self.origins.refuse_one_of(&one_of, what, "name the file of each, both as PEM"));
        }
        let wants_clients = tls.client_ca.is_some() || self.origins.has(&at("client_auth"));
        if wants_clients && (tls.cert.is_none() || tls.client_ca.is_none()) {
            let what = "certificates of clients need `service.tls.cert`, `key` and `client_ca`";
            let hint = "`client_ca` names the file with the CAs that are trusted, as PEM";
            return Err(self.origins.refuse_one_of(&[one_of[3], one_of[2]], what, hint));
        }
        Ok(())
    }

    fn certificates(&self, config: &Config) -> Result<(), ConfigError> {
        let known = &config.identity.certificates;
        if (!known.users.is_empty() || known.others.is_some()) && config.service.tls.client_ca.is_none() {
            let what = "`identity.certificates` is for certificates that nobody can present";
            let hint = "name the CAs that are trusted in `service.tls.client_ca`";
            return Err(self.origins.refuse_table(&["identity", "certificates"], what, hint));
        }
        for (name, person) in &known.users {
            let at = |key| ["identity", "certificates", "users", name, key];
            let user = person.user.as_ref().unwrap_or(name);
            if let Err(why) = check_name("user", user) {
                let hint = "give a `user` that is a name; it is what sessions and the record have";
                return Err(self.origins.refuse_table(&at("user")[..4], why, hint));
            }
            self.teams(&at("teams"), &person.teams)?;
            if person.role != NO_ROLE {
                self.role(&at("role"), &person.role)?;
            }
        }
        if let Some(others) = &known.others {
            self.teams(&["identity", "certificates", "others", "teams"], &others.teams)?;
            self.role(&["identity", "certificates", "others", "role"], &others.role)?;
        }
        Ok(())
    }

    fn oidc(&self, config: &mut Config) -> Result<(), ConfigError> {
        let oidc = &mut config.identity.oidc;
        let at = |key| ["identity", "oidc", key];
        for (key, file) in [("jwks_file", &mut oidc.jwks_file), ("ca_file", &mut oidc.ca_file)] {
            if let Some(file) = file {
                self.path(&at(key), file)?;
            }
        }
        if !oidc.is_on() {
            if self.origins.has(&["identity", "oidc"]) && !oidc.audience.is_empty() {
                let hint = "write issuer = \"https://…\", exactly as its tokens have it";
                return Err(self.origins.refuse(&at("audience"), "the tokens' issuer is missing", hint));
            }
            return Ok(());
        }
        if let Err(why) = check_issuer(&oidc.issuer) {
            let hint = "write it as \"https://login.example.org/realms/team\"; http:// is for loopback alone";
            return Err(self.origins.refuse(&at("issuer"), why, hint));
        }
        if oidc.audience.is_empty() {
            let what =
                "without `audience` the tokens of every other service of this issuer would let people in";
            let hint = "name the client or API that the tokens are made for";
            return Err(self.origins.refuse_one_of(&[&at("audience"), &at("issuer")], what, hint));
        }
        if oidc.user_claim.is_empty() {
            let hint = "name the claim, as in \"sub\" or \"email\"";
            return Err(self.origins.refuse(&at("user_claim"), "no claim names the user", hint));
        }
        for (value, role) in &oidc.roles {
            self.role(&["identity", "oidc", "roles", value], role)?;
        }
        if !oidc.default_role.is_empty() {
            self.role(&at("default_role"), &oidc.default_role)?;
        }
        self.not_zero(&at("keys_max_age"), oidc.keys_max_age)
    }

    fn role(&self, at: &[&str], role: &str) -> Result<(), ConfigError> {
        if Role::from_name(role).is_some() {
            return Ok(());
        }
        let what = format!("there is no role {}", quoted(role));
        Err(self.origins.refuse(at, what, "write the name of one, as in \"developer\" or \"admin\""))
    }

    fn teams(&self, at: &[&str], teams: &[String]) -> Result<(), ConfigError> {
        let checked = teams.iter().try_for_each(|team| check_name("team", team));
        let counted = if teams.len() > MOST_TEAMS {
            Err(format!("a user may be in {MOST_TEAMS} teams at most"))
        } else {
            Ok(())
        };
        checked.and(counted).map_err(|why| self.origins.refuse(at, why, "correct the list, or remove it"))
    }
}

/// Keys that come over a line which others can write to are nobody's keys.
fn check_issuer(issuer: &str) -> Result<(), String> {
    let url = Url::parse(issuer).map_err(|error| format!("{} is no address: {error}", quoted(issuer)))?;
    if !tls::is_protected(&url) {
        return Err(format!("{} is not reached by TLS", quoted(issuer)));
    }
    if url.query().is_some() || url.fragment().is_some() || !url.username().is_empty() {
        return Err(format!("{} has more than a host and a path", quoted(issuer)));
    }
    Ok(())
}
