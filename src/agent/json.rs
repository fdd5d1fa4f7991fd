//! Reads JSON lines of CLIs whose format drifts: a field of an unexpected type is an absent field, never a lost line,
//! and what nobody asked for is skipped without being kept in memory.

use serde::Deserialize;
use serde::de::value::MapAccessDeserializer;
use serde::de::{DeserializeOwned, DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use std::fmt;
use std::marker::PhantomData;

/// Any value that is no container; containers are read as `Other`.
#[derive(Debug, Default, Clone, PartialEq)]
pub(super) enum Scalar {
    #[default]
    None,
    Bool(bool),
    Uint(u64),
    Num(f64),
    Text(String),
    Other,
}

/// An object read as `T`; anything else is the default.
#[derive(Debug, Default)]
pub(super) struct Obj<T>(pub(super) T);

/// A list of at most 256 `T`; anything else is empty.
#[derive(Debug)]
pub(super) struct List<T>(pub(super) Vec<T>);

const LIST: usize = 256;

/// One line as `T`; `None` where it is no JSON object. Bytes that are no UTF-8 are replaced.
pub(super) fn line<T: DeserializeOwned + Default>(line: &[u8]) -> Option<T> {
    let line = line.trim_ascii();
    if !line.starts_with(b"{") {
        return None;
    }
    match std::str::from_utf8(line) {
        Ok(text) => serde_json::from_str(text).ok(),
        Err(_) => serde_json::from_str(&String::from_utf8_lossy(line)).ok(),
    }
}

/// The values at `paths` (`a.b.c`, a number for a place in a list) in their order; `None` where the line is no JSON
/// object.
pub(super) fn pick(line: &[u8], paths: &[&str]) -> Option<Vec<Scalar>> {
    let text = String::from_utf8_lossy(line.trim_ascii());
    if !text.starts_with('{') {
        return None;
    }
    let mut found = vec![Scalar::None; paths.len()];
    let walk = Walk { paths: paths.iter().enumerate().map(|(n, p)| (n, *p)).collect(), found: &mut found };
    let mut json = serde_json::Deserializer::from_str(&text);
    walk.deserialize(&mut json).ok()?;
    json.end().ok()?;
    Some(found)
}

impl Scalar {
    pub(super) fn text(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(text),
            Self::None | Self::Bool(_) | Self::Uint(_) | Self::Num(_) | Self::Other => None,
        }
    }

    pub(super) fn is(&self, word: &str) -> bool {
        self.text() == Some(word)
    }

    pub(super) fn yes(&self) -> bool {
        *self == Self::Bool(true)
    }

    pub(super) fn uint(&self) -> Option<u64> {
        match self {
            Self::Uint(n) => Some(*n),
            // A float of this size is exact in u64 or saturates.
            Self::Num(n) if n.is_finite() && *n >= 0.0 => Some(*n as u64),
            Self::None | Self::Bool(_) | Self::Num(_) | Self::Text(_) | Self::Other => None,
        }
    }

    /// An amount of money: not negative, and no more than a sum can hold.
    pub(super) fn amount(&self) -> Option<f64> {
        let amount = match self {
            Self::Uint(n) => *n as f64,
            Self::Num(n) => *n,
            Self::None | Self::Bool(_) | Self::Text(_) | Self::Other => return None,
        };
        (0.0..1e12).contains(&amount).then_some(amount)
    }

    /// The value for people; `None` where there is none.
    pub(super) fn shown(&self) -> Option<String> {
        match self {
            Self::None | Self::Bool(false) => None,
            Self::Text(text) if text.is_empty() => None,
            Self::Text(text) => Some(text.clone()),
            Self::Bool(true) => Some("true".into()),
            Self::Uint(n) => Some(n.to_string()),
            Self::Num(n) => Some(n.to_string()),
            Self::Other => Some("(no text)".into()),
        }
    }
}

impl<T> Default for List<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

struct ScalarVisitor;

