//! Heartbeats of all waiters of a client, many in one request.

use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::oneshot;

use super::claim::{Numbers, element};
use super::{LeaseStore, nanos, verbs};
use crate::backend::{Claim, Grant};
use crate::clock::Moment;
use crate::error::{Error, ErrorKind, Result};
use crate::name::Name;
use crate::owner::Owner;

const MOST_AT_ONCE: usize = 256;

/// Where a waiter stands.
#[derive(Debug, Clone)]
pub(super) enum Standing {
    Granted(Grant),
    /// Neither in line nor granted.
    Lost,
    /// In line, asked at this moment, behind a holder with so many microseconds left.
    Behind(Moment, i64),
    /// In line, but nobody holds the lock.
    Free,
}

#[derive(Debug)]
struct Beat {
    name: Name,
    owner: Owner,
    reply: oneshot::Sender<Result<Standing>>,
}

#[derive(Debug, Default)]
pub(super) struct Beats(Mutex<Waiting>);

#[derive(Debug, Default)]
struct Waiting {
    beats: Vec<Beat>,
    sending: bool,
}

impl Beats {
    /// Takes it along; whether somebody has to send what collects.
    fn collect(&self, beat: Beat) -> bool {
        let mut waiting = self.0.lock();
        waiting.beats.push(beat);
        !std::mem::replace(&mut waiting.sending, true)
    }
}

impl LeaseStore {
    /// Says that this waiter is alive, and asks where it stands.
    pub(super) async fn beat(self: &Arc<Self>, claim: &Claim) -> Result<Standing> {
        let (reply, answer) = oneshot::channel();
        let beat = Beat { name: claim.name.clone(), owner: claim.owner, reply };
        if self.beats.collect(beat) {
            tokio::spawn(self.clone().send_beats());
        }
        answer.await.unwrap_or_else(|_| {
            Err(Error::new(ErrorKind::Internal, "a heartbeat was dropped").outcome_unknown())
        })
    }

    async fn send_beats(self: Arc<Self>) {
        loop {
            let mut beats = {
                let mut waiting = self.beats.0.lock();
                let count = waiting.beats.len().min(MOST_AT_ONCE);
                if count == 0 {
                    waiting.sending = false;
                    return;
                }
                waiting.beats.drain(..count).collect::<Vec<_>>()
            };
            beats.retain(|beat| !beat.reply.is_closed());
            if beats.is_empty() {
                continue;
            }
            match self.send(&beats).await {
                Ok(standings) => {
                    for (beat, standing) in beats.into_iter().zip(standings) {
                        let _ = beat.reply.send(Ok(standing));
                    }
                }
                Err(error) => {
                    for beat in beats {
                        let _ = beat.reply.send(Err(error.clone()));
                    }
                }
            }
        }
    }

    async fn send(&self, beats: &[Beat]) -> Result<Vec<Standing>> {
        let session = self.rest.session().await?;
        let names: Vec<&str> = beats.iter().map(|beat| beat.name.as_str()).collect();
        let owners: Vec<[u8; 16]> = beats.iter().map(|beat| beat.owner.to_bytes()).collect();
        let owners: Vec<&[u8]> = owners.iter().map(|owner| &owner[..]).collect();
        let sent = self.clock.now();
        let row = session.row(&verbs::BEAT, &[&names, &owners, &nanos(sent)]).await?;
        let states: Option<Vec<Option<i16>>> = row.get(0);
        let (tokens, proofs, terms): (Numbers, Numbers, Numbers) =
            (row.get(1), row.get(2), row.get(3));
        let lefts: Numbers = row.get(4);
        let standing = |at| match element(&states, at) {
            Some(0) => {
                let found = (element(&tokens, at), element(&proofs, at), element(&terms, at));
                match found {
                    (Some(token), Some(proved), Some(term)) => {
                        Standing::Granted(Self::grant(token, proved, term))
                    }
                    _ => Standing::Lost,
                }
            }
            Some(2) => Standing::Behind(sent, element(&lefts, at).unwrap_or(0)),
            Some(3) => Standing::Free,
            _ => Standing::Lost,
        };
        Ok((0..beats.len()).map(standing).collect())
    }

    /// Lets the first waiter in, wherever this lock's holder is gone.
    pub(super) async fn serve(&self, name: &Name) -> Result<()> {
        let session = self.rest.session().await?;
        session.rows(&verbs::SERVE, &[&vec![name.as_str()]]).await.map(drop)
    }
}
