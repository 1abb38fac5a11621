//! Addresses on the network, read by a real parser.
//!
//! The host that a rule sees must be the host that a program connects to. So
//! what is read differently by different parsers, or shows a person another
//! host than it means, is trouble: no rule allows it. What is merely somewhere
//! special, such as this machine, is a fact that rules can name.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use url::{Host, ParseError, Url};

use super::{
    UrlFact,
    action::Network,
    text::{self, hidden},
};

/// An address that is longer is not looked at.
const LONGEST: usize = 8 << 10;

/// Schemes whose addresses are read as browsers read those of the web, however they are written.
const WEB: [&str; 5] = ["http", "https", "ws", "wss", "ftp"];

/// Names under which this machine is known to itself.
const LOOPBACK_NAMES: [&str; 5] =
    ["localhost", "localhost.localdomain", "localhost6", "ip6-localhost", "ip6-loopback"];

/// Names under which clouds hand out the credentials of a machine.
const METADATA_NAMES: [&str; 8] = [
    "metadata",
    "metadata.google.internal",
    "metadata.goog",
    "metadata.tencentyun.com",
    "metadata.platformequinix.com",
    "metadata.packet.net",
    "api.metadata.cloud.ibm.com",
    "instance-data.ec2.internal",
];

/// How names end that the public name service does not know: what they lead to is inside some network.
const PRIVATE_NAMES: [&str; 15] = [
    "local",
    "localdomain",
    "internal",
    "lan",
    "intranet",
    "home",
    "home.arpa",
    "corp",
    "private",
    "consul",
    "svc",
    "test",
    "invalid",
    "onion",
    "alt",
];

/// Names whose labels say which address they lead to, or that lead to this machine.
const ANY_ADDRESS: [&str; 6] = ["nip.io", "sslip.io", "xip.io", "localtest.me", "lvh.me", "vcap.me"];

/// Takes an address apart. One that cannot be read has `trouble` and no host.
pub fn fact(given: &str) -> UrlFact {
    let mut fact = UrlFact { given: given.into(), ..UrlFact::default() };
    let mut troubles = Troubles(None);
    if given.len() > LONGEST {
        fact.trouble = Some(format!("it is longer than {LONGEST} bytes"));
        return fact;
    }
    if given.chars().any(|c| c.is_control() || c.is_whitespace()) || given.contains('\\') {
        troubles
            .note("it has spaces, control characters or backslashes in it, which programs read differently");
    }
    if let Some(why) = hidden(given) {
        troubles.note(why);
    }
    let url = match Url::parse(given) {
        Ok(url) => url,
        Err(error) => {
            let why = match error {
                ParseError::RelativeUrlWithoutBase => {
                    "it has no scheme; write it out, as in https://host/".into()
                }
                error => format!("it is no address: {error}"),
            };
            fact.trouble = Some(why);
            return fact;
        }
    };
    fact.scheme = url.scheme().to_owned();
    fact.path = url.path().to_owned();
    fact.port = url.port_or_known_default().or_else(|| known_port(url.scheme())).unwrap_or_default();
    if !url.username().is_empty() || url.password().is_some() || authority(given).contains('@') {
        troubles.note("it has user information in it, which looks like a host");
    }
    look_at_path(&fact.path, &mut troubles);
    match url.scheme() {
        "file" => troubles.note("it names a file of this machine"),
        scheme if WEB.contains(&scheme) && !has_two_slashes(given) => {
            troubles
                .note("two slashes must follow the scheme; with more or less programs differ on the host");
        }
        _ => {}
    }
    match url.host_str() {
        Some(host) if !host.is_empty() => look_at_host(host, &given_host(given), &mut fact, &mut troubles),
        _ => troubles.note("it has no host"),
    }
    fact.trouble = troubles.0;
    fact
}

/// The first thing that is wrong.
struct Troubles(Option<String>);

impl Troubles {
    fn note(&mut self, why: impl Into<String>) {
        self.0.get_or_insert_with(|| why.into());
    }
}

/// What stands between `//` and the path, as it was given.
fn authority(given: &str) -> &str {
    let rest = given.split_once("//").map_or("", |(_, rest)| rest);
    rest.split(['/', '?', '#']).next().unwrap_or_default()
}

/// The host as it was given: no user information, no port.
fn given_host(given: &str) -> String {
    let host = authority(given);
    let host = host.rsplit_once('@').map_or(host, |(_, host)| host);
    let end = match host.strip_prefix('[') {
        Some(rest) => rest.find(']').map_or(host.len(), |at| at + 2),
        None => host.find(':').unwrap_or(host.len()),
    };
    host.get(..end).unwrap_or(host).to_lowercase()
}

