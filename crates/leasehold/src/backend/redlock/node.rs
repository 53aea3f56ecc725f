//! One of the nodes: an independent Redis master.

use std::sync::Arc;

use redis::Value;

use super::super::redis::connection::Connector;
use super::super::redis::error::Failure;
use super::super::redis::script::Call;
use super::super::redis::script::text;
use super::super::redis::session::{Role, Server};
use super::super::redis::url::{Host, Settings};
use super::super::redis::waiters::Waiters;
use super::asking::Unanswered;
use super::script::STANDING;
use super::standing::Standing;
use crate::clock::Clock;
use crate::error::Result;

/// A node, and what is heard from it.
#[derive(Debug)]
pub(super) struct Node {
    pub(super) index: usize,
    pub(super) server: Arc<Server>,
    /// Its messages: whom to wake, who lost a lease by force.
    pub(super) ears: Arc<Waiters>,
    /// What nobody waits for any more.
    pub(super) unanswered: Unanswered,
}

/// What a node said to a call.
#[derive(Debug)]
pub(super) enum Said {
    /// It did it: an answer for each item.
    Answers(Given),
    /// It does not vote with this client: what it is instead.
    NoVote(Standing),
    /// Nothing, or nothing of use.
    Failed(Failure),
}

/// A node's answers to the items of a call.
#[derive(Debug)]
pub(super) enum Given {
    /// Yes to each of so many.
    Yes(usize),
    Each(Vec<Value>),
}

impl Given {
    pub(super) fn len(&self) -> usize {
        match self {
            Self::Yes(count) => *count,
            Self::Each(answers) => answers.len(),
        }
    }

    pub(super) fn get(&self, item: usize) -> Option<&Value> {
        static YES: Value = Value::Int(1);
        match self {
            Self::Yes(count) => (item < *count).then_some(&YES),
            Self::Each(answers) => answers.get(item),
        }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Value> {
        (0..self.len()).filter_map(|item| self.get(item))
    }
}

impl Node {
    pub(super) fn new(
        index: usize,
        host: &Host,
        settings: &Settings,
        clock: &Clock,
        channel: &str,
        marker: &str,
    ) -> Result<Arc<Self>> {
        let ears = Waiters::new(clock.clone());
        let connector = Connector::new(settings, clock, &ears)?;
        let (channel, marker) = (channel.to_owned(), marker.to_owned());
        let role = Role::Voter { channel, marker, standing: &STANDING };
        let server = Server::new(&connector, host, role)?;
        Ok(Arc::new(Self { index, server, ears, unanswered: Unanswered::default() }))
    }

    pub(super) fn name(&self) -> String {
        self.server.host.to_string()
    }

    /// Calls a script that votes.
    pub(super) async fn ask(&self, call: &Call) -> Said {
        match self.server.call(call).await {
            Ok(Value::Array(answers)) => Said::Answers(Given::Each(answers)),
            Ok(Value::Int(count)) => Said::Answers(Given::Yes(usize::try_from(count).unwrap_or(0))),
            Ok(other) => Said::NoVote(text(&other).map_or(Standing::Unknown, Standing::parse)),
            Err(failure) => Said::Failed(failure),
        }
    }
}
