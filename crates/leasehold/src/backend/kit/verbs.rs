//! From the trait to a store's files: each method is a function of the same name, in the same
//! file of every store.
//!
//! | file | functions |
//! |---|---|
//! | `acquire` | `acquire`, and its counterpart `settle` |
//! | `wait` | `wait`, `leave` |
//! | `hold` | `renew`, `release`, `hint` |
//! | `admin` | `inspect`, `list`, `force_release`, `examine` |
//!
//! They take the store as an `Arc`, then what the trait's method takes. Their errors get store,
//! operation and lock here.
//!
//! What a store does not have is refused here: locks that are shared, and force-releases of
//! one lease among several.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use crate::backend::{Claim, Force, ForceRelease, Hold, LockId, LockKind, Reply};
use crate::error::{Error, ErrorKind, Operation, Result};
use crate::loss::Forced;
use crate::name::Name;
use crate::token::Token;

/// Implements [`Backend`](crate::backend::Backend) by the functions in a store's files.
macro_rules! verbs {
    ($store:ty, $name:expr, |$this:ident| $guarantees:expr, $limits:expr) => {
        const _: () = {
            use std::sync::Arc;
            use $crate::backend::kit::verbs::{About, exclusive, force_release, reply};
            use $crate::backend::{
                Backend, Claim, Finding, Force, ForceRelease, Grant, Hint, Hold, Limits, LockId,
                LockInfo, Release, Renewal, Reply, Turn, Verdict,
            };
            use $crate::clock::Clock;
            use $crate::error::Operation;
            use $crate::guarantees::Guarantees;

            impl Backend for $store {
                fn guarantees(&self) -> &Guarantees {
                    let $this = self;
                    $guarantees
                }

                fn limits(&self) -> Limits {
                    $limits
                }

                fn clock(&self) -> &Clock {
                    &self.clock
                }

                fn acquire(self: Arc<Self>, claims: Vec<Claim>) -> Reply<Vec<Verdict>> {
                    let lock = claims.about();
                    if let Err(refused) =
                        claims.iter().try_for_each(|claim| exclusive(claim.mode.kind()))
                    {
                        return reply(
                            $name,
                            Operation::Acquire,
                            lock,
                            std::future::ready(Err(refused)),
                        );
                    }
                    reply($name, Operation::Acquire, lock, acquire::acquire(self, claims))
                }

                fn wait(self: Arc<Self>, claim: Claim) -> Reply<Turn> {
                    let lock = Some(claim.name.clone());
                    reply($name, Operation::Wait, lock, wait::wait(self, claim))
                }

                fn leave(self: Arc<Self>, claim: Claim) -> Reply<()> {
                    let lock = Some(claim.name.clone());
                    reply($name, Operation::Leave, lock, wait::leave(self, claim))
                }

                fn settle(self: Arc<Self>, claims: Vec<Claim>) -> Reply<Vec<Option<Grant>>> {
                    let lock = claims.about();
                    reply($name, Operation::Settle, lock, acquire::settle(self, claims))
                }

                fn renew(self: Arc<Self>, holds: Vec<Hold>) -> Reply<Vec<Renewal>> {
                    let lock = holds.about();
                    reply($name, Operation::Renew, lock, hold::renew(self, holds))
                }

                fn release(self: Arc<Self>, holds: Vec<Hold>) -> Reply<Vec<Release>> {
                    let lock = holds.about();
                    reply($name, Operation::Release, lock, hold::release(self, holds))
                }

                fn inspect(self: Arc<Self>, lock: LockId) -> Reply<Option<LockInfo>> {
                    let name = Some(lock.name.clone());
                    if let Err(refused) = exclusive(lock.kind) {
                        return reply(
                            $name,
                            Operation::Inspect,
                            name,
                            std::future::ready(Err(refused)),
                        );
                    }
                    reply($name, Operation::Inspect, name, admin::inspect(self, lock.name))
                }

                fn list(self: Arc<Self>, prefix: String) -> Reply<Vec<LockInfo>> {
                    reply($name, Operation::List, None, admin::list(self, prefix))
                }

                fn force_release(
                    self: Arc<Self>,
                    lock: LockId,
                    force: Force,
                ) -> Reply<ForceRelease> {
                    let name = Some(lock.name.clone());
                    let releasing = force_release(lock, force, |name, forced| {
                        admin::force_release(self, name, forced)
                    });
                    reply($name, Operation::ForceRelease, name, releasing)
                }

                fn examine(self: Arc<Self>) -> Reply<Vec<Finding>> {
                    reply($name, Operation::Examine, None, admin::examine(self))
                }

                fn hint(self: Arc<Self>) -> Reply<Hint> {
                    Box::pin(hold::hint(self))
                }
            }
        };
    };
}

