//! Whether it is worth while to ask for free locks first, before all that may be the matter
//! with the others.

use std::sync::atomic::{AtomicU32, Ordering};

/// How many requests go the long way after one for which the short way was not enough: where
/// names are new or contended, the next ones will be, too.
const DETOURS: u32 = 16;

/// The short way, closed for a while when it leads nowhere.
#[derive(Debug, Default)]
pub(super) struct Shortcut(AtomicU32);

impl Shortcut {
    /// Whether this request goes the short way.
    pub(super) fn is_open(&self) -> bool {
        let one_less = |left: u32| left.checked_sub(1);
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_less).is_err()
    }

    /// It was not enough this time.
    pub(super) fn leads_nowhere(&self) {
        self.0.store(DETOURS, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_tried_again_after_some_detours() {
        let shortcut = Shortcut::default();
        assert!(shortcut.is_open() && shortcut.is_open());
        shortcut.leads_nowhere();
        assert!((0..DETOURS).all(|_| !shortcut.is_open()));
        assert!(shortcut.is_open());
    }
}
