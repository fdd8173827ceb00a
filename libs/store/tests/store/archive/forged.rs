//! Files of an archive that no archive run has written. Whoever can write into the folder of archives
//! must not be able to have an order bought.

use super::*;

/// Archives one delivered order, and returns what was copied.
async fn archived(bench: &Bench) -> (Archive, Copied) {
    let partner = bench.partner(Some("https://partner.example/")).await;
    let order = bench.delivered(partner, "o-1", 500).await;
    let mut archive = bench.ripe(10).await;
    let copied = bench
        .moved(&mut archive, std::slice::from_ref(&order))
        .await;
    (archive, copied)
}

/// The same copy with another text in the rows of one table.
fn changed(copied: &Copied, table: &str, from: &str, to: &str) -> Copied {
    let mut copied = copied.clone();
    for part in copied.parts.iter_mut().filter(|part| part.table == table) {
        let text = String::from_utf8(part.csv.clone()).unwrap();
        assert!(text.contains(from), "{table} has no {from}: {text}");
        part.csv = text.replacen(from, to, 1).into_bytes();
    }
    copied
}

/// The rows of a table, without those of other tables.
fn without(copied: &Copied, table: &str) -> Copied {
    let mut copied = copied.clone();
    for part in copied.parts.iter_mut().filter(|part| part.table == table) {
        let end = part.csv.iter().position(|byte| *byte == b'\n').unwrap();
        part.csv.truncate(end + 1);
    }
    copied
}

#[tokio::test]
async fn an_order_that_is_not_finished_is_not_restored() {
    let bench = Bench::keeping_everything().await;
    let (archive, copied) = archived(&bench).await;
    let year = format!("{}-", runtime::clock::now().year());
    for (what, forged) in [
        (
            "a purchase that waits",
            changed(&copied, "placements", ",placed,", ",accepted,"),
        ),
        (
            "a purchase under way",
            changed(&copied, "placements", ",placed,", ",placing,"),
        ),
        (
            "a parked purchase",
            changed(&copied, "placements", ",placed,", ",parked,"),
        ),
        (
            "a purchase that waits, without units",
            without(
                &without(
                    &changed(&copied, "placements", ",placed,", ",accepted,"),
                    "topups",
                ),
                "esims",
            ),
        ),
        ("a unit without its eSIM", without(&copied, "esims")),
        (
            "a webhook that waits",
            changed(&copied, "deliveries", ",delivered,", ",pending,"),
        ),
        (
            "an order that is being answered",
            changed(&copied, "orders", &format!(",{year}"), ",2999-"),
        ),
    ] {
        // Rows that hang in the air are refused for another reason, which is as good.
        let refused = bench.restored(&archive, &forged).await;
        assert!(
            matches!(
                refused,
                Err(NotRestored::NotFinished(_) | NotRestored::ForeignRows(_))
            ),
            "{what}: {refused:?}"
        );
        assert_eq!(bench.count_of("orders").await, 0, "{what}");
        assert_eq!(bench.count_of("placements").await, 0, "{what}");
    }
    bench.restored(&archive, &copied).await.unwrap();
}

#[tokio::test]
async fn rows_of_other_orders_are_not_restored() {
    let bench = Bench::keeping_everything().await;
    let (archive, copied) = archived(&bench).await;
    let victim = bench.stored(answered(PartnerId::new(), 1)).await;
    let own = copied.orders[0].to_string();
    // The column of the order, which is not restored, says `own` still.
    let forged = changed(
        &copied,
        "placements",
        &format!(",{own}"),
        &format!(",{}", victim.order_id),
    );
    let refused = bench.restored(&archive, &forged).await;
    assert!(
        matches!(refused, Err(NotRestored::ForeignRows("placements"))),
        "{refused:?}"
    );
}

#[tokio::test]
async fn files_that_the_database_has_not_recorded_need_a_word_of_the_operator() {
    let bench = Bench::keeping_everything().await;
    let (archive, copied) = archived(&bench).await;
    let parts: Vec<Part> = copied.parts.iter().map(without_order).collect();
    bench
        .sql("UPDATE archives SET manifest_sha256 = 'sum', completed_at = now()")
        .await;
    let mut connection = bench.connection().await;
    for (number, sum) in [(archive.archive, "other"), (archive.archive + 1, "sum")] {
        let mut transaction = connection.begin().await.unwrap();
        let unknown = Source {
            archive: number,
            manifest_sha256: sum,
            unrecorded: false,
        };
        let refused = archive::restore(&mut transaction, unknown, &copied.orders, &parts).await;
        assert!(
            matches!(refused, Err(NotRestored::Unrecorded(named)) if named == number),
            "{refused:?}"
        );
        let vouched = Source {
            unrecorded: true,
            ..unknown
        };
        archive::restore(&mut transaction, vouched, &copied.orders, &parts)
            .await
            .unwrap();
        let restored: i64 = sqlx::query_scalar("SELECT sum(restored)::bigint FROM archives")
            .fetch_one(&mut *transaction)
            .await
            .unwrap();
        assert_eq!(restored, 0, "it counts for an archive that is not its own");
        transaction.rollback().await.unwrap();
    }
}
