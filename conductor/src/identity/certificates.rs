//! People by their certificates: which names one has, and who that is. That a
//! certificate is genuine, in time and of a trusted CA was seen when hands were
//! shaken; here it is only read. Whether its CA is still trusted is asked again for
//! as long as the connection lasts.

use std::{
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use x509_parser::{certificate::X509Certificate, extensions::GeneralName, prelude::FromDer as _};

use super::{Caller, Role, check_name};
use crate::{
    config::{Certificates, NameKind},
    tls::listener::Vouched,
};

/// The role of those whose certificates were taken back.
pub const NO_ROLE: &str = "none";

/// The certificate that a connection was opened with. Clones share what it says.
#[derive(Debug, Clone)]
pub struct Certificate {
    /// What it says.
    pub says: Arc<Presented>,
    /// Whether its CA is trusted.
    pub vouched: Vouched,
}

impl Certificate {
    /// Reads what a client presented; else why it cannot be.
    pub fn read(vouched: Vouched) -> Result<Self, &'static str> {
        let says = Presented::read(vouched.leaf().ok_or("there is none")?)?;
        Ok(Self { says: Arc::new(says), vouched })
    }
}

/// A certificate that somebody presented.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Presented {
    common_names: Vec<String>,
    emails: Vec<String>,
    dns: Vec<String>,
    uris: Vec<String>,
    /// It is good for nothing from then on.
    pub not_after: SystemTime,
}

impl Presented {
    /// Reads a certificate; else why it cannot be.
    pub fn read(der: &[u8]) -> Result<Self, &'static str> {
        let (rest, certificate) = X509Certificate::from_der(der).map_err(|_| "it is no certificate")?;
        if !rest.is_empty() {
            return Err("something follows the certificate");
        }
        let subject = certificate.subject();
        let common_names =
            subject.iter_common_name().filter_map(|name| Some(name.as_str().ok()?.to_owned())).collect();
        let mut presented = Self {
            common_names,
            emails: Vec::new(),
            dns: Vec::new(),
            uris: Vec::new(),
            not_after: moment(certificate.validity().not_after.timestamp()),
        };
        let names = certificate.subject_alternative_name().map_err(|_| "its names cannot be read")?;
        for name in names.iter().flat_map(|names| &names.value.general_names) {
            let (list, text) = match name {
                GeneralName::RFC822Name(text) => (&mut presented.emails, text),
                GeneralName::DNSName(text) => (&mut presented.dns, text),
                GeneralName::URI(text) => (&mut presented.uris, text),
                _ => continue,
            };
            list.push((*text).to_owned());
        }
        Ok(presented)
    }

    /// Its names of a kind.
    pub fn names(&self, kind: NameKind) -> &[String] {
        match kind {
            NameKind::CommonName => &self.common_names,
            NameKind::Email => &self.emails,
            NameKind::Dns => &self.dns,
            NameKind::Uri => &self.uris,
        }
    }

    /// Whose it is, and by which name; else why nobody's, which is for the log
    /// alone.
    pub fn caller(&self, known: &Certificates) -> Result<(Caller, String), &'static str> {
        let names = self.names(known.by);
        let mut named = names.iter().filter_map(|name| Some((name, known.users.get(name)?)));
        let (name, user, teams, role) = match (named.next(), named.next(), &known.others, names) {
            // Which of them somebody is must not depend on the order of names.
            (Some(_), Some(_), ..) => return Err("a certificate of several users"),
            (Some((_, person)), ..) if person.role == NO_ROLE => {
                return Err("a certificate that was taken back");
            }
            (Some((name, person)), ..) => {
                (name, person.user.as_ref().unwrap_or(name), &person.teams, &person.role)
            }
            (None, _, Some(others), [name]) => {
                check_name("user", name).map_err(|_| "a certificate whose name cannot be a user's")?;
                // Only the list says who somebody on it is.
                if known.users.values().any(|person| person.user.as_ref() == Some(name)) {
                    return Err("a certificate with the name of another user");
                }
                (name, name, &others.teams, &others.role)
            }
            (None, _, Some(_), _) => return Err("a certificate without exactly one name that counts"),
            (None, _, None, _) => return Err("a certificate of nobody who is known"),
        };
        let role = Role::from_name(role).ok_or("a role that there is not")?;
        let caller = Caller { user: user.clone(), teams: teams.clone(), roles: vec![role] };
        Ok((caller, name.clone()))
    }
}

/// A moment in seconds since 1970, which certificates may put before that.
fn moment(seconds: i64) -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(u64::try_from(seconds).unwrap_or_default())
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests fail by panicking")]
mod tests {
    use super::*;
    use crate::config::{Others, Person};

    fn certificate(emails: &[&str]) -> Presented {
        Presented {
            common_names: vec!["Ann".into()],
            emails: emails.iter().map(ToString::to_string).collect(),
            dns: Vec::new(),
            uris: Vec::new(),
            not_after: UNIX_EPOCH,
        }
    }

    #[test]
    fn only_one_user_can_be_meant() {
        let person = |user: &str| Person {
            user: Some(user.into()),
            teams: vec!["web".into()],
            role: "developer".into(),
        };
        let mut known = Certificates::default();
        known.users.insert("ann@a.example".into(), person("ann"));
        known.users.insert("bob@a.example".into(), person("bob"));
        let (caller, name) = certificate(&["x@a.example", "ann@a.example"]).caller(&known).unwrap();
        assert_eq!((caller.user.as_str(), name.as_str()), ("ann", "ann@a.example"));
        for nobody in [&[][..], &["Ann@a.example"], &["ann@a.example", "bob@a.example"]] {
            assert!(certificate(nobody).caller(&known).is_err(), "{nobody:?}");
        }
        known.others = Some(Others { teams: Vec::new(), role: "developer".into() });
        assert_eq!(certificate(&["eve@a.example"]).caller(&known).unwrap().0.user, "eve@a.example");
        // Nobody takes the name that the list gives to somebody else.
        for nobody in [&["ann"][..], &["a\nb"], &["x@a.example", "y@a.example"], &[]] {
            assert!(certificate(nobody).caller(&known).is_err(), "{nobody:?}");
        }
        // One of the others is taken back, whatever other names it has.
        let gone = Person { user: None, teams: Vec::new(), role: NO_ROLE.into() };
        known.users.insert("eve@a.example".into(), gone);
        for nobody in [&["eve@a.example"][..], &["eve@a.example", "eva@a.example"]] {
            assert_eq!(certificate(nobody).caller(&known), Err("a certificate that was taken back"));
        }
        assert!(certificate(&["eva@a.example"]).caller(&known).is_ok());
        known.by = NameKind::CommonName;
        assert_eq!(certificate(&[]).caller(&known).unwrap().0.user, "Ann");
        assert!(Presented::read(b"no certificate").is_err());
    }
}