pub(in crate::backend) use verbs;

/// Refuses a lock that is not exclusive.
pub(in crate::backend) fn exclusive(kind: LockKind) -> Result<()> {
    match kind {
        LockKind::Exclusive => Ok(()),
        shared => {
            let message =
                format!("this store has no {shared} locks; its guarantees name those it has");
            Err(Error::new(ErrorKind::Refused, message))
        }
    }
}

/// Ends the one lease of an exclusive lock.
pub(in crate::backend) async fn force_release<F>(
    lock: LockId,
    force: Force,
    release: impl FnOnce(Name, Forced) -> F,
) -> Result<ForceRelease>
where
    F: Future<Output = Result<Option<Token>>>,
{
    exclusive(lock.kind)?;
    if force.owner.is_some() || force.expected.is_some() {
        let message = "this store cannot end the lease of one owner or token: inspect the lock, \
                       and release it whoever holds it";
        return Err(Error::new(ErrorKind::Refused, message));
    }
    let ended = release(lock.name, force.forced).await?;
    Ok(ended.map_or(ForceRelease::NobodyHeld, |token| ForceRelease::Ended(vec![token])))
}

/// The lock that a request is about, if it is about one.
pub(in crate::backend) trait About {
    fn about(&self) -> Option<Name>;
}

impl About for [Claim] {
    fn about(&self) -> Option<Name> {
        if let [claim] = self { Some(claim.name.clone()) } else { None }
    }
}

impl About for [Hold] {
    fn about(&self) -> Option<Name> {
        if let [hold] = self { Some(hold.name.clone()) } else { None }
    }
}

/// A request of a store: its error names store, operation and lock.
pub(in crate::backend) fn reply<T: 'static>(
    store: &'static str,
    operation: Operation,
    lock: Option<Name>,
    work: impl Future<Output = Result<T>> + Send + 'static,
) -> Reply<T> {
    Box::pin(Request { store, operation, lock, work })
}

pin_project_lite::pin_project! {
    // An async block would have room for the work twice.
    struct Request<F> {
        store: &'static str,
        operation: Operation,
        lock: Option<Name>,
        #[pin]
        work: F,
    }
}

