//! pgbouncer, in front of a PostgreSQL server.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use anyhow::Result;
use tempfile::TempDir;

use super::postgres::as_account;
use super::{ATTEMPTS, Postgres, Process, free_port};

/// A pooler. Dropped, it is killed.
#[derive(Debug)]
pub struct PgBouncer {
    port: u16,
    _process: Process,
    _folder: TempDir,
}

impl PgBouncer {
    /// A pooler in front of this server, with this `pool_mode` and further settings, as
    /// `name = value`.
    ///
    /// # Errors
    ///
    /// When it does not start.
    pub fn start(server: &Postgres, pool_mode: &str, settings: &[&str]) -> Result<Self> {
        let folder = TempDir::new()?;
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o777))?;
        let mut last = None;
        for _ in 0..ATTEMPTS {
            match Self::listen(server, pool_mode, settings, folder.path()) {
                Ok((port, process)) => {
                    return Ok(Self { port, _process: process, _folder: folder });
                }
                Err(error) => last = Some(error),
            }
        }
        Err(last.expect("at least one attempt"))
    }

    fn listen(
        server: &Postgres,
        pool_mode: &str,
        settings: &[&str],
        folder: &Path,
    ) -> Result<(u16, Process)> {
        let port = free_port();
        let text = format!(
            "[databases]\n* = host=127.0.0.1 port={} user=postgres\n[pgbouncer]\n\
             listen_addr = 127.0.0.1\nlisten_port = {port}\nauth_type = any\n\
             pool_mode = {pool_mode}\nunix_socket_dir =\nmax_client_conn = 1000\n{}\n",
            server.port(),
            settings.join("\n")
        );
        let path = folder.join(format!("pgbouncer-{port}.ini"));
        fs::write(&path, text)?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644))?;
        let mut command = as_account(Path::new("/usr/sbin/pgbouncer"));
        command.arg(&path);
        let answers = || std::net::TcpStream::connect(super::loopback(port)).is_ok();
        let process = Process::start(command, &folder.join("log"), answers)?;
        Ok((port, process))
    }

    /// The server's URL through this pooler.
    pub fn url(&self) -> String {
        format!("postgres://postgres@127.0.0.1:{}/postgres", self.port)
    }
}
