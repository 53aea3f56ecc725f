//! The members of the cluster: one connection each, one of them in use.
//!
//! A member that fails, or lets a request hang, is left for the next one; what was under
//! way is not sent again (its outcome is unknown). Everything that streams from the old
//! member starts anew, so that a member that was stopped takes no watch with it.

use std::fmt;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use etcd_client::{
    Certificate, Client, ConnectOptions, GetOptions, GetResponse, Identity, KvClient, TlsOptions,
    Txn, TxnResponse,
};
use http::uri::Authority;
use tokio::sync::{OnceCell, watch};
use tower::util::BoxCloneSyncService;

use super::channel::Channel;
use super::connection::{CONNECT_TIMEOUT, PING_EVERY, PING_TIMEOUT};
use crate::backend::etcd::error::{explain, has_old_token, is_members};
use crate::backend::etcd::url::{Address, Tls};
use crate::error::{Error, ErrorKind, Result};

/// A request that was given up after this long counts against its member.
const HANGS_AFTER: Duration = Duration::from_millis(250);
/// How often a request is sent again because its token is from before a change of users.
const TOKENS: usize = 3;
/// How long a new token may take.
const TOKEN_TIMEOUT: Duration = Duration::from_secs(2);

/// Where the machine's own choice of authorities may be.
const SYSTEM_BUNDLES: &[&str] =
    &["/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt"];

pub(in crate::backend::etcd) struct Endpoints {
    members: Vec<Member>,
    options: ConnectOptions,
    /// Whether requests carry a token.
    has_user: bool,
    current: AtomicUsize,
    /// Counts the changes of the member in use.
    turns: watch::Sender<u64>,
}

struct Member {
    url: String,
    clients: OnceCell<Clients>,
}

impl Member {
    /// Where it is, if the way there is not encrypted.
    fn plain(&self) -> Option<Authority> {
        self.url.strip_prefix("http://")?.parse().ok()
    }
}

/// A member's clients. The one for keys apart: copies of the whole one are dear.
struct Clients {
    client: Client,
    kv: KvClient,
    /// How many tokens were renewed, and who does so now.
    tokens: AtomicU64,
    renewing: tokio::sync::Mutex<()>,
}

impl Clients {
    fn new(client: Client) -> Self {
        let (tokens, renewing) = (AtomicU64::new(0), tokio::sync::Mutex::default());
        Self { kv: client.kv_client(), client, tokens, renewing }
    }

    fn tokens(&self) -> u64 {
        self.tokens.load(Ordering::Acquire)
    }

    /// Gets a new token, unless somebody else has since there were so many. (For a password
    /// etcd computes for a tenth of a second.)
    async fn renew_token(&self, seen: u64) -> Result<(), etcd_client::Error> {
        let _one_at_a_time = self.renewing.lock().await;
        if self.tokens() == seen {
            self.client.refresh_token().await?;
            self.tokens.fetch_add(1, Ordering::AcqRel);
        }
        Ok(())
    }

    /// Sends a request again that was refused for its token, and so was not applied.
    async fn ask_again<T>(
        &self,
        mut seen: u64,
        send: impl AsyncFnOnce(&Self) -> Result<T, etcd_client::Error> + Clone,
    ) -> Result<T, etcd_client::Error> {
        let mut left = TOKENS;
        loop {
            self.renew_token(seen).await?;
            seen = self.tokens();
            left -= 1;
            let again = send.clone();
            match again(self).await {
                Err(error) if left > 0 && has_old_token(&error) => {}
                answer => return answer,
            }
        }
    }
}

impl fmt::Debug for Endpoints {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let urls: Vec<_> = self.members.iter().map(|member| &member.url).collect();
        f.debug_struct("Endpoints").field("members", &urls).finish_non_exhaustive()
    }
}

