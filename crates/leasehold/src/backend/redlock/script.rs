//! The scripts. Each text lives in files of its own.

use std::sync::LazyLock;

use super::{Script, scripts};

scripts! {
    /// Takes locks.
    CLAIM = "lua/claim_common.lua" "lua/raise.lua" "lua/token.lua" "lua/queue.lua" "lua/claim.lua";
    /// Stores tokens.
    STORE = "lua/member.lua" "lua/raise.lua" "../redis/lua/clock.lua" "lua/token.lua" "lua/store.lua";
    /// Extends leases.
    RENEW = "lua/member.lua" "lua/raise.lua" "../redis/lua/clock.lua" "lua/token.lua" "lua/renew.lua";
    /// Gives locks back.
    RELEASE = "lua/release_common.lua" "lua/queue.lua" "lua/release.lua";
    /// Gives up what an owner has, and leaves its tombstone.
    WITHDRAW = "lua/member.lua" "lua/queue.lua" "lua/withdraw.lua";
    /// Takes a lock away from its holder.
    FORCE = "lua/member.lua" "lua/queue.lua" "lua/force.lua";
    /// Looks at locks.
    INSPECT = "lua/member.lua" "lua/queue.lua" "lua/inspect.lua";
    /// Looks at what a node is, or changes it.
    NODE_STATUS = "lua/node_status.lua";
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
