//! Taking a lock away from its holder, at all nodes.

use std::sync::Arc;
use std::time::Duration;

use super::super::redis::keys::Companion::{Forced as ForcedKey, Line, Record};
use super::super::redis::script::Call;
use super::super::redis::script::millis;
use super::RedlockStore;
use super::node::Said;
use super::poll::Poll;
use super::script::FORCE;
use super::tally::natural;
use super::verdict::{NodeVerdict, NodeVerdicts};
use crate::error::Result;
use crate::loss::Forced;
use crate::name::Name;
use crate::token::Token;

/// How long it is remembered who did it, and why.
const REMEMBERED: Duration = Duration::from_secs(24 * 60 * 60);
/// How often it is said again to nodes in another epoch.
const EPOCHS: usize = 3;

impl RedlockStore {
    pub(super) async fn force(
        self: &Arc<Self>,
        name: Name,
        forced: Forced,
    ) -> Result<Option<Token>> {
        let keys = self.keys(&name);
        let mut ended: Option<u64> = None;
        for round in 1..=EPOCHS {
            let mut call = Call::new(&FORCE, 0, 5);
            call.arg(&self.marker);
            call.keys(&keys, &[Record, Line, ForcedKey]);
            call.arg(self.expected()).arg(&forced.by).arg(&forced.reason).arg(millis(REMEMBERED));
            let mut said = vec![None; self.nodes.len()];
            let mut stale = false;
            let mut done = 0;
            let mut held = 0;
            let mut poll = Poll::new(&self.nodes, call, self.settings.timeout);
            while let Some((node, heard)) = poll.next().await {
                match heard {
                    Said::Answers(token) => {
                        done += 1;
                        said[node] = Some(NodeVerdict::Granted);
                        if let Some(token) = token.get(0) {
                            held += 1;
                            ended = ended.max(Some(natural(token)?));
                        }
                    }
                    heard => stale |= self.note(node, &heard, &mut said),
                }
            }
            if done >= self.majority {
                // What only a few nodes knew of was no lease: it is gone, and nobody lost it.
                let silent = self.nodes.len() - done;
                let was_held = held + silent >= self.majority || round > 1;
                return Ok(ended.filter(|_| was_held).map(Token::new));
            }
            if !stale || round == EPOCHS {
                let names = self.nodes.iter().map(|node| node.name());
                let said = said.into_iter().map(|said| said.unwrap_or(NodeVerdict::TimedOut));
                let said = NodeVerdicts(names.zip(said).collect());
                return Err(said.no_majority().outcome_unknown());
            }
        }
        Ok(None)
    }
}
