//! Answers to requests that are not let through: problem documents, RFC 9457.

use bytes::Bytes;
use http::header::{CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderValue, Response, StatusCode};
use http_body_util::Full;
use serde_json::{Value, json};

use super::admission::Refusal;
use super::header::Presented;
use crate::StaleToken;

pub(super) fn missing() -> Response<Full<Bytes>> {
    document(
        StatusCode::PRECONDITION_REQUIRED,
        json!({
            "type": "urn:leasehold:token-required",
            "title": "A fencing token is required",
            "detail": "Take the lock, and send its token as `Fencing-Token: <lock>;<token>`.",
        }),
    )
}

pub(super) fn malformed(why: &str) -> Response<Full<Bytes>> {
    document(
        StatusCode::BAD_REQUEST,
        json!({
            "type": "urn:leasehold:token-malformed",
            "title": "The Fencing-Token header cannot be read",
            "detail": why,
        }),
    )
}

pub(super) fn other_lock(presented: &Presented) -> Response<Full<Bytes>> {
    document(
        StatusCode::FORBIDDEN,
        json!({
            "type": "urn:leasehold:other-lock",
            "title": "This service takes no tokens of this lock",
            "detail": "Send the token of the lock that protects it.",
            "lock": presented.lock.as_str(),
        }),
    )
}

pub(super) fn refused(presented: &Presented, refusal: &Refusal) -> Response<Full<Bytes>> {
    match refusal {
        Refusal::Stale(stale) => stale_token(presented, stale),
        Refusal::Marks(_) | Refusal::Busy => unavailable(presented, refusal),
    }
}

pub(super) fn stale_token(presented: &Presented, stale: &StaleToken) -> Response<Full<Bytes>> {
    document(
        StatusCode::PRECONDITION_FAILED,
        json!({
            "type": "urn:leasehold:stale-token",
            "title": "The fencing token is stale",
            "detail": "A newer holder of this lock has been here. Stop the work, and take the lock again.",
            "lock": presented.lock.as_str(),
            "given": stale.given.get(),
            "seen": stale.seen.get(),
        }),
    )
}

fn unavailable(presented: &Presented, refusal: &Refusal) -> Response<Full<Bytes>> {
    let mut response = document(
        StatusCode::SERVICE_UNAVAILABLE,
        json!({
            "type": "urn:leasehold:not-admitted",
            "title": "The request was not let through",
            "detail": refusal.to_string(),
            "lock": presented.lock.as_str(),
        }),
    );
    response.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("1"));
    response
}

fn document(status: StatusCode, mut problem: Value) -> Response<Full<Bytes>> {
    problem["status"] = json!(status.as_u16());
    let mut response = Response::new(Full::from(problem.to_string()));
    *response.status_mut() = status;
    let kind = HeaderValue::from_static("application/problem+json");
    response.headers_mut().insert(CONTENT_TYPE, kind);
    response
}
