//! What Redis says, in the words of this library: above all, whether it did it anyway.

use rustls::{AlertDescription, CertificateError};

use super::connection::{ConnectionError, Peer, Refusal};
use super::url::Host;
use crate::error::{Error, ErrorKind};

/// Why a request has no answer.
#[derive(Debug, Clone)]
pub(crate) enum Failure {
    /// It was never sent.
    NotSent(Error),
    /// The server refused it.
    Refused(Refusal),
    /// The connection ended, or nobody answered in time.
    Unanswered(Error),
}

impl Failure {
    pub(super) fn of(error: ConnectionError) -> Self {
        match error {
            ConnectionError::Refused(refusal) => Self::Refused(refusal),
            error => {
                let message = "the connection to the server ended before it answered";
                let error = Error::new(ErrorKind::Unreachable, message).caused_by(error);
                Self::Unanswered(error)
            }
        }
    }

    pub(crate) fn silent() -> Self {
        let message = "the server did not answer in time";
        Self::Unanswered(Error::new(ErrorKind::Unreachable, message))
    }

    /// What the server refused it for, in one word.
    pub(super) fn code(&self) -> Option<&str> {
        match self {
            Self::Refused(error) => Some(code_of(error)),
            Self::NotSent(_) | Self::Unanswered(_) => None,
        }
    }
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::NotSent(error) | Failure::Unanswered(error) => error,
            Failure::Refused(error) => refused(error),
        }
    }
}

/// What a server refused a request for, in one word. Redis 6 says `ERR` of all that a command in a
/// script was refused for, and puts the word behind the place in the script; where the user may not
/// run such a command, Redis 7 says `ERR` as well.
fn code_of(error: &Refusal) -> &str {
    let (code, detail) = (error.code(), error.detail());
    if code != "ERR" {
        return code;
    }
    if detail.contains("The user executing the script can't") {
        return "NOPERM";
    }
    // Error running script (call to f_…): @user_script:7: @user_script: 7: -OOM command not …
    let met = detail.strip_prefix("Error running script (call to ");
    let said = met.and_then(|met| met.rsplit_once("@user_script")?.1.split_once(": -"));
    let word = said.and_then(|(_, said)| said.split(' ').next()).unwrap_or_default();
    let is_code = !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_uppercase());
    if is_code { word } else { code }
}

/// A refusal by the server. All but the last two come before a script's first write.
fn refused(error: Refusal) -> Error {
    use ErrorKind::{Unavailable, Unusable};
    let (kind, advice) = match code_of(&error) {
        "READONLY" => (
            Unavailable,
            "this server is a replica (a fail-over?): connect to the master, or through Sentinel",
        ),
        "LOADING" => (Unavailable, "the server is loading its data; try again later"),
        "BUSY" => (Unavailable, "another script keeps the server busy"),
        "TRYAGAIN" | "MOVED" | "ASK" => {
            (Unavailable, "the lock's slot is just moving to another node; try again")
        }
        "CLUSTERDOWN" | "MASTERDOWN" => {
            (Unavailable, "no master is there for this lock; wait for a fail-over")
        }
        "NOREPLICAS" => {
            let advice = "the server has too few replicas to accept writes (min-replicas-to-write)";
            (Unavailable, advice)
        }
        "MISCONF" => (
            Unavailable,
            "the server cannot write its data to disk and stopped accepting writes; see its log",
        ),
        "OOM" => (Unavailable, "the server's memory is full; raise maxmemory"),
        "NOAUTH" => (Unusable, "the server wants a password, and the URL has none"),
        "WRONGPASS" => (Unusable, "the server wants another user or password than the URL has"),
        "CROSSSLOT" => (Unusable, "this is a cluster: write redis+cluster:// in place of redis://"),
        "NOPERM" => {
            let message = "the user in the URL may not do this: it needs EVALSHA, SCRIPT LOAD, \
                           PUBLISH, SUBSCRIBE, the lock keys, {*}leasehold:* and the channels \
                           leasehold:* and {*}leasehold:*";
            return Error::new(Unusable, message).caused_by(error);
        }
        _ => {
            let message = format!("the server refused it: {error}");
            return Error::new(Unusable, message);
        }
    };
    Error::new(kind, advice).not_applied().caused_by(error)
}

impl Peer {
    /// What to say of a server that wants a password, where the URL has none.
    pub(super) fn missing(self, host: &Host) -> String {
        match self {
            Self::Server => format!(
                "{host} wants a password, and the URL has none: write it before the host, as in \
                 redis://user:password@host (without a user redis://:password@host)"
            ),
            Self::Sentinel => format!(
                "the sentinel at {host} wants a password of its own: add sentinel-password= to \
                 the URL (and sentinel-user=, if it is not the default user's)"
            ),
        }
    }

    /// What to say of a server that refuses those in the URL.
    fn wrong(self, host: &Host) -> String {
        let check = "check both (special characters are written as %-escapes)";
        match self {
            Self::Server => {
                format!("{host} refuses the user or the password before the @ of the URL: {check}")
            }
            Self::Sentinel => format!(
                "the sentinel at {host} refuses sentinel-user or sentinel-password of the URL: \
                 {check}"
            ),
        }
    }
}

