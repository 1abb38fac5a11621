//! One flipped bit between a bridge and its service (`tests/faults`, row N4).
//!
//! There is no TLS on this way, and no checksum of our own: a bit that flips
//! within a frame's text is not noticed by anybody but, with luck, the reader
//! of the JSON. What can be promised without one is shown here: the framing of
//! HTTP/2, of gRPC and of protobuf may break in any way, and that costs no more
//! than its connection. Frames are neither lost nor doubled nor reordered
//! unnoticed, nobody panics, and nobody else is disturbed.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests fail by panicking")]

use std::{env, thread, time::Duration};

use conductor_tests::{
    harness::{Service, poll_until, service},
    net::Net,
    proxy::{Flip, Side},
};
use serde_json::json;

/// Bytes of framing before a frame: 9 of HTTP/2, 5 of gRPC, about 10 of
/// protobuf.
const FRAMING: usize = 24;

/// Longer than an answer takes. A length that claims more bytes than there are
/// is noticed only when the connection is replaced.
const PATIENCE: Duration = Duration::from_secs(2);

const WORKERS: usize = 4;

fn flips() -> Vec<Flip> {
    let places = [(Side::Up, "session/prompt"), (Side::Down, "agent_message_chunk")];
    let all = places.into_iter().flat_map(|(side, within)| {
        (1..=FRAMING).flat_map(move |before| (0..8).map(move |bit| Flip { side, within, before, bit }))
    });
    // Some, so that this stays quick; all of them with FLIP_STEP=1.
    let step = env::var("FLIP_STEP").map_or(13, |text| text.parse().unwrap());
    all.step_by(step).collect()
}

/// A turn in which a bit flips; whether it was answered as if nothing had been.
fn survives(service: &Service, net: &Net, number: usize, flip: Flip) -> bool {
    let (mut editor, session) = net.session(service);
    net.proxy.flip(flip);
    let mark = format!("flip{number} ");
    let id = editor.prompt_do(&session, &json!([{ "update": { "n": 5, "text": mark, "size": 100 } }]));
    let is_over = || editor.answers_to(&id) > 0 || editor.has_ended();
    if !poll_until(PATIENCE, is_over) {
        net.proxy.cut();
    }
    assert!(poll_until(Duration::from_secs(20), is_over), "{flip:?} is never over\n{}", editor.story());
    assert!(net.proxy.has_flipped(), "{flip:?} did not happen");
    let told = editor.stderr();
    assert!(!told.contains("panicked"), "{flip:?}: {told}");
    assert!(editor.answers_to(&id) <= 1, "{flip:?}: answered twice\n{}", editor.story());
    let is_done = editor.lines().iter().any(|line| line.json["result"]["stopReason"] == "end_turn");
    let chunks = editor.chunks(&session);
    let is_in_order = chunks.iter().enumerate().all(|(n, text)| text.starts_with(&format!("{mark}{n} ")));
    assert!(is_in_order, "{flip:?}: {chunks:?}");
    // The service's good-bye may be lost, too; it is waited for in vain, but not
    // for ever.
    editor.close_stdin();
    editor.wait_exit();
    if is_done {
        assert_eq!(chunks.len(), 5, "{flip:?}: done, and not all of it came\n{}", editor.story());
        return true;
    }
    // Otherwise it was answered in another way, or somebody says why not.
    let is_told = editor.answers_to(&id) == 1 || told.contains("conductor connect: ");
    assert!(is_told, "{flip:?}: silence\n{}", editor.story());
    false
}

#[test]
fn n04_flipped_bit_in_the_framing_breaks_no_more_than_its_connection() {
    let service = service(&json!({})).start();
    let flips = flips();
    let survived: usize = thread::scope(|scope| {
        let workers: Vec<_> = (0..WORKERS)
            .map(|worker| {
                let (service, flips) = (&service, &flips);
                scope.spawn(move || {
                    let net = Net::before(service);
                    let own = flips.iter().enumerate().skip(worker).step_by(WORKERS);
                    own.filter(|(number, flip)| survives(service, &net, *number, **flip)).count()
                })
            })
            .collect();
        workers.into_iter().map(|worker| worker.join().unwrap()).sum()
    });
    // Most of it is repaired by coming back.
    assert!(2 * survived > flips.len(), "only {survived} of {} turns were answered", flips.len());
    // No prompt was passed on twice, in whatever way its message was broken.
    let received = service.received("fake");
    for number in 0..flips.len() {
        let mark = format!("flip{number} ");
        let wanted = |text: &&String| text.contains("session/prompt") && text.contains(&mark);
        let times = received.iter().filter_map(|line| line.text.as_ref()).filter(wanted).count();
        assert!(times <= 1, "{mark}was sent {times} times");
    }
    let (mut editor, session) = service.session();
    assert_eq!(editor.turn(&session, "still here"), ["echo: still here"]);
}
