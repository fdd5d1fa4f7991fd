//! Time as values. The daemon reads the clocks; the rules only compare what they are given.

use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Milliseconds on a clock that never jumps and stands still while the machine sleeps; its zero is the machine's
/// start, so values of different boots do not compare.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Mono(pub u64);

/// Milliseconds since 1970 (UTC), for people and for ordering nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Wall(pub i64);

/// One reading of both clocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Now {
    pub mono: Mono,
    pub wall: Wall,
}

impl Mono {
    /// This instant moved on, without wrapping.
    pub fn after(self, by: Duration) -> Self {
        Self(self.0.saturating_add(millis(by)))
    }

    /// How long ago `earlier` was; zero when it lies ahead.
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_millis(self.0.saturating_sub(earlier.0))
    }
}

impl Wall {
    /// How long ago `earlier` was by the wall clock; zero when the clock was set back.
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_millis(u64::try_from(self.0.saturating_sub(earlier.0)).unwrap_or(0))
    }
}

/// A duration in whole milliseconds, the longest one cut at what fits.
pub fn millis(d: Duration) -> u64 {
    u64::try_from(d.as_millis()).unwrap_or(u64::MAX)
}

/// Durations as milliseconds in saved documents.
pub mod ms {
    use serde::{Deserialize, Deserializer, Serializer};
    use std::time::Duration;

    pub fn serialize<S: Serializer>(d: &Duration, s: S) -> Result<S::Ok, S::Error> {
        s.serialize_u64(super::millis(*d))
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<Duration, D::Error> {
        u64::deserialize(d).map(Duration::from_millis)
    }
}

/// A duration in words as people write it in configuration and task files: a whole number and a unit (`ms s m h d`).
/// Refuses no unit, signs, fractions, and anything above a year.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let text = text.trim();
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let scale: u64 = match unit.trim() {
        "ms" => 1,
        "s" => 1_000,
        "m" | "min" => 60_000,
        "h" => 3_600_000,
        "d" => 86_400_000,
        _ => return Err(format!("{text:?} is no duration: write a whole number and a unit, as in 90s, 30m or 2h")),
    };
    let number: u64 =
        number.parse().map_err(|_| format!("{text:?} is no duration: the number is missing or too large"))?;
    match number.checked_mul(scale) {
        Some(total) if total <= 366 * 86_400_000 => Ok(Duration::from_millis(total)),
        _ => Err(format!("{text:?} is longer than a year")),
    }
}

/// A duration for people: `8s`, `3m12s`, `7h41m`, `2d3h`.
pub fn human(d: Duration) -> String {
    let s = d.as_secs();
    match s {
        0 if d.as_millis() > 0 => format!("{}ms", d.as_millis()),
        0..60 => format!("{s}s"),
        60..3600 => format!("{}m{:02}s", s / 60, s % 60),
        3600..86400 => format!("{}h{:02}m", s / 3600, s % 3600 / 60),
        _ => format!("{}d{:02}h", s / 86400, s % 86400 / 3600),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_need_a_unit_and_a_sane_size() {
        assert_eq!(parse_duration("90s"), Ok(Duration::from_secs(90)));
        assert_eq!(parse_duration(" 2h "), Ok(Duration::from_secs(7200)));
        for bad in ["10", "-5m", "99999999999h", "", "m", "1.5h", "5 parsecs"] {
            assert!(parse_duration(bad).is_err(), "{bad:?} was taken");
        }
    }

    #[test]
    fn clocks_set_back_give_zero_not_a_huge_duration() {
        assert_eq!(Wall(5).since(Wall(10)), Duration::ZERO);
        assert_eq!(Mono(5).since(Mono(10)), Duration::ZERO);
        assert_eq!(human(Duration::from_secs(192)), "3m12s");
    }
}
