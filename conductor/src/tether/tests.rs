//! Whether frames keep their order on the way to the stream, and what a stream
//! is told of a connection that is no more.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests fail by panicking")]

use bytes::Bytes;

use super::*;

#[tokio::test]
async fn small_and_large_packets_keep_their_order() {
    let temp = tempfile::tempdir().unwrap();
    let tasks = Tasks::default();
    let closing = tokio_util::sync::CancellationToken::new();
    let tethers = Tethers::start(1, temp.path().to_path_buf(), closing.clone(), Metrics::default(), &tasks);
    let patience =
        Patience { detached_ttl: Duration::from_secs(60), editor_timeout: Duration::from_secs(60) };
    let feed = Box::pin(futures_util::stream::pending());
    let Tethered { inbound, out, end, mut attached } =
        tethers.tie(Uuid::now_v7(), &Caller::local(), feed, false, patience, &tasks).await;
    tasks.start("sessions", async move {
        for number in 0..500 {
            // Runs of small ones, with ones too large to travel with them.
            let size = if number % 3 == 2 { 2 * GATHER_BYTES } else { 10 };
            let frames: Bytes = format!("{number:size$}\n").into();
            out.reserve(frames.len()).await.unwrap().send(Packet { frames, count: 1 });
        }
        drop((out, inbound));
        end.send(End::Draining).unwrap();
    });
    let (mut next, mut seq) = (0, 1);
    while let Some(Said::Run { first_seq, packet }) = attached.messages.recv().await {
        assert_eq!(first_seq, seq);
        seq += u64::from(packet.count);
        for line in std::str::from_utf8(&packet.frames).unwrap().lines() {
            assert_eq!(line.trim().parse::<u32>().unwrap(), next);
            next += 1;
        }
    }
    assert_eq!((next, attached.end.await), (500, Ok(End::Draining)));
    closing.cancel();
    tasks.ended().await;
}

/// Nobody waits for a connection whose task panicked: its stream ends with what
/// was said before, and cannot be carried on.
#[tokio::test]
async fn a_connection_that_panics_ends_its_stream() {
    let temp = tempfile::tempdir().unwrap();
    let (tasks, connections) = (Tasks::default(), Tasks::default());
    let closing = tokio_util::sync::CancellationToken::new();
    let tethers = Tethers::start(1, temp.path().to_path_buf(), closing.clone(), Metrics::default(), &tasks);
    let patience =
        Patience { detached_ttl: Duration::from_secs(600), editor_timeout: Duration::from_secs(600) };
    let id = Uuid::now_v7();
    let caller = Caller::local();
    let feed = || -> Feed { Box::pin(futures_util::stream::pending()) };
    let Tethered { inbound, out, end, mut attached } =
        tethers.tie(id, &caller, feed(), true, patience, &tasks).await;
    connections.start("connection", async move {
        let _held = (inbound, end);
        let frames = Bytes::from_static(b"said before\n");
        out.reserve(frames.len()).await.unwrap().send(Packet { frames, count: 1 });
        panic!("on purpose");
    });
    connections.ended().await;
    let Some(Said::Run { packet, .. }) = attached.messages.recv().await else { panic!("nothing was said") };
    assert_eq!(packet.frames, "said before\n");
    assert!(attached.messages.recv().await.is_none());
    assert_eq!(attached.end.await, Ok(End::Broken));
    let key = attached.key.unwrap();
    // It is forgotten a moment later; until then whoever comes is told to come again.
    while let Some(resumed) = tethers.resume(&id.to_string(), key.expose(), &caller, 1, feed).await {
        assert!(matches!(resumed, Err(End::Busy)), "{resumed:?}");
        tokio::task::yield_now().await;
    }
    closing.cancel();
    tasks.ended().await;
}
