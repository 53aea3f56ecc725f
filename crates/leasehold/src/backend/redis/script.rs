//! The scripts, and calls of them. Each text lives in a file of its own.

use std::sync::LazyLock;

use redis::{Pipeline, ToRedisArgs};

use super::keys::{Companion, Keys};
use super::request::Request;
use crate::owner::Owner;

/// A static for each script, made of these files, and how tests come by their texts.
macro_rules! scripts {
    ($($(#[$doc:meta])* $name:ident = $($part:literal)+;)*) => {
        $(
            $(#[$doc])*
            pub(in crate::backend) static $name: LazyLock<Script> =
                LazyLock::new(|| Script::new(concat!($(include_str!($part)),+)));
        )*

        /// All of them by their names.
        static ALL: &[(&str, &LazyLock<Script>)] = &[$((stringify!($name), &$name)),*];

        /// The text of the script of this name, as servers get it: for tests that put it to
        /// one themselves.
        #[doc(hidden)]
        pub fn script_text(name: &str) -> Option<&'static str> {
            ALL.iter().find(|(known, _)| *known == name).map(|(_, script)| script.text)
        }
    };
}
pub(in crate::backend) use scripts;

scripts! {
    /// Takes locks, or places in their lines.
    ACQUIRE = "acquire_common.lua" "token.lua" "held.lua" "line.lua" "acquire.lua";
    /// Shows that waiters still wait.
    BEAT = "clock.lua" "token.lua" "held.lua" "line.lua" "beat.lua";
    /// Asks after claims without an answer, and bars them.
    SETTLE = "clock.lua" "token.lua" "held.lua" "line.lua" "settle.lua";
    /// Gives up a place in line, or a grant that just came.
    LEAVE = "clock.lua" "token.lua" "line.lua" "leave.lua";
    /// Gives locks back.
    RELEASE = "release_common.lua" "clock.lua" "token.lua" "line.lua" "release.lua";
    /// Extends leases.
    RENEW = "clock.lua" "token.lua" "renew.lua";
    /// Why leases are gone.
    REASON = "reason.lua";
    /// Takes a lock away from its holder.
    FORCE = "clock.lua" "token.lua" "held.lua" "line.lua" "force.lua";
    /// Looks at locks.
    INSPECT = "clock.lua" "line.lua" "inspect.lua";
}

/// A script and the name under which servers keep it.
#[derive(Debug)]
pub(in crate::backend) struct Script {
    pub(in crate::backend) text: &'static str,
    hash: String,
}

impl Script {
    pub(in crate::backend) fn new(text: &'static str) -> Self {
        Self { text, hash: redis::Script::new(text).get_hash().to_owned() }
    }
}

/// One call of a script: all its keys are in one slot, where slots matter.
pub(in crate::backend) struct Call {
    pub(in crate::backend) script: &'static Script,
    pub(in crate::backend) slot: u16,
    pub(in crate::backend) request: Request,
    /// The key that is just written: one allocation for all of them.
    key: String,
}

impl Call {
    /// A call with this many keys, which come next, and then the arguments.
    pub(in crate::backend) fn new(script: &'static Script, slot: u16, keys: usize) -> Self {
        let mut request = Request::with_capacity(128 + 128 * keys);
        request.word(&[b"EVALSHA"]);
        request.word(&[script.hash.as_bytes()]);
        keys.write_redis_args(&mut request);
        Self { script, slot, request, key: String::with_capacity(128) }
    }

    /// The keys of a lock: its own, and these companions.
    pub(in crate::backend) fn keys(&mut self, keys: &Keys, companions: &[Companion]) {
        self.request.word(&[keys.lock.as_bytes()]);
        for companion in companions {
            self.companion(keys, *companion);
        }
    }

    /// One companion of a lock.
    pub(in crate::backend) fn companion(&mut self, keys: &Keys, companion: Companion) {
        self.key.clear();
        keys.push_companion(&mut self.key, companion);
        self.request.word(&[self.key.as_bytes()]);
    }

    /// The key that bars an owner of a lock.
    pub(in crate::backend) fn bar(&mut self, keys: &Keys, owner: Owner) {
        self.key.clear();
        let digits = digits(owner);
        keys.push_bar(&mut self.key, std::str::from_utf8(&digits).unwrap_or_default());
        self.request.word(&[self.key.as_bytes()]);
    }

    /// An owner, as 32 digits.
    pub(in crate::backend) fn owner(&mut self, owner: Owner) -> &mut Self {
        self.request.word(&[&digits(owner)]);
        self
    }

    /// This call behind what tells the server its script: nobody has it forget that between
    /// the two.
    pub(in crate::backend) fn with_script(&self) -> Pipeline {
        let mut commands = redis::pipe();
        commands.cmd("SCRIPT").arg("LOAD").arg(self.script.text).ignore();
        commands.add_command(self.request.command());
        commands
    }

    pub(in crate::backend) fn arg(&mut self, argument: impl ToRedisArgs) -> &mut Self {
        argument.write_redis_args(&mut self.request);
        self
    }
}

fn digits(owner: Owner) -> [u8; 32] {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let mut digits = [0; 32];
    for (byte, pair) in owner.to_bytes().into_iter().zip(digits.chunks_exact_mut(2)) {
        pair[0] = DIGITS[usize::from(byte >> 4)];
        pair[1] = DIGITS[usize::from(byte & 15)];
    }
    digits
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_owner_is_written_as_it_prints() {
        let owner = Owner::random();
        let mut call = Call::new(&LEAVE, 0, 0);
        call.owner(owner);
        let packed = String::from_utf8(call.request.command().get_packed_command()).unwrap();
        assert!(packed.ends_with(&format!("$32\r\n{owner}\r\n")), "{packed}");
    }

    /// A script that says nothing of its arguments is hard to change later.
    #[test]
    fn every_script_says_what_it_takes() {
        for (_, script) in ALL {
            assert!(script.text.contains("-- KEYS  "), "{}", script.text);
            assert_eq!(script.hash.len(), 40);
        }
    }
}
