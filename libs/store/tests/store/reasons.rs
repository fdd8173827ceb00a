//! The reasons of placements and units are codes; the prose of older versions is mapped once.

use domain::{Reason, reason::Code};
use testkit::rows;

use crate::bench::{Bench, placement, topups};

const MIGRATION: &str = include_str!("../../../pg/migrations/0034_reasons.sql");

/// Reasons as version 0.2.0 stored them: the state of the placement, the prose, and the code with its
/// detail.
const PROSE: &[(&str, &str, &str)] = &rows! {
    "parked", "bought, but its profiles do not come" => "profiles_late";
    "parked", "bought, but its profiles cannot be collected: HTTP 500" => "profiles_uncollectable: HTTP 500";
    "parked", "bought, but the provider no longer knows it" => "purchase_vanished";
    "failed", "the provider rejected it: 9001 sold out" => "rejected: 9001 sold out";
    "parked", "outcome unknown: timed out: deadline" => "outcome_unknown: timed out: deadline";
    "parked", "outcome unknown: the provider lists no such purchase, but its list does not prove that there is none" => "search_proves_nothing";
    "parked", "not bought after 50 attempts" => "outcome_unknown: not bought after 50 attempts";
    "placing", "restored from a dump: may have been bought after it" => "outcome_unknown: restored from a dump: may have been bought after it";
    "parked", "attempt 1 was bought although this placement was refused at attempt 2" => "bought_unexpectedly: attempt 1 was bought although this placement was refused at attempt 2";
    "parked", "its row cannot be read: x" => "row_unreadable: x";
    "parked", "the provider's response cannot be stored" => "response_unstorable";
    "failed", "settled by an operator as not bought" => "given_up";
    "placing", "HTTP 503" => "outcome_unknown: HTTP 503";
    "accepted", "connection refused" => "not_sent: connection refused";
    "placed", "HTTP 500" => "profiles_uncollectable: HTTP 500";
    "parked", "words of nobody: that" => "legacy: words of nobody: that";
    "parked", "sold_twice: the ICCID" => "sold_twice: the ICCID";
};

#[tokio::test]
async fn the_prose_of_older_versions_is_mapped_once_and_nothing_is_lost() {
    let bench = Bench::new().await;
    let mut stored = Vec::new();
    for (state, prose, code) in PROSE {
        let order = bench.placing(1).await;
        let id = placement(&order).uuid();
        let set = "UPDATE placements SET state = $2, reason = $3 WHERE placement_id = $1";
        let set = sqlx::query(set).bind(id).bind(state).bind(prose);
        set.execute(&bench.pool).await.unwrap();
        stored.push((id, *code));
    }
    let units = bench.placing(3).await;
    let prose = [
        "its order was refused",
        "its order was cancelled",
        "the provider says FAILED",
    ];
    for (topup, prose) in topups(&units).iter().zip(prose) {
        let set = "UPDATE topups SET state = 'failed', reason = $2 WHERE topup_id = $1";
        let set = sqlx::query(set).bind(topup.as_str()).bind(prose);
        set.execute(&bench.pool).await.unwrap();
    }
    for _ in 0..2 {
        sqlx::raw_sql(MIGRATION).execute(&bench.pool).await.unwrap();
        for (id, code) in &stored {
            let read = "SELECT reason FROM placements WHERE placement_id = $1";
            let read = sqlx::query_scalar(read).bind(id);
            let reason: String = read.fetch_one(&bench.pool).await.unwrap();
            assert_eq!(reason, *code);
            // The program reads each of them as that code.
            assert_eq!(Reason::read(&reason).to_string(), *code);
        }
    }
    let mut codes = Vec::new();
    for topup in topups(&units) {
        let read = "SELECT reason FROM topups WHERE topup_id = $1";
        let read = sqlx::query_scalar(read).bind(topup.as_str());
        let reason: String = read.fetch_one(&bench.pool).await.unwrap();
        codes.push(Reason::read(&reason).code);
    }
    assert_eq!(
        codes,
        [Code::OrderRefused, Code::OrderCancelled, Code::UnitFailed]
    );
}
