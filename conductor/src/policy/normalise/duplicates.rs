//! Keys that stand twice in one object.
//!
//! Readers of JSON differ on which of two counts. If the policy looked at one
//! of them and an agent at the other, the policy would have judged something
//! else than what is done.

use std::{collections::HashSet, fmt};

use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};

use crate::policy::text;

/// Objects and lists in one another beyond which nothing is looked at.
const DEEPEST: usize = 100;

/// Whether an object in this JSON, at any depth, has a key twice. What cannot be read to its end, or
/// is nested too deeply, counts as if it had.
pub fn has_duplicate_keys(raw: &[u8]) -> bool {
    check(raw).is_err()
}

/// Why this JSON could be read in two ways, or not at all.
pub fn check(raw: &[u8]) -> Result<(), String> {
    let mut reader = serde_json::Deserializer::from_slice(raw);
    Unique { depth: 0 }.deserialize(&mut reader).map_err(|error| error.to_string())?;
    reader.end().map_err(|error| error.to_string())
}

/// Looks through a value and keeps nothing of it.
#[derive(Clone, Copy)]
struct Unique {
    depth: usize,
}

impl Unique {
    fn within<E: Error>(self) -> Result<Self, E> {
        match self.depth {
            DEEPEST.. => Err(E::custom("it is nested too deeply")),
            depth => Ok(Self { depth: depth + 1 }),
        }
    }
}

impl<'de> DeserializeSeed<'de> for Unique {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Unique {
    type Value = ();

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("JSON")
    }

    fn visit_bool<E>(self, _: bool) -> Result<(), E> {
        Ok(())
    }

    fn visit_i64<E>(self, _: i64) -> Result<(), E> {
        Ok(())
    }

    fn visit_u64<E>(self, _: u64) -> Result<(), E> {
        Ok(())
    }

    fn visit_f64<E>(self, _: f64) -> Result<(), E> {
        Ok(())
    }

    fn visit_str<E>(self, _: &str) -> Result<(), E> {
        Ok(())
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        let within = self.within()?;
        while list.next_element_seed(within)?.is_some() {}
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let within = self.within()?;
        let mut keys: HashSet<String> = HashSet::new();
        while let Some(key) = map.next_key::<String>()? {
            if keys.contains(&key) {
                let shown = text::shown(&key, 60);
                return Err(A::Error::custom(format_args!("the key `{shown}` stands twice in one object")));
            }
            map.next_value_seed(within)?;
            keys.insert(key);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a14_keys_that_stand_twice_are_found() {
        for raw in [
            r#"{"command":"rm x","command":"ls"}"#,
            r#"{"a":1,"b":{"c":[0,{"shell":"rm x","shell":"ls"}]}}"#,
            r#"{"command":"rm x","\u0063ommand":"ls"}"#,
            r#"[{"a":1},{"a":1,"b":2,"a":1}]"#,
            r#"{"":1,"":2}"#,
        ] {
            assert!(has_duplicate_keys(raw.as_bytes()), "{raw}");
            assert!(check(raw.as_bytes()).is_err_and(|why| why.contains("stands twice")), "{raw}");
        }
        for raw in [
            "{}",
            "null",
            "-1.5e3",
            "18446744073709551615",
            r#"{"a":{"a":{"a":[]}},"b":"a","A":1}"#,
            r#"[{"a":1},{"a":1}]"#,
        ] {
            assert!(!has_duplicate_keys(raw.as_bytes()), "{raw}");
        }
    }

    #[test]
    fn what_cannot_be_read_counts_as_found() {
        let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
        let almost = format!("{}{}", "[".repeat(101), "]".repeat(101));
        for raw in ["", "{", r#"{"a":1"#, "{} {}", r#"{"a":1}x"#, &deep, &almost] {
            assert!(has_duplicate_keys(raw.as_bytes()), "{}", raw.len());
        }
        assert!(has_duplicate_keys(b"{\"a\":\"\xff\"}"));
    }
}
