//! The bell: a Unix datagram socket per store, rung after COMMIT. A message is an
//! owner's 16 bytes and only a hint: the database is the truth, a slow poll stands
//! behind every bell, and so no error of a socket is one of the store.

use std::collections::{HashMap, VecDeque};
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

use super::access;
use crate::backend::Hint;
use crate::owner::Owner;

/// More hints than this that nobody fetched become one: ask about all leases.
const MOST_HINTS: usize = 1024;

/// A bell to ring, and for whom.
#[derive(Debug)]
pub(super) struct Ring {
    pub(super) bell: String,
    pub(super) owner: Owner,
}

/// This store's bell, and the way to those of others.
#[derive(Debug)]
pub(super) struct Bells {
    name: String,
    directory: PathBuf,
    /// Who may use it may ring, too.
    database: PathBuf,
    folder: Mutex<Option<Arc<OwnedFd>>>,
    sender: UnixDatagram,
    listener: Mutex<Option<Listener>>,
    desk: Arc<Desk>,
}

#[derive(Debug)]
struct Listener {
    socket: UnixDatagram,
    task: JoinHandle<()>,
}

/// Where messages are delivered.
#[derive(Debug, Default)]
struct Desk {
    seats: Mutex<HashMap<Owner, Arc<Notify>>>,
    hints: Mutex<VecDeque<Hint>>,
    hinted: Notify,
}

impl Bells {
    pub(super) fn new(name: String, directory: PathBuf, database: PathBuf) -> io::Result<Self> {
        let sender = UnixDatagram::unbound()?;
        sender.set_nonblocking(true)?;
        let (folder, listener, desk) = Default::default();
        Ok(Self { name, directory, database, folder, sender, listener, desk })
    }

    /// Tells whoever has this bell to look; errors are ignored, for they poll.
    pub(super) fn ring(&self, ring: &Ring) {
        if ring.bell == self.name {
            return self.desk.deliver(ring.owner);
        }
        let gone = |sent: io::Result<()>| sent.is_err_and(|e| e.kind() == io::ErrorKind::NotFound);
        // Perhaps only the folder is another one by now.
        if gone(self.send(ring)) && self.folder.lock().take().is_some() {
            let _ = self.send(ring);
        }
    }

    fn send(&self, ring: &Ring) -> io::Result<()> {
        let folder = self.folder()?;
        self.sender.send_to(&ring.owner.to_bytes(), address(&folder, &ring.bell)).map(drop)
    }

    /// A seat at which this owner hears its bell, until it is dropped.
    /// Must be called inside a tokio runtime with I/O enabled.
    pub(super) fn listen(&self, owner: Owner) -> Seat {
        self.bind();
        let notify = Arc::new(Notify::new());
        self.desk.seats.lock().insert(owner, notify.clone());
        Seat { owner, notify, desk: self.desk.clone() }
    }

    /// The next bell that was rung for nobody who waits: a lease may be over.
    pub(super) async fn hint(&self) -> Hint {
        self.bind();
        loop {
            let hinted = self.desk.hinted.notified();
            if let Some(hint) = self.desk.hints.lock().pop_front() {
                return hint;
            }
            hinted.await;
        }
    }

    /// Binds the socket and starts its task, if the one of before is not running or was
    /// removed, as those who tidy up old files do.
    fn bind(&self) {
        if tokio::runtime::Handle::try_current().is_err() {
            return;
        }
        let mut listener = self.listener.lock();
        let is_there = listener.is_some() && self.directory.join(&self.name).exists();
        if is_there && listener.as_ref().is_some_and(|listener| !listener.task.is_finished()) {
            return;
        }
        let before = listener.take().inspect(|before| before.task.abort());
        let started = match before {
            // The runtime of before is gone, the socket is not.
            Some(before) if is_there => Ok(before.socket),
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
            access::share_folder(&folder, &self.database);
        }
        let socket = UnixDatagram::bind(address(&folder, &self.name))?;
        access::share_socket(&folder, &self.name, &self.database);
        socket.set_nonblocking(true)?;
        Ok(socket)
    }

    fn start(&self, socket: UnixDatagram) -> io::Result<Listener> {
        let ear = tokio::net::UnixDatagram::from_std(socket.try_clone()?)?;
        let desk = self.desk.clone();
        let task = tokio::spawn(async move {
            let mut message = [0; 16];
            while let Ok(length) = ear.recv(&mut message).await {
                if length == message.len() {
                    desk.deliver(Owner::from_bytes(message));
                }
            }
        });
        Ok(Listener { socket, task })
    }

    fn folder(&self) -> io::Result<Arc<OwnedFd>> {
        let mut folder = self.folder.lock();
        if let Some(folder) = &*folder {
            return Ok(folder.clone());
        }
        // A link could lead to a folder of someone else.
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let opened = Arc::new(rustix::fs::open(&self.directory, flags, Mode::empty())?);
        *folder = Some(opened.clone());
        Ok(opened)
    }
}

/// A socket's path has at most 107 bytes; through the folder's descriptor it is short.
fn address(folder: &OwnedFd, bell: &str) -> PathBuf {
    format!("/proc/self/fd/{}/{bell}", folder.as_raw_fd()).into()
}

impl Drop for Bells {
    fn drop(&mut self) {
        if let Some(listener) = self.listener.get_mut().take() {
            listener.task.abort();
            if let Ok(folder) = self.folder() {
                let _ = unlinkat(&*folder, self.name.as_str(), AtFlags::empty());
            }
        }
    }
}

impl Desk {
    fn deliver(&self, owner: Owner) {
        if let Some(seat) = self.seats.lock().get(&owner) {
            return seat.notify_one();
        }
        let mut hints = self.hints.lock();
        if hints.len() >= MOST_HINTS {
            hints.clear();
            hints.push_back(Hint::All);
        } else {
            hints.push_back(Hint::Lease(owner));
        }
        self.hinted.notify_one();
    }
}

/// A waiter's place at the bell.
#[derive(Debug)]
pub(super) struct Seat {
    owner: Owner,
    notify: Arc<Notify>,
    desk: Arc<Desk>,
}

impl Seat {
    /// Completes when the bell rings, or rang since the last time. Cancel safe.
    pub(super) async fn rung(&self) {
        self.notify.notified().await;
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut seats = self.desk.seats.lock();
        if seats.get(&self.owner).is_some_and(|seat| Arc::ptr_eq(seat, &self.notify)) {
            seats.remove(&self.owner);
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
        let seat = one.listen(owner);
        two.ring(&Ring { bell: "one".to_owned(), owner });
        seat.rung().await;
        drop(seat);
        assert!(one.desk.seats.lock().is_empty(), "no leak of the seat");

        two.ring(&Ring { bell: "one".to_owned(), owner });
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
        let ring = Ring { bell: "one".to_owned(), owner };
        for _ in 0..2 {
            let seat = one.listen(owner);
            two.ring(&ring);
            tokio::time::timeout(std::time::Duration::from_secs(5), seat.rung()).await.unwrap();
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
                let seat = one.listen(owner);
                two.ring(&Ring { bell: "one".to_owned(), owner });
                seat.rung().await;
            });
        }
    }
}
