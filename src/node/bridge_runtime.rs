//! The threads of bridges, apart from those of sessions.
//!
//! What a bridge sends is paced by what comes back, some times in a millisecond. Behind the sessions of a flood, each of which has
//! work for a fraction of a millisecond at any time, every such turn would wait for all of them, and the bridge would carry a
//! fraction of what its path does. On threads of their own they are woken by the system as soon as something is there.

use std::future::Future;
use std::num::NonZeroUsize;

use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;
use tokio_util::task::TaskTracker;

/// Tasks run before sockets are looked at again: bridges live from what arrives.
const EVENT_INTERVAL: u32 = 16;

/// The runtime of bridges. Everything on it ends when this is dropped.
#[derive(Debug)]
pub struct BridgeRuntime {
    handle: Handle,
    /// Its thread goes on until this is gone.
    _stop: oneshot::Sender<()>,
}

impl BridgeRuntime {
    /// Starts it with so many threads; 0 means one for every two processors.
    ///
    /// # Errors
    /// What the system says when it gives no thread.
    pub fn start(threads: usize) -> std::io::Result<Self> {
        let processors = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
        let threads = if threads > 0 { threads } else { (processors / 2).max(1) };
        // The thread that waits for the end is one of them.
        let mut builder = if threads > 1 { Builder::new_multi_thread() } else { Builder::new_current_thread() };
        builder.thread_name("bridges").event_interval(EVENT_INTERVAL).enable_all();
        if threads > 1 {
            builder.worker_threads(threads);
        }
        let runtime = builder.build()?;
        let handle = runtime.handle().clone();
        let (stop, stopped) = oneshot::channel::<()>();
        std::thread::Builder::new().name("bridges".to_owned()).spawn(move || {
            let _ = runtime.block_on(stopped);
            runtime.shutdown_background();
        })?;
        Ok(Self { handle, _stop: stop })
    }

    /// Where to start what belongs to a bridge.
    #[must_use]
    pub fn handle(&self) -> BridgeHandle {
        BridgeHandle(self.handle.clone())
    }
}

/// Starts tasks of bridges.
#[derive(Clone, Debug)]
pub struct BridgeHandle(Handle);

impl BridgeHandle {
    /// Starts a task of a bridge; what it starts itself is there as well.
    pub fn spawn(&self, tasks: &TaskTracker, task: impl Future<Output = ()> + Send + 'static) {
        tasks.spawn_on(task, &self.0);
    }

    /// Makes what needs the runtime it is to live on.
    pub fn enter<R>(&self, make: impl FnOnce() -> R) -> R {
        let _guard = self.0.enter();
        make()
    }
}
