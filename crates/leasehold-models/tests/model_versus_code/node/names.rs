//! What those who take part are known by.

/// The owner of a client's attempt, in the model.
pub(super) fn id(client: u8, attempt: u8) -> u8 {
    4 * client + attempt
}

/// What a client is known by.
pub(super) fn client(client: u8) -> String {
    format!("{client:032x}")
}

/// What its attempt is known by.
pub(super) fn text(of: u8, attempt: u8) -> String {
    format!("{}{attempt:04x}", client(of))
}

/// The name of a list of nodes.
pub(super) fn list(list: u8) -> String {
    format!("list{list}")
}

pub(super) fn holder(client: u8) -> String {
    format!("{client},host,label")
}