fn has_two_slashes(given: &str) -> bool {
    let rest = given.split_once(':').map_or("", |(_, rest)| rest);
    rest.starts_with("//") && !rest.starts_with("///")
}

fn known_port(scheme: &str) -> Option<u16> {
    match scheme {
        "ssh" | "sftp" | "git+ssh" | "ssh+git" => Some(22),
        "git" => Some(9418),
        "ftps" => Some(990),
        "ldap" => Some(389),
        "gopher" => Some(70),
        "telnet" => Some(23),
        _ => None,
    }
}

/// A server may decode what the parser has left as it was, and then be somewhere else.
fn look_at_path(path: &str, troubles: &mut Troubles) {
    let path = path.to_ascii_lowercase();
    let climbs = ["..%2f", "%2f..", "%2e%2f", "%2f%2e", "%5c", "%252e", "%252f", "%255c", "..;", "%00"];
    if climbs.iter().any(|part| path.contains(part)) {
        troubles.note("its path has encoded slashes and dots in it, which servers read differently");
    }
}

fn look_at_host(host: &str, given: &str, fact: &mut UrlFact, troubles: &mut Troubles) {
    // Schemes that are not of the web have their host as text only.
    let parsed = match Host::parse(host) {
        Ok(parsed) => parsed,
        Err(error) => {
            fact.host = host.to_lowercase();
            return troubles.note(format!("its host cannot be read: {error}"));
        }
    };
    let address: IpAddr = match parsed {
        Host::Domain(name) => return look_at_name(&name, given, fact, troubles),
        Host::Ipv4(address) => address.into(),
        Host::Ipv6(address) => match embedded(address) {
            Some(inner) => {
                troubles.note(format!("an IPv6 address stands for the IPv4 address {inner}"));
                inner.into()
            }
            None => address.into(),
        },
    };
    let usual = match address {
        IpAddr::V4(address) => address.to_string(),
        IpAddr::V6(address) => format!("[{address}]"),
    };
    fact.network = network(address);
    if given != usual {
        troubles.note(format!("its host is an unusual form of the address {usual} ({})", says(fact.network)));
    } else if address.is_unspecified() {
        troubles.note("its host is no address of its own; it leads to this machine");
    } else if fact.network == Network::LinkLocal {
        troubles.note("its host is an address of the link, where clouds keep the credentials of a machine");
    }
    fact.host = usual;
}

fn look_at_name(name: &str, given: &str, fact: &mut UrlFact, troubles: &mut Troubles) {
    let name = name.strip_suffix('.').unwrap_or(name);
    fact.host = name.to_owned();
    let is_within = |list: &[&str]| {
        list.iter()
            .any(|entry| name.strip_suffix(entry).is_some_and(|rest| rest.is_empty() || rest.ends_with('.')))
    };
    let is_private = !name.contains('.') || is_within(&PRIVATE_NAMES);
    fact.network = if is_within(&LOOPBACK_NAMES) {
        Network::Loopback
    } else if METADATA_NAMES.contains(&name) {
        Network::LinkLocal
    } else if is_private {
        Network::Private
    } else {
        Network::Name
    };
    if fact.network == Network::LinkLocal {
        troubles.note("under this name clouds keep the credentials of a machine");
    }
    if is_within(&ANY_ADDRESS) {
        troubles.note("such names lead to whatever address they say, also to this machine");
    }
    if name.is_empty()
        || name.split('.').any(|label| label.is_empty() || label.len() > 63)
        || name.len() > 253
    {
        troubles.note("its host is no name that a name service knows");
    }
    if name.split('.').any(|label| label.starts_with("xn--")) {
        troubles.note(format!(
            "its host {} is not plain ASCII and may look like another",
            text::shown(name, 100)
        ));
    } else if given.strip_suffix('.').unwrap_or(given) != name {
        troubles.note(format!("its host is written in an unusual form of {}", text::shown(name, 100)));
    }
}

/// The IPv4 address that an IPv6 address stands for.
fn embedded(address: Ipv6Addr) -> Option<Ipv4Addr> {
    let [a, b, c, d] = [12, 13, 14, 15].map(|at| address.octets()[at]);
    let tail = Ipv4Addr::new(a, b, c, d);
    match address.segments() {
        // Mapped, compatible, and through a translator.
        [0, 0, 0, 0, 0, 0xffff, _, _] | [0x64, 0xff9b, 0, 0, 0, 0, _, _] | [0, 0, 0, 0, 0xffff, 0, _, _] => {
            Some(tail)
        }
        [0, 0, 0, 0, 0, 0, _, _] if u32::from(tail) > 0xffff => Some(tail),
        // 6to4 has it in front.
        [0x2002, high, low, ..] => Some(Ipv4Addr::from((u32::from(high) << 16) | u32::from(low))),
        _ => None,
    }
}

