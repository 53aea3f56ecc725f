//! A timer that counts suspended time. tokio's timers stand still while the
//! machine sleeps, so a laptop or a live-migrated host would wake up believing
//! in leases that lapsed hours ago; a timerfd on `CLOCK_BOOTTIME` fires at once.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};
use tokio::io::unix::AsyncFd;

use super::{Clock, ManualClock, Moment, Source};
use crate::readiness;

/// One timer on the clock that leases are measured by.
#[derive(Debug)]
pub struct Alarm(Kind);

#[derive(Debug)]
enum Kind {
    Boot(AsyncFd<OwnedFd>),
    Manual(Arc<ManualClock>),
}

impl Clock {
    /// A new alarm on this clock. Must be called inside a tokio runtime with I/O enabled.
    ///
    /// # Errors
    ///
    /// When the process has no file descriptor left.
    pub fn alarm(&self) -> io::Result<Alarm> {
        Ok(Alarm(match &self.0 {
            Source::Boot => {
                let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
                Kind::Boot(readiness::watch(timerfd_create(TimerfdClockId::Boottime, flags)?)?)
            }
            Source::Manual(clock) => Kind::Manual(clock.clone()),
        }))
    }
}

impl Alarm {
    /// Waits until `moment`. Cancel safe: dropping it only disarms.
    pub async fn until(&mut self, moment: Moment) {
        match &mut self.0 {
            Kind::Boot(_) if moment == Moment::NEVER => std::future::pending().await,
            Kind::Boot(timer) => {
                // Cannot fail: the descriptor is a timerfd of ours, the time is in range.
                let _ = fires_at(timer, moment).await;
            }
            Kind::Manual(clock) => clock.reached(moment).await,
        }
    }
}

async fn fires_at(timer: &AsyncFd<OwnedFd>, moment: Moment) -> io::Result<()> {
    // A zero time would disarm instead of firing at once.
    let nanos = moment.as_nanos().max(1);
    let at =
        Timespec { tv_sec: (nanos / 1_000_000_000) as i64, tv_nsec: (nanos % 1_000_000_000) as _ };
    let once = Itimerspec { it_interval: Timespec { tv_sec: 0, tv_nsec: 0 }, it_value: at };
    timerfd_settime(timer.get_ref(), TimerfdTimerFlags::ABSTIME, &once)?;
    loop {
        let mut ready = timer.readable().await?;
        let mut expirations = [0u8; 8];
        match ready.try_io(|fd| Ok(rustix::io::read(fd.get_ref(), &mut expirations)?)) {
            Ok(result) => return result.map(drop),
            Err(_spurious) => continue,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test]
    async fn fires_not_before_its_moment_and_can_be_used_again() {
        let clock = Clock::boot();
        let mut alarm = clock.alarm().unwrap();
        for _ in 0..3 {
            let moment = clock.now() + Duration::from_millis(5);
            alarm.until(moment).await;
            assert!(clock.now() >= moment);
        }
    }

    #[tokio::test]
    async fn a_moment_in_the_past_fires_at_once() {
        let mut alarm = Clock::boot().alarm().unwrap();
        alarm.until(Moment::from_nanos(0)).await;
    }

    #[tokio::test]
    async fn an_abandoned_wait_does_not_fire_the_next_one_early() {
        let clock = Clock::boot();
        let mut alarm = clock.alarm().unwrap();
        let soon = clock.now() + Duration::from_millis(2);
        let later = clock.now() + Duration::from_millis(20);
        tokio::select! {
            biased;
            () = alarm.until(soon) => unreachable!("the other branch is ready"),
            () = std::future::ready(()) => {}
        }
        alarm.until(later).await;
        assert!(clock.now() >= later);
    }
}
