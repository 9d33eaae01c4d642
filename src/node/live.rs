//! A value that a running node may replace: whoever needs it asks for the one in force.

use std::sync::Arc;

use arc_swap::ArcSwap;

/// A handle to the value in force. Cheap to clone.
#[derive(Debug)]
pub struct Live<T>(Arc<ArcSwap<T>>);

impl<T> Live<T> {
    /// A value in force.
    #[must_use]
    pub fn new(value: Arc<T>) -> Self {
        Self(Arc::new(ArcSwap::new(value)))
    }

    /// The value in force.
    #[must_use]
    pub fn now(&self) -> Arc<T> {
        self.0.load_full()
    }

    /// Puts another value in force.
    pub(crate) fn replace(&self, value: Arc<T>) {
        self.0.store(value);
    }
}

impl<T> Clone for Live<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<T> From<&Arc<T>> for Live<T> {
    fn from(value: &Arc<T>) -> Self {
        Self::new(Arc::clone(value))
    }
}

impl<T> From<&Self> for Live<T> {
    fn from(live: &Self) -> Self {
        live.clone()
    }
}