fn network(address: IpAddr) -> Network {
    match address {
        IpAddr::V4(address) => {
            let [a, b, c, _] = address.octets();
            match (a, b, c) {
                (127 | 0, ..) => Network::Loopback,
                (169, 254, _) => Network::LinkLocal,
                // Where two clouds have their metadata.
                (100, 100, 100) | (192, 0, 0) => Network::LinkLocal,
                (10, ..) | (192, 168, _) | (172, 16..=31, _) | (100, 64..=127, _) => Network::Private,
                (192, 0, 2)
                | (192, 88, 99)
                | (198, 18..=19, _)
                | (198, 51, 100)
                | (203, 0, 113)
                | (224..=255, ..) => Network::Private,
                _ => Network::Public,
            }
        }
        IpAddr::V6(address) => match address.segments() {
            [0, 0, 0, 0, 0, 0, 0, 0 | 1] => Network::Loopback,
            // The second is where a cloud has its metadata.
            [0xfe80..=0xfebf, ..] | [0xfd00, 0xec2, ..] => Network::LinkLocal,
            // For protocols, and for books.
            [0x2001, 0..=0x1ff | 0xdb8, ..] | [0x3fff, 0..=0xfff, ..] => Network::Private,
            [0x2000..=0x3fff, ..] => Network::Public,
            _ => Network::Private,
        },
    }
}