impl Endpoints {
    pub(in crate::backend::etcd) fn new(address: &Address) -> Result<Self> {
        let mut options = ConnectOptions::new()
            .with_connect_timeout(CONNECT_TIMEOUT)
            .with_keep_alive(PING_EVERY, PING_TIMEOUT)
            .with_keep_alive_while_idle(false)
            .with_require_leader(true);
        if let Some((user, password)) = &address.user {
            // For this the driver makes a copy of every request.
            options = options.with_user(user, password).with_auto_token_refresh(true);
        }
        let mut scheme = "http";
        if let Some(tls) = &address.tls {
            options = options.with_tls(tls_options(tls)?);
            scheme = "https";
        }
        let member =
            |host: &String| Member { url: format!("{scheme}://{host}"), clients: OnceCell::new() };
        Ok(Self {
            members: address.hosts.iter().map(member).collect(),
            options,
            has_user: address.user.is_some(),
            current: AtomicUsize::new(0),
            turns: watch::Sender::new(0),
        })
    }

    /// Sends one request to the member in use.
    pub(in crate::backend::etcd) async fn call<T, Sending>(
        &self,
        send: impl FnOnce(Client) -> Sending + Clone,
    ) -> Result<T>
    where
        Sending: Future<Output = Result<T, etcd_client::Error>>,
    {
        self.ask(async |clients: &Clients| Box::pin(send(clients.client.clone())).await).await
    }

    /// The same for keys.
    pub(in crate::backend::etcd) async fn on_keys<T, Sending>(
        &self,
        send: impl FnOnce(KvClient) -> Sending + Clone,
    ) -> Result<T>
    where
        Sending: Future<Output = Result<T, etcd_client::Error>>,
    {
        // Boxed: the driver's futures are large, and each caller's would be larger still.
        self.ask(async |clients: &Clients| Box::pin(send(clients.kv.clone())).await).await
    }

    /// Sends a transaction.
    pub(in crate::backend::etcd) async fn txn(&self, txn: Txn) -> Result<TxnResponse> {
        self.on_keys(async |mut kv| kv.txn(txn).await).await
    }

    /// Reads a key, or those that the options say.
    pub(in crate::backend::etcd) async fn get(
        &self,
        key: impl Into<Vec<u8>> + Clone,
        options: GetOptions,
    ) -> Result<GetResponse> {
        self.on_keys(async |mut kv| kv.get(key, Some(options)).await).await
    }

    /// A change of users or roles makes all tokens of the kind `jwt` old: then the request is
    /// sent again with a new one.
    async fn ask<T>(
        &self,
        send: impl AsyncFnOnce(&Clients) -> Result<T, etcd_client::Error> + Clone,
    ) -> Result<T> {
        let index = self.current.load(Ordering::Acquire);
        let mut asking = Asking { endpoints: self, index, since: Instant::now(), answered: false };
        let again = self.has_user.then(|| send.clone());
        let answer = async {
            let clients = self.clients_of(index).await?;
            let tokens = clients.tokens();
            match (send(clients).await, again) {
                (Err(error), Some(again)) if has_old_token(&error) => {
                    // What is rare must not make the future larger that each request moves.
                    Box::pin(clients.ask_again(tokens, again)).await
                }
                (answer, _) => answer,
            }
        };
        let answer = answer.await;
        asking.answered = true;
        answer.map_err(|error| self.explain(error, index))
    }

    /// A member's error. If it is the member's fault, the member is left.
    fn explain(&self, error: etcd_client::Error, index: usize) -> Error {
        if is_members(&error) {
            self.leave(index);
        }
        explain(error)
    }

    /// What these requests answer, but not for longer than this.
    pub(in crate::backend::etcd) async fn within<T>(
        &self,
        limit: Duration,
        asking: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        let index = self.current.load(Ordering::Acquire);
        match tokio::time::timeout(limit, asking).await {
            Ok(answer) => answer,
            Err(_) => {
                self.leave(index);
                Err(Error::no_answer(limit))
            }
        }
    }

    /// How many tokens of the member in use were renewed: for [`Self::renew_token`], before a
    /// stream is opened.
    pub(in crate::backend::etcd) fn tokens(&self) -> u64 {
        let member = &self.members[self.current.load(Ordering::Acquire)];
        member.clients.get().map_or(0, Clients::tokens)
    }

