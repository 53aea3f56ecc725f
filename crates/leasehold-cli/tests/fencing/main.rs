//! A holder that is stopped beyond its TTL, wakes up, and writes: every fenced resource
//! turns it away, and what is not fenced is overwritten.

#[allow(dead_code)]
#[path = "../gate/client.rs"]
mod client;
mod paused;
mod resources;
#[allow(dead_code)]
#[path = "../gate/service.rs"]
mod service;
mod value;
