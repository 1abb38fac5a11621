//! The admin listener of a service, as Prometheus and an orchestrator meet it.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests fail by panicking")]

use std::{
    collections::BTreeMap,
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpStream},
};

use serde_json::Value;

use crate::{
    editor::DEADLINE,
    harness::{Builder, Service, poll_until},
};

/// Lets a service have an admin listener on a free port.
#[must_use]
pub fn watched(builder: Builder) -> Builder {
    builder.set("service.admin", "127.0.0.1:0")
}

/// Where it listens, as the log says.
pub fn address(service: &Service) -> SocketAddr {
    let log = service.log();
    let lines = log.lines().rev().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let mut said = lines.filter(|line| line["message"] == "metrics and health are served");
    said.next().expect("the log tells of the admin listener")["address"].as_str().unwrap().parse().unwrap()
}

/// One request; the status and the body.
pub fn request(address: SocketAddr, method: &str, path: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(DEADLINE)).unwrap();
    write!(stream, "{method} {path} HTTP/1.1\r\nHost: admin\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no answer: {answer:?}"));
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
    (status.unwrap_or_else(|| panic!("no status: {head:?}")), body.to_owned())
}

/// One GET; the status and the body.
pub fn get(service: &Service, path: &str) -> (u16, String) {
    request(address(service), "GET", path)
}

/// Every series with its number. What is no series and no comment fails the test.
pub fn metrics(service: &Service) -> BTreeMap<String, f64> {
    let (status, text) = get(service, "/metrics");
    assert_eq!(status, 200);
    let series = text.lines().filter(|line| !line.starts_with('#'));
    series
        .map(|line| {
            let (name, value) = line.rsplit_once(' ').unwrap_or_else(|| panic!("no series: {line:?}"));
            (name.to_owned(), value.parse().unwrap_or_else(|_| panic!("no number: {line:?}")))
        })
        .collect()
}

/// The number of one series.
pub fn metric(service: &Service, series: &str) -> f64 {
    let all = metrics(service);
    *all.get(series).unwrap_or_else(|| panic!("no series {series} in {:#?}", all.keys()))
}

/// Waits until a series has a number that fits.
pub fn wait_metric(service: &Service, series: &str, fits: impl Fn(f64) -> bool) {
    let mut last = f64::NAN;
    let in_time = poll_until(DEADLINE, || {
        last = metric(service, series);
        fits(last)
    });
    assert!(in_time, "{series} stays {last}; the log:\n{}", service.log());
}
