//! PostgreSQL: the whole suite in both modes, and what only happens there.

mod conformance;
