//! An upgrade of a database with rows: no row and no value of it is lost. It begins with the schema
//! of each earlier version, and goes through all migrations that came after it and one more, of the
//! kind that comes next. And what earlier programs do before and after it is understood.

use desk::self_service;
use domain::{Agreed, PartnerId, TopupId};
use pg::schema::{self, LockPatience};
use serde_json::{Value, json};
use sqlx::migrate::{Migration, MigrationType, Migrator};
use sqlx::{AssertSqlSafe, Connection, PgConnection, SqlSafeStr};
use store::orders::NewOrder;

use crate::bench::{
    Bench, PROVIDER, Told, answered, bought, delivery_id, esim, execute, fresh, iccid, placement,
    ready, topups,
};
use crate::known::Known;

/// Columns of an earlier schema that a later migration has removed under `-- contract: why`.
const CONTRACTED: [&str; 0] = [];

/// What the next migration might do, with the index that it would build by another one. No real
/// column has these names.
const NEXT: [&str; 2] = [
    "-- serves: 1\nALTER TABLE orders ADD COLUMN made_up text; ALTER TABLE topups ADD COLUMN made_up bigint NOT NULL DEFAULT 0;",
    "-- no-transaction\n-- serves: 1\nCREATE INDEX CONCURRENTLY orders_made_up ON orders (made_up) WHERE made_up IS NOT NULL;",
];

async fn apply(connection: &mut PgConnection, migrations: Vec<Migration>) {
    let migrations = Migrator::with_migrations(migrations);
    schema::apply(connection, &migrations, LockPatience::default(), |_| {})
        .await
        .unwrap();
}

/// A database with the schema of an earlier version; 1 is that of the baseline.
async fn at(version: i64) -> Bench {
    let bench = Bench::empty().await;
    let known = schema::migrations().iter();
    let known = known.filter(|one| one.version <= version).cloned();
    apply(&mut *bench.connection().await, known.collect()).await;
    bench
}

/// Applies all later migrations, and those of [`NEXT`].
async fn upgrade(bench: &Bench) {
    let mut all: Vec<Migration> = schema::migrations().iter().cloned().collect();
    for (version, sql) in (schema::latest() + 1..).zip(NEXT) {
        let no_tx = sql.starts_with("-- no-transaction");
        let kind = MigrationType::Simple;
        all.push(Migration::new(
            version,
            "next".into(),
            kind,
            sql.into_sql_str(),
            no_tx,
        ));
    }
    apply(&mut *bench.connection().await, all).await;
}

/// What a query shows, as one text.
async fn shown(connection: &mut PgConnection, query: &str) -> String {
    let query =
        format!("SELECT coalesce(string_agg(x::text, ' ' ORDER BY x), '') FROM ({query}) x");
    sqlx::query_scalar(AssertSqlSafe(query))
        .fetch_one(connection)
        .await
        .unwrap()
}

async fn role(bench: &Bench, stage: &str) -> PgConnection {
    PgConnection::connect(&bench.database.url_of(stage).unwrap())
        .await
        .unwrap()
}

/// A column of a table, and a value for it that depends on `n`.
struct Column {
    table: String,
    name: String,
    value: Option<&'static str>,
}

impl Column {
    fn path(&self) -> String {
        format!("{}.{}", self.table, self.name)
    }

