//! One node of a quorum: what it answers to a request, and what it keeps. A pure function,
//! so that the same requests can be put to a real server and the answers compared.
//!
//! What a real node also has and this one has not: time. A key that expires is
//! [`Node::vanish`], at any moment.

use std::ops::Add;

/// The owner of one attempt. (128 random bits in real life: never reused.)
pub type Owner = u8;
/// A fencing token, as far as the model counts. (Real ones have 64 bits: a node is generic over
/// them.)
pub type Token = u8;
/// Counts recoveries: a request of an older epoch is refused.
pub type Epoch = u8;
/// The hash of a client's list of nodes.
pub type List = u8;

/// What a node keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Node<T = Token> {
    /// Whether it may vote.
    pub status: Status,
    /// The epoch it was last sealed with.
    pub epoch: Epoch,
    /// The list of nodes that it belongs to.
    pub list: List,
    /// Who holds the lock here.
    pub lock: Option<Owner>,
    /// The last token.
    pub token: T,
    /// Whose token that is.
    pub token_owner: Option<Owner>,
}

/// Whether a node may vote.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Status {
    /// It carries the marker: it has kept its data.
    Member,
    /// It has forgotten everything, the marker too; or it is new.
    Blank,
    /// It is new, and has heard of its list.
    Noticed,
    /// It was restarted, and may have come back with older data.
    Restarted,
    /// It was told the highest token, and waits to be readmitted.
    Joining,
}

/// Which checks a node makes. All of them, but in the variants that must fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rules {
    /// A token is stored only under a lock that is still its owner's.
    pub store_checks_lock: bool,
    /// A token is stored only over a smaller one, not over an equal one.
    pub strictly_newer: bool,
    /// A renewal wants the token to be the last one here, too.
    pub renewal_checks_token: bool,
    /// A renewal of a key that is gone sets it again.
    pub renewal_recreates: bool,
    /// Every grant adds one to the token by itself: one round trip without clocks.
    pub counts_by_itself: bool,
    /// Without the marker, everything is refused.
    pub marker: bool,
    /// The marker names the server's run: after a restart it does not count.
    pub run_id: bool,
    /// Requests of another epoch are refused.
    pub epoch: bool,
    /// Requests of a client with another list of nodes are refused.
    pub list: bool,
}

impl Default for Rules {
    fn default() -> Self {
        Self {
            store_checks_lock: true,
            strictly_newer: true,
            renewal_checks_token: true,
            renewal_recreates: false,
            counts_by_itself: false,
            marker: true,
            run_id: true,
            epoch: true,
            list: true,
        }
    }
}

/// A request as it travels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request<T = Token> {
    /// The epoch its sender knows.
    pub epoch: Epoch,
    /// The list of nodes its sender has.
    pub list: List,
    /// What it asks for.
    pub order: Order<T>,
}

/// What a request asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order<T = Token> {
    /// The lock, and if the guess is newer than the last token, that token with it.
    Claim {
        /// Who asks.
        owner: Owner,
        /// The token that would save the second trip.
        guess: Option<T>,
    },
    /// Keep this token, if the lock is still mine and the token is new.
    Store {
        /// Who asks.
        owner: Owner,
        /// The token.
        token: T,
    },
    /// Is it still mine, under this token? Then for the whole TTL again.
    Renew {
        /// Who asks.
        owner: Owner,
        /// The token.
        token: T,
    },
    /// Take it back, if it is mine.
    Release {
        /// Who asks.
        owner: Owner,
    },
    /// To a new node: this is your list. Do not vote yet.
    Notice,
    /// All nodes are new and have heard of their list: vote.
    Found,
    /// From now on refuse older epochs, and tell the last token.
    Seal,
    /// To a node without a marker: this is the last token. Do not vote yet.
    Install {
        /// The highest token of a sealed majority.
        token: T,
    },
    /// Vote again.
    Readmit,
}

/// What a node answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer<T = Token> {
    /// It has no marker, or is not readmitted yet.
    NoMember,
    /// The request is of another epoch; this is the node's.
    OtherEpoch(Epoch),
    /// The request is of another list of nodes.
    OtherList,
    /// The lock is the claimant's.
    Granted {
        /// The last token.
        last: T,
        /// Whether that is the guess, stored.
        stored: bool,
    },
    /// The lock is another's.
    Held {
        /// The last token.
        last: T,
    },
    /// The last token, after it was sealed.
    Sealed {
        /// The last token.
        last: T,
    },
    /// Done.
    Yes,
    /// Not done.
    No,
}

impl<T: Copy + Ord + From<u8> + Add<Output = T>> Node<T> {
    /// A node that belongs to a list and has never done anything.
    pub fn new(list: List) -> Self {
        let (status, token) = (Status::Member, T::from(0));
        Self { status, epoch: 0, list, lock: None, token, token_owner: None }
    }

