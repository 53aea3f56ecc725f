//! The bell: a Unix datagram socket per store, rung after COMMIT. A message is an
//! owner's 16 bytes and only a hint: the database is the truth, a slow poll stands
//! behind every bell, and so no error of a socket is one of the store.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, FileTypeExt};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;
use rustix::fs::{AtFlags, Mode, OFlags, unlinkat};
use tokio::sync::Notify;
use tokio::task::JoinHandle;

use super::path;
use crate::backend::Hint;
use crate::backend::kit::hints::Hints;
use crate::backend::kit::owner_map::OwnerMap;
use crate::owner::Owner;

/// This store's bell, and the way to those of others.
#[derive(Debug)]
pub(super) struct Bells {
    name: String,
    directory: PathBuf,
    /// Its users may ring, too.
    database: PathBuf,
    folder: Mutex<Option<Arc<OwnedFd>>>,
    sender: UnixDatagram,
    /// The socket of this bell, and the task that reads it.
    listener: Mutex<Option<(UnixDatagram, JoinHandle<()>)>>,
    registry: Arc<Registry>,
}

/// Where messages are delivered.
#[derive(Debug, Default)]
struct Registry {
    waiters: Mutex<OwnerMap<Arc<Notify>>>,
    hints: Hints,
}

impl Bells {
    pub(super) fn new(name: String, directory: PathBuf, database: PathBuf) -> io::Result<Self> {
        let sender = UnixDatagram::unbound()?;
        sender.set_nonblocking(true)?;
        let (folder, listener, registry) = Default::default();
        Ok(Self { name, directory, database, folder, sender, listener, registry })
    }

    /// Tells the process that has this bell to look, for this owner. Errors are ignored, for it
    /// polls.
    pub(super) fn ring(&self, bell: &str, owner: Owner) {
        if bell == self.name {
            return self.registry.deliver(owner);
        }
        let send = || {
            let folder = self.folder()?;
            self.sender.send_to(&owner.to_bytes(), address(&folder, bell))
        };
        let is_gone = send().is_err_and(|error| error.kind() == io::ErrorKind::NotFound);
        // Perhaps only the folder is another one by now.
        if is_gone && self.folder.lock().take().is_some() {
            let _ = send();
        }
    }

    /// Hears the bell for this owner, until it is dropped.
    /// Must be called inside a tokio runtime with I/O enabled.
    pub(super) fn subscribe(&self, owner: Owner) -> Subscription {
        self.bind();
        let bell = Arc::new(Notify::new());
        self.registry.waiters.lock().insert(owner, bell.clone());
        Subscription { owner, bell, registry: self.registry.clone() }
    }

    /// The next bell that was rung for nobody who waits: a lease may be over.
    pub(super) async fn hint(&self) -> Hint {
        self.bind();
        self.registry.hints.next().await
    }

    /// Binds the socket and starts its task, unless both are there. A tool that tidies up old
    /// files may have removed the socket.
    fn bind(&self) {
        if tokio::runtime::Handle::try_current().is_err() {
            return;
        }
        let mut listener = self.listener.lock();
        let is_there = listener.is_some() && self.directory.join(&self.name).exists();
        if is_there && listener.as_ref().is_some_and(|(_, task)| !task.is_finished()) {
            return;
        }
        let before = listener.take().inspect(|(_, task)| task.abort());
        let started = match before {
            // Its runtime is gone, the socket is not.
            Some((socket, _)) if is_there => Ok(socket),
            _ => self.bind_socket(),
        }
        .and_then(|socket| self.start(socket));
        match started {
            Ok(started) => *listener = Some(started),
            Err(error) => tracing::debug!(%error, "no bell: waiters poll"),
        }
    }

    fn bind_socket(&self) -> io::Result<UnixDatagram> {
        let created = match DirBuilder::new().mode(0o700).create(&self.directory) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => false,
            done => done.map(|()| true)?,
        };
        *self.folder.lock() = None;
        let folder = self.folder()?;
        if created {
            path::share_folder(&folder, &self.database);
        }
        let socket = UnixDatagram::bind(address(&folder, &self.name))?;
        path::share_socket(&folder, &self.name, &self.database);
        socket.set_nonblocking(true)?;
        Ok(socket)
    }

    fn start(&self, socket: UnixDatagram) -> io::Result<(UnixDatagram, JoinHandle<()>)> {
        let receiver = tokio::net::UnixDatagram::from_std(socket.try_clone()?)?;
        let registry = self.registry.clone();
        let task = tokio::spawn(async move {
            let mut message = [0; 16];
            while let Ok(length) = receiver.recv(&mut message).await {
                if length == message.len() {
                    registry.deliver(Owner::from_bytes(message));
                }
            }
        });
        Ok((socket, task))
    }

    fn folder(&self) -> io::Result<Arc<OwnedFd>> {
        let mut folder = self.folder.lock();
        if let Some(folder) = &*folder {
            return Ok(folder.clone());
        }
        // A link could lead to a folder of someone else.
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let opened = Arc::new(rustix::fs::open(&self.directory, flags, Mode::empty())?);
        Ok(folder.insert(opened).clone())
    }
}

/// A socket's path has at most 107 bytes; through the folder's descriptor it is short.
fn address(folder: &OwnedFd, bell: &str) -> PathBuf {
    format!("/proc/self/fd/{}/{bell}", folder.as_raw_fd()).into()
}

impl Drop for Bells {
    fn drop(&mut self) {
        if let Some((_, task)) = self.listener.get_mut().take() {
            task.abort();
            if let Ok(folder) = self.folder() {
                let _ = unlinkat(&*folder, self.name.as_str(), AtFlags::empty());
            }
        }
    }
}

