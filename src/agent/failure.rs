//! What the vendors' own sentences about a failure mean. Used where a CLI tells a failure in words only; the phrases
//! are those that Claude Code 2.1 and Codex 0.171 were seen to print, and are looked for only in text of the CLI itself,
//! never in an agent's words or a tool's output.

use super::clip;
use crate::domain::time::Wall;
use crate::domain::verdict::Verdict;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

/// The verdict that `message` stands for, where it is one of the known sentences.
pub(super) fn classify(message: &str) -> Option<Verdict> {
    let low = plain(message);
    let has = |phrases: &[&str]| phrases.iter().any(|p| low.contains(p));
    let message = clip::event(message);
    if has(&["no conversation found with session id", "no rollout found for thread id", "session not found"]) {
        return Some(Verdict::SessionLost);
    }
    if has(&["credit balance is too low", "quota exceeded", "insufficient_quota", "check your plan and billing"]) {
        return Some(Verdict::NoCredit { message });
    }
    if has(&["usage limit", "-hour limit", "weekly limit", "you've hit your limit", "out of extra usage"]) {
        return Some(Verdict::UsageLimit { until: until(&message) });
    }
    if has(&["ran out of room in the model's context window", "prompt is too long", "context_length_exceeded"]) {
        return Some(Verdict::ContextTooLong);
    }
    if has(&["max_output_tokens", "output token maximum"]) {
        return Some(Verdict::OutputCut);
    }
    if has(&["reason: content_filter"]) {
        return Some(Verdict::Refused { message });
    }
    if let Some(verdict) = status(&low).and_then(|status| by_status(status, &message)) {
        return Some(verdict);
    }
    if has(&[
        "please run /login",
        "not logged in",
        "invalid api key",
        "incorrect api key",
        "missing environment variable",
        "failed to authenticate",
        "authentication_failed",
        "authentication_error",
        "authenticationerror",
        "oauth token has expired",
        "refresh token",
    ]) {
        return Some(Verdict::LoginNeeded { message });
    }
    if has(&["issue with the selected model"]) || (has(&["the model "]) && has(&["does not exist"])) {
        return Some(Verdict::ModelUnknown { message });
    }
    if has(&["rate limited", "rate_limit", "ratelimiterror", "too many requests"]) {
        return Some(Verdict::RateLimited { until: until(&message) });
    }
    if has(&[
        "overloaded",
        "high demand",
        "connection refused",
        "connection failed",
        "connection error",
        "waiting for network",
        "error sending request",
        "request timed out",
        "idle timeout waiting",
        "econnrefused",
        "enotfound",
        "internal server error",
        "service unavailable",
    ]) {
        return Some(Verdict::Overloaded);
    }
    if has(&["stream disconnected before completion", "empty or malformed response"]) {
        return Some(Verdict::Malformed { message });
    }
    None
}

/// The verdict that an HTTP status of the model's API stands for, where it says enough.
pub(super) fn by_status(status: u64, message: &str) -> Option<Verdict> {
    let message = clip::event(message);
    match status {
        401 | 403 => Some(Verdict::LoginNeeded { message }),
        402 => Some(Verdict::NoCredit { message }),
        404 => Some(Verdict::ModelUnknown { message }),
        408 => Some(Verdict::Overloaded),
        429 => Some(Verdict::RateLimited { until: until(&message) }),
        500..=599 => Some(Verdict::Overloaded),
        // Any number may stand there; the rest says nothing that a sentence does not say better.
        _ => None,
    }
}

/// The instant a limit ends, in seconds since 1970 as Claude Code tells it; `None` for nonsense.
pub(super) fn epoch(seconds: u64) -> Option<Wall> {
    let range = 1_577_836_800..4_102_444_800; // 2020 to 2100
    if range.contains(&seconds) { i64::try_from(seconds * 1000).ok().map(Wall) } else { None }
}

