//! Changing single members of JSON objects and leaving every other byte as it
//! is. For frames that are rarely changed; ids are spliced in `frame`.

use std::{borrow::Cow, fmt};

use bytes::{BufMut as _, Bytes, BytesMut};
use serde::{
    Deserialize, Deserializer,
    de::{MapAccess, Visitor},
};
use serde_json::value::RawValue;

/// The members of an object, in order, as they stand in the text.
#[derive(Debug)]
pub(super) struct Members<'a>(pub(super) Vec<(Cow<'a, str>, &'a RawValue)>);

impl<'a> Members<'a> {
    /// Reads an object; nothing else is one.
    pub(super) fn of(text: &'a [u8]) -> Option<Self> {
        serde_json::from_slice(text).ok()
    }

    /// The member that counts: the last of its name, as in most parsers.
    pub(super) fn get(&self, name: &str) -> Option<&'a str> {
        self.0.iter().rev().find(|(key, _)| key == name).map(|(_, value)| value.get())
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Members<'a> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Object;

        impl<'de> Visitor<'de> for Object {
            type Value = Members<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut members = Vec::new();
                while let Some(Name(name)) = map.next_key()? {
                    members.push((name, map.next_value()?));
                }
                Ok(Members(members))
            }
        }
        from.deserialize_map(Object)
    }
}

#[derive(Deserialize)]
struct Name<'a>(#[serde(borrow)] Cow<'a, str>);

/// Where a part of a text stands in it.
fn offset(text: &[u8], part: &str) -> usize {
    part.as_ptr() as usize - text.as_ptr() as usize
}

/// The text with some parts of it replaced. Parts are slices of the text, in any
/// order, and do not overlap.
pub(super) fn replaced(text: &[u8], mut edits: Vec<(&str, String)>) -> Bytes {
    edits.sort_by_key(|(part, _)| offset(text, part));
    let mut out = BytesMut::with_capacity(text.len() + edits.iter().map(|(_, new)| new.len()).sum::<usize>());
    let mut at = 0;
    for (part, new) in edits {
        let start = offset(text, part);
        out.put_slice(&text[at..start]);
        out.put_slice(new.as_bytes());
        at = start + part.len();
    }
    out.put_slice(&text[at..]);
    out.freeze()
}

/// A frame in which the object that stands at `object` has these members; what
/// is no object becomes one.
pub(super) fn with_members(frame: &[u8], object: &[u8], members: &[(&str, String)]) -> Option<Bytes> {
    let text = std::str::from_utf8(object).ok()?;
    let Some(found) = Members::of(object) else {
        let all: Vec<String> = members.iter().map(|(name, value)| format!("\"{name}\":{value}")).collect();
        return Some(replaced(frame, vec![(text, format!("{{{}}}", all.join(",")))]));
    };
    let mut edits = Vec::new();
    let mut more = String::new();
    for (name, value) in members {
        match found.get(name) {
            Some(old) => edits.push((old, value.clone())),
            None => {
                let comma = if found.0.is_empty() && more.is_empty() { "" } else { "," };
                more.push_str(&format!("{comma}\"{name}\":{value}"));
            }
        }
    }
    if !more.is_empty() {
        // In front of the last brace, as an empty part of the text.
        let end = text.trim_end().len() - 1;
        edits.push((&text[end..end], more));
    }
    Some(replaced(frame, edits))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests fail by panicking")]
mod tests {
    use super::*;

    fn changed(object: &str, members: &[(&str, &str)]) -> String {
        let frame = format!(r#"{{"id":1,"result":{object} }}"#);
        let start = frame.find(object).unwrap();
        let members: Vec<_> = members.iter().map(|(name, value)| (*name, (*value).to_owned())).collect();
        let object = &frame.as_bytes()[start..start + object.len()];
        let out = with_members(frame.as_bytes(), object, &members).unwrap();
        String::from_utf8(out.to_vec()).unwrap()
    }

    #[test]
    fn members_are_changed_and_every_other_byte_stays() {
        assert_eq!(
            changed(r#"{ "x": 1e3, "a" : [1], "y":"\ud83d" }"#, &[("a", "2")]),
            r#"{"id":1,"result":{ "x": 1e3, "a" : 2, "y":"\ud83d" } }"#
        );
        assert_eq!(
            changed(r#"{"x":1}"#, &[("a", "2"), ("b", "3")]),
            r#"{"id":1,"result":{"x":1,"a":2,"b":3} }"#
        );
        assert_eq!(changed("{}", &[("a", "2"), ("b", "3")]), r#"{"id":1,"result":{"a":2,"b":3} }"#);
        assert_eq!(changed("null", &[("a", "2")]), r#"{"id":1,"result":{"a":2} }"#);
    }

    #[test]
    fn the_last_of_a_name_counts() {
        assert_eq!(Members::of(br#"{"a":1,"\u0061":2}"#).unwrap().get("a"), Some("2"));
        assert!(Members::of(b"[]").is_none());
    }
}