    /// A value that the constraints of the table allow.
    fn value_of(table: &str, name: &str, kind: &str) -> &'static str {
        match (table, name) {
            ("partners" | "options", "environment") => "'live'",
            ("partner_endpoints", "endpoint_id") => "md5('endpoint ' || n)::uuid",
            ("system", "singleton") => "true",
            ("pulses", "host") => "'fra-' || n",
            ("pulses", "nats_refused") => "'publish TOPUP_READY'",
            ("operators" | "operator_sessions", "role") => "'viewer'",
            ("operators", "name") => "'operator' || n",
            // A deposit, and the charge of an extension.
            ("account_entries", "kind") => "CASE n WHEN 1 THEN 'deposit' ELSE 'charge' END",
            ("account_entries", "amount") => "CASE n WHEN 1 THEN 5 ELSE -5 END",
            ("account_entries", "released") => "CASE n WHEN 1 THEN 0 ELSE 5 END",
            ("account_entries", "reference") => "CASE n WHEN 1 THEN 'text' END",
            ("account_entries", "topup_id") => "CASE n WHEN 2 THEN 'text' END",
            ("account_entries", "extension_id") => "CASE n WHEN 2 THEN md5('id')::uuid END",
            _ => match kind {
                "uuid" => "md5('id ' || n)::uuid",
                "text" => "'text ' || n",
                "boolean" => "n = 1",
                "timestamp with time zone" => "timestamptz '2026-01-01' + make_interval(days => n)",
                "bytea" => "convert_to('bytes ' || n, 'UTF8')",
                "jsonb" => "jsonb_build_object('n', n)",
                "text[]" => "ARRAY['text ' || n]",
                "bigint[]" => "ARRAY[n::bigint]",
                "bytea[]" => "ARRAY[convert_to('bytes ' || n, 'UTF8')]",
                "timestamp with time zone[]" => "ARRAY[timestamptz '2026-01-01']",
                "xid8" => "n::text::xid8",
                "integer" | "bigint" | "smallint" | "double precision" => "n",
                other => panic!("no value for {table}.{name}, which is {other}"),
            },
        }
    }
}

/// The columns of all tables in the order of their names.
async fn columns(connection: &mut PgConnection) -> Vec<Column> {
    let query = "SELECT c.relname::text, a.attname::text, format_type(a.atttypid, a.atttypmod), a.attgenerated = ''
                 FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid
                 WHERE c.relkind = 'r' AND c.relnamespace = 'public'::regnamespace AND c.relname NOT LIKE '\\_%'
                   AND a.attnum > 0 AND NOT a.attisdropped
                 ORDER BY 1, 2";
    let found: Vec<(String, String, String, bool)> =
        sqlx::query_as(query).fetch_all(connection).await.unwrap();
    let columns = found.into_iter().map(|(table, name, kind, is_written)| {
        let value = is_written.then(|| Column::value_of(&table, &name, &kind));
        Column { table, name, value }
    });
    columns.collect()
}

/// The values of a column, sorted.
async fn values(connection: &mut PgConnection, column: &Column) -> String {
    let query = format!(r#"SELECT "{}"::text FROM "{}""#, column.name, column.table);
    shown(connection, &query).await
}

/// Values in every column of every table: each of them is there afterwards, in the same place.
#[tokio::test]
async fn an_upgrade_of_each_earlier_schema_loses_no_row_and_no_value() {
    for version in 1..schema::latest() {
        loses_nothing(at(version).await).await;
    }
}

/// The values of rows that are not there any more. A migration may add rows.
fn lost<'a>(before: &'a str, now: &str) -> Vec<&'a str> {
    let mut now: Vec<&str> = now
        .split(") (")
        .map(|one| one.trim_matches(['(', ')']))
        .collect();
    let is_lost = |row: &&str| match now.iter().position(|one| one == row) {
        Some(place) => {
            now.swap_remove(place);
            false
        }
        None => true,
    };
    let rows = before.split(") (").map(|one| one.trim_matches(['(', ')']));
    rows.filter(is_lost).collect()
}