fn says(network: Network) -> &'static str {
    match network {
        Network::None => "no network",
        Network::Name => "a name",
        Network::Public => "the public network",
        Network::Loopback => "this machine",
        Network::Private => "a private network",
        Network::LinkLocal => "the link, where clouds keep the credentials of a machine",
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn plain_addresses_are_taken_apart() {
        for (given, scheme, host, port, path, network) in [
            ("https://docs.rs/url/latest", "https", "docs.rs", 443, "/url/latest", Network::Name),
            ("HTTPS://Docs.RS", "https", "docs.rs", 443, "/", Network::Name),
            ("http://example.com:8080/a/../b?q#f", "http", "example.com", 8080, "/b", Network::Name),
            ("https://example.com.:443/", "https", "example.com", 443, "/", Network::Name),
            ("https://example.com:80/%2e%2e/x", "https", "example.com", 80, "/x", Network::Name),
            ("http://localhost:3000/", "http", "localhost", 3000, "/", Network::Loopback),
            ("http://app.localhost/", "http", "app.localhost", 80, "/", Network::Loopback),
            ("http://127.0.0.1:3000/", "http", "127.0.0.1", 3000, "/", Network::Loopback),
            ("http://127.1.2.3/", "http", "127.1.2.3", 80, "/", Network::Loopback),
            ("http://[::1]:9/", "http", "[::1]", 9, "/", Network::Loopback),
            ("http://10.0.0.1/", "http", "10.0.0.1", 80, "/", Network::Private),
            ("http://[fd12::1]/", "http", "[fd12::1]", 80, "/", Network::Private),
            ("http://intranet/", "http", "intranet", 80, "/", Network::Private),
            ("http://printer.local/", "http", "printer.local", 80, "/", Network::Private),
            ("http://foo.localdomain/", "http", "foo.localdomain", 80, "/", Network::Private),
            ("http://router.home/", "http", "router.home", 80, "/", Network::Private),
            ("http://db.private/", "http", "db.private", 80, "/", Network::Private),
            ("http://x.consul/", "http", "x.consul", 80, "/", Network::Private),
            ("http://home.example.com/", "http", "home.example.com", 80, "/", Network::Name),
            ("http://[2001:db8::1]/", "http", "[2001:db8::1]", 80, "/", Network::Private),
            ("http://[2001::1]/", "http", "[2001::1]", 80, "/", Network::Private),
            ("http://[3fff::1]/", "http", "[3fff::1]", 80, "/", Network::Private),
            ("http://[2001:4860::1]/", "http", "[2001:4860::1]", 80, "/", Network::Public),
            ("http://192.88.99.1/", "http", "192.88.99.1", 80, "/", Network::Private),
            ("http://8.8.8.8/", "http", "8.8.8.8", 80, "/", Network::Public),
            ("http://[2606:4700::1111]/", "http", "[2606:4700::1111]", 80, "/", Network::Public),
            ("ssh://GitHub.com/a/b", "ssh", "github.com", 22, "/a/b", Network::Name),
            ("wss://example.com/s", "wss", "example.com", 443, "/s", Network::Name),
            (
                "https://gitlab.com/api/v4/projects/a%2Fb",
                "https",
                "gitlab.com",
                443,
                "/api/v4/projects/a%2Fb",
                Network::Name,
            ),
            ("https://notlocalhost.com/", "https", "notlocalhost.com", 443, "/", Network::Name),
        ] {
            let fact = fact(given);
            assert_eq!(fact.trouble, None, "{given}");
            assert_eq!(
                (fact.scheme.as_str(), fact.host.as_str(), fact.port),
                (scheme, host, port),
                "{given}"
            );
            assert_eq!((fact.path.as_str(), fact.network), (path, network), "{given}");
        }
    }

    #[test]
    fn what_hides_a_host_is_trouble() {
        for (given, host) in [
            ("https://docs.rs@evil.com/", "evil.com"),
            ("https://docs.rs:443@evil.com/", "evil.com"),
            ("https://@evil.com/", "evil.com"),
            ("https://user:pw@docs.rs/", "docs.rs"),
            ("https://evil.com\\@docs.rs/", "evil.com"),
            ("https:\\\\evil.com/", "evil.com"),
            ("https:/evil.com/", "evil.com"),
            ("https:evil.com/", "evil.com"),
            ("https:///evil.com/", "evil.com"),
            ("https://docs.rs\t.evil.com/", "docs.rs.evil.com"),
            (" https://docs.rs/", "docs.rs"),
            ("https://docs.rs/ x", "docs.rs"),
            ("https://do\u{441}s.rs/", "xn--dos-5ed.rs"),
            ("https://xn--dos-5ed.rs/", "xn--dos-5ed.rs"),
            ("https://docs\u{3002}rs/", "docs.rs"),
            ("https://d%6fcs.rs/", "docs.rs"),
            ("https://ｄocs.rs/", "docs.rs"),
            ("http://2130706433/", "127.0.0.1"),
            ("http://0x7f000001/", "127.0.0.1"),
            ("http://0x7f.1/", "127.0.0.1"),
            ("http://0177.0.0.1/", "127.0.0.1"),
            ("http://127.1/", "127.0.0.1"),
            ("http://127.0.0.1./", "127.0.0.1"),
            ("http://0/", "0.0.0.0"),
            ("http://0.0.0.0/", "0.0.0.0"),
            ("http://[::]/", "[::]"),
            ("http://[::ffff:127.0.0.1]/", "127.0.0.1"),
            ("http://[::ffff:7f00:1]/", "127.0.0.1"),
            ("http://[::127.0.0.1]/", "127.0.0.1"),
            ("http://[64:ff9b::10.0.0.1]/", "10.0.0.1"),
            ("http://[2002:7f00:1::]/", "127.0.0.1"),
            ("http://[0:0:0:0:0:0:0:1]/", "[::1]"),
            ("http://169.254.169.254/latest/meta-data", "169.254.169.254"),
            ("http://2852039166/", "169.254.169.254"),
            ("http://100.100.100.200/", "100.100.100.200"),
            ("http://[fd00:ec2::254]/", "[fd00:ec2::254]"),
            ("http://[fe80::1]/", "[fe80::1]"),
            ("http://metadata.google.internal/", "metadata.google.internal"),
            ("http://127.0.0.1.nip.io/", "127.0.0.1.nip.io"),
            ("http://localtest.me/", "localtest.me"),
            ("https://docs.rs../", "docs.rs."),
            ("https://docs.rs/api/..%2f..%2fadmin", "docs.rs"),
            ("https://docs.rs/api/%2e%2e%2fadmin", "docs.rs"),
            ("https://docs.rs/a/..;/b", "docs.rs"),
            ("ssh://git@github.com/a/b", "github.com"),
            ("ssh://2130706433/", "127.0.0.1"),
            ("file:///etc/passwd", ""),
            ("file://docs.rs/etc/passwd", "docs.rs"),
            ("data:text/plain,hello", ""),
            ("javascript:alert(1)", ""),
            ("docs.rs/x", ""),
            ("//docs.rs/x", ""),
            ("/etc/passwd", ""),
            ("", ""),
            ("https://", ""),
            ("https://[::1", ""),
            ("https://docs.rs:99999/", ""),
        ] {
            let fact = fact(given);
            assert!(fact.trouble.is_some(), "{given}");
            assert_eq!(fact.host, host, "{given}");
        }
    }

    #[test]
    fn a_long_address_is_not_looked_at() {
        let fact = fact(&format!("https://docs.rs/{}", "a".repeat(LONGEST)));
        assert!(fact.trouble.is_some() && fact.host.is_empty());
    }

    proptest! {
        #[test]
        fn whatever_is_given_is_read(given in any::<String>(), host in "[a-zA-Z0-9.:@\\[\\]%/\\\\_-]{0,24}") {
            fact(&given);
            let fact = fact(&format!("https://{host}"));
            // A host that is trusted is the text that a person sees.
            if fact.trouble.is_none() {
                prop_assert!(host.to_lowercase().starts_with(&fact.host), "{host} became {}", fact.host);
            }
        }
    }
}