    /// Gets a new token from the member in use, which refused a stream that was opened when so many
    /// had been renewed; unless somebody else has since. If that fails, the next request says why.
    pub(in crate::backend::etcd) async fn renew_token(&self, seen: u64) {
        let renewing = async {
            let clients = self.clients_of(self.current.load(Ordering::Acquire)).await?;
            clients.renew_token(seen).await
        };
        if self.has_user
            && let Ok(Err(error)) = tokio::time::timeout(TOKEN_TIMEOUT, renewing).await
        {
            tracing::debug!(%error, "etcd gave no new token");
        }
    }

    /// The client of the member in use, and which one that is.
    pub(in crate::backend::etcd) async fn current(&self) -> Result<(usize, Client)> {
        let index = self.current.load(Ordering::Acquire);
        let client = self.client_of(index).await.map_err(|error| self.explain(error, index))?;
        Ok((index, client))
    }

    /// Every member's URL, in the order of the store's.
    pub(in crate::backend::etcd) fn urls(&self) -> impl ExactSizeIterator<Item = &str> {
        self.members.iter().map(|member| &*member.url)
    }

    /// Leaves this member for the next, unless that has happened already.
    pub(in crate::backend::etcd) fn leave(&self, index: usize) {
        let next = (index + 1) % self.members.len();
        let left = self.current.compare_exchange(index, next, Ordering::AcqRel, Ordering::Relaxed);
        if left.is_ok() && next != index {
            tracing::debug!(from = %self.members[index].url, to = %self.members[next].url,
                "another member of the etcd cluster");
            self.turns.send_modify(|turns| *turns += 1);
        }
    }

    /// Tells of every change of the member in use.
    pub(in crate::backend::etcd) fn turns(&self) -> watch::Receiver<u64> {
        self.turns.subscribe()
    }

    /// The client of this member, whichever is in use.
    pub(in crate::backend::etcd) async fn client_of(
        &self,
        index: usize,
    ) -> Result<Client, etcd_client::Error> {
        self.clients_of(index).await.map(|clients| clients.client.clone())
    }

    async fn clients_of(&self, index: usize) -> Result<&Clients, etcd_client::Error> {
        let member = &self.members[index];
        if let Some(clients) = member.clients.get() {
            return Ok(clients);
        }
        // Only authentication needs the network here.
        let connect = async || {
            let options = Some(self.options.clone());
            let client = match member.plain() {
                Some(authority) => {
                    let channel = BoxCloneSyncService::new(Channel::to(authority));
                    Client::from_channel(etcd_client::Channel::Custom(channel), options).await?
                }
                None => Client::connect([&member.url], options).await?,
            };
            Ok(Clients::new(client))
        };
        // What happens once must not make the future larger that each request moves.
        Box::pin(member.clients.get_or_try_init(connect)).await
    }
}

/// A request under way: given up after a while, it counts against its member.
struct Asking<'a> {
    endpoints: &'a Endpoints,
    index: usize,
    since: Instant,
    answered: bool,
}

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        if !self.answered && self.since.elapsed() >= HANGS_AFTER {
            self.endpoints.leave(self.index);
        }
    }
}

fn tls_options(tls: &Tls) -> Result<TlsOptions> {
    let read = |path: &std::path::Path| {
        std::fs::read(path).map_err(|error| {
            let message = format!("cannot read {}: {error}", path.display());
            Error::new(ErrorKind::Invalid, message).caused_by(error)
        })
    };
    let ca = match &tls.ca {
        Some(path) => read(path)?,
        None => {
            let named = std::env::var_os("SSL_CERT_FILE").map(std::path::PathBuf::from);
            let usual = SYSTEM_BUNDLES.iter().map(std::path::PathBuf::from);
            let bundle = named.into_iter().chain(usual).find(|path| path.exists());
            let bundle = bundle.ok_or_else(|| {
                Error::invalid("this machine has no list of certificate authorities: say ca=/path")
            })?;
            read(&bundle)?
        }
    };
    let mut options = TlsOptions::new().ca_certificate(Certificate::from_pem(ca));
    if let Some((cert, key)) = &tls.identity {
        options = options.identity(Identity::from_pem(read(cert)?, read(key)?));
    }
    if let Some(name) = &tls.server_name {
        options = options.domain_name(name);
    }
    Ok(options)
}
