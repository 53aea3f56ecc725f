//! Headers that belong to one connection and not to the request, RFC 9110 section 7.6.1.

use hyper::HeaderMap;
use hyper::body::Bytes;
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
    // Several lines are one list, in their order: RFC 9110 section 5.3.
    let before = headers.get_all(X_FORWARDED_FOR).iter().chain([peer]);
    let line = before.map(HeaderValue::as_bytes).collect::<Vec<_>>().join(&b", "[..]);
    if let Ok(line) = HeaderValue::from_maybe_shared(Bytes::from(line)) {
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

    /// All but the first line were dropped, and with them the way the request had taken.
    #[test]
    fn every_line_of_the_way_so_far_is_passed_on() {
        let mut headers = HeaderMap::new();
        for line in ["10.0.0.1, 10.0.0.2", "10.0.0.3", "10.0.0.4"] {
            headers.append(X_FORWARDED_FOR, HeaderValue::from_static(line));
        }
        forward(&mut headers, Some(&HeaderValue::from_static("127.0.0.1")));
        let lines: Vec<_> = headers.get_all(X_FORWARDED_FOR).iter().collect();
        assert_eq!(lines, ["10.0.0.1, 10.0.0.2, 10.0.0.3, 10.0.0.4, 127.0.0.1"]);
    }
}