impl<'de> Visitor<'de> for ScalarVisitor {
    type Value = Scalar;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any value")
    }

    fn visit_bool<E>(self, v: bool) -> Result<Scalar, E> {
        Ok(Scalar::Bool(v))
    }

    fn visit_i64<E>(self, v: i64) -> Result<Scalar, E> {
        Ok(u64::try_from(v).map_or(Scalar::Num(v as f64), Scalar::Uint))
    }

    fn visit_u64<E>(self, v: u64) -> Result<Scalar, E> {
        Ok(Scalar::Uint(v))
    }

    fn visit_f64<E>(self, v: f64) -> Result<Scalar, E> {
        Ok(Scalar::Num(v))
    }

    fn visit_str<E>(self, v: &str) -> Result<Scalar, E> {
        Ok(Scalar::Text(v.to_owned()))
    }

    fn visit_unit<E>(self) -> Result<Scalar, E> {
        Ok(Scalar::None)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, seq: A) -> Result<Scalar, A::Error> {
        drain_seq(seq)?;
        Ok(Scalar::Other)
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Scalar, A::Error> {
        drain_map(map)?;
        Ok(Scalar::Other)
    }
}

impl<'de> Deserialize<'de> for Scalar {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        d.deserialize_any(ScalarVisitor)
    }
}

/// Reads one kind of container and takes every other value for the default.
struct Container<T>(PhantomData<T>);

/// Scalars where a container was expected.
macro_rules! no_scalars {
    () => {
        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("any value")
        }

        fn visit_bool<E>(self, _: bool) -> Result<Self::Value, E> {
            Ok(Self::Value::default())
        }

        fn visit_i64<E>(self, _: i64) -> Result<Self::Value, E> {
            Ok(Self::Value::default())
        }

        fn visit_u64<E>(self, _: u64) -> Result<Self::Value, E> {
            Ok(Self::Value::default())
        }

        fn visit_f64<E>(self, _: f64) -> Result<Self::Value, E> {
            Ok(Self::Value::default())
        }

        fn visit_str<E>(self, _: &str) -> Result<Self::Value, E> {
            Ok(Self::Value::default())
        }

        fn visit_unit<E>(self) -> Result<Self::Value, E> {
            Ok(Self::Value::default())
        }
    };
}

impl<'de, T: Deserialize<'de> + Default> Visitor<'de> for Container<Obj<T>> {
    type Value = Obj<T>;

    no_scalars!();

    fn visit_seq<A: SeqAccess<'de>>(self, seq: A) -> Result<Obj<T>, A::Error> {
        drain_seq(seq)?;
        Ok(Obj::default())
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Obj<T>, A::Error> {
        T::deserialize(MapAccessDeserializer::new(map)).map(Obj)
    }
}

impl<'de, T: Deserialize<'de>> Visitor<'de> for Container<List<T>> {
    type Value = List<T>;

    no_scalars!();

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<List<T>, A::Error> {
        let mut items = Vec::new();
        while items.len() < LIST {
            match seq.next_element()? {
                Some(item) => items.push(item),
                None => return Ok(List(items)),
            }
        }
        drain_seq(seq)?;
        Ok(List(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<List<T>, A::Error> {
        drain_map(map)?;
        Ok(List::default())
    }
}

impl<'de, T: Deserialize<'de> + Default> Deserialize<'de> for Obj<T> {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        d.deserialize_any(Container::<Self>(PhantomData))
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for List<T> {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        d.deserialize_any(Container::<Self>(PhantomData))
    }
}

/// The way down to some paths: as deep as the longest path and no deeper.
struct Walk<'p, 'f> {
    paths: Vec<(usize, &'p str)>,
    found: &'f mut Vec<Scalar>,
}

impl Walk<'_, '_> {
    /// Reads the value under `key` with `read`, which takes a seed.
    fn step<E>(&mut self, key: &str, next: &mut dyn FnMut(Step<'_, '_>) -> Result<(), E>) -> Result<(), E> {
        let mut leaves = Vec::new();
        let mut deeper = Vec::new();
        for (n, path) in &self.paths {
            match path.split_once('.') {
                Some((first, rest)) if first == key => deeper.push((*n, rest)),
                None if *path == key => leaves.push(*n),
                Some(_) | None => {}
            }
        }
        if deeper.is_empty() {
            return next(Step::Leaf(&leaves, self.found));
        }
        next(Step::Deeper(Walk { paths: deeper, found: self.found }))
    }
}

enum Step<'p, 'f> {
    Leaf(&'p [usize], &'f mut Vec<Scalar>),
    Deeper(Walk<'p, 'f>),
}

impl<'de> DeserializeSeed<'de> for Step<'_, '_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, d: D) -> Result<(), D::Error> {
        match self {
            Self::Leaf([], _) => IgnoredAny::deserialize(d).map(drop),
            Self::Leaf(places, found) => {
                let value = Scalar::deserialize(d)?;
                for n in places {
                    found[*n] = value.clone();
                }
                Ok(())
            }
            Self::Deeper(walk) => walk.deserialize(d),
        }
    }
}

