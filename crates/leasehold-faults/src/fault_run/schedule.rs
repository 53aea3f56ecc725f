//! When which worker or server is struck, and for how long: drawn from a seed, so that a run can be
//! repeated.

use std::time::Duration;

use fastrand::Rng;

/// One fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Strike {
    /// After the beginning of the run.
    pub at: Duration,
    /// Whom: a worker, or a server.
    pub slot: usize,
    /// For how long.
    pub lasts: Duration,
    /// What all else about it is drawn from.
    pub draw: u64,
}

/// How often and how long.
#[derive(Debug, Clone, Copy)]
pub struct Rhythm {
    /// From one strike to the next, on average.
    pub every: Duration,
    /// The shortest fault.
    pub shortest: Duration,
    /// The longest.
    pub longest: Duration,
}

/// Draws the strikes of a run: none hits a worker that is already struck, and all are over
/// when the run is.
pub fn draw(seed: u64, slots: usize, run: Duration, rhythm: Rhythm) -> Vec<Strike> {
    let mut rng = Rng::with_seed(seed);
    let mut free = vec![Duration::ZERO; slots];
    let mut strikes = Vec::new();
    let mut at = rhythm.every;
    loop {
        let lasts = rhythm.shortest + (rhythm.longest - rhythm.shortest).mul_f64(rng.f64());
        if at + lasts >= run {
            return strikes;
        }
        let idle: Vec<usize> = (0..slots).filter(|slot| free[*slot] <= at).collect();
        if let Some(slot) = rng.choice(idle) {
            free[slot] = at + lasts + rhythm.every;
            strikes.push(Strike { at, slot, lasts, draw: rng.u64(..) });
        }
        at += rhythm.every.mul_f64(0.5 + rng.f64());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RHYTHM: Rhythm = Rhythm {
        every: Duration::from_millis(100),
        shortest: Duration::from_millis(200),
        longest: Duration::from_millis(900),
    };

    #[test]
    fn a_seed_gives_the_same_schedule_again() {
        let draw = |seed| draw(seed, 8, Duration::from_secs(10), RHYTHM);
        assert_eq!(draw(7), draw(7));
        assert_ne!(draw(7), draw(8));
    }

    #[test]
    fn nobody_is_struck_twice_at_a_time_and_all_is_over_in_the_end() {
        let run = Duration::from_secs(10);
        let strikes = draw(7, 2, run, RHYTHM);
        assert!(strikes.len() > 10);
        assert!(strikes.iter().all(|strike| strike.at + strike.lasts < run));
        for (index, strike) in strikes.iter().enumerate() {
            let later = strikes[index + 1..].iter().filter(|later| later.slot == strike.slot);
            assert!(later.clone().all(|later| later.at > strike.at + strike.lasts));
        }
    }
}
