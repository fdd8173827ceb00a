//! Changes that partners make themselves are recorded apart from the actions of operators, and end
//! earlier.

use desk::{
    operator::retention_terms,
    retention::{self, DataClass},
};
use pg::actions;

use crate::bench::{Bench, applied};

/// A thousand pauses of a partner stood for ever in the record of operators, before their own
/// actions.
#[tokio::test]
async fn changes_of_partners_have_a_room_of_their_own() {
    let bench = Bench::new().await;
    let step = async |class| {
        let step = retention::step(&mut *bench.connection().await, class, 1_000).await;
        step.unwrap().erased
    };
    let keep = async |class, days| {
        retention_terms::set(&mut *bench.connection().await, class, days, applied())
            .await
            .unwrap();
    };
    let record = "INSERT INTO operator_actions (action_id, at, operator, command, target, affected, reason)
                  SELECT gen_random_uuid(), now() - make_interval(days => $1), $2, 'endpoint pause', 'partner 1', 1, ''
                  FROM generate_series(1, 60)";
    for days in [1, 100, 400] {
        for operator in ["ana", "partner"] {
            let insert = sqlx::query(record).bind(days).bind(operator);
            insert
                .execute(&mut *bench.connection().await)
                .await
                .unwrap();
        }
    }
    let list = async |operator: Option<&str>| {
        let filter = actions::ActionFilter {
            operator,
            ..actions::ActionFilter::default()
        };
        let listed = actions::list(&mut *bench.connection().await, &filter, 1_000).await;
        let listed = listed.unwrap();
        let is = |name: &str| listed.iter().filter(|one| one.operator == name).count();
        (is("ana"), is("partner"))
    };
    assert_eq!(list(None).await, (180, 0));
    assert_eq!(list(Some("ana")).await, (180, 0));
    assert_eq!(list(Some("partner")).await, (0, 180));
    assert_eq!(step(DataClass::Changes).await, 120);
    assert_eq!(list(None).await, (180, 0));
    assert_eq!(list(Some("partner")).await, (0, 60));
    // They do not outlive the record of operators, either.
    keep(DataClass::Changes, None).await;
    bench
        .sql("UPDATE operator_actions SET at = at - interval '400 days'")
        .await;
    keep(DataClass::Audit, Some(365)).await;
    step(DataClass::Audit).await;
    assert_eq!(list(Some("partner")).await, (0, 0));
}
