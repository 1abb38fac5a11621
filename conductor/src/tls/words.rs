//! Words for what goes wrong between two ends of TLS. What the library says is
//! exact and tells nobody what to do.

use std::error::Error;

use rustls::{AlertDescription, CertificateError};

/// What went wrong, as far as somebody can do something about it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Failure {
    /// Its certificate is of a CA that is not trusted.
    UnknownCa,
    /// Its certificate is for another name.
    WrongName,
    /// Its certificate's time is over.
    Expired,
    /// Its certificate's time has not come.
    NotYetValid,
    /// It is another certificate than the one that was expected.
    Changed,
    /// It is a certificate for something else.
    WrongPurpose,
    /// The other end speaks without TLS.
    NotTls,
    /// The other end wants a certificate of ours.
    CertificateRequired,
    /// The other end does not take ours.
    CertificateRefused,
    /// The ends have no version or cipher in common.
    NothingInCommon,
    /// Something else.
    Other(String),
}

impl Failure {
    /// What went wrong, if TLS is what did: looked for in an error and all that
    /// led to it.
    pub fn find(error: &(dyn Error + 'static)) -> Option<Self> {
        let mut next = Some(error);
        while let Some(error) = next {
            if let Some(error) = error.downcast_ref::<rustls::Error>() {
                return Some(Self::of(error));
            }
            // An I/O error does not count what it wraps among its causes.
            let wrapped = error.downcast_ref::<std::io::Error>().and_then(std::io::Error::get_ref);
            if let Some(error) = wrapped.and_then(|inner| inner.downcast_ref::<rustls::Error>()) {
                return Some(Self::of(error));
            }
            // HTTP/2 keeps no cause at all, only its words.
            if let Some(failure) = Self::in_words(&error.to_string()) {
                return Some(failure);
            }
            next = error.source();
        }
        None
    }

    fn of(error: &rustls::Error) -> Self {
        match error {
            rustls::Error::InvalidCertificate(why) => match why {
                CertificateError::UnknownIssuer | CertificateError::BadSignature => Self::UnknownCa,
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
                    Self::WrongName
                }
                CertificateError::Expired | CertificateError::ExpiredContext { .. } => Self::Expired,
                CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
                    Self::NotYetValid
                }
                CertificateError::InvalidPurpose | CertificateError::InvalidPurposeContext { .. } => {
                    Self::WrongPurpose
                }
                CertificateError::ApplicationVerificationFailure => Self::Changed,
                other => Self::Other(other.to_string()),
            },
            rustls::Error::InvalidMessage(_) => Self::NotTls,
            rustls::Error::AlertReceived(alert) => match alert {
                AlertDescription::CertificateRequired => Self::CertificateRequired,
                AlertDescription::UnknownCA
                | AlertDescription::BadCertificate
                | AlertDescription::CertificateExpired
                | AlertDescription::CertificateRevoked
                | AlertDescription::CertificateUnknown
                | AlertDescription::UnsupportedCertificate
                | AlertDescription::DecryptError
                | AlertDescription::AccessDenied => Self::CertificateRefused,
                AlertDescription::ProtocolVersion
                | AlertDescription::HandshakeFailure
                | AlertDescription::InsufficientSecurity
                | AlertDescription::NoApplicationProtocol => Self::NothingInCommon,
                other => Self::Other(format!("it ended the greeting with {other:?}")),
            },
            rustls::Error::PeerIncompatible(_) => Self::NothingInCommon,
            other => Self::Other(other.to_string()),
        }
    }

    /// The same out of what the library would have said.
    fn in_words(text: &str) -> Option<Self> {
        let alert = text.split_once("received fatal alert: ")?.1;
        let has = |words: &[&str]| words.iter().any(|word| alert.contains(word));
        Some(if has(&["CertificateRequired", "certificate required", "certificate_required"]) {
            Self::CertificateRequired
        } else if has(&["UnknownCA", "Certificate", "DecryptError", "AccessDenied"]) {
            Self::CertificateRefused
        } else {
            Self::Other(text.to_owned())
        })
    }

    /// Whether it may be another network's doing, and over when that is left:
    /// the sign-in pages of hotels show certificates of their own.
    pub fn is_passing(&self) -> bool {
        matches!(self, Self::UnknownCa | Self::WrongName | Self::NotTls | Self::Changed | Self::Other(_))
    }

    /// What went wrong at an address, and what to do about it.
    pub fn explain(&self, url: &str) -> String {
        match self {
            Self::UnknownCa => format!(
                "{url} shows a certificate of a CA that is not trusted here; name the CA with --ca-file FILE (or \
                 CONDUCTOR_CA_FILE)"
            ),
            Self::WrongName => format!(
                "{url} shows a certificate for another name; use the name that the certificate has, or have one made \
                 for this name"
            ),
            Self::Expired => {
                format!(
                    "{url} shows a certificate whose time is over; the service's administrator has to renew it"
                )
            }
            Self::NotYetValid => format!(
                "{url} shows a certificate whose time has not come; compare the clocks of both machines"
            ),
            Self::Changed => format!(
                "{url} shows another certificate than the state directory knows; if it was just renewed, try again, \
                 else something other than the service listens there"
            ),
            Self::WrongPurpose => format!(
                "{url} shows a certificate that is not for servers; its administrator has to name one that is"
            ),
            Self::NotTls => {
                format!(
                    "{url} does not speak TLS; if it is a conductor on this host, write http:// instead of https://"
                )
            }
            Self::CertificateRequired => format!(
                "{url} lets nobody in without a certificate; name yours with --client-cert FILE and --client-key FILE \
                 (or CONDUCTOR_CLIENT_CERT and CONDUCTOR_CLIENT_KEY)"
            ),
            Self::CertificateRefused => format!(
                "{url} does not take the certificate that was presented; use one that is in time and of a CA that the \
                 service trusts (`client_ca`)"
            ),
            Self::NothingInCommon => format!(
                "{url} and this program have no version of TLS, or no cipher, in common; is it a conductor that \
                 listens there?"
            ),
            Self::Other(why) => format!("{url} cannot be reached by TLS ({why}); see the service's log"),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    #[test]
    fn the_cause_is_found_wherever_it_hides() {
        let unknown = || rustls::Error::InvalidCertificate(CertificateError::UnknownIssuer);
        assert_eq!(Failure::find(&unknown()), Some(Failure::UnknownCa));
        assert_eq!(Failure::find(&io::Error::other(unknown())), Some(Failure::UnknownCa));
        let alert = rustls::Error::AlertReceived(AlertDescription::CertificateRequired);
        let only_words = io::Error::other(format!("connection error: {alert}"));
        assert_eq!(Failure::find(&only_words), Some(Failure::CertificateRequired));
        assert_eq!(Failure::find(&io::Error::other("refused")), None);
    }
}