async fn loses_nothing(bench: Bench) {
    let mut owner = bench.connection().await;
    let before = columns(&mut owner).await;
    // The rows name nothing that is there, which triggers would refuse.
    execute(&mut owner, "SET session_replication_role = replica").await;
    for of_table in before.chunk_by(|one, next| one.table == next.table) {
        let written = of_table.iter().filter_map(|one| Some((one, one.value?)));
        let names: Vec<String> = written
            .clone()
            .map(|one| format!(r#""{}""#, one.0.name))
            .collect();
        let values: Vec<&str> = written.map(|one| one.1).collect();
        let insert = format!(
            r#"INSERT INTO "{}" ({}) SELECT {} FROM generate_series(1, 2) n ON CONFLICT DO NOTHING"#,
            of_table[0].table,
            names.join(", "),
            values.join(", ")
        );
        execute(&mut owner, &insert).await;
    }
    let mut stored = Vec::new();
    for column in before {
        let found = values(&mut owner, &column).await;
        assert!(!found.is_empty(), "{} has no row", column.path());
        stored.push((column, found));
    }
    execute(&mut owner, "RESET session_replication_role").await;
    upgrade(&bench).await;
    let now: Vec<String> = columns(&mut owner).await.iter().map(Column::path).collect();
    assert!(now.iter().any(|path| path == "topups.made_up"), "{now:?}");
    let mut gone = Vec::new();
    for (column, found) in stored {
        let path = column.path();
        if now.contains(&path) {
            let now = values(&mut owner, &column).await;
            assert_eq!(lost(&found, &now), Vec::<&str>::new(), "{path}: {now}");
        } else {
            gone.push(path);
        }
    }
    assert_eq!(gone, CONTRACTED);
    // Partners read it of each option, and no constraint says that it is there.
    let without_time = "SELECT count(*) FROM options WHERE updated_at IS NULL";
    assert_eq!(shown(&mut owner, without_time).await, "(0)");
    let index = "SELECT indisvalid FROM pg_index WHERE indexrelid = 'orders_made_up'::regclass";
    assert_eq!(shown(&mut owner, index).await, "(t)");
}

/// What the order agrees about its only unit.
fn agreed(order: &NewOrder) -> &Agreed {
    &order.placements[0].topups[0].agreed
}

/// What programs of schemas 1 and 2 read of a placement that they claim first.
fn first_claim_before(order: &NewOrder) -> Value {
    let topup = &order.placements[0].topups[0];
    let option = agreed(order).option_id;
    json!({
        "order": order.external_order_id, "ms": 0,
        "units": [[topup.topup_id, option, topup.provider_option_id]],
    })
}

/// An order of one unit, in the rows in which programs of schemas 1 and 2 store it.
async fn ordered_before(ingress: &mut PgConnection, partner: PartnerId) -> NewOrder {
    let order = answered(partner, 1);
    let order_id = order.order_id;
    let external = &order.external_order_id;
    let placement = placement(&order);
    let topup = &topups(&order)[0];
    let option = agreed(&order).option_id;
    let first_claim = first_claim_before(&order);
    let rows = format!(
        "INSERT INTO orders (order_id, partner_id, external_order_id, answer_by)
         VALUES ('{order_id}', '{partner}', '{external}', now());
         INSERT INTO placements (placement_id, order_id, partner_id, provider, lane, first_claim)
         VALUES ('{placement}', '{order_id}', '{partner}', '{PROVIDER}', 'lane', '{first_claim}');
         INSERT INTO topups (topup_id, placement_id, position, option_id, provider_option_id)
         VALUES ('{topup}', '{placement}', 0, '{option}', 'option-0');"
    );
    execute(ingress, &rows).await;
    order
}

/// Buys an order of one unit as programs of schemas 1 and 2 do: claims it and settles it.
async fn bought_before(provisioner: &mut PgConnection, order: &NewOrder) {
    let order_id = order.order_id;
    let external = &order.external_order_id;
    let placement = placement(order);
    let topup = &topups(order)[0];
    let delivery = delivery_id(topup);
    let iccid = iccid(topup);
    let iccid = iccid.as_str();
    let partner = order.partner_id;
    let option = agreed(order).option_id;
    let rows = format!(
        "UPDATE placements SET state = 'placing', attempt = 1, attempted_at = now() WHERE placement_id = '{placement}';
         UPDATE placements SET state = 'placed', placed_at = now(), first_claim = NULL WHERE placement_id = '{placement}';
         INSERT INTO esims (topup_id, provider, provider_unit_id, iccid, profile, ready_at, delivery_id)
         VALUES ('{topup}', '{PROVIDER}', '{topup}', '{iccid}', 'sealed', now(), '{delivery}');
         INSERT INTO deliveries (delivery_id, partner_id, topup_id, order_id, option_id, external_order_id, ordered_at)
         VALUES ('{delivery}', '{partner}', '{topup}', '{order_id}', '{option}', '{external}', now());"
    );
    execute(provisioner, &rows).await;
}

/// Orders of before an upgrade, and those that programs of before store beside newer ones, are
/// bought, sent and told as they were agreed. These programs also buy what a newer one has stored.
#[tokio::test]
async fn orders_of_earlier_schemas_are_bought_delivered_and_told_after_the_upgrade() {
    // Those whose programs know no terms.
    for version in [1, 2] {
        let bench = at(version).await;
        let partner = bench.partner(Some("https://partner.example/hook")).await;
        let mut owner = bench.connection().await;
        let accepted = ordered_before(&mut owner, partner).await;
        let sent = ordered_before(&mut owner, partner).await;
        bought_before(&mut owner, &sent).await;
        if version == 2 {
            let report = format!(
                "SELECT report_of_esim('{PROVIDER}', '{}', NULL, 'N1', 'it says something')",
                topups(&sent)[0]
            );
            assert_eq!(shown(&mut owner, &report).await, "(t)");
        }
        schema::migrate(&mut owner).await.unwrap();

        let mut ingress = role(&bench, "ingress").await;
        let mut provisioner = role(&bench, "provisioner").await;
        let accepted_beside = ordered_before(&mut ingress, partner).await;
        let sent_beside = ordered_before(&mut ingress, partner).await;
        bought_before(&mut provisioner, &sent_beside).await;
        let newer = NewOrder {
            answering: None,
            ..answered(partner, 1)
        };
        let newer = bench.stored(newer).await;
        let first_claim = "SELECT first_claim FROM placements WHERE placement_id::text = $1";
        let first_claim: String = bench.value(first_claim, placement(&newer)).await;
        let first_claim: Value = serde_json::from_str(&first_claim).unwrap();
        assert_eq!(first_claim, first_claim_before(&newer));
        bought_before(&mut provisioner, &newer).await;

        for order in [&accepted, &accepted_beside] {
            let id = placement(order);
            let claimed = bench.claim(&[id]).await;
            assert_eq!(claimed[0].topups[0].agreed, agreed(order).stored());
            let purchase = bought(id, 1, vec![ready(&topups(order)[0])], true);
            assert!(bench.settle(&[fresh(order, purchase)]).await[0].moved);
        }
        let orders = [&accepted, &accepted_beside, &sent, &sent_beside, &newer];
        let units: Vec<TopupId> = orders.iter().flat_map(|order| topups(order)).collect();
        let read = bench.read_all(&units).await;
        let known = Known::of(&read).unwrap();
        assert_eq!(bench.known(&units, &known).await.len(), orders.len());
        for order in orders {
            let topup = &topups(order)[0];
            let mut deliveries = read.deliveries.iter();
            let delivery = deliveries.find(|one| one.id == delivery_id(topup));
            assert_eq!(&esim(delivery.unwrap()).agreed, agreed(order));
            let unit = self_service::unit(&mut owner, partner, topup).await;
            let unit = unit.told(&mut owner).await.unwrap();
            assert_eq!(&unit.agreed, agreed(order));
        }
        let asked = bench.claim_requests().await;
        assert_eq!(
            asked.iter().filter(|one| one.usage_asked).count(),
            usize::from(version == 2)
        );
    }
}

/// The provisioner can neither hide deliveries from their sweep nor end the erasing of data.
#[tokio::test]
async fn a_stage_moves_its_own_walks_only() {
    let bench = Bench::new().await;
    for (stage, own) in [
        ("provisioner", "(placements)"),
        (
            "notifier",
            "(accounts) (archived) (attempts) (audit) (changes) (deliveries) (orders) (profiles) (refusals)",
        ),
    ] {
        let mut connection = role(&bench, stage).await;
        let moved = "UPDATE walks SET up_to = now() RETURNING name";
        let mut names: Vec<String> = sqlx::query_scalar(moved)
            .fetch_all(&mut connection)
            .await
            .unwrap();
        names.sort_unstable();
        assert_eq!(format!("({})", names.join(") (")), own, "{stage}");
    }
}
