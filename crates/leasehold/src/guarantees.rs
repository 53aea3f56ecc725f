//! What a store promises, as data: so that it can be shown, and demanded.

use std::fmt;
use std::time::Duration;

use crate::kind::LockKind;

/// What a store promises.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Guarantees {
    /// The store's name, as in its URL: `sqlite`, `redis`, …
    pub store: &'static str,
    /// How strong mutual exclusion is.
    pub consistency: Consistency,
    /// How far a lock reaches.
    pub scope: Scope,
    /// What ends the lease of a holder that is gone.
    pub ends_with: EndsWith,
    /// Where tokens come from, in words.
    pub tokens: &'static str,
    /// Whether clients that wait are served in the order in which they came.
    pub fair: bool,
    /// The kinds of locks it has.
    pub kinds: &'static [LockKind],
    /// Whether it keeps [records](crate::backend::State) beside its locks.
    pub state: bool,
    /// What survives a restart of the store.
    pub survives_restart: bool,
    /// A fault of the store may forget a lock that is held: which, in words.
    pub may_lose: &'static [&'static str],
    /// What is taken off every deadline on top of 1 % of the TTL and 2 ms
    /// (ZooKeeper: one tick).
    pub extra_drift: Duration,
}

impl Guarantees {
    /// The weakest promises, under this name; a store states what it adds.
    pub const fn of(store: &'static str) -> Self {
        Self {
            store,
            consistency: Consistency::BestEffort,
            scope: Scope::Network,
            ends_with: EndsWith::Ttl,
            tokens: "",
            fair: false,
            kinds: &[LockKind::Exclusive],
            state: false,
            survives_restart: false,
            may_lose: &[],
            extra_drift: Duration::ZERO,
        }
    }
}

impl fmt::Display for Guarantees {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "store        {}", self.store)?;
        writeln!(f, "consistency  {}", self.consistency)?;
        writeln!(f, "reaches      {}", self.scope)?;
        writeln!(f, "ends with    {}", self.ends_with)?;
        writeln!(f, "tokens       {}", self.tokens)?;
        let order = if self.fair { "first come, first served" } else { "no order" };
        writeln!(f, "waiting      {order}")?;
        let kinds: Vec<_> = self.kinds.iter().map(LockKind::to_string).collect();
        writeln!(f, "locks        {}", kinds.join(", "))?;
        writeln!(f, "records      {}", if self.state { "one for each lock" } else { "none" })?;
        let restart = if self.survives_restart { "leases survive it" } else { "forgets leases" };
        write!(f, "restart      {restart}")?;
        for fault in self.may_lose {
            write!(f, "\nmay lose     {fault}")?;
        }
        Ok(())
    }
}

/// How strong mutual exclusion is. Ordered: a stronger level satisfies a weaker demand.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Consistency {
    /// One server that may lose what it acknowledged (a fail-over, a restart without data).
    BestEffort,
    /// A majority of independent servers, under assumptions about clocks and delays.
    Quorum,
    /// Every grant follows every earlier one, whatever fails.
    Linearizable,
}

impl fmt::Display for Consistency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::BestEffort => "best effort",
            Self::Quorum => "quorum",
            Self::Linearizable => "linearizable",
        })
    }
}

/// How far a lock reaches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Scope {
    /// The tasks and threads of this process.
    Process,
    /// The processes of this machine.
    Machine,
    /// Every machine that reaches the store.
    Network,
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Process => "this process",
            Self::Machine => "this machine",
            Self::Network => "every machine that reaches the store",
        })
    }
}

/// What ends the lease of a holder that is gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum EndsWith {
    /// The lease's own time to live.
    Ttl,
    /// The session of its client.
    Session,
}

impl fmt::Display for EndsWith {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ttl => "the lease's TTL",
            Self::Session => "the client's session",
        })
    }
}
