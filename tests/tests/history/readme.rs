//! The questions in the README, asked of both databases.

use conductor_tests::shipping::Bench;

use crate::fixture::{EDITING, ledger, run};

/// The SQL blocks of the README.
fn blocks() -> Vec<String> {
    let readme = concat!(env!("CARGO_MANIFEST_DIR"), "/../README.md");
    let readme = std::fs::read_to_string(readme).unwrap();
    let parts = readme.split("```sql\n").skip(1);
    parts.map(|part| part.split("```").next().unwrap().to_owned()).collect()
}

#[tokio::test]
async fn every_question_in_the_readme_is_answered() {
    let blocks = blocks();
    assert!(blocks.len() >= 10, "{blocks:#?}");
    for bench in Bench::both().await {
        ledger(&bench, &[EDITING]).await;
        let is_postgres = !bench.settings().url.is_empty();
        let mut answered = 0;
        for sql in &blocks {
            if sql.starts_with("-- postgres") && !is_postgres {
                continue;
            }
            let answer = run(&bench, &["ledger", "sql", "--csv", sql]);
            assert_eq!((answer.code, answer.stderr.as_str()), (Some(0), ""), "{sql}");
            answered += usize::from(answer.stdout.lines().count() > 1);
        }
        assert!(answered >= 5, "only {answered} questions have an answer with rows");
    }
}
