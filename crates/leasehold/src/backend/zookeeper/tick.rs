//! How long the servers' `tickTime` may be. A follower tells the leader of its clients every half
//! tick, so that is how much older than a write the leader's knowledge of its session may be.

use std::time::Duration;

use tokio::sync::OnceCell;

use super::sessions::connect;
use super::url::Target;
use crate::error::Error;

/// `tickTime` of a server whose configuration does not say.
const USUAL: Duration = Duration::from_secs(2);

/// What is known of the tick, once somebody had to ask.
#[derive(Debug, Default)]
pub(super) struct Tick(OnceCell<Duration>);

impl Tick {
    /// How long it may be, if sessions with this time-out are granted.
    ///
    /// The servers do not tell every client (their four-letter words may be off). But the shortest
    /// session that they grant lasts for two ticks, unless their configuration says otherwise;
    /// then the URL has to.
    pub(super) async fn at_most(&self, target: &Target, timeout: Duration) -> Duration {
        // Without an answer: as long as it can be, for this session to be granted.
        self.learn(target, timeout).await.unwrap_or(timeout / 2)
    }

    /// The same, but `None` if the servers had to be asked and gave no answer.
    pub(super) async fn learn(&self, target: &Target, timeout: Duration) -> Option<Duration> {
        if let Some(tick) = target.tick {
            return Some(tick);
        }
        if timeout <= 2 * USUAL {
            return Some(timeout / 2);
        }
        let asking = async || {
            let client = connect(target, 2 * USUAL).await?;
            Ok::<_, Error>(client.session_timeout() / 2)
        };
        self.0.get_or_try_init(asking).await.ok().map(|tick| USUAL.max(*tick))
    }
}
