//! Who may come in, and how the way there is protected: TLS on the listener,
//! certificates of people, tokens of an OIDC issuer.

use std::{collections::BTreeMap, path::PathBuf, time::Duration};

use serde::Deserialize;

use super::{duration, error};

/// TLS on the listener. Off unless both files are named.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Tls {
    /// The service's certificate and those that lead to its CA, as PEM.
    pub cert: Option<PathBuf>,
    /// The certificate's private key, as PEM.
    pub key: Option<PathBuf>,
    /// The CAs whose certificates clients may present, as PEM.
    pub client_ca: Option<PathBuf>,
    /// Whether clients have to.
    pub client_auth: ClientAuth,
}

impl Tls {
    /// The files of the certificate and its key, if TLS is on.
    pub fn pair(&self) -> Option<(&PathBuf, &PathBuf)> {
        Some((self.cert.as_ref()?, self.key.as_ref()?))
    }
}

/// Whether clients have to present a certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(try_from = "String")]
pub enum ClientAuth {
    /// They may, or come with a token.
    #[default]
    Optional,
    /// Nobody is let in without.
    Required,
}

impl ClientAuth {
    /// Its name in the configuration.
    pub fn name(self) -> &'static str {
        match self {
            Self::Optional => "optional",
            Self::Required => "required",
        }
    }
}

impl TryFrom<String> for ClientAuth {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        match text.as_str() {
            "optional" => Ok(Self::Optional),
            "required" => Ok(Self::Required),
            _ => Err(error::not_one_of(&text, &["optional", "required"])),
        }
    }
}

/// How people prove who they are, beside API tokens.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Identity {
    /// By certificates.
    pub certificates: Certificates,
    /// By tokens of an issuer.
    pub oidc: Oidc,
}

/// Whom certificates let in.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Certificates {
    /// Which name in a certificate counts.
    pub by: NameKind,
    /// Who has a certificate of this name.
    pub users: BTreeMap<String, Person>,
    /// What everybody else may do, who is then called by that name. Without
    /// it nobody else is let in.
    pub others: Option<Others>,
}

/// Which name in a certificate counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(try_from = "String")]
pub enum NameKind {
    /// The common name of its subject.
    CommonName,
    /// A mail address (SAN).
    #[default]
    Email,
    /// A host name (SAN).
    Dns,
    /// A URI (SAN), such as a SPIFFE id.
    Uri,
}

impl NameKind {
    /// Its name in the configuration.
    pub fn name(self) -> &'static str {
        match self {
            Self::CommonName => "cn",
            Self::Email => "email",
            Self::Dns => "dns",
            Self::Uri => "uri",
        }
    }
}

impl TryFrom<String> for NameKind {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let all = [Self::CommonName, Self::Email, Self::Dns, Self::Uri];
        all.into_iter()
            .find(|kind| kind.name() == text)
            .ok_or_else(|| error::not_one_of(&text, &all.map(Self::name)))
    }
}

/// Somebody with a certificate.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Person {
    /// What they are called here; default: as in the certificate.
    pub user: Option<String>,
    /// Their teams.
    #[serde(default)]
    pub teams: Vec<String>,
    /// What they may do; `none` takes the certificate back.
    #[serde(default = "developer")]
    pub role: String,
}

/// Everybody with a certificate who is not named.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Others {
    /// Their teams.
    #[serde(default)]
    pub teams: Vec<String>,
    /// What they may do.
    #[serde(default = "developer")]
    pub role: String,
}

/// Whose tokens let people in. Off unless an issuer is named.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Oidc {
    /// The issuer, as its tokens have it.
    pub issuer: String,
    /// Whom the tokens must be meant for.
    pub audience: String,
    /// The issuer's keys, instead of asking it.
    pub jwks_file: Option<PathBuf>,
    /// The CAs of the issuer's own certificate; default: those of this host.
    pub ca_file: Option<PathBuf>,
    /// The claim that names the user.
    pub user_claim: String,
    /// The claim that names the user's teams; empty: none does.
    pub team_claim: String,
    /// The claim whose values are looked up in `roles`.
    pub role_claim: String,
    /// Which value of that claim gives which role.
    pub roles: BTreeMap<String, String>,
    /// The role of those to whom no value gives one; empty: they are refused.
    pub default_role: String,
    /// Claims that must have this value.
    pub require: BTreeMap<String, String>,
    /// How long keys are used that could not be fetched anew.
    #[serde(with = "duration")]
    pub keys_max_age: Duration,
}

impl Oidc {
    /// Whether there is an issuer.
    pub fn is_on(&self) -> bool {
        !self.issuer.is_empty()
    }
}

impl Default for Oidc {
    fn default() -> Self {
        Self {
            issuer: String::new(),
            audience: String::new(),
            jwks_file: None,
            ca_file: None,
            user_claim: "sub".to_owned(),
            team_claim: String::new(),
            role_claim: "roles".to_owned(),
            roles: BTreeMap::new(),
            default_role: developer(),
            require: BTreeMap::new(),
            keys_max_age: Duration::from_secs(24 * 3600),
        }
    }
}

fn developer() -> String {
    "developer".to_owned()
}