impl<T, F: Future<Output = Result<T>>> Future for Request<F> {
    type Output = Result<T>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<T>> {
        let this = self.project();
        let answer = ready!(this.work.poll(context));
        let (store, operation, lock) = (*this.store, *this.operation, this.lock.as_ref());
        Poll::Ready(answer.map_err(|error| error.on_store(store).during(operation, lock)))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use crate::backend::{Backend, Claim, Force, LockId, LockKind, Mode};
    use crate::error::{Error, ErrorKind, Operation};
    use crate::guarantees::Guarantees;
    use crate::holder::Holder;
    use crate::loss::Forced;
    use crate::name::Name;
    use crate::token::Token;

    /// A store that can do nothing.
    #[derive(Debug)]
    struct Broken {
        clock: crate::clock::Clock,
        guarantees: Guarantees,
    }

    fn store() -> Arc<Broken> {
        let guarantees = Guarantees::of("broken");
        Arc::new(Broken { clock: crate::clock::Clock::boot(), guarantees })
    }

    fn broken<T>() -> crate::Result<T> {
        Err(Error::new(ErrorKind::Unavailable, "it is broken"))
    }

    macro_rules! broken {
        ($file:ident: $($verb:ident($($type:ty)?) -> $answer:ty),*) => {
            mod $file {
                use super::{Arc, Broken, broken};
                use crate::backend::*;
                $(pub(super) async fn $verb(_: Arc<Broken> $(, _: $type)?) -> crate::Result<$answer> {
                    broken()
                })*
            }
        };
    }

    broken!(acquire: acquire(Vec<Claim>) -> Vec<Verdict>, settle(Vec<Claim>) -> Vec<Option<Grant>>);
    broken!(wait: wait(Claim) -> Turn, leave(Claim) -> ());
    broken!(hold: renew(Vec<Hold>) -> Vec<Renewal>, release(Vec<Hold>) -> Vec<Release>,
        hint() -> Hint);

    mod admin {
        use super::{Arc, Broken, broken};
        use crate::backend::*;
        use crate::loss::Forced;
        use crate::name::Name;
        use crate::token::Token;

        pub(super) async fn inspect(_: Arc<Broken>, _: Name) -> crate::Result<Option<LockInfo>> {
            broken()
        }
        pub(super) async fn list(_: Arc<Broken>, _: String) -> crate::Result<Vec<LockInfo>> {
            broken()
        }
        pub(super) async fn force_release(
            _: Arc<Broken>,
            _: Name,
            _: Forced,
        ) -> crate::Result<Option<Token>> {
            broken()
        }
        pub(super) async fn examine(_: Arc<Broken>) -> crate::Result<Vec<Finding>> {
            broken()
        }
    }

    super::verbs!(Broken, "broken", |store| &store.guarantees, Limits::new(1, 1));

    #[tokio::test]
    async fn an_error_says_where_and_during_what_it_came() {
        let store = store();
        let name = Name::new("job").unwrap();
        let holder = Arc::new(Holder::this_process());
        let claim = Claim::new(name.clone(), Duration::from_secs(1), holder);
        let about = |error: Error| (error.store(), error.operation(), error.lock().cloned());

        let error = store.clone().acquire(vec![claim.clone()]).await.unwrap_err();
        let place = Some("broken");
        assert_eq!(about(error), (place, Some(Operation::Acquire), Some(name.clone())));
        let error = store.clone().acquire(vec![claim.clone(), claim.clone()]).await.unwrap_err();
        assert_eq!(about(error), (place, Some(Operation::Acquire), None), "which one?");
        let error = store.clone().wait(claim).await.unwrap_err();
        assert_eq!(about(error), (place, Some(Operation::Wait), Some(name.clone())));
        let error = store.clone().inspect(name.clone().into()).await.unwrap_err();
        assert_eq!(about(error), (place, Some(Operation::Inspect), Some(name)));
        let error = store.examine().await.unwrap_err();
        assert_eq!(about(error), (place, Some(Operation::Examine), None));
    }

    /// Nothing of it reaches a store that would take it for an exclusive lock.
    #[tokio::test]
    async fn what_the_store_does_not_have_is_refused() {
        let store = store();
        let name = Name::new("job").unwrap();
        let holder = Arc::new(Holder::this_process());
        let mut claim = Claim::new(name.clone(), Duration::from_secs(1), holder);
        claim.mode = Mode::Read;
        let error = store.clone().acquire(vec![claim.clone()]).await.unwrap_err();
        assert_eq!(*error.kind(), ErrorKind::Refused);
        assert!(error.to_string().contains("no read/write locks"), "{error}");
        let error = store.clone().inspect(claim.lock()).await.unwrap_err();
        assert_eq!(*error.kind(), ErrorKind::Refused);
        let mut force = Force::new(Forced::new("ada", "stuck"));
        let semaphore = LockId::new(LockKind::Semaphore, name.clone());
        let error = store.clone().force_release(semaphore, force.clone()).await.unwrap_err();
        assert_eq!(*error.kind(), ErrorKind::Refused);
        force.expected = Some(Token::new(7));
        let error = store.clone().force_release(name.into(), force).await.unwrap_err();
        assert_eq!(*error.kind(), ErrorKind::Refused);
        assert!(error.to_string().contains("inspect the lock"), "{error}");
    }
}
