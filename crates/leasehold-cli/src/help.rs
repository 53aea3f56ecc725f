//! The longer help: examples, exit codes.

/// `leasehold` itself.
pub(crate) const LEASEHOLD: &str = "\
Examples:
  leasehold run nightly-report --wait 10s -- ./report.sh
  leasehold ls
  leasehold show nightly-report

No server is needed: the embedded store of this user is the default. Another one is chosen by
--store, LEASEHOLD_STORE, or `store = \"URL\"` in the config file (LEASEHOLD_CONFIG, else
~/.config/leasehold/config.toml), in this order; other users, sudo and cron need the same one.
An empty URL is refused: it is most likely a variable that is not set.
LEASEHOLD_LOG sets a log filter.
Every command explains itself: `leasehold run --help`.";

/// `leasehold run`.
pub(crate) const RUN: &str = "\
Examples:
  leasehold run nightly-report --wait 10s -- ./report.sh
  leasehold run deploy --no-wait --max-hold 1h -- make deploy
  leasehold run import -- sh -c './import --fencing-token \"$LEASEHOLD_TOKEN\"'

The command finds in its environment:
  LEASEHOLD_LOCK   the lock's name
  LEASEHOLD_TOKEN  the fencing token, higher than every earlier holder's: give it to
                   the resource with every write, and let that refuse a lower one
  LEASEHOLD_OWNER  the unique id of this acquisition
  LEASEHOLD_STORE  the store as it was given, with ${...} unresolved and paths in full, so
                   that a leasehold inside of the command uses the same one; sudo drops it

The command runs in a process group of its own. TERM, INT, HUP, QUIT, USR1, USR2 and TSTP
are passed on to the group. When the lease is lost, or is in doubt with less than the grace
left, the group gets SIGTERM, then SIGKILL when the grace or the lease ends. The lock is
released when the whole group is gone, also when the command itself ended before.
When `leasehold` itself is killed (-9), the command is killed with it; what the command
started may live on in its group, and then keeps the lock until it is gone or the TTL passes.

A command that runs as another user (sudo) cannot be signalled. When it has to end, leasehold
says so, tries again until it is gone, and exits with 202. `sudo leasehold run NAME -- CMD` can
end it.

Not watched: processes that leave the group (setsid, daemons). They are reported when the
command ends, and their writes are stopped by the token only.

Exit codes:
  the command's own; 128 + n when signal n ended it (or ended the wait for the lock)
  2    the arguments cannot work
  125  leasehold itself failed, for example could not start a process
  126  the command cannot be executed
  127  the command was not found
  201  the lock is held by another (--exit-code changes it)
  202  the lease was lost, or was about to end, while the command ran
  203  the store cannot be reached or used, also when it goes away during --wait
  204  the store was refused as unsafe";

/// `leasehold ls`.
pub(crate) const LS: &str = "\
Examples:
  leasehold ls
  leasehold ls inventory:
  leasehold ls --json | jq -r '.locks[].name'";

/// `leasehold show`.
pub(crate) const SHOW: &str = "\
Examples:
  leasehold show nightly-report
  leasehold show nightly-report --json | jq .lock.token";

/// `leasehold watch`.
pub(crate) const WATCH: &str = "\
Examples:
  leasehold watch
  leasehold watch nightly-report --every 200ms
  leasehold watch --json

It looks again and again: what came and went in between is not seen.";

/// `leasehold release`.
pub(crate) const RELEASE: &str = "\
Example:
  leasehold release nightly-report --force --reason 'the report hangs, see OPS-12'

The holder learns of it at its next contact with the store; `leasehold run` then ends its
command and exits with 202. Until then only the token keeps its writes out: the next
holder's is higher. Who did it, when and why is recorded: see `leasehold show`.

Exit codes: 0 released, 1 nobody held it, 2 --force or --reason is missing.";

/// `leasehold doctor`.
pub(crate) const DOCTOR: &str = "\
Examples:
  leasehold doctor
  leasehold doctor --store sqlite:/var/lib/app/locks.db --require linearizable
  leasehold doctor --store redlock://redis1,redis2,redis3 --repair

Exit codes: 0 nothing unsafe, 1 something is, 204 refused by --require.";

/// `leasehold gate`.
pub(crate) const GATE: &str = "\
Examples:
  leasehold gate --upstream http://127.0.0.1:8080 --listen 127.0.0.1:8081
  curl -X PUT -H \"Fencing-Token: $LEASEHOLD_LOCK;$LEASEHOLD_TOKEN\" http://127.0.0.1:8081/stock

Answers of its own, as problem documents:
  412  the token is stale: a newer holder of this lock has been here
  428  there is no token
  400  the header cannot be read
  403  it is a token of another lock than --lock allows
  502  the service cannot be reached, or broke off
  503  the marks cannot be kept, or older requests do not end; nothing was let through
  504  the service did not answer in time

The service must not be reachable by another way. The gate checks tokens, not who sends
them: let only those reach it who may write. It ends with TERM or INT, after what is under way.";

/// `leasehold schema`.
pub(crate) const SCHEMA: &str = "\
Examples:
  leasehold schema --store sqlite:
  leasehold schema postgres | psql";

/// `leasehold completions`.
pub(crate) const COMPLETIONS: &str = "\
Examples:
  leasehold completions bash > ~/.local/share/bash-completion/completions/leasehold
  leasehold completions zsh > ~/.zfunc/_leasehold
  leasehold completions fish > ~/.config/fish/completions/leasehold.fish";

/// `leasehold man`.
pub(crate) const MAN: &str = "\
Examples:
  leasehold man | man -l -
  leasehold man ~/.local/share/man/man1";
