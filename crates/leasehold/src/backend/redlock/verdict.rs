//! What each node said, for errors: "no majority" alone helps nobody.

use std::fmt;

use super::super::redis::error::Failure;
use super::standing::Standing;
use crate::error::{Error, ErrorKind};

/// What one node said to a request, in a word.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum NodeVerdict {
    /// Yes.
    Granted,
    /// Another has the lock there.
    Taken,
    /// It did not answer in time.
    TimedOut,
    /// It could not be reached, or the connection ended before it answered; why.
    Unreachable(String),
    /// It refused; why.
    Refused(String),
    /// It has lost its data (or never had any) and does not vote.
    Amnesiac,
    /// It was restarted, perhaps with older data, and does not vote.
    Restarted,
    /// It was told where to go on, and waits until it may vote again.
    Joining,
    /// It belongs to another list of nodes.
    OtherList,
    /// It is in another epoch than this client: a recovery is under way.
    OtherEpoch,
}

impl fmt::Display for NodeVerdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Granted => f.write_str("granted"),
            Self::Taken => f.write_str("taken"),
            Self::TimedOut => f.write_str("timed out"),
            Self::Unreachable(why) => write!(f, "unreachable ({why})"),
            Self::Refused(why) => write!(f, "refused ({why})"),
            Self::Amnesiac => f.write_str("amnesiac"),
            Self::Restarted => f.write_str("restarted, perhaps with older data"),
            Self::Joining => f.write_str("joining"),
            Self::OtherList => f.write_str("on another list of nodes"),
            Self::OtherEpoch => f.write_str("in another epoch"),
        }
    }
}

impl NodeVerdict {
    pub(super) fn of_failure(failure: &Failure) -> Self {
        match failure {
            Failure::NotSent(error) | Failure::Unanswered(error) => {
                let mut why = error.to_string();
                if let Some(cause) = std::error::Error::source(error) {
                    why = format!("{why}: {cause}");
                }
                Self::Unreachable(why)
            }
            Failure::Refused(error) => Self::Refused(error.to_string()),
        }
    }

    /// Why a node of this standing does not vote for a client with this list.
    pub(super) fn of_standing(standing: &Standing, list: &str) -> Self {
        match standing {
            _ if standing.list().is_some_and(|its| its != list) => Self::OtherList,
            Standing::Blank | Standing::Noticed { .. } => Self::Amnesiac,
            Standing::Restarted(_) => Self::Restarted,
            Standing::Joining(_) => Self::Joining,
            Standing::Member(_) => Self::OtherEpoch,
            Standing::Unknown => Self::Refused("its marker is not ours".to_owned()),
        }
    }
}

/// What every node said: the source of an error that no majority is behind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeVerdicts(pub Vec<(String, NodeVerdict)>);

impl fmt::Display for NodeVerdicts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (place, (node, verdict)) in self.0.iter().enumerate() {
            let comma = if place == 0 { "" } else { ", " };
            write!(f, "{comma}{node} {verdict}")?;
        }
        Ok(())
    }
}

impl std::error::Error for NodeVerdicts {}

impl NodeVerdicts {
    /// The error, and what to do about it.
    pub(super) fn no_majority(self) -> Error {
        let has = |wanted: fn(&NodeVerdict) -> bool| self.0.iter().any(|(_, said)| wanted(said));
        let (kind, advice) = if has(|said| *said == NodeVerdict::OtherList) {
            let advice = "all clients must name the same nodes, in the same words: compare the \
                          URLs, and see `leasehold doctor`";
            (ErrorKind::Refused, advice)
        } else if has(|said| matches!(said, NodeVerdict::Unreachable(_) | NodeVerdict::TimedOut)) {
            (ErrorKind::Unreachable, "start the missing nodes, or mend the way to them")
        } else if has(|said| matches!(said, NodeVerdict::Refused(_))) {
            (ErrorKind::Unusable, "see what the nodes say")
        } else {
            let advice = "nodes that came back empty or with older data vote again once no older \
                          lease can be left; if too many did, see `leasehold doctor --repair`";
            (ErrorKind::Unavailable, advice)
        };
        Error::new(kind, format!("no majority of the nodes agrees: {self}; {advice}"))
            .caused_by(self)
    }
}
