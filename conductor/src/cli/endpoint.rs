//! Flags and help texts of where the service is and how to be let in.

use std::path::PathBuf;

use clap::Args;

/// Where the service is, and how to trust it.
#[derive(Debug, Clone, Default, Args)]
pub struct EndpointArgs {
    /// Address of the service, as https://HOST:PORT [default: the one of the last
    /// `conductor login`, else the one in the state directory]
    #[arg(long, global = true, value_name = "URL", env = "CONDUCTOR_ENDPOINT")]
    pub endpoint: Option<String>,
    /// CAs that the service's certificate may be of, as PEM [default: those of
    /// this host]
    #[arg(long, global = true, value_name = "FILE", env = "CONDUCTOR_CA_FILE")]
    pub ca_file: Option<PathBuf>,
    /// Your own certificate, as PEM; it may stand for a token
    #[arg(long, global = true, value_name = "FILE", env = "CONDUCTOR_CLIENT_CERT")]
    pub client_cert: Option<PathBuf>,
    /// The key of your certificate, as PEM
    #[arg(long, global = true, value_name = "FILE", env = "CONDUCTOR_CLIENT_KEY")]
    pub client_key: Option<PathBuf>,
}

/// What to log in to.
#[derive(Debug, Args)]
#[command(
    after_help = "The token is asked for on a terminal, and read from stdin otherwise. It is tried, and kept\n\
    with the files that were named, readable by you alone, until `conductor logout`. An empty line\n\
    logs in with --client-cert alone. The service that was logged in to last is used where none is\n\
    named. CONDUCTOR_TOKEN, where it is set, goes before what is kept."
)]
pub struct LoginArgs {
    /// Where the service is.
    #[command(flatten)]
    pub endpoint: EndpointArgs,
    /// Print JSON, for machines
    #[arg(long)]
    pub json: bool,
}

/// What to forget.
#[derive(Debug, Args)]
pub struct LogoutArgs {
    /// Where the service is.
    #[command(flatten)]
    pub endpoint: EndpointArgs,
    /// Print JSON, for machines
    #[arg(long)]
    pub json: bool,
}

/// How to show who one is.
#[derive(Debug, Args)]
pub struct WhoAmIArgs {
    /// Where the service is.
    #[command(flatten)]
    pub endpoint: EndpointArgs,
    /// Print JSON, for machines
    #[arg(long)]
    pub json: bool,
}
