//! The connection that listens for all waiters of a client. It is made when somebody waits
//! for the first time, and made again when it broke.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_postgres::Config;

use super::super::connection::Session;
use super::super::url::Settings;
use super::statements::grant;
use super::waiters::Waiters;
use crate::backend::Hint;
use crate::error::Result;
use crate::owner::Owner;

/// How long a waiter waits for the first connection, before it looks without one.
const FIRST: Duration = Duration::from_secs(1);
const SHORTEST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

pub(super) struct Listener {
    /// `None` where a pooler is in the way, and no address without one is known.
    source: Option<Source>,
    waiters: Arc<Waiters>,
    running: Mutex<JoinSet<()>>,
}

/// Where a client listens.
#[derive(Clone)]
struct Source {
    settings: Arc<Settings>,
    config: Config,
    client: i64,
}

impl Listener {
    pub(super) fn new(
        settings: Arc<Settings>,
        client: i64,
        waiters: Arc<Waiters>,
        pooled: bool,
    ) -> Self {
        let direct = (!pooled).then(|| settings.config.clone());
        let config = settings.listen.clone().or(direct);
        let source = config.map(|config| Source { settings, config, client });
        Self { source, waiters, running: Mutex::default() }
    }

    /// Begins to listen, if it does not already.
    pub(super) async fn start(&self) {
        let Some(source) = &self.source else { return };
        if self.waiters.is_listening() {
            return;
        }
        {
            let mut running = self.running.lock();
            while running.try_join_next().is_some() {}
            if !running.is_empty() {
                return;
            }
            running.spawn(listen(source.clone(), self.waiters.clone()));
        }
        let up = async {
            while !self.waiters.is_listening() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        let _ = tokio::time::timeout(FIRST, up).await;
    }
}

async fn listen(source: Source, waiters: Arc<Waiters>) {
    let mut pause = SHORTEST_PAUSE;
    loop {
        if let Err(error) = listen_once(&source, &waiters, &mut pause).await {
            tracing::debug!(%error, "cannot listen; waiters look now and then");
        }
        waiters.set_listening(false);
        tokio::time::sleep(pause).await;
        pause = LONGEST_PAUSE.min(pause * 2);
    }
}

async fn listen_once(source: &Source, waiters: &Waiters, pause: &mut Duration) -> Result<()> {
    let (sender, mut notifications) = mpsc::unbounded_channel();
    let Source { settings, config, client } = source;
    let session = Session::connect(settings, config, Some(sender), false).await?;
    session.run(&format!("listen \"leasehold_{client}\"")).await?;
    *pause = SHORTEST_PAUSE;
    waiters.set_listening(true);
    while let Some(notification) = notifications.recv().await {
        hear(waiters, notification.payload());
    }
    Ok(())
}

/// What the server says: `granted OWNER TOKEN PROVED TERM`, or `forced OWNER`.
fn hear(waiters: &Waiters, payload: &str) -> Option<()> {
    let mut words = payload.split(' ');
    let (news, owner) = (words.next()?, words.next()?.parse::<Owner>().ok()?);
    match news {
        "granted" => {
            let mut number = || words.next()?.parse::<i64>().ok();
            waiters.granted(owner, grant(number()?, number()?, number()?));
        }
        "forced" => waiters.hints.announce(Hint::Lease(owner)),
        _ => {}
    }
    Some(())
}
