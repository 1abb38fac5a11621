//! Decisions as they stand in their table, against those that the frames tell of.

use uuid::Uuid;

use crate::ledger::{
    evidence::{
        finding::{Finding, What},
        stream::same_json,
    },
    table::{DECISIONS, Fact, TABLES, Type, Value},
};

/// The column that says what was decided.
const DECISION: &str = "decision";

/// What came of comparing.
#[derive(Debug, Default)]
pub(in crate::ledger::evidence) struct Compared {
    pub(in crate::ledger::evidence) finding: Option<Finding>,
    /// Rows of which the table has less than the frames say.
    pub(in crate::ledger::evidence) sparse: u64,
}

/// Compares, by number. `stored` has each column as text, in order.
pub(in crate::ledger::evidence) fn compare(
    session: Uuid,
    told: &[Fact],
    stored: &[Vec<Option<String>>],
) -> Compared {
    let mut compared = Compared::default();
    let mut told: Vec<_> = told.iter().map(|fact| (number(fact), fact)).collect();
    told.sort_unstable_by_key(|(seq, _)| *seq);
    let found = |seq, why: String| Some(Finding::frame(What::DecisionDiffers, session, seq, why));
    let mut stored = stored.iter().peekable();
    for (seq, fact) in told {
        let Some(row) = stored.next_if(|row| seq_of(row) <= seq) else {
            compared.finding =
                found(seq, "the frames tell of a decision that the table does not have".to_owned());
            return compared;
        };
        if seq_of(row) < seq {
            compared.finding = found(seq_of(row), "no frame tells of this decision".to_owned());
            return compared;
        }
        let mut is_sparse = false;
        for ((column, value), text) in TABLES[DECISIONS].columns.iter().zip(&fact.values).zip(row) {
            match text {
                None if *value == Value::Null => {}
                // Older versions have kept less.
                None if column.name != DECISION => is_sparse = true,
                text if same(column.kind, value, text.as_deref()) => {}
                _ => {
                    let why = format!("its column {} is not what the frames say", column.name);
                    compared.finding = found(seq, why);
                    return compared;
                }
            }
        }
        compared.sparse += u64::from(is_sparse);
    }
    if let Some(row) = stored.next() {
        compared.finding = found(seq_of(row), "no frame tells of this decision".to_owned());
    }
    compared
}

fn number(fact: &Fact) -> i64 {
    match fact.key() {
        [_, Value::Int(seq)] => *seq,
        _ => 0,
    }
}

fn seq_of(row: &[Option<String>]) -> i64 {
    row.get(1).and_then(|text| text.as_ref()?.parse().ok()).unwrap_or_default()
}

fn same(kind: Type, value: &Value, text: Option<&str>) -> bool {
    let Some(text) = text else { return false };
    match (kind, value) {
        (Type::Bool, Value::Bool(yes)) => *yes == matches!(text, "1" | "true" | "t"),
        (Type::Json, Value::Json(json)) => same_json(Some(json), Some(text)),
        (_, Value::Int(number)) => text.parse() == Ok(*number),
        (_, Value::Id(id)) => text.parse() == Ok(*id),
        (_, Value::Real(number)) => text.parse() == Ok(*number),
        (_, Value::Text(told)) => told == text,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fact(seq: i64) -> Fact {
        let key = [Uuid::nil().into(), seq.into()];
        Fact::new(DECISIONS, key).set(DECISION, "allow").set("reason", "because").set("is_whole", true)
    }

    fn row(fact: &Fact) -> Vec<Option<String>> {
        let text = |value: &Value| match value {
            Value::Null => None,
            Value::Id(id) => Some(id.to_string()),
            Value::Int(number) => Some(number.to_string()),
            Value::Real(number) => Some(number.to_string()),
            Value::Bool(yes) => Some(u8::from(*yes).to_string()),
            Value::Text(text) | Value::Json(text) => Some(text.clone()),
        };
        fact.values.iter().map(text).collect()
    }

    fn found(told: &[Fact], stored: &[Vec<Option<String>>]) -> Option<i64> {
        compare(Uuid::nil(), told, stored).finding.and_then(|finding| finding.number)
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
        let mut less = stored;
        for column in less[1].iter_mut().filter(|text| text.as_deref() == Some("because")) {
            *column = None;
        }
        let compared = compare(Uuid::nil(), &told, &less);
        assert_eq!((compared.finding, compared.sparse), (None, 1));
        for column in less[1].iter_mut().filter(|text| text.as_deref() == Some("allow")) {
            *column = None;
        }
        assert_eq!(found(&told, &less), Some(9));
    }
}
