//! Floods: whoever sends one is cut off or left waiting; nobody else notices.

use std::{
    fs,
    io::ErrorKind,
    time::{Duration, Instant},
};

use conductor_tests::harness::{Service, service};
use serde_json::json;

use crate::h2::{
    CONTINUATION, DATA, END_HEADERS, HEADERS, PING, RST_STREAM, Raw, SETTINGS, call, frame, header,
};

/// Frames of a flood.
const FRAMES: u32 = 10_000;

/// KiB by which the service may grow meanwhile.
const FLAT: u64 = 64 << 10;

/// A turn of somebody else may take so long, whatever goes on.
const TURN: Duration = Duration::from_secs(10);

const LIST: &str = "/conductor.v1.Sessions/List";

/// Processor time of the service so far.
fn processor(service: &Service) -> Duration {
    let stat = fs::read_to_string(format!("/proc/{}/stat", service.pid())).unwrap();
    let fields: Vec<_> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
    let ticks: u64 = fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap();
    Duration::from_millis(ticks * 10)
}

/// Lets somebody flood the service while somebody else works there.
fn others_do_not_notice(service: &Service, flood: impl FnOnce() + Send) {
    let (mut editor, session) = service.session();
    editor.turn(&session, "before");
    let (memory, busy, began) = (service.peak_memory(), processor(service), Instant::now());
    std::thread::scope(|scope| {
        let flooding = scope.spawn(flood);
        loop {
            let asked = Instant::now();
            assert_eq!(editor.turn(&session, "meanwhile"), ["echo: meanwhile"]);
            assert!(asked.elapsed() < TURN, "a turn took {:?}", asked.elapsed());
            if flooding.is_finished() {
                break;
            }
        }
        flooding.join().unwrap();
    });
    let growth = service.peak_memory() - memory;
    assert!(growth <= FLAT, "memory grew by {growth} KiB");
    let (busy, took) = (processor(service) - busy, began.elapsed());
    assert!(busy <= took + Duration::from_secs(1), "more than one core: {busy:?} in {took:?}");
}

#[test]
fn v04_reset_flood_is_cut_off() {
    let service = service(&json!({})).start();
    let token = service.token();
    others_do_not_notice(&service, || {
        let mut raw = Raw::open(&service);
        let block = call(LIST, &token);
        for number in 0..FRAMES {
            let stream = 2 * number + 1;
            let mut both = frame(HEADERS, END_HEADERS, stream, &block);
            both.extend(frame(RST_STREAM, 0, stream, &8_u32.to_be_bytes()));
            if raw.write(&both).is_err() {
                return;
            }
        }
        assert!(raw.is_ended(), "so many resets end the connection");
    });
}

#[test]
fn v04_headers_without_an_end_are_cut_off() {
    let service = service(&json!({})).start();
    others_do_not_notice(&service, || {
        let mut raw = Raw::open(&service);
        raw.write(&frame(HEADERS, 0, 1, &call(LIST, "x"))).unwrap();
        let block: Vec<u8> = (0..8).flat_map(|_| header("x-filler", &[b'x'; 100])).collect();
        for _ in 0..FRAMES {
            if raw.write(&frame(CONTINUATION, 0, 1, &block)).is_err() {
                return;
            }
        }
        assert!(raw.is_ended(), "headers without an end end the connection");
    });
}

#[test]
fn v04_pings_and_settings_of_a_stranger_end_with_their_admission() {
    let service = service(&json!({})).start();
    others_do_not_notice(&service, || {
        for (kind, payload) in [(PING, &[0; 8][..]), (SETTINGS, &[])] {
            let mut raw = Raw::open(&service);
            let many: Vec<u8> = (0..100).flat_map(|_| frame(kind, 0, 0, payload)).collect();
            for _ in 0..FRAMES / 100 {
                raw.drain();
                if raw.write(&many).is_err() {
                    break;
                }
            }
            assert!(raw.is_ended(), "whoever has no token does not stay");
        }
    });
}

/// Whoever sends pings and reads nothing fills neither our memory nor our time.
#[test]
fn v04_pings_that_nobody_reads_the_answers_of() {
    let service = service(&json!({})).start();
    others_do_not_notice(&service, || {
        let mut raw = Raw::open(&service);
        let many: Vec<u8> = (0..1000).flat_map(|_| frame(PING, 0, 0, &[0; 8])).collect();
        for _ in 0..200 {
            if let Err(error) = raw.write(&many) {
                // Not only left waiting: it would keep its place for ever.
                let waits = [ErrorKind::WouldBlock, ErrorKind::TimedOut];
                assert!(!waits.contains(&error.kind()), "whoever has no token does not stay: {error}");
                return;
            }
        }
        assert!(raw.is_ended());
    });
}

#[test]
fn v04_messages_half_sent_hold_nobody_up() {
    let service = service(&json!({})).start();
    let token = service.token();
    others_do_not_notice(&service, || {
        let block = call("/conductor.v1.Sessions/Prompt", &token);
        // Sixteen connections, each with as many streams as it may have.
        let half_said: Vec<Raw> = (0..16)
            .map(|_| {
                let mut raw = Raw::open(&service);
                for number in 0..128 {
                    let stream = 2 * number + 1;
                    raw.write(&frame(HEADERS, END_HEADERS, stream, &block)).unwrap();
                    // A message of 16 MiB, of which three bytes come.
                    raw.write(&frame(DATA, 0, stream, b"\0\x01\0\0\0abc")).unwrap();
                }
                raw
            })
            .collect();
        // Starting an agent copies what the service has in memory, room made for what
        // never comes included.
        let (mut editor, session) = service.session();
        assert_eq!(editor.turn(&session, "in spite of all"), ["echo: in spite of all"]);
        drop(half_said);
    });
    let room = service.peak_address_space();
    assert!(room < 8 << 20, "the service took {room} KiB of addresses");
}

#[test]
fn v04_stranger_who_never_ends_the_headers_does_not_stay() {
    let service = service(&json!({})).set("service.max_connections", 4).start();
    let mut slow: Vec<Raw> = (0..3)
        .map(|_| {
            let mut raw = Raw::open(&service);
            raw.write(&frame(HEADERS, 0, 1, &call(LIST, "x"))).unwrap();
            raw
        })
        .collect();
    let (mut editor, session) = service.session();
    for raw in &mut slow {
        assert!(raw.is_ended());
    }
    assert_eq!(editor.turn(&session, "hello"), ["echo: hello"]);
}
