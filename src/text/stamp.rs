//! Wall times as text: RFC 3339 in UTC with milliseconds for documents, and `YYYY-MM-DD HH:MM` for boards.

use crate::domain::Wall;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

/// First and last moment that four digits of year can say, in milliseconds since 1970.
const RANGE: std::ops::RangeInclusive<i64> = -62_167_219_200_000..=253_402_300_799_999;

/// `2026-05-04T09:12:00.000Z`; times outside the years 0 to 9999 are set to the nearest one inside.
pub(super) fn rfc3339(at: Wall) -> String {
    let (t, ms) = split(at);
    format!(
        "{:04}-{:02}-{:02}T{:02}:{:02}:{:02}.{ms:03}Z",
        t.year(),
        u8::from(t.month()),
        t.day(),
        t.hour(),
        t.minute(),
        t.second()
    )
}

/// `2026-05-04 09:12`, in UTC.
pub(super) fn minute(at: Wall) -> String {
    let (t, _) = split(at);
    format!("{:04}-{:02}-{:02} {:02}:{:02}", t.year(), u8::from(t.month()), t.day(), t.hour(), t.minute())
}

/// Reads any RFC 3339 time; parts of a millisecond are cut off.
pub(super) fn parse_rfc3339(text: &str) -> Option<Wall> {
    let t = OffsetDateTime::parse(text, &Rfc3339).ok()?;
    i64::try_from(t.unix_timestamp_nanos().div_euclid(1_000_000)).ok().map(Wall)
}

/// Reads `YYYY-MM-DD HH:MM` as UTC.
pub(super) fn parse_minute(text: &str) -> Option<Wall> {
    let (day, minute) = text.split_once(' ')?;
    (day.len() == 10 && minute.len() == 5).then(|| parse_rfc3339(&format!("{day}T{minute}:00Z")))?
}

fn split(at: Wall) -> (OffsetDateTime, i64) {
    let ms = at.0.clamp(*RANGE.start(), *RANGE.end());
    let t = OffsetDateTime::from_unix_timestamp(ms.div_euclid(1000)).unwrap_or(OffsetDateTime::UNIX_EPOCH);
    (t, ms.rem_euclid(1000))
}

/// `Option<Wall>` as RFC 3339 in saved documents.
pub(super) mod optional {
    use super::{Wall, parse_rfc3339, rfc3339};
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub(crate) fn serialize<S: Serializer>(at: &Option<Wall>, s: S) -> Result<S::Ok, S::Error> {
        at.map(rfc3339).serialize(s)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<Option<Wall>, D::Error> {
        let text: Option<String> = Option::deserialize(d)?;
        text.map(|t| parse_rfc3339(&t).ok_or_else(|| serde::de::Error::custom(format!("{t:?} is no time of RFC 3339"))))
            .transpose()
    }
}

/// `Wall` as RFC 3339 in saved documents.
pub(super) mod required {
    use super::{Wall, parse_rfc3339, rfc3339};
    use serde::{Deserialize, Deserializer, Serializer};

    pub(crate) fn serialize<S: Serializer>(at: &Wall, s: S) -> Result<S::Ok, S::Error> {
        s.serialize_str(&rfc3339(*at))
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<Wall, D::Error> {
        let text = String::deserialize(d)?;
        parse_rfc3339(&text).ok_or_else(|| serde::de::Error::custom(format!("{text:?} is no time of RFC 3339")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn times_are_utc_with_milliseconds() {
        assert_eq!(rfc3339(Wall(1_777_885_923_007)), "2026-05-04T09:12:03.007Z");
        assert_eq!(minute(Wall(1_777_885_923_007)), "2026-05-04 09:12");
        assert_eq!(parse_rfc3339("2026-05-04T11:12:03.0079+02:00"), Some(Wall(1_777_885_923_007)));
        assert_eq!(parse_minute("2026-05-04 09:12"), Some(Wall(1_777_885_920_000)));
        assert_eq!(parse_minute("2026-05-04"), None);
        assert_eq!(rfc3339(Wall(-1)), "1969-12-31T23:59:59.999Z");
        assert_eq!(rfc3339(Wall(i64::MAX)), "9999-12-31T23:59:59.999Z");
    }

    proptest! {
        #[test]
        fn times_come_back(ms in RANGE) {
            prop_assert_eq!(parse_rfc3339(&rfc3339(Wall(ms))), Some(Wall(ms)));
        }
    }
}
