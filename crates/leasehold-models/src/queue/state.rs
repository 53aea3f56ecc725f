//! Where the clients stand, and what is under way between them and the server.

use super::node::{Answer, Grant, Order, Server};
use super::{DELAY, PATIENCE, Queue};

/// Everything.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct State {
    /// The server.
    pub server: Server,
    /// The clients, in the order of their coming.
    pub clients: Vec<Client>,
    /// How many more clients may die.
    pub deaths: u8,
    /// How often something more may be lost or late.
    pub troubles: u8,
    /// For how many ticks since the last death or trouble a live client has been in the queue while
    /// nobody alive held the lock.
    pub stalled: u8,
    /// Something was lost or late in this tick.
    pub troubled: bool,
    /// What should not have happened.
    pub broken: Broken,
}

/// A client.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Client {
    /// Where it stands.
    pub phase: Phase,
    /// The request that it waits for.
    pub call: Option<Call>,
    /// A request that it does not wait for any more, and that may still arrive.
    pub orphan: Option<(Order, u8)>,
    /// A grant that was pushed to it, on its way.
    pub push: Option<Grant>,
    /// It has sent its heartbeat in this tick.
    pub beaten: bool,
}

/// Where a client stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Phase {
    /// It has not come yet.
    Away,
    /// It asks for the lock, or for its place in the queue again.
    Asking,
    /// It is in the queue, as far as it knows.
    Waiting,
    /// It holds the lock for so many more ticks.
    Holding(u8),
    /// It gives the lock back, or leaves.
    Going,
    /// It is gone.
    Done,
    /// It died.
    Dead,
}

/// A request that somebody waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Call {
    /// What is asked.
    pub order: Order,
    /// How many ticks ago it was sent.
    pub age: u8,
    /// The answer, on its way back.
    pub answer: Option<Answer>,
}

/// What should not have happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Broken {
    /// Somebody was told to wait and is not in the queue, or has the lock and was not told.
    pub forgotten: bool,
    /// A newcomer was granted the lock before a live waiter.
    pub overtaken: bool,
    /// A grant was taken after its deadline.
    pub stale: bool,
}

impl Client {
    /// Whether it lives and waits for its turn.
    pub fn is_in_queue(&self) -> bool {
        matches!(self.phase, Phase::Asking | Phase::Waiting)
    }

    /// Whether a grant is on its way to it that it waits for.
    pub fn is_pushed(&self) -> bool {
        self.push.is_some() && self.phase == Phase::Waiting
    }

    fn tick(&mut self) {
        self.beaten = false;
        // Nobody waits for an answer for ever.
        self.call = self.call.filter(|call| call.age < DELAY);
        if let Some(call) = &mut self.call {
            call.age += 1;
            if let Some(Answer::Granted(grant)) = &mut call.answer {
                grant.tick();
            }
        }
        if let Some(grant) = &mut self.push {
            grant.tick();
        }
        self.orphan = self.orphan.map(|(order, age)| (order, age + 1)).filter(|o| o.1 <= DELAY);
        if let Phase::Holding(deadline) = self.phase {
            // The loss fires by the holder's own timer.
            self.phase = match deadline {
                0 | 1 => Phase::Done,
                _ => Phase::Holding(deadline - 1),
            };
        }
        if let Phase::Done = self.phase {
            self.call = None;
            self.push = None;
        }
    }
}

impl State {
    /// Before anybody came.
    pub fn new(model: &Queue) -> Self {
        let client =
            Client { phase: Phase::Away, call: None, orphan: None, push: None, beaten: false };
        Self {
            server: Server::default(),
            clients: vec![client; model.clients],
            deaths: model.deaths,
            troubles: model.troubles,
            stalled: 0,
            troubled: false,
            broken: Broken::default(),
        }
    }

    /// Who holds the lock, as far as they know, and for how many more ticks.
    pub fn holders(&self) -> impl Iterator<Item = (u8, u8)> {
        self.clients.iter().enumerate().filter_map(|(who, client)| match client.phase {
            Phase::Holding(deadline) => Some((who as u8, deadline)),
            _ => None,
        })
    }

    /// Forgets what does not matter any more.
    pub fn canonical(&mut self) {
        let in_queue = self.clients.iter().any(Client::is_in_queue);
        if !in_queue || self.holders().next().is_some() {
            self.stalled = 0;
        }
        for client in &mut self.clients {
            client.beaten &= client.phase == Phase::Waiting;
            if !client.is_in_queue() {
                client.push = None;
            }
        }
    }

    /// Time passes.
    pub fn tick(&mut self) {
        self.troubled |= self.clients.iter().any(|client| client.call.is_some());
        let troubled = std::mem::take(&mut self.troubled);
        self.stalled = if troubled { 0 } else { (self.stalled + 1).min(PATIENCE + 1) };
        self.server.tick();
        self.clients.iter_mut().for_each(Client::tick);
    }
}
