//! The steps, told.

use super::Queue;
use super::node::{Answer, Order};
use super::state::{Phase, State};
use super::step::Action;

fn name(who: usize) -> char {
    char::from(b'A' + who as u8)
}

/// One step in one line.
pub(super) fn tell(model: &Queue, before: &State, action: Action, after: &State) -> String {
    let mut text = match action {
        Action::Do(who, order) => arrival(model, before, who, order, 0, ""),
        Action::Send(who, order) => format!("{} sends a {}", name(who), title(order)),
        Action::Die(who) => format!("{} DIES", name(who)),
        Action::Arrive(who) => match before.clients[who].call {
            Some(call) => arrival(model, before, who, call.order, call.age, ""),
            None => "nothing arrives".to_owned(),
        },
        Action::ArriveLate(who) => match before.clients[who].orphan {
            Some((order, age)) => arrival(model, before, who, order, age, " late"),
            None => "nothing arrives".to_owned(),
        },
        Action::Hear(who) => match before.clients[who].call.and_then(|call| call.answer) {
            Some(answer) => format!("{} hears: {}", name(who), said(answer)),
            None => "nothing is heard".to_owned(),
        },
        Action::HearPush(who) => format!("{} hears that the lock was granted to it", name(who)),
        Action::Lose(who) => format!("{} hears nothing, and stops waiting", name(who)),
        Action::LosePush(who) => format!("what was pushed to {} is lost", name(who)),
        Action::LoseQueue => "the server LOSES THE QUEUE".to_owned(),
        Action::Tick => "time passes".to_owned(),
    };
    for (who, (was, is)) in before.clients.iter().zip(&after.clients).enumerate() {
        match (was.phase, is.phase) {
            (Phase::Asking | Phase::Waiting, Phase::Holding(deadline)) => {
                text += &format!("; {} HOLDS it for {deadline} more ticks", name(who));
            }
            (Phase::Holding(_), Phase::Done) if action == Action::Tick => {
                text += &format!("; {} LOST it", name(who))
            }
            _ => {}
        }
    }
    if before.server.lock.is_some() && after.server.lock.is_none() && action == Action::Tick {
        text += "; at the server, the lease lapses";
    }
    text
}

fn arrival(model: &Queue, before: &State, who: usize, order: Order, age: u8, late: &str) -> String {
    let (answer, said_to) = before.server.clone().step(&model.rules, who as u8, order, age);
    let push = said_to.push.map_or(String::new(), |push| {
        let to = name(usize::from(push.to));
        format!("; the lock is granted to {to} for {} ticks, and a message sent", push.grant.span)
    });
    format!("server: {}'s {} arrives{late}: {}{push}", name(who), title(order), said(answer))
}

fn title(order: Order) -> &'static str {
    match order {
        Order::Claim | Order::Try => "claim",
        Order::Beat => "heartbeat",
        Order::Renew => "renewal",
        Order::Release => "release",
        Order::Leave => "leaving",
        Order::Settle => "question",
        Order::Force => "force-release",
    }
}

fn said(answer: Answer) -> String {
    match answer {
        Answer::Granted(grant) => format!("yours, for {} ticks", grant.span),
        Answer::Queued => "you are in the queue".to_owned(),
        Answer::Held => "another's".to_owned(),
        Answer::Tombstone => "it has a tombstone".to_owned(),
        Answer::Unknown => "not known here".to_owned(),
        Answer::NotHeld => "not yours".to_owned(),
        Answer::Done => "done".to_owned(),
    }
}
