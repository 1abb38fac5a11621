//! Whether frames keep their order on the way to the stream.
#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

use super::*;

#[tokio::test]
async fn small_and_large_packets_keep_their_order() {
    let temp = tempfile::tempdir().unwrap();
    let tasks = Tasks::default();
    let closing = tokio_util::sync::CancellationToken::new();
    let tethers = Tethers::start(1, temp.path().to_path_buf(), closing.clone(), &tasks);
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
