//! Tests of the inbox: wake-ups are neither lost nor repeated.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use super::Inbox;
use crate::sched::Lanes;

#[derive(Debug, Default)]
struct Numbers(Vec<u32>);

impl Lanes for Numbers {
    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl Numbers {
    fn take(&mut self) -> Option<Vec<u32>> {
        Some(std::mem::take(&mut self.0))
    }
}

#[derive(Default)]
struct Wakes(AtomicUsize);

impl Wake for Wakes {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

fn waker() -> (Arc<Wakes>, Waker) {
    let wakes = Arc::new(Wakes::default());
    (Arc::clone(&wakes), Waker::from(wakes))
}

fn count(wakes: &Wakes) -> usize {
    wakes.0.load(Ordering::SeqCst)
}

#[test]
fn one_wake_for_a_batch_and_none_while_busy() {
    let inbox = Inbox::new(Numbers::default());
    let (wakes, waker) = waker();
    let cx = Context::from_waker(&waker);
    inbox.push_batch(|lanes| lanes.0.push(1));
    assert_eq!(inbox.poll_drain(&cx, Numbers::take), Poll::Ready(Some(vec![1])));
    inbox.push_batch(|lanes| lanes.0.extend([2, 3]));
    assert_eq!(count(&wakes), 0, "the drainer never found nothing");
    assert_eq!(inbox.poll_drain(&cx, Numbers::take), Poll::Ready(Some(vec![2, 3])));
    assert_eq!(inbox.poll_drain(&cx, Numbers::take), Poll::Pending);
    inbox.push_batch(|_| ());
    assert_eq!(count(&wakes), 0, "an empty batch is nothing");
    inbox.push_batch(|lanes| lanes.0.extend([4, 5]));
    inbox.push_batch(|lanes| lanes.0.push(6));
    assert_eq!(count(&wakes), 1);
    assert_eq!(inbox.poll_drain(&cx, Numbers::take), Poll::Ready(Some(vec![4, 5, 6])));
}

#[test]
fn a_paced_drainer_is_not_woken_by_batches() {
    let inbox = Inbox::new(Numbers(vec![1]));
    let (wakes, waker) = waker();
    let cx = Context::from_waker(&waker);
    assert_eq!(inbox.poll_drain(&cx, |_| None::<()>), Poll::Pending);
    inbox.push_batch(|lanes| lanes.0.push(2));
    assert_eq!(count(&wakes), 0);
    inbox.wake();
    assert_eq!(count(&wakes), 1);
    assert_eq!(inbox.poll_drain(&cx, Numbers::take), Poll::Ready(Some(vec![1, 2])));
    assert_eq!(inbox.poll_drain(&cx, Numbers::take), Poll::Pending);
    inbox.push_batch(|lanes| lanes.0.push(3));
    assert_eq!(count(&wakes), 2);
}

#[test]
fn a_drop_of_everything_while_draining_still_waits_for_more() {
    let inbox = Inbox::new(Numbers(vec![1]));
    let (wakes, waker) = waker();
    let cx = Context::from_waker(&waker);
    // All frames were too old: nothing to send, nothing left.
    let drained = inbox.poll_drain(&cx, |lanes| {
        lanes.0.clear();
        None::<()>
    });
    assert_eq!(drained, Poll::Pending);
    inbox.push_batch(|lanes| lanes.0.push(2));
    assert_eq!(count(&wakes), 1);
}

#[test]
fn closing_wakes_refuses_and_lets_the_rest_out() {
    let inbox = Inbox::new(Numbers::default());
    let (wakes, waker) = waker();
    let cx = Context::from_waker(&waker);
    assert_eq!(inbox.poll_drain(&cx, Numbers::take), Poll::Pending);
    inbox.close();
    assert_eq!(count(&wakes), 1);
    assert!(inbox.is_closed());
    assert_eq!(inbox.push_batch(|lanes| lanes.0.push(1)), None);
    assert_eq!(inbox.poll_drain(&cx, Numbers::take), Poll::Ready(None));
    inbox.with(|lanes| lanes.0.push(7));
    assert_eq!(inbox.poll_drain(&cx, Numbers::take), Poll::Ready(Some(vec![7])));
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

#[test]
fn no_wake_up_is_lost_between_threads() {
    const PRODUCERS: u32 = 4;
    const BATCHES: u32 = 5_000;
    let inbox = Inbox::new(Numbers::default());
    let deadline = Instant::now() + Duration::from_secs(60);
    let mut received = 0;
    thread::scope(|scope| {
        let producers: Vec<_> = (0..PRODUCERS)
            .map(|_| {
                scope.spawn(|| {
                    for number in 0..BATCHES {
                        inbox.push_batch(|lanes| lanes.0.extend([number, number]));
                        if number % 64 == 0 {
                            thread::yield_now();
                        }
                    }
                })
            })
            .collect();
        let closer = scope.spawn(|| {
            for producer in producers {
                producer.join().unwrap();
            }
            inbox.close();
        });
        let waker = Waker::from(Arc::new(Unpark(thread::current())));
        let cx = Context::from_waker(&waker);
        loop {
            match inbox.poll_drain(&cx, Numbers::take) {
                Poll::Ready(Some(numbers)) => received += numbers.len(),
                Poll::Ready(None) => break,
                Poll::Pending => {
                    // A lost wake-up would leave this thread parked until the deadline.
                    thread::park_timeout(deadline.saturating_duration_since(Instant::now()));
                    assert!(Instant::now() < deadline, "a wake-up was lost");
                }
            }
        }
        closer.join().unwrap();
    });
    assert_eq!(received, usize::try_from(PRODUCERS * BATCHES * 2).unwrap());
}
