//! A queue bounded in items *and* bytes.
//!
//! A frame may be 50 bytes or 16 MiB, so a bound on items alone would not
//! bound memory. A full queue makes the sender wait; nothing is ever dropped.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

/// Makes a queue for at most `items` items of together at most `bytes` bytes.
/// One item larger than that passes alone.
pub fn queue<T>(items: usize, bytes: u32) -> (Sender<T>, Receiver<T>) {
    let (tx, rx) = mpsc::channel(items);
    let budget = Arc::new(Semaphore::new(bytes as usize));
    (Sender { tx, budget: budget.clone(), bytes }, Receiver { rx, budget })
}

/// The queue's other end is gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Closed;

/// Why an item could not be queued at once; it is handed back.
#[derive(Debug)]
pub enum NotSent<T> {
    /// The queue is full.
    Full(T),
    /// The other end is gone.
    Closed(T),
}

/// The feeding end.
#[derive(Debug)]
pub struct Sender<T> {
    tx: mpsc::Sender<(T, OwnedSemaphorePermit)>,
    budget: Arc<Semaphore>,
    bytes: u32,
}

impl<T> Clone for Sender<T> {
    fn clone(&self) -> Self {
        Self { tx: self.tx.clone(), budget: self.budget.clone(), bytes: self.bytes }
    }
}

/// A place in the queue.
pub struct Permit<'a, T> {
    place: mpsc::Permit<'a, (T, OwnedSemaphorePermit)>,
    bytes: OwnedSemaphorePermit,
}

impl<T> Permit<'_, T> {
    /// Fills the place.
    pub fn send(self, item: T) {
        self.place.send((item, self.bytes));
    }
}

impl<T> Sender<T> {
    /// Waits for a place for an item of `size` bytes. Safe to drop at any time.
    pub async fn reserve(&self, size: usize) -> Result<Permit<'_, T>, Closed> {
        let bytes = self.budget.clone().acquire_many_owned(self.weight(size)).await.map_err(|_| Closed)?;
        let place = self.tx.reserve().await.map_err(|_| Closed)?;
        Ok(Permit { place, bytes })
    }

    /// Queues the item if there is a place right now.
    pub fn try_send(&self, size: usize, item: T) -> Result<(), NotSent<T>> {
        let Ok(bytes) = self.budget.clone().try_acquire_many_owned(self.weight(size)) else {
            return Err(if self.budget.is_closed() { NotSent::Closed(item) } else { NotSent::Full(item) });
        };
        self.tx.try_send((item, bytes)).map_err(|error| match error {
            mpsc::error::TrySendError::Full((item, _)) => NotSent::Full(item),
            mpsc::error::TrySendError::Closed((item, _)) => NotSent::Closed(item),
        })
    }

    /// Queues the item if there is a place right now, and half of the queue stays
    /// free: for those whom others must not keep out.
    pub fn try_send_in_half(&self, size: usize, item: T) -> Result<(), NotSent<T>> {
        let most = self.bytes as usize / 2;
        let is_half_full = self.tx.capacity() <= self.tx.max_capacity() / 2
            || self.budget.available_permits() < most + (self.weight(size) as usize).min(most);
        if is_half_full && !self.is_closed() {
            return Err(NotSent::Full(item));
        }
        self.try_send(size, item)
    }

    /// Whether the other end is gone.
    pub fn is_closed(&self) -> bool {
        self.tx.is_closed()
    }

    /// Resolves when the other end is gone.
    pub async fn closed(&self) {
        self.tx.closed().await;
    }

    fn weight(&self, size: usize) -> u32 {
        u32::try_from(size).unwrap_or(u32::MAX).min(self.bytes)
    }
}

/// The taking end.
#[derive(Debug)]
pub struct Receiver<T> {
    rx: mpsc::Receiver<(T, OwnedSemaphorePermit)>,
    budget: Arc<Semaphore>,
}

impl<T> Receiver<T> {
    /// The next item; `None` once all senders are gone and all is taken.
    pub async fn recv(&mut self) -> Option<T> {
        self.rx.recv().await.map(|(item, _)| item)
    }

    /// The same for hand-written streams.
    pub fn poll_recv(&mut self, cx: &mut std::task::Context<'_>) -> std::task::Poll<Option<T>> {
        self.rx.poll_recv(cx).map(|item| item.map(|(item, _)| item))
    }

    /// Takes no more; what is queued can still be taken.
    pub fn close(&mut self) {
        self.rx.close();
        self.budget.close();
    }

    /// The next item if there is one right now.
    pub fn try_recv(&mut self) -> Option<T> {
        self.rx.try_recv().ok().map(|(item, _)| item)
    }
}

impl<T> Drop for Receiver<T> {
    fn drop(&mut self) {
        // Wakes senders that wait for bytes; those that wait for a place are
        // woken by the channel itself.
        self.budget.close();
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests fail by panicking")]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    #[tokio::test]
    async fn is_bounded_in_bytes_and_in_items() {
        let (tx, mut rx) = queue(2, 100);
        tx.try_send(60, "a").unwrap();
        assert!(matches!(tx.try_send(60, "b"), Err(NotSent::Full("b"))));
        assert!(tx.reserve(60).now_or_never().is_none());
        tx.try_send(10, "c").unwrap();
        assert!(matches!(tx.try_send(1, "d"), Err(NotSent::Full("d"))));
        assert_eq!(rx.recv().await, Some("a"));
        tx.reserve(60).await.unwrap().send("e");
        assert_eq!((rx.recv().await, rx.recv().await), (Some("c"), Some("e")));
    }

    #[tokio::test]
    async fn lets_one_oversized_item_pass_alone() {
        let (tx, mut rx) = queue(2, 100);
        tx.try_send(1_000_000, ()).unwrap();
        assert!(matches!(tx.try_send(1, ()), Err(NotSent::Full(()))));
        assert_eq!(rx.recv().await, Some(()));
    }

    #[tokio::test]
    async fn some_leave_half_of_it_to_others() {
        let (tx, mut rx) = queue(4, 100);
        tx.try_send_in_half(50, "a").unwrap();
        assert!(matches!(tx.try_send_in_half(1, "b"), Err(NotSent::Full("b"))));
        tx.try_send(50, "c").unwrap();
        assert_eq!((rx.recv().await, rx.recv().await), (Some("a"), Some("c")));
        tx.try_send_in_half(0, "d").unwrap();
        tx.try_send_in_half(0, "e").unwrap();
        assert!(matches!(tx.try_send_in_half(0, "f"), Err(NotSent::Full("f"))));
        tx.try_send(0, "g").unwrap();
        drop(rx);
        assert!(matches!(tx.try_send_in_half(0, "h"), Err(NotSent::Closed("h"))));
    }

    #[tokio::test]
    async fn a_gone_receiver_wakes_the_waiting_sender() {
        let (tx, rx) = queue(1, 10);
        tx.try_send(10, ()).unwrap();
        let waiting = tx.reserve(10);
        drop(rx);
        assert!(waiting.await.is_err());
        assert!(matches!(tx.try_send(1, ()), Err(NotSent::Closed(()))));
    }
}
