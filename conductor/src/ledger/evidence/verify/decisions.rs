//! Decisions, approvals and grants as they stand in their tables, against those that the frames
//! tell of.

use std::collections::BTreeMap;

use uuid::Uuid;

use crate::ledger::{
    evidence::{
        finding::{Finding, What},
        stream::same_json,
    },
    table::{Fact, GRANTS, Merge, TABLES, Type, Value},
};

/// The columns that say what was decided.
const OUTCOMES: [&str; 2] = ["decision", "outcome"];

/// A row as it stands: each column as text, in order.
pub(in crate::ledger::evidence) type Texts = Vec<Option<String>>;

/// The frame that a row names, and its key.
type Place = (i64, Vec<String>);

/// A row as the frames tell it, and as it stands.
type Both<'a> = (Option<&'a Fact>, Option<&'a Texts>);

/// What came of comparing.
#[derive(Debug, Default)]
pub(in crate::ledger::evidence) struct Compared {
    pub(in crate::ledger::evidence) finding: Option<Finding>,
    /// Rows of which the table has less than the frames say.
    pub(in crate::ledger::evidence) sparse: u64,
}

/// Compares the rows of a table that a stream tells of. Where the stream has rows from before there
/// were chains, older versions have kept less, but never less of an outcome.
pub(in crate::ledger::evidence) fn compare(
    stream: Uuid,
    table: usize,
    told: &[Fact],
    stored: &[Texts],
    has_old: bool,
) -> Compared {
    let mut compared = Compared::default();
    let mut rows: BTreeMap<Place, Both<'_>> = BTreeMap::new();
    for fact in told {
        let texts: Texts = fact.values.iter().map(text).collect();
        rows.entry(place(table, &texts)).or_default().0 = Some(fact);
    }
    for row in stored {
        rows.entry(place(table, row)).or_default().1 = Some(row);
    }
    let name = TABLES[table].name;
    for ((seq, _), both) in rows {
        let why = match both {
            (Some(fact), Some(row)) => {
                let differs = differing(table, fact, row, has_old);
                compared.sparse += u64::from(differs == Ok(true));
                match differs {
                    Ok(_) => continue,
                    Err(column) => format!("the column {column} of {name} is not what the frames say"),
                }
            }
            // How often a grant was used is told by whoever used it, in streams of their own.
            (Some(fact), None) if table == GRANTS && !tells_more(fact) => continue,
            (Some(_), None) => format!("the frames tell of a row that {name} does not have"),
            // Other streams may tell of it.
            (None, _) if table == GRANTS => continue,
            (None, _) => format!("no frame tells of this row of {name}"),
        };
        compared.finding = Some(Finding::frame(What::DecisionDiffers, stream, seq, why));
        break;
    }
    compared
}

/// Whether it tells of more than the use.
fn tells_more(fact: &Fact) -> bool {
    let columns = TABLES[GRANTS].columns.iter().zip(&fact.values).skip(1);
    columns.filter(|(column, _)| column.merge == Merge::First).any(|(_, value)| *value != Value::Null)
}

/// The first column that is not what the frames say; else whether there is less than they say.
fn differing(table: usize, fact: &Fact, row: &Texts, has_old: bool) -> Result<bool, &'static str> {
    let mut is_sparse = false;
    for ((column, value), text) in TABLES[table].columns.iter().zip(&fact.values).zip(row) {
        match (value, text) {
            (Value::Null, None) => {}
            // Several streams tell of a grant: each what it knows.
            (Value::Null, Some(_)) if table == GRANTS => {}
            (Value::Int(told), Some(text)) if table == GRANTS && column.merge == Merge::Greatest => {
                if text.parse::<i64>().is_ok_and(|stored| stored >= *told) {
                    continue;
                }
                return Err(column.name);
            }
            (_, None) if has_old && !OUTCOMES.contains(&column.name) => is_sparse = true,
            (value, text) if same(column.kind, value, text.as_deref()) => {}
            _ => return Err(column.name),
        }
    }
    Ok(is_sparse)
}

fn place(table: usize, row: &Texts) -> Place {
    let table = &TABLES[table];
    let at = table.columns.iter().position(|column| column.name == "seq");
    let seq = at.and_then(|at| row.get(at)?.as_ref()?.parse().ok());
    let key = row.iter().take(table.key).map(|text| text.clone().unwrap_or_default());
    (seq.unwrap_or(1), key.collect())
}

