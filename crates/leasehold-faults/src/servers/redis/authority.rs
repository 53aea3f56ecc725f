//! An authority that signs certificates for servers and clients of a test.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Result, ensure};
use tempfile::TempDir;

use super::Redis;
use crate::servers::free_port;

const KEY: [&str; 6] = ["req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"];

/// An authority and what it signed, in files: `ca.pem`, `server.pem` for 127.0.0.1, `expired.pem`
/// for the same and `client.pem`, each with its `.key`.
#[derive(Debug)]
pub struct Authority(TempDir);

impl Authority {
    /// A new one, which nobody else knows.
    ///
    /// # Errors
    ///
    /// When `openssl` does not do its part.
    pub fn new() -> Result<Self> {
        let authority = Self(TempDir::new()?);
        let subject = ["-subj", "/CN=an authority of this test", "-days", "2"];
        let own = ["-x509", "-keyout", "ca.key", "-out", "ca.pem"];
        authority.openssl(&[&KEY[..], &own, &subject])?;
        let now = || Command::new("openssl");
        authority.sign(now(), "server", "subjectAltName=IP:127.0.0.1")?;
        authority.sign(now(), "client", "subjectAltName=DNS:client")?;
        let mut last_week = Command::new("faketime");
        last_week.args(["1 week ago", "openssl"]);
        authority.sign(last_week, "expired", "subjectAltName=IP:127.0.0.1")?;
        Ok(authority)
    }

    /// A key and its certificate, valid for two days: `<name>.key`, `<name>.pem`.
    fn sign(&self, openssl: Command, name: &str, extension: &str) -> Result<()> {
        let [key, request, signed] = ["key", "csr", "pem"].map(|end| format!("{name}.{end}"));
        let subject = format!("/CN={name}");
        self.openssl(&[&KEY[..], &["-keyout", &key, "-out", &request, "-subj", &subject]])?;
        std::fs::write(self.file("extension"), extension)?;
        let by = ["-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2"];
        let with = ["-extfile", "extension"];
        let sign = ["x509", "-req", "-in", &request, "-out", &signed];
        self.run(openssl, &[&sign, &by[..], &with])
    }

    fn openssl(&self, words: &[&[&str]]) -> Result<()> {
        self.run(Command::new("openssl"), words)
    }

    fn run(&self, mut command: Command, words: &[&[&str]]) -> Result<()> {
        let output = command.args(words.concat()).current_dir(self.0.path()).output()?;
        ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        Ok(())
    }

    /// Where one of its files is.
    pub fn file(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// A server with its certificate and these options, and its TLS port; whether it wants
    /// certificates of clients: `yes` or `no`.
    ///
    /// # Errors
    ///
    /// When it does not start.
    pub fn redis(&self, wants_clients: &str, options: &[&str]) -> Result<(Redis, u16)> {
        let port = free_port();
        let mut all = Vec::new();
        for (name, value) in self.settings(port) {
            all.extend([format!("--{name}"), value]);
        }
        all.extend(["--tls-auth-clients", wants_clients].map(str::to_owned));
        let all: Vec<_> = all.iter().map(String::as_str).chain(options.iter().copied()).collect();
        Ok((Redis::start(&all)?, port))
    }

    /// What a server or a sentinel needs to listen on this port with its certificate.
    pub(super) fn settings(&self, port: u16) -> [(&'static str, String); 4] {
        let file = |name| self.file(name).display().to_string();
        [
            ("tls-port", port.to_string()),
            ("tls-cert-file", file("server.pem")),
            ("tls-key-file", file("server.key")),
            ("tls-ca-cert-file", file("ca.pem")),
        ]
    }
}
