//! The scripts. Each text lives in files of its own.

use std::sync::LazyLock;

use super::super::redis::script::{Script, scripts};

scripts! {
    /// Takes locks.
    CLAIM = "claim_common.lua" "heed.lua" "token.lua" "line.lua" "claim.lua";
    /// Stores tokens.
    STORE = "member.lua" "heed.lua" "../redis/lua/clock.lua" "token.lua" "store.lua";
    /// Extends leases.
    RENEW = "member.lua" "heed.lua" "../redis/lua/clock.lua" "token.lua" "renew.lua";
    /// Gives locks back.
    RELEASE = "release_common.lua" "line.lua" "release.lua";
    /// Gives up what an owner has, and bars it.
    WITHDRAW = "member.lua" "line.lua" "withdraw.lua";
    /// Takes a lock away from its holder.
    FORCE = "member.lua" "line.lua" "force.lua";
    /// Looks at locks.
    INSPECT = "member.lua" "line.lua" "inspect.lua";
    /// Looks at what a node is, or changes it.
    STANDING = "standing.lua";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_script_says_what_it_takes() {
        for (_, script) in ALL {
            assert!(script.text.contains("-- KEYS  marker"), "{}", script.text);
        }
    }
}