impl<'de> DeserializeSeed<'de> for Walk<'_, '_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, d: D) -> Result<(), D::Error> {
        d.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Walk<'_, '_> {
    type Value = ();

    no_scalars!();

    fn visit_seq<A: SeqAccess<'de>>(mut self, mut seq: A) -> Result<(), A::Error> {
        let mut place = 0_usize;
        let mut more = true;
        while more {
            self.step(&place.to_string(), &mut |step| {
                more = seq.next_element_seed(step)?.is_some();
                Ok(())
            })?;
            place += 1;
        }
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut map: A) -> Result<(), A::Error> {
        while let Some(key) = map.next_key::<String>()? {
            self.step(&key, &mut |step| map.next_value_seed(step))?;
        }
        Ok(())
    }
}

fn drain_seq<'de, A: SeqAccess<'de>>(mut seq: A) -> Result<(), A::Error> {
    while seq.next_element::<IgnoredAny>()?.is_some() {}
    Ok(())
}

fn drain_map<'de, A: MapAccess<'de>>(mut map: A) -> Result<(), A::Error> {
    while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Default, Deserialize)]
    #[serde(default)]
    struct Sample {
        a: Scalar,
        o: Obj<Inner>,
        l: List<Obj<Inner>>,
    }

    #[derive(Debug, Default, Deserialize)]
    #[serde(default)]
    struct Inner {
        x: Scalar,
    }

    #[test]
    fn a_field_of_another_type_is_an_absent_field() {
        for value in ["null", "1", "-1", "1.5", "true", "\"s\"", "[1,{}]", "{\"y\":[]}"] {
            let text = format!("{{\"a\":{value},\"o\":{value},\"l\":{value},\"other\":{value}}}");
            let sample: Sample = line(text.as_bytes()).expect(&text);
            assert_eq!(sample.o.0.x, Scalar::None);
        }
        let s: Sample = line(br#" {"l":[{"x":1},2,{"x":"t"}],"o":{"x":2.5},"a":"\ud83d\ude00"} "#).expect("json");
        assert_eq!(
            s.l.0.iter().map(|i| i.0.x.clone()).collect::<Vec<_>>(),
            [Scalar::Uint(1), Scalar::None, Scalar::Text("t".into())]
        );
        assert_eq!((s.o.0.x.amount(), s.a.text()), (Some(2.5), Some("😀")));
        assert!(line::<Sample>(b"[1]").is_none() && line::<Sample>(b"{\"a\":1").is_none());
        let bad: Sample = line(b"{\"a\":\"\xff\"}").expect("replaced");
        assert_eq!(bad.a.text(), Some("\u{fffd}"));
    }

    #[test]
    fn deep_nesting_does_not_overflow_the_stack() {
        let deep = format!("{{\"z\":{}1{},\"a\":7}}", "[".repeat(200_000), "]".repeat(200_000));
        let _ = line::<Sample>(deep.as_bytes());
        let _ = pick(deep.as_bytes(), &["a", "z.0.0"]);
    }

    #[test]
    fn paths_reach_into_objects_and_lists() {
        let text = br#"{"type":"step","part":{"tokens":{"in":5,"out":6},"cost":0.25},"list":[{"t":"x"},{"t":"y"}],"e":{"m":1}}"#;
        let found = pick(text, &["part.tokens.in", "part.cost", "list.1.t", "type", "e", "no.such", "type.deeper"]);
        assert_eq!(
            found.expect("json"),
            [
                Scalar::Uint(5),
                Scalar::Num(0.25),
                Scalar::Text("y".into()),
                Scalar::None,
                Scalar::Other,
                Scalar::None,
                Scalar::None
            ]
        );
        assert!(pick(b"text", &["a"]).is_none());
        assert!(pick(br#"{"a":1} x"#, &["a"]).is_none());
    }
}
