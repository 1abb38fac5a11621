//! One request over HTTP to an address that the configuration names: within a deadline,
//! with an answer up to a size, to that very address. Redirections are not followed, since
//! what is fetched decides who is let in, and what is sent is not for everybody.

use std::{
    error::Error, fs, future::poll_fn, os::unix::fs::PermissionsExt as _, path::Path, pin::Pin, pin::pin,
    time::Duration,
};

use bytes::Bytes;
use http::{HeaderValue, Request, StatusCode, Uri, header::HOST};
use http_body::Body as _;
use hyper::{body::Incoming, client::conn::http1};
use hyper_util::rt::TokioIo;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
    task::spawn_blocking,
    time::timeout,
};
use url::Url;

use crate::tls::outward::{Inside, Outward, Trust};

/// How long one document may take, from the name's resolution to its end.
const PATIENCE: Duration = Duration::from_secs(10);

/// The largest document. Those of real issuers have a few kilobytes.
const LARGEST: usize = 512 << 10;

/// The document at an address; else why not.
pub async fn get(url: &Url, ca_file: Option<&Path>) -> Result<Bytes, String> {
    let request = Request::get("/").header("accept", "application/json").body(String::new());
    within_deadline(url, ca_file, request).await.map_err(|failed| format!("{url}: {}", failed.why))
}

/// Why something was not handed over.
#[derive(Debug)]
pub struct Failed {
    /// What was answered, if anything.
    pub status: Option<StatusCode>,
    /// The reason, for people; the address is no part of it.
    pub why: String,
}

impl From<String> for Failed {
    fn from(why: String) -> Self {
        Self { status: None, why }
    }
}

/// Hands a text to an address, with headers; else why not.
pub async fn deliver(
    url: &Url,
    ca_file: Option<&Path>,
    headers: &[(String, String)],
    content_type: &str,
    text: String,
) -> Result<(), Failed> {
    let mut request = Request::post("/").header("content-type", content_type);
    for (name, value) in headers {
        let value = HeaderValue::from_str(value).map(|mut value| {
            value.set_sensitive(true);
            value
        });
        request = request.header(name, value.map_err(|_| format!("the value of the header {name} is none"))?);
    }
    within_deadline(url, ca_file, request.body(text)).await.map(|_| ())
}

/// Headers from a file, one `NAME: VALUE` a line; `key` is the file's name in the
/// configuration.
pub fn headers(key: &str, file: &Path) -> Result<Vec<(String, String)>, String> {
    let shown = file.display();
    let unreadable = |error| format!("{key} {shown} cannot be read: {error}");
    let mode = fs::metadata(file).map_err(unreadable)?.permissions().mode();
    if mode & 0o004 != 0 {
        let mode = mode & 0o7777;
        return Err(format!(
            "{key} {shown} can be read by every user of this machine (mode {mode:04o}); \
             take that right away: chmod o-r {shown}"
        ));
    }
    let text = fs::read_to_string(file).map_err(unreadable)?;
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    let header = |(number, line): (usize, &str)| {
        let (name, value) = line
            .split_once(':')
            .ok_or_else(|| format!("{key} {shown}:{}: is no header; write NAME: VALUE", number + 1))?;
        Ok((name.trim().to_owned(), value.trim().to_owned()))
    };
    lines.map(header).collect()
}

/// Hands a JSON document to an address; else why not. The address may be a secret, so it
/// is not part of what is said.
pub async fn post(url: &Url, ca_file: Option<&Path>, json: String) -> Result<(), String> {
    let request = Request::post("/").header("content-type", "application/json").body(json);
    within_deadline(url, ca_file, request).await.map(|_| ()).map_err(|failed| failed.why)
}

async fn within_deadline(
    url: &Url,
    ca_file: Option<&Path>,
    request: http::Result<Request<String>>,
) -> Result<Bytes, Failed> {
    let request = request.map_err(|error| error.to_string())?;
    let answered = timeout(PATIENCE, ask(url, ca_file, request)).await;
    answered.unwrap_or_else(|_| Err(format!("no answer within {PATIENCE:?}").into()))
}

async fn ask(url: &Url, ca_file: Option<&Path>, request: Request<String>) -> Result<Bytes, Failed> {
    let host = url.host_str().ok_or_else(|| "it names no host".to_owned())?;
    let port = url.port_or_known_default().ok_or_else(|| "it names no port".to_owned())?;
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    let stream = TcpStream::connect((bare, port)).await.map_err(|error| error.to_string())?;
    match url.scheme() {
        "https" => {
            // A system's CAs are many files.
            let ca_file = ca_file.map(Path::to_owned);
            let read = move || {
                let trust = ca_file.as_deref().map_or(Trust::Host, Trust::File);
                Outward::new(trust, None, Inside::Http1).map_err(|error| error.to_string())
            };
            let outward = spawn_blocking(read).await.map_err(|error| error.to_string())??;
            let stream = outward.connect(host, stream).await.map_err(|error| error.to_string())?;
            talk(stream, url, request).await
        }
        "http" => talk(stream, url, request).await,
        other => Err(format!("{other} is not spoken").into()),
    }
}

async fn talk(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send,
    url: &Url,
    mut request: Request<String>,
) -> Result<Bytes, Failed> {
    let words = |error: hyper::Error| match error.source() {
        Some(source) => format!("{error}: {source}"),
        None => error.to_string(),
    };
    let target: Uri = url[url::Position::BeforePath..url::Position::AfterQuery]
        .parse()
        .map_err(|_| "it is no address".to_owned())?;
    let authority = &url[url::Position::BeforeHost..url::Position::AfterPort];
    *request.uri_mut() = target;
    let authority = authority.parse().map_err(|_| "it is no address".to_owned())?;
    request.headers_mut().insert(HOST, authority);
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(words)?;
    let answer = async {
        let response = sender.send_request(request).await.map_err(words)?;
        if !response.status().is_success() {
            let status = response.status();
            return Err(Failed { status: Some(status), why: format!("it answers {status}") });
        }
        Ok(read(response.into_body()).await?)
    };
    let (mut answer, mut connection) = (pin!(answer), pin!(connection));
    tokio::select! {
        biased;
        answer = &mut answer => answer,
        // All that was received is then with the answer.
        _ = &mut connection => answer.await,
    }
}

async fn read(mut body: Incoming) -> Result<Bytes, String> {
    let mut document = Vec::new();
    while let Some(frame) = poll_fn(|cx| Pin::new(&mut body).poll_frame(cx)).await {
        let frame = frame.map_err(|error| format!("it breaks off: {error}"))?;
        if let Ok(data) = frame.into_data() {
            document.extend_from_slice(&data);
        }
        if document.len() > LARGEST {
            return Err(format!("it is longer than {LARGEST} bytes"));
        }
    }
    Ok(document.into())
}
