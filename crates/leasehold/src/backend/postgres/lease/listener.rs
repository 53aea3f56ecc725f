//! The connection that listens for all waiters of a client. It is made when somebody waits
//! for the first time, and made anew when it broke.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_postgres::Config;

use super::super::error::explain;
use super::super::url::Settings;
use super::super::wire::Session;
use super::LeaseStore;
use super::seats::Seats;
use crate::error::Result;
use crate::owner::Owner;

/// How long a waiter waits for the first connection, before it looks without one.
const FIRST: Duration = Duration::from_secs(1);
const SHORTEST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

#[derive(Debug)]
pub(super) struct Listener {
    settings: Arc<Settings>,
    client: i64,
    seats: Arc<Seats>,
    /// `None` where a pooler is in the way, and no address without one is known.
    config: Option<Config>,
    running: Mutex<Option<JoinHandle<()>>>,
}

impl Listener {
    pub(super) fn new(
        settings: Arc<Settings>,
        client: i64,
        seats: Arc<Seats>,
        pooled: bool,
    ) -> Self {
        let mut config = Some(settings.config.clone()).filter(|_| !pooled);
        if let Some((host, port)) = &settings.listen {
            config = Some(elsewhere(&settings.config, host, *port));
        }
        Self { settings, client, seats, config, running: Mutex::default() }
    }

    /// Begins to listen, if it does not already.
    pub(super) async fn start(&self) {
        let Some(config) = &self.config else { return };
        if self.seats.is_listening() {
            return;
        }
        {
            let mut running = self.running.lock();
            if running.as_ref().is_none_or(JoinHandle::is_finished) {
                let (settings, config) = (self.settings.clone(), config.clone());
                let listening = listen(settings, config, self.client, self.seats.clone());
                *running = Some(tokio::spawn(listening));
            } else {
                return;
            }
        }
        let up = async {
            while !self.seats.is_listening() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        let _ = tokio::time::timeout(FIRST, up).await;
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Some(running) = self.running.lock().take() {
            running.abort();
        }
    }
}

async fn listen(settings: Arc<Settings>, config: Config, client: i64, seats: Arc<Seats>) {
    let mut pause = SHORTEST_PAUSE;
    loop {
        if let Err(error) = listen_once(&settings, &config, client, &seats, &mut pause).await {
            tracing::debug!(%error, "cannot listen; waiters look now and then");
        }
        seats.deaf();
        tokio::time::sleep(pause).await;
        pause = LONGEST_PAUSE.min(pause * 2);
    }
}

async fn listen_once(
    settings: &Settings,
    config: &Config,
    client: i64,
    seats: &Seats,
    pause: &mut Duration,
) -> Result<()> {
    let (sender, mut notifications) = mpsc::unbounded_channel();
    let session = Session::connect(settings, config, Some(sender), false).await?;
    let listen = format!("listen \"leasehold_{client}\"");
    let listening = session.client.batch_execute(&listen).await;
    listening.map_err(|error| explain(error, &session.place))?;
    *pause = SHORTEST_PAUSE;
    seats.listening();
    while let Some(told) = notifications.recv().await {
        hear(seats, told.payload());
    }
    Ok(())
}

/// What the server says: `granted OWNER TOKEN PROVED TERM`, or `forced OWNER`.
fn hear(seats: &Seats, payload: &str) -> Option<()> {
    let mut words = payload.split(' ');
    let (verb, owner) = (words.next()?, words.next()?.parse::<Owner>().ok()?);
    match verb {
        "granted" => {
            let mut number = || words.next()?.parse::<i64>().ok();
            let (token, proved, term) = (number()?, number()?, number()?);
            seats.granted(owner, LeaseStore::grant(token, proved, term));
        }
        "forced" => seats.forced(owner),
        _ => {}
    }
    Some(())
}

/// The same database, reached at another address.
fn elsewhere(config: &Config, host: &str, port: u16) -> Config {
    let mut other = Config::new();
    other.host(host).port(port).ssl_mode(config.get_ssl_mode());
    if let Some(user) = config.get_user() {
        other.user(user);
    }
    if let Some(password) = config.get_password() {
        other.password(password);
    }
    if let Some(database) = config.get_dbname() {
        other.dbname(database);
    }
    if let Some(timeout) = config.get_connect_timeout() {
        other.connect_timeout(*timeout);
    }
    other.application_name("leasehold");
    other
}
