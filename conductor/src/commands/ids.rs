//! Ids as people give them: a part that only one has.

use crate::frame::escape;

/// The shortest part of an id that names something.
pub(super) const SHORTEST: usize = 4;

/// How many ids are shown of which one may be meant.
pub(super) const CANDIDATES: usize = 5;

/// Which part of an id is given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Part {
    Beginning,
    /// Ids begin with the time, so their ends differ most.
    End,
    Either,
}

/// Whether this can be a part of an id.
pub(super) fn is_part(given: &str) -> bool {
    !given.is_empty() && given.len() < 36 && given.chars().all(|c| c.is_ascii_hexdigit() || c == '-')
}

/// The one of these ids that has this part, if one has; with several, what to say.
pub(super) fn pick<'a>(
    ids: impl IntoIterator<Item = &'a str>,
    given: &str,
    part: Part,
) -> Result<Option<&'a str>, String> {
    let given = given.to_ascii_lowercase();
    let has_part = |id: &&str| match part {
        Part::Beginning => id.starts_with(&given),
        Part::End => id.ends_with(&given),
        Part::Either => id.starts_with(&given) || id.ends_with(&given),
    };
    let found: Vec<&str> = ids.into_iter().filter(has_part).take(CANDIDATES + 1).collect();
    match found.as_slice() {
        [] => Ok(None),
        [only] => Ok(Some(*only)),
        many => {
            let how = match part {
                Part::Beginning => "begin",
                Part::End => "end",
                Part::Either => "begin or end",
            };
            let more = if many.len() > CANDIDATES { " …" } else { "" };
            let shown = many[..many.len().min(CANDIDATES)].join(" ");
            let given = escape(given.as_bytes(), 40);
            Err(format!("several ids {how} with `{given}`: {shown}{more}; give more of it"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_that_only_one_has_names_it() {
        let ids = ["0190aaaa-1", "0190aabb-1", "0190ccdd-2"];
        assert_eq!(pick(ids, "0190C", Part::Beginning), Ok(Some("0190ccdd-2")));
        assert_eq!(pick(ids, "-2", Part::End), Ok(Some("0190ccdd-2")));
        assert_eq!(pick(ids, "02", Part::Beginning), Ok(None));
        assert_eq!(pick(ids, "0190C", Part::Either), Ok(Some("0190ccdd-2")));
        assert_eq!(pick(ids, "aabb-1", Part::Either), Ok(Some("0190aabb-1")));
        let several = pick(ids, "1", Part::Either);
        assert!(several.is_err_and(|why| why.starts_with("several ids begin or end with `1`")));
        let several = pick(ids, "0190aa", Part::Beginning);
        assert_eq!(
            several,
            Err("several ids begin with `0190aa`: 0190aaaa-1 0190aabb-1; give more of it".into())
        );
        let many = pick(["a"; 9], "a", Part::End);
        assert_eq!(many, Err("several ids end with `a`: a a a a a …; give more of it".into()));
        assert!(is_part("0190a-b") && !is_part("") && !is_part("last") && !is_part(&"0".repeat(36)));
    }
}