fn text(value: &Value) -> Option<String> {
    match value {
        Value::Null => None,
        Value::Id(id) => Some(id.to_string()),
        Value::Int(number) => Some(number.to_string()),
        Value::Real(number) => Some(number.to_string()),
        Value::Bool(yes) => Some(u8::from(*yes).to_string()),
        Value::Text(text) | Value::Json(text) => Some(text.clone()),
    }
}

fn same(kind: Type, value: &Value, text: Option<&str>) -> bool {
    let Some(text) = text else { return false };
    match (kind, value) {
        (Type::Bool, Value::Bool(yes)) => *yes == matches!(text, "1" | "true" | "t"),
        (Type::Json, Value::Json(json)) => same_json(Some(json), Some(text)),
        (_, Value::Int(number)) => text.parse() == Ok(*number),
        (_, Value::Id(id)) => id.to_string() == text,
        (_, Value::Real(number)) => text.parse() == Ok(*number),
        (_, Value::Text(told)) => told == text,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ledger::table::{APPROVALS, DECISIONS};

    fn fact(seq: i64) -> Fact {
        let key = [Uuid::nil().into(), seq.into()];
        Fact::new(DECISIONS, key).set("decision", "allow").set("reason", "because").set("is_whole", true)
    }

    fn row(fact: &Fact) -> Texts {
        fact.values.iter().map(text).collect()
    }

    fn found(told: &[Fact], stored: &[Texts]) -> Option<i64> {
        compare(Uuid::nil(), DECISIONS, told, stored, false).finding.and_then(|finding| finding.number)
    }

    fn emptied(row: &Texts, value: &str) -> Texts {
        row.iter().map(|text| text.clone().filter(|text| text != value)).collect()
    }

    #[test]
    fn decisions_that_were_changed_added_or_removed_are_found() {
        let told = [fact(3), fact(9)];
        let stored = [row(&told[0]), row(&told[1])];
        assert_eq!(found(&told, &stored), None);
        assert_eq!(found(&told, &stored[1..]), Some(3));
        assert_eq!(found(&told, &stored[..1]), Some(9));
        assert_eq!(found(&told[1..], &stored), Some(3));
        assert_eq!(found(&told[..1], &stored), Some(9));
        let other = row(&fact(9).set("rule", "a rule"));
        assert_eq!(found(&told, &[stored[0].clone(), other]), Some(9), "what was null is set");
        let mut turned = stored.clone();
        for column in turned[0].iter_mut().filter(|text| text.as_deref() == Some("allow")) {
            *column = Some("reject".to_owned());
        }
        assert_eq!(found(&told, &turned), Some(3));
        // Less than the frames say is what older versions left, but not of the outcome.
        let less = [stored[0].clone(), emptied(&stored[1], "because")];
        assert_eq!(found(&told, &less), Some(9), "not where every frame has its link");
        let compared = compare(Uuid::nil(), DECISIONS, &told, &less, true);
        assert_eq!((compared.finding, compared.sparse), (None, 1));
        let none = [stored[0].clone(), emptied(&stored[1], "allow")];
        assert!(compare(Uuid::nil(), DECISIONS, &told, &none, true).finding.is_some());
    }

    #[test]
    fn approvals_and_grants_are_compared_by_their_ids() {
        let approval = Fact::new(APPROVALS, [Uuid::max().into()]).set("seq", 7i64).set("outcome", "allowed");
        let stored = [row(&approval)];
        let found = |told: &[Fact], stored: &[Texts]| {
            compare(Uuid::nil(), APPROVALS, told, stored, false).finding.and_then(|finding| finding.number)
        };
        assert_eq!(found(std::slice::from_ref(&approval), &stored), None);
        assert_eq!(found(&[], &stored), Some(7));
        assert_eq!(found(&[approval], &[emptied(&stored[0], "allowed")]), Some(7));

        let grant = || Fact::new(GRANTS, [Uuid::max().into()]);
        let (given, used) = (grant().set("author", "ann").set("uses", 0i64), grant().set("uses", 3i64));
        let mut whole = given.clone();
        whole.merge(&used);
        let found = |told: &Fact, stored: &Texts| {
            let (told, stored) = (std::slice::from_ref(told), std::slice::from_ref(stored));
            compare(Uuid::nil(), GRANTS, told, stored, false).finding.is_some()
        };
        // Each stream tells of its part.
        assert!(!found(&given, &row(&whole)) && !found(&used, &row(&whole)));
        assert!(found(&used, &row(&given)), "it was used more often");
        assert!(found(&given, &emptied(&row(&whole), "ann")));
        assert!(compare(Uuid::nil(), GRANTS, &[given], &[], false).finding.is_some());
        assert!(compare(Uuid::nil(), GRANTS, &[used], &[], false).finding.is_none());
    }
}
