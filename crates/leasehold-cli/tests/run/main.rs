//! The real `leasehold`, each test with a store of its own. Nothing sleeps and
//! hopes: what is expected is waited for, with a bound.

mod away;
mod blocked;
mod exclusion;
mod exit_codes;
mod forcing;
mod foreign;
mod looking;
mod manual;
mod nesting;
mod postgres;
mod privileged;
mod scene;
mod settings;
mod store_files;
mod supervision;
mod terminal;
mod watching;