    /// The key of the lock expires.
    pub fn vanish(&mut self) {
        self.lock = None;
    }

    /// It forgets everything.
    pub fn forget(&mut self) {
        *self = Self { status: Status::Blank, ..Self::new(self.list) };
    }

    /// It is restarted, and is known to have kept everything or not.
    pub fn restart(&mut self, rules: &Rules, kept: bool) {
        let voted = matches!(self.status, Status::Member | Status::Joining);
        if voted && rules.run_id && !kept {
            self.status = Status::Restarted;
        }
    }

    /// It is restarted with the oldest data that it has had, marker and all.
    pub fn go_back(&mut self, rules: &Rules) {
        *self = Self::new(self.list);
        self.restart(rules, false);
    }

    /// Does what is asked, if it may, and answers.
    pub fn step(&mut self, rules: &Rules, request: Request<T>) -> Answer<T> {
        match request.order {
            Order::Claim { .. }
            | Order::Store { .. }
            | Order::Renew { .. }
            | Order::Release { .. } => self.serve(rules, request),
            _ => self.change(rules, request),
        }
    }

    fn serve(&mut self, rules: &Rules, request: Request<T>) -> Answer<T> {
        if self.status != Status::Member {
            return Answer::NoMember;
        }
        if rules.list && request.list != self.list {
            return Answer::OtherList;
        }
        if rules.epoch && request.epoch != self.epoch {
            return Answer::OtherEpoch(self.epoch);
        }
        match request.order {
            Order::Claim { owner, guess } => self.claim(rules, owner, guess),
            Order::Store { owner, token } => self.store(rules, owner, token),
            Order::Renew { owner, token } => self.renew(rules, owner, token),
            Order::Release { owner } => {
                let mine = self.lock == Some(owner);
                if mine {
                    self.vanish();
                }
                yes(mine)
            }
            _ => Answer::No,
        }
    }

    fn claim(&mut self, rules: &Rules, owner: Owner, guess: Option<T>) -> Answer<T> {
        if self.lock.is_some_and(|holder| holder != owner) {
            return Answer::Held { last: self.token };
        }
        self.lock = Some(owner);
        if rules.counts_by_itself {
            self.token = self.token + T::from(1);
            return Answer::Granted { last: self.token, stored: true };
        }
        let stored = guess.is_some_and(|guess| self.keep(rules, owner, guess));
        Answer::Granted { last: self.token, stored }
    }

    fn store(&mut self, rules: &Rules, owner: Owner, token: T) -> Answer<T> {
        let mine = self.lock == Some(owner) || !rules.store_checks_lock;
        yes(mine && self.keep(rules, owner, token))
    }

    /// Keeps a token if it is new. The same one of the same owner again is a resend.
    fn keep(&mut self, rules: &Rules, owner: Owner, token: T) -> bool {
        let resent = token == self.token && self.token_owner == Some(owner);
        let new = token > self.token || (token == self.token && !rules.strictly_newer);
        if new {
            self.token = token;
            self.token_owner = Some(owner);
        }
        new || resent
    }

    fn renew(&mut self, rules: &Rules, owner: Owner, token: T) -> Answer<T> {
        if rules.renewal_recreates && self.lock.is_none() {
            self.lock = Some(owner);
        }
        let stored = self.token == token && self.token_owner == Some(owner);
        let newest = stored || !rules.renewal_checks_token;
        yes(self.lock == Some(owner) && newest)
    }

    /// What makes a node vote, and what brings one back that has forgotten everything.
    fn change(&mut self, rules: &Rules, request: Request<T>) -> Answer<T> {
        let Request { epoch, list, order } = request;
        if self.status != Status::Blank && rules.list && list != self.list {
            return Answer::OtherList;
        }
        match (order, self.status) {
            (Order::Notice, Status::Blank) => {
                self.status = Status::Noticed;
                self.list = list;
                Answer::Yes
            }
            (Order::Found, Status::Noticed) => {
                self.status = Status::Member;
                Answer::Yes
            }
            (Order::Seal, Status::Member) if epoch > self.epoch => {
                if rules.epoch {
                    self.epoch = epoch;
                }
                Answer::Sealed { last: self.token }
            }
            (
                Order::Install { token },
                Status::Blank | Status::Noticed | Status::Restarted | Status::Joining,
            ) if epoch > self.epoch => {
                // What a foreign client has set here stays: it can only stand in the way.
                let (status, lock) = (Status::Joining, self.lock);
                *self = Self { status, lock, token, ..Self::new(list) };
                self.epoch = if rules.epoch { epoch } else { 0 };
                Answer::Yes
            }
            (Order::Readmit, Status::Joining) if epoch == self.epoch || !rules.epoch => {
                self.status = Status::Member;
                Answer::Yes
            }
            _ => Answer::No,
        }
    }
}

fn yes<T>(done: bool) -> Answer<T> {
    if done { Answer::Yes } else { Answer::No }
}
