//! Tokens from a quorum: what holds, and what each rule is there for.
