//! What all clones of a [`Locks`](crate::Locks) share: the way to the store, to its locks and to
//! the leases on them. Nothing here is public.

use std::pin::pin;
use std::sync::Arc;

use crate::acquire::batcher::batchers;
use crate::acquire::{Acquirer, Unavailable};
use crate::backend::Reply;
use crate::clock::Alarm;
use crate::context::Context;
use crate::error::Result;
use crate::lease::{Lease, Leases};
use crate::name::Name;
use crate::terms::Terms;

#[derive(Debug)]
pub(crate) struct Client {
    pub(crate) context: Arc<Context>,
    acquirer: Acquirer,
    leases: Arc<Leases>,
}

impl Client {
    pub(crate) fn new(context: Context, alarm: Alarm) -> Self {
        let context = Arc::new(context);
        let (claims, releases) = batchers(&context);
        Self {
            acquirer: Acquirer::new(context.clone(), claims),
            leases: Arc::new(Leases::new(context.clone(), releases, alarm)),
            context,
        }
    }

    /// Whether none of its requests is under way or collected.
    #[cfg(all(test, shuttle))]
    pub(crate) fn is_idle(&self) -> bool {
        self.acquirer.is_idle() && self.leases.is_idle()
    }

    /// Takes the lock under these terms: a lease, or not when another holds it and there is
    /// no (more) patience.
    pub(crate) async fn acquire(
        &self,
        name: Name,
        terms: &Terms,
    ) -> Result<std::result::Result<Lease, Unavailable>> {
        let acquiring = pin!(self.acquirer.acquire(name, terms));
        let granted = self.leases.inside(acquiring).await?;
        Ok(granted.map(|granted| Lease::new(self.leases.clone(), granted, terms)))
    }

    /// Waits for the store's answer to a question that changes nothing here.
    pub(crate) async fn ask<T>(&self, asking: Reply<T>) -> Result<T> {
        self.leases.inside(self.context.ask(asking)).await
    }
}
