//! The real `leasehold run`, each test with a store of its own. Nothing sleeps and
//! hopes: what is expected is waited for, with a bound.

mod exclusion;
mod exit_codes;
mod scene;
mod supervision;
mod terminal;
