//! Headers that belong to one connection and not to the request, RFC 9110 section 7.6.1.

use hyper::HeaderMap;
use hyper::header::{
    CONNECTION, EXPECT, HeaderName, HeaderValue, TE, TRAILER, TRANSFER_ENCODING, UPGRADE,
};

const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const HOPS: [HeaderName; 10] = [
    CONNECTION,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
    HeaderName::from_static("proxy-authenticate"),
    HeaderName::from_static("proxy-authorization"),
    TE,
    TRAILER,
    TRANSFER_ENCODING,
    UPGRADE,
    EXPECT,
];

/// Makes headers fit for the other side, and says for whom a request is passed on.
pub(super) fn forward(headers: &mut HeaderMap, peer: Option<&HeaderValue>) {
    let named: Vec<HeaderName> = headers
        .get_all(CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|name| name.trim().parse().ok())
        // The token is for us, whatever a client says about it.
        .filter(|name| *name != leasehold::fence::http::FENCING_TOKEN)
        .collect();
    for name in HOPS.iter().chain(&named) {
        headers.remove(name);
    }
    let Some(peer) = peer else { return };
    let line = match headers.get(X_FORWARDED_FOR) {
        None => Some(peer.clone()),
        Some(before) => {
            let line = [before.as_bytes(), b", ", peer.as_bytes()].concat();
            HeaderValue::from_maybe_shared(hyper::body::Bytes::from(line)).ok()
        }
    };
    if let Some(line) = line {
        headers.insert(X_FORWARDED_FOR, line);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_belongs_to_a_connection_is_not_passed_on() {
        let mut headers = HeaderMap::new();
        for (name, value) in [
            ("connection", "close, x-private, fencing-token"),
            ("transfer-encoding", "chunked"),
            ("x-private", "1"),
            ("x-public", "2"),
            ("fencing-token", "jobs;1"),
            ("x-forwarded-for", "10.0.0.1"),
        ] {
            headers.insert(HeaderName::from_static(name), value.parse().unwrap());
        }
        forward(&mut headers, Some(&HeaderValue::from_static("127.0.0.1")));
        let mut left: Vec<_> = headers.keys().map(HeaderName::as_str).collect();
        left.sort_unstable();
        assert_eq!(left, ["fencing-token", "x-forwarded-for", "x-public"]);
        assert_eq!(headers["x-forwarded-for"], "10.0.0.1, 127.0.0.1");
    }
}