impl Registry {
    fn deliver(&self, owner: Owner) {
        match self.waiters.lock().get(&owner) {
            Some(bell) => bell.notify_one(),
            None => self.hints.announce(Hint::Lease(owner)),
        }
    }
}

/// An owner that waits for its bell.
#[derive(Debug)]
pub(super) struct Subscription {
    owner: Owner,
    bell: Arc<Notify>,
    registry: Arc<Registry>,
}

impl Subscription {
    /// Completes when the bell rings, or rang since the last time. Cancel safe.
    pub(super) async fn rung(&self) {
        self.bell.notified().await;
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        let mut waiters = self.registry.waiters.lock();
        if waiters.get(&self.owner).is_some_and(|bell| Arc::ptr_eq(bell, &self.bell)) {
            waiters.remove(&self.owner);
        }
    }
}

/// Removes the sockets in which nobody listens any more: their processes were killed.
pub(super) fn sweep(directory: &Path) {
    let Ok(probe) = Bells::new(String::new(), directory.to_owned(), PathBuf::new()) else { return };
    let Ok(folder) = probe.folder() else { return };
    let Ok(entries) = fs::read_dir(address(&folder, "")) else { return };
    for entry in entries.flatten() {
        // A regular file refuses connections as well.
        if !entry.file_type().is_ok_and(|kind| kind.is_socket()) {
            continue;
        }
        let name = entry.file_name();
        let Some(bell) = name.to_str().filter(|name| is_bell(name)) else { continue };
        let answer = probe.sender.connect(address(&folder, bell));
        if answer.is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused) {
            let _ = unlinkat(&*folder, bell, AtFlags::empty());
        }
    }
}

/// Whether a store may have named its bell like this: 16 hexadecimal digits.
fn is_bell(name: &str) -> bool {
    name.len() == 16 && name.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bells(name: &str, directory: &Path) -> Bells {
        Bells::new(name.to_owned(), directory.to_owned(), directory.join("locks.db")).unwrap()
    }

    #[tokio::test]
    async fn rings_in_a_folder_whose_path_is_longer_than_a_socket_address() {
        let folder = tempfile::tempdir().unwrap();
        let deep = folder.path().join("x".repeat(120)).join("bells");
        fs::create_dir(deep.parent().unwrap()).unwrap();
        let (one, two) = (bells("one", &deep), bells("two", &deep));
        let owner = Owner::random();
        let waiter = one.subscribe(owner);
        two.ring("one", owner);
        waiter.rung().await;
        drop(waiter);
        assert!(one.registry.waiters.lock().is_empty(), "no leak of the waiter");

        two.ring("one", owner);
        assert_eq!(one.hint().await, Hint::Lease(owner));
        drop(one);
        assert_eq!(fs::read_dir(&deep).unwrap().count(), 0, "unlinked on drop");
    }

    #[tokio::test]
    async fn the_sweep_takes_dead_sockets_and_leaves_live_ones() {
        let folder = tempfile::tempdir().unwrap();
        drop(UnixDatagram::bind(folder.path().join("00000000000000de")).unwrap());
        let live = bells("00000000000000af", folder.path());
        live.bind();
        sweep(folder.path());
        let left: Vec<_> = fs::read_dir(folder.path()).unwrap().flatten().collect();
        assert_eq!(left.len(), 1);
        assert_eq!(left[0].file_name(), "00000000000000af");
    }

    /// A regular file was taken for a dead socket, also behind a link to a folder of others.
    #[test]
    fn the_sweep_leaves_what_is_no_bell() {
        let folder = tempfile::tempdir().unwrap();
        let (others, link) = (folder.path().join("others"), folder.path().join("bells"));
        fs::create_dir(&others).unwrap();
        fs::write(others.join("0000000000000001"), "mine").unwrap();
        drop(UnixDatagram::bind(others.join("service.sock")).unwrap());
        sweep(&others);
        assert_eq!(fs::read_dir(&others).unwrap().count(), 2);

        drop(UnixDatagram::bind(others.join("0000000000000002")).unwrap());
        std::os::unix::fs::symlink(&others, &link).unwrap();
        sweep(&link);
        assert_eq!(fs::read_dir(&others).unwrap().count(), 3);
    }

    #[tokio::test]
    async fn no_bell_is_bound_behind_a_link() {
        let folder = tempfile::tempdir().unwrap();
        let (others, link) = (folder.path().join("others"), folder.path().join("bells"));
        fs::create_dir(&others).unwrap();
        std::os::unix::fs::symlink(&others, &link).unwrap();
        bells("one", &link).bind();
        assert_eq!(fs::read_dir(&others).unwrap().count(), 0);
    }

    #[tokio::test]
    async fn bells_come_back_after_their_folder_was_removed() {
        let folder = tempfile::tempdir().unwrap();
        let directory = folder.path().join("bells");
        let (one, two) = (bells("one", &directory), bells("two", &directory));
        let owner = Owner::random();
        for _ in 0..2 {
            let waiter = one.subscribe(owner);
            two.ring("one", owner);
            tokio::time::timeout(std::time::Duration::from_secs(5), waiter.rung()).await.unwrap();
            fs::remove_dir_all(&directory).unwrap();
        }
    }

    #[test]
    fn a_bell_outlives_the_runtime_it_was_bound_in() {
        let folder = tempfile::tempdir().unwrap();
        let (one, two) = (bells("one", folder.path()), bells("two", folder.path()));
        let owner = Owner::random();
        for _ in 0..2 {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.unwrap().block_on(async {
                let waiter = one.subscribe(owner);
                two.ring("one", owner);
                waiter.rung().await;
            });
        }
    }
}
