//! The steps, told.

use super::Quorum;
use super::node::{Answer, Order, Status};
use super::recover::target;
use super::state::{Phase, State};
use super::step::Action;

/// What an attempt is called.
fn client(attempt: usize) -> char {
    char::from(b'A' + attempt as u8)
}

/// One step in one line.
pub(super) fn tell(model: &Quorum, before: &State, action: Action, after: &State) -> String {
    if let Some((at, node, order)) = model.order(before, action) {
        let (_, answer) = model.put(before, at, node, order);
        return delivered(before, at, node, order, answer);
    }
    let name = |node: usize| before.columns[node].name;
    match action {
        Action::Ask { attempt, guess, epoch } => {
            let guess = guess.map_or(String::new(), |guess| format!(", guessing token {guess}"));
            let epoch = if epoch > 0 { format!(", knowing epoch {epoch}") } else { String::new() };
            let list =
                if model.has_other_list(attempt) { ", with another list of nodes" } else { "" };
            format!("{} asks all nodes for the lock{guess}{epoch}{list}", client(attempt))
        }
        Action::Vote(at, token) if model.habits.second_trip => {
            format!("{} has a majority of locks, and sends out token {token}", client(at))
        }
        Action::Return(at) | Action::Vote(at, _) => {
            // A token that is returned for the second time adds nothing to those returned.
            let added = after.returned & !before.returned;
            let token = match before.attempts[at].phase {
                _ if added != 0 => added.trailing_zeros() as u8,
                Phase::Asking => before.attempts[at].guess.unwrap_or_else(|| after.newest()),
                _ => before.attempts[at].token,
            };
            format!("{} RETURNS with token {token}", client(at))
        }
        Action::Renew(at, epoch) => {
            let epoch = if epoch > 0 { format!(", knowing epoch {epoch}") } else { String::new() };
            format!("{} begins to renew{epoch}", client(at))
        }
        Action::Renewed(at) => {
            let token = before.attempts[at].token;
            format!("{} HAS RENEWED its lease with token {token}", client(at))
        }
        Action::End(at) if before.attempts[at].believes() => {
            format!("{} holds the lock no longer", client(at))
        }
        Action::End(at) => format!("{} gives up", client(at)),
        Action::Vanish(node) => {
            let owner = before.columns[node].node.lock.unwrap_or_default();
            format!("node {}: the key of {} vanishes", name(node), client(owner.into()))
        }
        Action::Wipe(node) if model.goes_back => {
            format!("node {} IS RESTARTED WITH ITS OLDEST DATA", name(node))
        }
        Action::Wipe(node) => format!("node {} FORGETS EVERYTHING", name(node)),
        Action::Rejoin(node) => format!("node {} goes on, empty", name(node)),
        Action::Recover(node) => format!("a recovery of node {} begins", name(node)),
        Action::Seal(node) => {
            let token = before.columns[node].node.token;
            let sealed = if model.rules.epoch { "is sealed, and " } else { "" };
            format!("node {} {sealed}tells its last token {token}", name(node))
        }
        Action::Install => {
            let most = before.recovery.map_or(0, |recovery| recovery.most);
            let node = target(before).map_or(0, name);
            format!("node {node} is told the last token {most}, and waits")
        }
        Action::Readmit => format!("node {} is readmitted", target(before).map_or(0, name)),
        Action::Abandon => "the recovery ends here".to_owned(),
        Action::Claim(..) | Action::Store(..) | Action::Prove(..) => "a request arrives".to_owned(),
    }
}

fn delivered(before: &State, at: usize, node: usize, order: Order, answer: Answer) -> String {
    let column = &before.columns[node];
    let (name, who) = (column.name, client(at));
    let late = match order {
        Order::Claim { .. } if before.attempts[at].phase != Phase::Asking => " late",
        Order::Store { .. } if before.attempts[at].phase != Phase::Storing => " late",
        _ => "",
    };
    let what = match order {
        Order::Claim { .. } => format!("{who}'s claim arrives{late}"),
        Order::Store { token, .. } => format!("{who}'s token {token} arrives{late}"),
        _ => format!("{who}'s renewal arrives"),
    };
    let answer = match answer {
        Answer::NoMember if column.node.status == Status::Blank => "it has no marker".to_owned(),
        Answer::NoMember if column.node.status == Status::Restarted => {
            "its marker is of an earlier run".to_owned()
        }
        Answer::NoMember => "it is not readmitted".to_owned(),
        Answer::OtherEpoch(epoch) => format!("it is in epoch {epoch}"),
        Answer::OtherList => "it is on another list".to_owned(),
        Answer::Granted { last, stored: true } => format!("granted, with token {last}"),
        Answer::Granted { last, stored: false } => format!("granted; the last token is {last}"),
        Answer::Held { .. } => "held by another".to_owned(),
        Answer::Sealed { .. } | Answer::Yes => "yes".to_owned(),
        Answer::No => "no".to_owned(),
    };
    format!("node {name}: {what}: {answer}")
}
