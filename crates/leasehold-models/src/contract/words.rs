//! The steps, told.

use super::Contract;
use super::state::{Ending, Phase, State};
use super::step::{Action, Waiting};
use super::store::{Answer, Order, Who};

/// One step in one line.
pub(super) fn tell(model: &Contract, before: &State, action: Action, after: &State) -> String {
    let what = match action {
        Action::Ask if before.phase == Phase::Place => {
            "in the queue, the caller asks again".to_owned()
        }
        Action::Ask => "the caller asks for the lock".to_owned(),
        Action::Cancel => "the caller does not want it any more".to_owned(),
        Action::Renew => "the keeper sends a renewal".to_owned(),
        Action::Release => "the holder gives it back".to_owned(),
        Action::Arrive(who) => match before.call(who) {
            Some(call) => arrival(model, before, call.order, call.owner, ""),
            None => "nothing arrives".to_owned(),
        },
        Action::ArriveLate(at) => {
            let orphan = before.orphans[at];
            arrival(model, before, orphan.order, orphan.owner, " late")
        }
        Action::Hear(who) => match before.call(who).and_then(|call| call.answer) {
            Some(answer) => format!("{} hears: {}", name(who), said(answer)),
            None => "nothing is heard".to_owned(),
        },
        Action::TimeOut(who) => format!("{} hears nothing, and stops waiting", name(who)),
        Action::OtherTakes => "somebody else takes the lock".to_owned(),
        Action::OtherLeaves if before.store.queued.is_some() => {
            "somebody else gives it back: the first in the queue has it now".to_owned()
        }
        Action::OtherLeaves => "somebody else gives it back".to_owned(),
        Action::Tick => format!("time passes{}", lapse(before, after)),
    };
    let believed = (before.believes(), after.believes());
    let consequence = match (believed, after.phase) {
        ((false, true), _) => format!("; HELD for {} more ticks", after.deadline),
        (_, Phase::Over(ending)) if before.phase != after.phase => told(ending),
        ((true, true), Phase::Held { doubtful: true }) if before.phase != after.phase => {
            "; in doubt".to_owned()
        }
        (_, Phase::Settling { .. }) if before.phase != after.phase => "; it settles".to_owned(),
        _ if after.owner != before.owner => "; a fresh owner asks".to_owned(),
        _ => String::new(),
    };
    what + &consequence
}

fn name(who: Waiting) -> &'static str {
    match who {
        Waiting::Caller => "the caller",
        Waiting::Keeper => "the keeper",
        Waiting::Background => "the background",
    }
}

fn arrival(model: &Contract, before: &State, order: Order, owner: u8, late: &str) -> String {
    let what = match order {
        Order::Claim => "claim",
        Order::Settle => "question \"is it mine?\"",
        Order::Renew => "renewal",
        Order::Release => "release",
        Order::Leave => "leaving of the queue",
    };
    let answer = before.store.clone().step(&model.habits, owner, order);
    let owner = u32::from(owner) + 1;
    format!("store: owner {owner}'s {what} arrives{late}: {}", said(answer))
}

fn said(answer: Answer) -> String {
    match answer {
        Answer::Yours(left) => format!("yours, for {left} ticks"),
        Answer::Held => "held".to_owned(),
        Answer::Queued => "another's; you are queued".to_owned(),
        Answer::NotYours => "not yours".to_owned(),
        Answer::Released => "free now".to_owned(),
    }
}

fn told(ending: Ending) -> String {
    let told = match ending {
        Ending::Refused => "; TOLD: held by another",
        Ending::Failed => "; TOLD: no answer",
        Ending::Cancelled => "; cancelled",
        Ending::Lost => "; LOST",
        Ending::Released => "; TOLD: released",
        Ending::NotHeld => "; TOLD: it had gone before",
    };
    told.to_owned()
}

fn lapse(before: &State, after: &State) -> &'static str {
    match (before.store.lock, after.store.lock) {
        (Some((Who::Us(_), _)), None) => "; at the store, the lease lapses",
        _ => "",
    }
}