/// Why there is no connection: nothing was sent.
pub(super) fn not_connected(host: &Host, peer: Peer, error: ConnectionError) -> Error {
    use ErrorKind::{Unreachable, Unusable};
    let there_is_none = || format!("cannot connect to {host}");
    let (kind, message) = match &error {
        ConnectionError::Refused(refusal) => match code_of(refusal) {
            "NOAUTH" => (Unusable, peer.missing(host)),
            "WRONGPASS" => (Unusable, peer.wrong(host)),
            "NOPERM" => {
                let message = format!(
                    "the user in the URL may not do what every connection to {host} begins with: \
                     see the permissions in the documentation of this store"
                );
                (Unusable, message)
            }
            _ => (Unreachable, there_is_none()),
        },
        ConnectionError::NoHello => {
            (Unusable, format!("{host} is older than Redis 6.0.6, which is the least that works"))
        }
        ConnectionError::NoName => {
            let message = format!("{host} cannot be verified: no certificate can have its name");
            (Unusable, message)
        }
        ConnectionError::Tls(error) => (Unreachable, no_tls(host, error)),
        _ => (Unreachable, there_is_none()),
    };
    Error::new(kind, message).not_applied().caused_by(error)
}

/// Why there is no connection over TLS.
fn no_tls(host: &Host, error: &rustls::Error) -> String {
    use rustls::Error::{AlertReceived, InvalidCertificate, InvalidMessage};
    let certificate = format!("the certificate of {host}");
    match error {
        // (An authority of the same name is tried.)
        InvalidCertificate(CertificateError::UnknownIssuer | CertificateError::BadSignature) => {
            format!(
                "{certificate} is signed by nobody we trust: name a file of its authority with ca="
            )
        }
        InvalidCertificate(
            CertificateError::Expired
            | CertificateError::ExpiredContext { .. }
            | CertificateError::NotValidYet
            | CertificateError::NotValidYetContext { .. },
        ) => format!("{certificate} is not valid now: renew it, or set the clocks right ({error})"),
        InvalidCertificate(
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
        ) => {
            format!("{certificate} is for another name: write one that it has in the URL ({error})")
        }
        AlertReceived(AlertDescription::CertificateRequired) => {
            format!("{host} wants a certificate of its clients: name one with cert= and key=")
        }
        InvalidMessage(_) => {
            format!("{host} does not speak TLS: name its TLS port, or write redis:// for rediss://")
        }
        _ => format!("cannot connect to {host} over TLS: {error}"),
    }
}

/// An answer that no script of ours gives.
pub(crate) fn unexpected() -> Error {
    let message = "the server answered something that no script of ours answers; please report it";
    Error::new(ErrorKind::Internal, message)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Outcome;

    fn failure(answer: &str) -> Failure {
        Failure::of(ConnectionError::Refused(Refusal::new(answer.as_bytes())))
    }

    /// What Redis 6 and Redis 7 answer when a command in a script is refused.
    #[test]
    fn what_a_script_was_refused_for_is_found() {
        let script = "f_1028a5dba704e1d8a01fd96efeba25bb78f62df2";
        let met = format!("ERR Error running script (call to {script}): @user_script:4: ");
        let readonly = "READONLY You can't write against a read only replica.";
        let full = "OOM command not allowed when used memory > 'maxmemory'.";
        let stopped = "MISCONF Redis is configured to save RDB snapshots, but it is currently not \
                       able to persist on disk.";
        for (said, code) in [(readonly, "READONLY"), (full, "OOM"), (stopped, "MISCONF")] {
            let six = failure(&format!("{met}@user_script: 4: -{said} "));
            let seven = failure(&format!("{said} script: {script}, on @user_script:59."));
            for failure in [six, seven] {
                assert_eq!(failure.code(), Some(code));
                let error = Error::from(failure);
                assert_eq!(*error.kind(), ErrorKind::Unavailable, "{error:?}");
                assert_eq!(error.outcome(), Outcome::NotApplied, "it came before any write");
            }
        }
        let denied = "The user executing the script can't run this command or subcommand";
        for text in [
            format!("{met}@user_script: 4: {denied} "),
            format!("ERR {denied} script: {script}, on @user_script:59."),
        ] {
            let failure = failure(&text);
            assert_eq!(failure.code(), Some("NOPERM"));
            assert_eq!(Error::from(failure).outcome(), Outcome::Unknown);
        }
    }

    /// Another error of a script may come after a write.
    #[test]
    fn what_went_wrong_in_a_script_is_no_refusal() {
        for text in [
            "ERR Error running script (call to f_0): @user_script:9: user_script:9: no token is left ",
            "ERR Error running script (call to f_0): @user_script:9: x: -1 is no TTL ",
            "ERR user_script:1: no token is left for this lock script: f_0, on @user_script:1.",
            "ERR value is not an integer: -OOM",
        ] {
            let failure = failure(text);
            assert_eq!(failure.code(), Some("ERR"), "{text}");
            assert_eq!(Error::from(failure).outcome(), Outcome::Unknown, "{text}");
        }
    }
}
