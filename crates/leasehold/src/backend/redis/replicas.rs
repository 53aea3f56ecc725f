//! `wait-replicas`: a lease counts only when enough replicas have it.
//!
//! WAIT holds up everything behind it on its connection, so it has one of its own. It waits
//! for what was written *there*, so the leases are renewed there first: that comes after
//! their grant, and so do the replicas' confirmations.

use redis::Value;

use super::RedisStore;
use super::answer::{items, number};
use super::batch::Located;
use super::claim::millis;
use super::error::unexpected;
use super::hold::renewal;
use super::server::loading;
use crate::backend::{Claim, Hold, Verdict};
use crate::error::{Error, ErrorKind, Result};

impl RedisStore {
    /// Waits until enough replicas have what was granted; otherwise gives it back.
    pub(super) async fn replicate(
        &self,
        claims: &[Located<Claim>],
        verdicts: &mut [Verdict],
    ) -> Result<()> {
        for ((keys, claim), verdict) in claims.iter().zip(verdicts) {
            let Verdict::Granted(grant) = verdict else { continue };
            let hold = (keys.clone(), claim.hold(grant.token));
            let at = self.clock.now();
            let confirmed = self.confirmed_by(&hold).await;
            match confirmed {
                Ok(Some(count)) if count >= self.settings.wait_replicas => {
                    grant.proof.at = at;
                    grant.proof.valid_for = std::time::Duration::from_millis(millis(claim.ttl));
                }
                Ok(None) => *verdict = Verdict::Held(None),
                Ok(Some(count)) => {
                    self.release_holds(vec![hold.1]).await?;
                    let message = format!(
                        "only {count} of {} replicas had the lease in time: it was given back; \
                         see to the replicas, or lower wait-replicas",
                        self.settings.wait_replicas
                    );
                    return Err(Error::new(ErrorKind::Unavailable, message).outcome_unknown());
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// How many replicas have it; `None` if it is gone already.
    async fn confirmed_by(&self, hold: &Located<Hold>) -> Result<Option<u32>> {
        let call = renewal(&self.settings.prefix, std::slice::from_ref(&hold.1));
        let server = self.route.waits_for_replicas(hold.0.slot).await?;
        let commands = |mut commands: redis::Pipeline| {
            commands.add_command(call.request.command());
            let wait = commands.cmd("WAIT").arg(self.settings.wait_replicas);
            wait.arg(millis(self.settings.timeout / 2));
            commands
        };
        let mut asked = server.ask_all(&commands(redis::pipe())).await;
        if asked.as_ref().is_err_and(|failure| failure.code() == Some("NOSCRIPT")) {
            asked = server.ask_all(&commands(loading(&call))).await;
        }
        let asked = asked?;
        let [.., renewed, count] = &asked[..] else { return Err(unexpected()) };
        if number(&items(renewed.clone(), 1)?[0])? == 0 {
            return Ok(None);
        }
        match count {
            Value::Int(count) => Ok(Some(u32::try_from(*count).unwrap_or(0))),
            _ => Err(unexpected()),
        }
    }
}
