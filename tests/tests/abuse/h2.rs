//! HTTP/2 by hand: frames that no library would send.

use std::{
    io::{self, Read as _, Write as _},
    net::TcpStream,
    time::Duration,
};

use conductor_tests::harness::Service;

pub const DATA: u8 = 0;
pub const HEADERS: u8 = 1;
pub const RST_STREAM: u8 = 3;
pub const SETTINGS: u8 = 4;
pub const PING: u8 = 6;
pub const CONTINUATION: u8 = 9;

pub const END_STREAM: u8 = 1;
pub const END_HEADERS: u8 = 4;

/// How long one write or read may take; then the service does not care.
const PATIENCE: Duration = Duration::from_secs(20);

/// A connection that has said the preface.
pub struct Raw {
    stream: TcpStream,
}

impl Raw {
    pub fn open(service: &Service) -> Self {
        let stream = TcpStream::connect(service.endpoint().replace("http://", "")).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
        let mut raw = Self { stream };
        raw.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").unwrap();
        raw.write(&frame(SETTINGS, 0, 0, b"")).unwrap();
        raw
    }

    pub fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.write_all(bytes)
    }

    /// Whether the service ends the connection, and what it said before.
    pub fn is_ended(&mut self) -> bool {
        let mut said = Vec::new();
        match self.stream.read_to_end(&mut said) {
            Ok(_) => true,
            Err(error) => error.kind() == io::ErrorKind::ConnectionReset,
        }
    }

    /// Reads frames up to one of this kind.
    pub fn wait_for(&mut self, kind: u8) {
        loop {
            let mut head = [0; 9];
            self.stream.read_exact(&mut head).unwrap();
            let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
            let mut payload = vec![0; length as usize];
            self.stream.read_exact(&mut payload).unwrap();
            if head[3] == kind {
                return;
            }
        }
    }

    /// Reads what is there without waiting for more.
    pub fn drain(&mut self) {
        self.stream.set_nonblocking(true).unwrap();
        let mut buffer = [0; 65536];
        while matches!(self.stream.read(&mut buffer), Ok(1..)) {}
        self.stream.set_nonblocking(false).unwrap();
    }
}

/// One frame.
pub fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    let mut frame = length[1..].to_vec();
    frame.extend([kind, flags]);
    frame.extend(stream.to_be_bytes());
    frame.extend(payload);
    frame
}

/// A header in the plainest form that there is.
pub fn header(name: &str, value: &[u8]) -> Vec<u8> {
    let mut block = vec![0];
    for part in [name.as_bytes(), value] {
        assert!(part.len() < 127, "longer ones need another form");
        block.push(part.len() as u8);
        block.extend(part);
    }
    block
}

/// The headers of a call.
pub fn call(path: &str, token: &str) -> Vec<u8> {
    let bearer = format!("Bearer {token}");
    let fields = [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", path),
        (":authority", "localhost"),
        ("content-type", "application/grpc"),
        ("te", "trailers"),
        ("authorization", &bearer),
    ];
    fields.iter().flat_map(|(name, value)| header(name, value.as_bytes())).collect()
}
