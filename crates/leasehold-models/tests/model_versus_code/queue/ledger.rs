//! Tokens and who was told which: what the model leaves out, and `token.lua` says.

use std::collections::HashMap;

/// For how many seconds the last token is kept.
const RETENTION: u64 = 3600;
/// For how many seconds a force-release is remembered.
pub(super) const MEMORY: u64 = 60;

/// The tokens of one lock.
#[derive(Debug, Default)]
pub(super) struct Ledger {
    record: Option<Record>,
    forced: Option<Forced>,
    /// The last token that each client was told.
    known: HashMap<u8, u64>,
    /// The newest token there ever was.
    newest: u64,
    /// Seconds since the beginning.
    now: u64,
}

#[derive(Debug)]
struct Record {
    token: u64,
    client: u8,
    /// Where its holder listens, and who that is.
    holder: Option<String>,
    since: u64,
    until: u64,
}

#[derive(Debug)]
struct Forced {
    token: u64,
    at: u64,
    why: String,
    until: u64,
}

impl Ledger {
    /// A new token for this client, who is told it; `last` is what its granter knows.
    pub(super) fn grant(&mut self, client: u8, holder: String, last: u64, micros: u64) -> u64 {
        let token = if micros > last { micros } else { last + 1 };
        assert!(token > self.newest, "token {token} is not above {}", self.newest);
        self.newest = token;
        self.remember(client, Some(holder), token, micros);
        token
    }

    /// The token of a client who has the lock, and asks.
    pub(super) fn tell(&mut self, client: u8, holder: String, micros: u64) -> u64 {
        match self.of(client) {
            Some(token) => token,
            None => self.grant(client, holder, self.last(), micros),
        }
    }

    /// The client renews, with the token it knows.
    pub(super) fn renew(&mut self, client: u8, micros: u64) {
        let until = self.now + RETENTION;
        match &mut self.record {
            Some(record) => record.until = until,
            None => self.remember(client, None, self.known(client), micros),
        }
    }

    fn remember(&mut self, client: u8, holder: Option<String>, token: u64, since: u64) {
        self.known.insert(client, token);
        let until = self.now + RETENTION;
        self.record = Some(Record { token, client, holder, since, until });
    }

    /// The last token, as far as the server knows.
    pub(super) fn last(&self) -> u64 {
        self.record.as_ref().map_or(0, |record| record.token)
    }

    /// The last token, if it is this client's.
    pub(super) fn of(&self, client: u8) -> Option<u64> {
        self.record.as_ref().filter(|record| record.client == client).map(|record| record.token)
    }

    /// The last token that this client was told, or 0.
    pub(super) fn known(&self, client: u8) -> u64 {
        self.known.get(&client).copied().unwrap_or(0)
    }

    /// Whether the server knows where the last holder listens.
    pub(super) fn has_channel(&self) -> bool {
        self.record.as_ref().is_some_and(|record| record.holder.is_some())
    }

    /// The lock is taken from whoever has it.
    pub(super) fn force(&mut self, token: u64, why: String, micros: u64) {
        self.forced = Some(Forced { token, at: micros, why, until: self.now + MEMORY });
    }

    /// Which token was forced last, and why.
    pub(super) fn forced(&self) -> Option<(u64, &str)> {
        self.forced.as_ref().map(|forced| (forced.token, forced.why.as_str()))
    }

    /// The record is lost.
    pub(super) fn lose(&mut self) {
        self.record = None;
    }

    /// Time passes.
    pub(super) fn pass(&mut self, seconds: u64) {
        self.now += seconds;
        let now = self.now;
        self.record = self.record.take().filter(|record| now <= record.until);
        self.forced = self.forced.take().filter(|forced| now <= forced.until);
    }

    /// The record as the server keeps it; empty if there is none.
    pub(super) fn record_text(&self) -> String {
        self.record.as_ref().map_or(String::new(), |record| {
            let holder = record.holder.as_deref().unwrap_or("- -");
            let owner = super::owner(record.client);
            format!("{} {} {owner} {holder}", record.token, record.since)
        })
    }

    /// The last force-release as the server keeps it.
    pub(super) fn forced_text(&self) -> [String; 4] {
        let Some(forced) = &self.forced else { return Default::default() };
        let (token, at) = (forced.token.to_string(), forced.at.to_string());
        [token, at, super::OPERATOR.to_owned(), forced.why.clone()]
    }
}
