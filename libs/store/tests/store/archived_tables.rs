//! Which tables an archive holds.

use tools::archive;

use crate::bench::Bench;

/// Tables with a column that leads to an order, and why an archive leaves them out.
const LEFT_OUT: [(&str, &str); 6] = testkit::rows! {
    "account_entries" => "An account keeps all of its entries, also those of orders that are archived.";
    "esim_requests" => "Only finished requests are left then, and a unit that was given back is marked in `esims`.";
    "extensions" => "They stay in the database, so that their external ids stay taken.";
    "provider_references" => "Triggers of `placements` delete its rows.";
    "resends" => "They say that webhooks were sent again, and end by the term of attempts.";
    "archived_orders" => "It is what remains of an archived order.";
};

/// A new table about orders must be archived, too, or be left out for a reason.
#[tokio::test]
async fn each_table_of_an_order_is_archived_or_left_out_for_a_reason() {
    let bench = Bench::new().await;
    let missing = async || {
        let sql = "SELECT DISTINCT c.table_name::text FROM information_schema.columns c
                   JOIN information_schema.tables t USING (table_schema, table_name)
                   WHERE c.table_schema = 'public' AND t.table_type = 'BASE TABLE'
                     AND c.column_name IN ('order_id', 'placement_id', 'topup_id', 'delivery_id') ORDER BY 1";
        let mut tables: Vec<String> = sqlx::query_scalar(sql)
            .fetch_all(&bench.pool)
            .await
            .unwrap();
        tables.retain(|name| {
            let is_archived =
                name == "orders" || archive::TABLES.iter().any(|table| table.name == name);
            !is_archived && !LEFT_OUT.iter().any(|(left_out, _)| left_out == name)
        });
        tables
    };
    assert_eq!(missing().await, Vec::<String>::new());
    bench.sql("CREATE TABLE notes (order_id uuid)").await;
    assert_eq!(missing().await, ["notes"]);
}