/// The instant that a sentence names, where it is unambiguous: an RFC 3339 stamp, or seconds since 1970 after a bar. A
/// bare time of day ("try again at 9:44 PM") has no date and no zone, so it names none.
pub(super) fn until(message: &str) -> Option<Wall> {
    if let Some((_, digits)) = message.rsplit_once('|') {
        let digits: String = digits.trim().chars().take_while(char::is_ascii_digit).collect();
        if let Some(wall) = digits.parse().ok().and_then(epoch) {
            return Some(wall);
        }
    }
    message.split_whitespace().find_map(|word| {
        let word = word.trim_matches(|c: char| !c.is_ascii_alphanumeric());
        let at = OffsetDateTime::parse(word, &Rfc3339).ok()?;
        u64::try_from(at.unix_timestamp()).ok().and_then(epoch)
    })
}

/// The HTTP status that a sentence leads with.
fn status(low: &str) -> Option<u64> {
    ["unexpected status ", "last status: ", "api error: ", "request rejected ("].iter().find_map(|lead| {
        let after = low.split_once(lead)?.1;
        let digits: String = after.chars().take_while(char::is_ascii_digit).collect();
        if digits.len() == 3 { digits.parse().ok() } else { None }
    })
}

/// Lower case, with the apostrophe of the keyboard.
fn plain(message: &str) -> String {
    message.to_lowercase().replace(['’', '‘', 'ʼ'], "'")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn word(message: &str) -> &'static str {
        classify(message).map_or("-", |v| v.word())
    }

    #[test]
    fn the_known_sentences() {
        let table = [
            ("You’ve hit your usage limit. Upgrade to Pro or try again at 9:44 PM.", "usage_limit"),
            ("You've hit your usage limit. Try again at 9:44 PM.", "usage_limit"),
            ("You've hit your 5-hour limit · resets 11:15pm (UTC)", "usage_limit"),
            ("Quota exceeded. Check your plan and billing details.", "no_credit"),
            ("Credit balance is too low", "no_credit"),
            ("exceeded retry limit, last status: 429 Too Many Requests, request id: r", "rate_limited"),
            ("unexpected status 503 Service Unavailable: x, url: http://a/v1", "overloaded"),
            ("We’re currently experiencing high demand, which may cause temporary errors.", "overloaded"),
            ("unexpected status 401 Unauthorized: Incorrect API key provided: sk", "login_needed"),
            ("unexpected status 403 Forbidden: no", "login_needed"),
            ("Missing environment variable: `SCRIPTED_KEY`.", "login_needed"),
            ("Not logged in · Please run /login", "login_needed"),
            ("The model `scripted` does not exist or you do not have access to it.", "model_unknown"),
            ("Codex ran out of room in the model's context window. Start a new thread", "context_too_long"),
            ("Codex ran out of room in the model’s context window.", "context_too_long"),
            ("Incomplete response returned, reason: max_output_tokens", "output_cut"),
            ("stream disconnected before completion: Incomplete response returned, reason: content_filter", "refused"),
            ("stream disconnected before completion: The server is currently overloaded.", "overloaded"),
            ("stream disconnected before completion: idle timeout waiting for SSE", "overloaded"),
            ("stream disconnected before completion: stream closed before response.completed", "malformed"),
            ("API Error: API returned an empty or malformed response (HTTP 200) — check", "malformed"),
            ("API Error: Connection refused — a firewall or proxy may be blocking it (ECONNREFUSED)", "overloaded"),
            ("thread/resume failed: no rollout found for thread id 0 (code -32600)", "session_lost"),
            ("Error: Session not found", "session_lost"),
            ("test failed: 429 != 428", "-"),
            ("", "-"),
        ];
        for (message, expected) in table {
            assert_eq!(word(message), expected, "{message}");
        }
    }

    #[test]
    fn only_an_unambiguous_instant_is_taken() {
        let table = [
            ("try again at 9:44 PM.", None),
            ("resets 11:15pm (UTC)", None),
            ("try again at Dec 1st, 2026 9:44 PM", None),
            ("limit reached|1796080541", Some(1_796_080_541_000)),
            ("limit reached|99", None),
            ("limit reached|99999999999999999999999999", None),
            ("try again at 2026-12-01T21:44:00Z.", Some(1_796_161_440_000)),
            ("try again at (2026-12-01T22:44:00+01:00)", Some(1_796_161_440_000)),
            ("try again at 9999-12-01T22:44:00Z", None),
        ];
        for (message, at) in table {
            assert_eq!(until(message), at.map(Wall), "{message}");
        }
    }
}
