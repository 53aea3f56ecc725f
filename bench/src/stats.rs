//! Samples of latency, and medians.

use std::time::{Duration, Instant};

use anyhow::Result;
use hdrhistogram::Histogram;

use crate::usage;

/// Latencies in nanoseconds, with two significant digits: small enough for one per task.
pub(crate) type Latencies = Histogram<u32>;

pub(crate) fn latencies() -> Latencies {
    Histogram::new_with_max(120_000_000_000, 2).expect("two digits up to two minutes")
}

/// The beginning of a sample.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Start {
    pub(crate) at: Instant,
    cpu: Duration,
}

impl Start {
    pub(crate) fn now() -> Self {
        Self { cpu: usage::cpu(), at: Instant::now() }
    }
}

/// What was measured in some stretch of time.
#[derive(Debug)]
pub(crate) struct Sample {
    pub(crate) elapsed: Duration,
    /// CPU time of the whole process.
    pub(crate) cpu: Duration,
    pub(crate) latencies: Latencies,
}

impl Sample {
    pub(crate) fn empty() -> Self {
        Self { elapsed: Duration::ZERO, cpu: Duration::ZERO, latencies: latencies() }
    }

    /// From `started` until now.
    pub(crate) fn since(started: Start, latencies: Latencies) -> Self {
        Self {
            elapsed: started.at.elapsed(),
            cpu: usage::cpu().saturating_sub(started.cpu),
            latencies,
        }
    }

    /// Another stretch of the same.
    pub(crate) fn extend(&mut self, other: &Sample) -> Result<()> {
        self.elapsed += other.elapsed;
        self.cpu += other.cpu;
        self.latencies.add(&other.latencies)?;
        Ok(())
    }

    pub(crate) fn per_second(&self) -> f64 {
        self.latencies.len() as f64 / self.elapsed.as_secs_f64()
    }

    /// Less than one for work on one thread: others had the core.
    pub(crate) fn share_of_a_core(&self) -> f64 {
        self.cpu.as_secs_f64() / self.elapsed.as_secs_f64()
    }

    /// In microseconds.
    pub(crate) fn cpu_each(&self) -> f64 {
        self.cpu.as_secs_f64() * 1e6 / self.latencies.len() as f64
    }

    /// In microseconds.
    pub(crate) fn quantile(&self, quantile: f64) -> f64 {
        micros(&self.latencies, quantile)
    }
}

pub(crate) fn micros(latencies: &Latencies, quantile: f64) -> f64 {
    latencies.value_at_quantile(quantile) as f64 / 1e3
}

/// Records one latency.
pub(crate) fn record(latencies: &mut Latencies, duration: Duration) {
    latencies.saturating_record(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX));
}

/// The median; of an even count, the lower of the two in the middle.
pub(crate) fn median(figures: impl IntoIterator<Item = f64>) -> f64 {
    let mut figures: Vec<f64> = figures.into_iter().collect();
    figures.sort_by(f64::total_cmp);
    figures.get(figures.len().saturating_sub(1) / 2).copied().unwrap_or(f64::NAN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_median_is_one_of_the_figures() {
        assert_eq!(median([3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median([4.0, 1.0, 2.0, 3.0]), 2.0);
        assert!(median([]).is_nan());
    }
}
