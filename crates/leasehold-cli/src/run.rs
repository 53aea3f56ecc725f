//! `leasehold run`: a command under a lock, from the wish to the release.

use std::env;
use std::pin::pin;

use leasehold::clock::Clock;
use leasehold::{ErrorKind, EventKind, HeldBy, Lease, LeaseState, Locks, Scope};

use crate::child::Child;
use crate::exit::{Chain, Failure, LOST, REFUSED, killed_by, tell};
use crate::plan::Plan;
use crate::signals::Signals;
use crate::supervisor::Supervisor;
use crate::{formatting, terminal};

/// Runs the plan; the exit code, or why there is none of the command's own.
pub(crate) fn run(plan: Plan) -> Result<u8, Failure> {
    terminal::block_stops().map_err(|error| Failure::broken("cannot block signals", &error))?;
    // One thread: the command dies with the thread that started it, so that must be
    // the one that lives as long as the process.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| Failure::broken("cannot start", &error))?;
    let ended = runtime.block_on(hold_and_run(&plan));
    runtime.shutdown_background();
    ended
}

async fn hold_and_run(plan: &Plan) -> Result<u8, Failure> {
    let mut signals = Signals::listen().map_err(|error| Failure::broken("no signals", &error))?;
    let alarm = Clock::boot().alarm().map_err(|error| Failure::broken("no timer", &error))?;
    // Before the claim, which names the command's group.
    let child = Child::prepare(&plan.command, plan.store.inherited())
        .map_err(|error| Failure::broken("cannot start a process", &error))?;
    let group = child.group().as_raw_nonzero().get().unsigned_abs();
    let client = plan.store.client(plan.label()).process_group(group);
    let locks = client.await.map_err(|error| Failure::from_library(&error, plan.held_code))?;
    if locks.guarantees().scope == Scope::Process {
        let message = "this store reaches only this process: it would keep nobody else out; \
                       for the processes of this machine use sqlite:";
        return Err(Failure::new(REFUSED, message));
    }

    let events = locks.events();
    let lease = acquire(plan, &locks, &mut signals).await?;
    let ended = match Supervisor::start(plan, &lease, child, signals, alarm, events) {
        Ok(supervisor) => supervisor.watch().await,
        Err(failure) => Err(failure),
    };
    // The reason why the command was ended says more than how the release went.
    let released = release(&locks, lease).await;
    ended.and_then(|exit_code| released.map(|()| exit_code))
}

/// Takes the lock. Says once for whom it has to wait, and when the store goes away meanwhile.
async fn acquire(plan: &Plan, locks: &Locks, signals: &mut Signals) -> Result<Lease, Failure> {
    let mut events = locks.events();
    let mut told = false;
    let interrupted = {
        let lock = plan.lock(locks);
        let mut acquiring = pin!(lock.acquire());
        loop {
            tokio::select! {
                biased;
                taken = &mut acquiring => return taken.map_err(|error| match error.kind() {
                    ErrorKind::Held(by) => Failure::new(plan.held_code, held(plan, by.as_ref())),
                    _ => Failure::from_library(&error, plan.held_code),
                }),
                Some(event) = events.next() => match event.kind {
                    EventKind::Waiting(by) if !told => {
                        tell_waiting(plan, by.as_ref());
                        told = true;
                    }
                    EventKind::Troubled(error) => {
                        tell(format_args!("still waiting for {:?}: {}", plan.name, Chain(&error)));
                    }
                    _ => {}
                },
                signal = signals.next() => break signal,
            }
        }
    };
    let_background_finish(locks, plan.name.as_str()).await;
    let message = format!("gave up waiting for {:?}: interrupted by a signal", plan.name);
    Err(Failure::new(killed_by(interrupted.as_raw()), message))
}

fn tell_waiting(plan: &Plan, by: Option<&HeldBy>) {
    let (name, by) = (&plan.name, formatting::held_by(by));
    tell(format_args!("waiting for {name:?}, held by {by}"));
    // No error: what left the holder's group may well wait for it.
    if env::var_os("LEASEHOLD_LOCK").is_some_and(|lock| lock == name.as_str()) {
        tell(format_args!(
            "this command runs under {name:?} itself: if the holder waits for it, neither ends"
        ));
    }
}

fn held(plan: &Plan, by: Option<&HeldBy>) -> String {
    let (who, name) = (formatting::held_by(by), &plan.name);
    match by {
        Some(by) if by.never_expires => format!("{name:?} is held by {who}"),
        _ => format!("{name:?} is held by {who}; use --wait to wait (longer) for it"),
    }
}

/// Gives the lock back; an error if it turns out that it was not held to the end.
async fn release(locks: &Locks, lease: Lease) -> Result<(), Failure> {
    let name = lease.name().clone();
    let reason = match lease.state() {
        LeaseState::Lost(loss) => loss.to_string(),
        _ => "it had already gone when it was released".to_owned(),
    };
    match lease.release().await {
        Ok(()) => Ok(()),
        Err(error) if *error.kind() == ErrorKind::NotHeld => {
            let_background_finish(locks, name.as_str()).await;
            let message = format!(
                "lost {name:?} while the command ran: {reason}; \
                 what it did last may have overlapped with another holder"
            );
            Err(Failure::new(LOST, message))
        }
        Err(error) => {
            tell(format_args!("{error}; {name:?} is free at latest after its TTL"));
            Ok(())
        }
    }
}

/// The library tidies up in the background (a place in the queue, a lease that ended by our
/// own count); the store answers one more question after it has done that.
async fn let_background_finish(locks: &Locks, name: &str) {
    tokio::task::yield_now().await;
    let _ = locks.inspect(name).await;
}
