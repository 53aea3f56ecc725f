//! How many requests of a client are in its lanes just now.

use std::sync::atomic::{AtomicUsize, Ordering};

/// Claims and releases together: the same tasks go back and forth between the two.
#[derive(Debug, Default)]
pub(crate) struct Present(AtomicUsize);

/// One of them, until dropped.
pub(super) struct Entered<'a>(&'a Present);

impl Present {
    pub(super) fn enter(&self) -> Entered<'_> {
        self.0.fetch_add(1, Ordering::Relaxed);
        Entered(self)
    }

    /// Half of them; one, if there is only that.
    pub(super) fn half(&self) -> usize {
        self.0.load(Ordering::Relaxed).div_ceil(2).max(1)
    }
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_of_those_who_are_here() {
        let present = Present::default();
        assert_eq!(present.half(), 1);
        let mut all: Vec<_> = (0..5).map(|_| present.enter()).collect();
        assert_eq!(present.half(), 3);
        all.truncate(2);
        assert_eq!(present.half(), 1);
    }
}
