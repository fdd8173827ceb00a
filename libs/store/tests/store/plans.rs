//! The plans of all statements of `libs/store` on large tables: each statement finds its rows by an
//! index, and names a key that belongs to one partner, or is in a reviewed list.
//!
//! The statements are those of `.sqlx`. The plans are made from the statistics of `plans.sql` and
//! without `enable_seqscan = off`, so that the planner is free to choose a sequential scan where no
//! index fits.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
};

use serde_json::Value;
use sqlx::{AssertSqlSafe, PgConnection, Row};
use testkit::{database::Database, rows};

use crate::bench::execute;

/// Tables that grow with the orders.
const GROWING: [&str; 19] = [
    "orders",
    "placements",
    "topups",
    "esims",
    "esim_requests",
    "extensions",
    "deliveries",
    "delivery_attempts",
    "further_deliveries",
    "provider_references",
    "work",
    "held",
    "operator_actions",
    "archived_orders",
    "resends",
    "history",
    "refused_requests",
    "topup_changes",
    "account_entries",
];

/// Columns that name one order, or one partner.
const KEYS: [&str; 13] = [
    "partner_id",
    "order_id",
    "placement_id",
    "topup_id",
    "delivery_id",
    "id",
    "provider_unit_id",
    "iccid",
    "code_digest",
    "resend_id",
    "reference",
    "request_id",
    "extension_id",
];

/// Rows that a scan may be expected to find without a `LIMIT`.
const MANY: f64 = 2_000.0;

/// Statements that read a whole table, on purpose: a part of their text, and why.
const WALKS: [(&str, &str); 2] = rows! {
    "WITH chained AS (" => "the check of all accounts, which compares them with all units that have prices";
    "SELECT p.placement_id, p.order_id, p.state AS was, o.answer_by > $1 AS unanswered"
        => "recover: after a restore every placement is looked at, with all provisioners stopped";
};

/// Statements that read a narrow table whole, unless `enable_seqscan` is off as in the services.
const COUNTS: [(&str, &str); 6] = rows! {
    "WHERE x.state = 'parked' AND" => "the parked extensions: they are few, and so are all that are open";
    "FROM held\n           WHERE state = 'exhausted' GROUP BY" => "an operator's look at all endpoints: one pass instead of a look-up for each";
    "FROM work\n           WHERE kind = 'deliver' AND provider = '' GROUP BY" => "the same";
    "FROM (SELECT partner_id, id FROM work" => "the list of partners: up to 50,000 purchases that wait";
    "SELECT (SELECT count(*) FROM held WHERE state = 'parked') AS \"parked!\""
        => "recover: counts what waits for an operator";
    "SELECT (SELECT count(*) FROM work" => "partner erase: reads the narrow tables once, before it begins";
};

/// Statements that read a table whole while the statistics say that it is empty. A console or
/// `esimctl` runs them, and such a plan does not outlive the first statistics.
const EMPTY: [(&str, &str); 2] = rows! {
    "LEFT JOIN unnest($5::uuid[]) WITH ORDINALITY AS first" => "the list of partners, sorted by figures: with many partners it becomes a hash join";
    "WITH sent AS (\n" => "what became of the webhooks of orders that an operator looks at";
};

/// Statements that read all of a handful of rows, or compare each row with each of them.
const SMALL: [(&str, &str); 5] = rows! {
    "JOIN options o ON o.option_id = u.option_id\n           LEFT JOIN esim_requests r" => "the page of a traveller: one unit and its option";
    "LEFT JOIN partner_key_uses u ON u.key_id = k.key_id" => "the further keys of a partner, of which there are at most nine";
    "FROM operator_sessions s LEFT JOIN operators o" => "one session and the operators, who are few";
    "WHERE r.give_back = 'parked' AND" => "the parked give-backs and extensions, which are few and have indexes of their own";
    "WHERE partner_id = $1 AND give_back = 'parked')" => "partner erase: the same";
};

/// Statements that name no key. Each runs once for the whole system: a loop of a stage, a gauge, or
/// an operator's list.
const PER_SYSTEM: [(&str, &str); 57] = rows! {
    "FROM (SELECT to_char(n.at AT TIME ZONE 'UTC', 'YYYY-MM') AS month" => "an operator's report: the margin of some months";
    "AND (o.partner_id, o.order_id) < (wanted.partner_id, spans.high)"
        => "the bars of partners: each span is one range of an index, whose ends name the partner";
    "ORDER BY o.partner_id DESC, o.order_id DESC LIMIT 1) last"
        => "the list of partners: the last order of each, by one step in the index";
    "FROM (SELECT DISTINCT ON (reason) history_id" => "what is to be told of the last hour to whoever has no Prometheus";
    "AS \"noted!\"" => "once after an outage of PostgreSQL: whether another console has noted it";
    "FROM unnest($1::text[]) AS near (id)"
        => "a search that found nothing: ids that differ in one character, each by an index";
    "FROM (SELECT * FROM history\n" => "what was mended lately";
    "AND kind IN ('finding_opened', 'finding_changed', 'finding_mended')" => "what was wrong with the system lately";
    "SELECT DISTINCT ON (reason) reason AS" => "what is wrong, as it is noted";
    "WHERE state = 'no_endpoint' ORDER BY provider, at LIMIT 10000" => "the health of the system: webhooks without an address";
    "AND id < $2 AND partner_id = $1" => "a partner's page: what waits of it, in the order of the ids of a narrow table";
    "FROM (SELECT topup_id, profile FROM esims WHERE topup_id < ':' ORDER BY topup_id DESC LIMIT 1000)"
        => "start: the newest profiles check the master key";
    "WITH RECURSIVE pair (lane, partner_id, nth)" => "the looks at due work";
    "WITH ORDINALITY AS watched (kind, provider, nth)" => "the lookout: whether any row is due";
    "FROM walks WHERE name = 'placements'" => "whether there is something to sweep";
    "FROM walks WHERE name = 'deliveries'" => "whether there is something to sweep";
    "WITH RECURSIVE endpoint (lane, partner_id, nth)" => "the gauges of due deliveries";
    "WHERE created_at > $1 AND created_at <= $2 AND state" => "the sweeps";
    "UPDATE providers" => "a provider's probe needs due work";
    "SELECT known.provider AS \"provider!\"" => "the gauges of a provider";
    "WITH RECURSIVE known (lane)" => "the unsettled attempts of a provider's lanes";
    "SELECT lane AS topup_id FROM work WHERE kind = 'erase'" => "retention";
    "SELECT topup_id, placement_id, state FROM topups" => "retention";
    "SELECT delivery_id, attempt, at FROM delivery_attempts\n" => "retention";
    "SELECT extract(epoch FROM now() - (SELECT at FROM work WHERE kind = 'erase'" => "the gauges of retention";
    "SELECT action_id FROM operator_actions WHERE at" => "retention";
    "SELECT action_id FROM operator_actions WHERE operator" => "retention";
    "SELECT order_id FROM archived_orders WHERE archived_at" => "retention";
    "SELECT request_id FROM refused_requests WHERE at" => "retention";
    "SELECT history_id FROM history" => "retention";
    "SELECT request_id FROM refused_requests WHERE request_id = $1" => "an operator's search";
    "SELECT order_id FROM orders WHERE order_id > $1 AND order_id < $2" => "a run of archive";
    "FROM archived_orders WHERE order_id >= $2 AND order_id <= $3 AND archive = $1" => "a run of archive that was interrupted";
    "FROM archived_orders WHERE order_id >= $2 AND order_id < $3 AND partner_id = $1"
        => "a partner's topup: the archived orders of twenty seconds";
    "UNION SELECT order_id FROM archived_orders WHERE external_order_id = $2" => "an operator's search";
    "FROM resends WHERE ended_at IS NULL" => "the running resends, for the notifiers";
    "AND old.delivery_id IS NULL" => "retention";
    "h.via <> 'api') ORDER BY h.created_at DESC" => "an operator's list";
    "WHERE left(split_part(target, ' ', 2), 100) = ANY ($1)" => "the actions on an order, by the ids in it, and those since a page was shown";
    "SELECT at, operator, database_role, command" => "an operator's list";
    "SELECT parked.id AS" => "an operator's list";
    "SELECT placement_id, state, provider FROM placements" => "an operator's list";
    "FROM (SELECT * FROM orders WHERE order_id < $1 AND order_id >= $2 ORDER BY" => "an operator's list";
    "FROM deliveries\n           WHERE kind = 'topup.ready'\n             AND created_at >= $1" => "an operator's list";
    "WHERE state = $1 AND provider = '' AND at >= $5" => "an operator's list";
    "WHERE state = $1 AND provider = '' ORDER BY at DESC LIMIT 100" => "the tabs of an operator's list";
    "FROM unnest($1::text[]) AS asked (name)" => "the page of an order: what befell its providers and endpoints";
    "WHERE starts_with(lower(translate(external_order_id" => "an operator's search by the beginning of an id";
    "UNION ALL (SELECT order_id, 'external_order_id' FROM orders" => "an operator's search";
    "FROM (SELECT delivery_id, coalesce(endpoint_id, partner_id) AS endpoint_id" => "the health of the system: webhooks that no sweep has passed";
    "FROM (SELECT placement_id, provider, state, created_at FROM placements" => "the health of the system: purchases that no sweep has passed";
    "SELECT name AS provider, due.count" => "the health of the system: due requests about eSIMs";
    "SELECT (SELECT count(*) FROM partner_endpoints\n" => "the gauges of endpoints";
    "WHERE r.give_back = 'parked' AND" => "an operator's list";
    "WHERE r.give_back = 'claimed' AND" => "an operator's list";
    "FROM (SELECT partner_id, id FROM work" => "an operator's list";
    "FROM (SELECT partner_id FROM refused_requests WHERE at >= $1" => "an operator's list";
};

/// The same for statements that read everything, in pages.
const PAGES: [(&str, &str); 1] = rows! {
    "SELECT p.placement_id, p.order_id, p.state AS was" => "recover";
};

struct Statement {
    text: String,
    /// The names of the parameters' types.
    parameters: Vec<String>,
}

fn statements() -> Vec<Statement> {
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let files = fs::read_dir(testkit::workspace().join(".sqlx")).unwrap();
    let read = files.map(|file| {
        let described: Value =
            serde_json::from_slice(&fs::read(file.unwrap().path()).unwrap()).unwrap();
        let parameters = described["describe"]["parameters"]["Left"]
            .as_array()
            .unwrap();
        Statement {
            text: text(&described["query"]),
            parameters: parameters.iter().map(text).collect(),
        }
    });
    // LOCK TABLE has no plan.
    let mut all: Vec<_> = read.filter(|one| !one.text.starts_with("LOCK")).collect();
    all.sort_by(|one, other| one.text.cmp(&other.text));
    assert!(all.len() > 100, "only {} statements", all.len());
    all
}

/// A value that many rows are near to.
fn value(kind: &str) -> String {
    if let Some(element) = kind.strip_suffix("Array") {
        let element = value(element);
        return format!("ARRAY[{}]", vec![element; 32].join(","));
    }
    match kind {
        "Uuid" => "'01980000-0000-7000-8000-000000007530'::uuid".into(),
        "Text" => "to_char(now() - interval '100 days', 'YYYYMMDDHH24MISS')".into(),
        "Int4" | "Int8" => "100".into(),
        "Float8" => "30.0::float8".into(),
        "Bool" => "true".into(),
        "Timestamptz" => "now() - interval '1 day'".into(),
        "Bytea" => "'x'::bytea".into(),
        other => panic!("no value for the type {other}"),
    }
}

/// The plans that the services take: generic ones.
async fn plan(connection: &mut PgConnection, statement: &Statement) -> Value {
    execute(connection, &format!("PREPARE tested AS {}", statement.text)).await;
    let parameters = statement.parameters.iter().zip(1..);
    let values: Vec<String> = parameters
        .map(|(kind, number)| match kind.as_str() {
            "Text" if statement.text.contains(&format!("state = ${number}")) => {
                "'exhausted'".into()
            }
            kind => value(kind),
        })
        .collect();
    let values = if values.is_empty() {
        String::new()
    } else {
        format!("({})", values.join(","))
    };
    let explain = format!("EXPLAIN (FORMAT JSON) EXECUTE tested{values}");
    let row = sqlx::raw_sql(AssertSqlSafe(explain))
        .fetch_one(&mut *connection)
        .await;
    let row = row.unwrap_or_else(|error| panic!("{error}: {}", statement.text));
    let plan: Value = row.try_get::<Value, _>(0).unwrap();
    execute(connection, "DEALLOCATE tested").await;
    plan[0]["Plan"].clone()
}

/// What reads a growing table other than by an index: `true` if the rows that are read are bounded
/// by a `LIMIT`.
fn walks(node: &Value, limited: bool, found: &mut Vec<String>) {
    let kind = node["Node Type"].as_str().unwrap();
    let table = node["Relation Name"].as_str().unwrap_or_default();
    let bounded = limited && node["Filter"].is_null();
    if GROWING.contains(&table) {
        let rows = node["Plan Rows"].as_f64().unwrap();
        match kind {
            "Seq Scan" if !bounded => found.push(format!("reads all of {table}")),
            "Index Scan" | "Index Only Scan" if node["Index Cond"].is_null() && !bounded => {
                found.push(format!("reads all of {table} by {}", node["Index Name"]));
            }
            "Index Scan" | "Index Only Scan" | "Bitmap Heap Scan" if rows > MANY && !limited => {
                found.push(format!("reads {rows} rows of {table}"));
            }
            _ => {}
        }
    }
    for (index, child) in node["Plans"].as_array().into_iter().flatten().enumerate() {
        let passes = match kind {
            "Limit" => true,
            "LockRows" | "Subquery Scan" | "Result" => bounded,
            "Nested Loop" => limited && index == 0,
            _ => false,
        };
        let inner = matches!(
            child["Parent Relationship"].as_str(),
            Some("SubPlan" | "InitPlan")
        );
        walks(child, passes && !inner, found);
    }
}

/// The growing tables that a plan reads without naming a key.
fn keyless(node: &Value, found: &mut Vec<String>) {
    let table = node["Relation Name"].as_str().unwrap_or_default();
    let kind = node["Node Type"].as_str().unwrap();
    let condition = ["Index Cond", "Recheck Cond", "TID Cond"]
        .iter()
        .find_map(|name| node[*name].as_str())
        .unwrap_or_default();
    // PostgreSQL 18 shows the two sides of a TID condition the other way round.
    let named = |key: &str| {
        condition.contains(&format!("({key} = "))
            || condition.contains("(ctid = ")
            || condition.contains("= ctid)")
    };
    if GROWING.contains(&table) && kind.ends_with("Scan") && !KEYS.iter().any(|key| named(key)) {
        found.push(table.to_owned());
    }
    for child in node["Plans"].as_array().into_iter().flatten() {
        keyless(child, found);
    }
}

/// Statements with faults, and reviewed ones that have none any more.
fn compare(faults: &BTreeMap<String, Vec<String>>, reviewed: &[(&str, &str)]) -> Vec<String> {
    let known = |text: &str| reviewed.iter().any(|(part, _)| text.contains(part));
    let new = faults.iter().filter(|(text, _)| !known(text));
    let new = new.map(|(text, faults)| format!("{}:\n{text}\n", faults.join(", ")));
    let gone = reviewed
        .iter()
        .filter(|(part, _)| !faults.keys().any(|text| text.contains(part)));
    new.chain(gone.map(|(part, _)| format!("no statement has this fault any more: {part}")))
        .collect()
}

async fn migrated() -> (Database, PgConnection) {
    let database = Database::create().await.unwrap();
    let mut connection = database.connect().await.unwrap();
    pg::schema::migrate(&mut connection).await.unwrap();
    execute(
        &mut connection,
        "SET jit = off; SET plan_cache_mode = force_generic_plan",
    )
    .await;
    (database, connection)
}

async fn fill(connection: &mut PgConnection) {
    for sql in [include_str!("plans.sql"), "VACUUM ANALYZE"] {
        execute(connection, sql).await;
    }
}

/// Joins that compare each row of one side with each row of the other. Rows that are named one by
/// one are few.
fn squares(node: &Value, found: &mut Vec<String>) {
    let children = || node["Plans"].as_array().into_iter().flatten();
    // A subquery that runs once for the node stands before the two sides of a join.
    let sides = || children().filter(|child| child["Parent Relationship"] != "InitPlan");
    let keyless = |child: &Value| {
        let mut child = child;
        while child["Node Type"] == "Materialize" {
            child = &child["Plans"][0];
        }
        // The catalogue of the server is not ours to index, and its plans depend on the other
        // databases.
        let of_server = |name: &str| name.starts_with("pg_");
        child["Index Cond"].is_null()
            && !child["Relation Name"].as_str().is_some_and(of_server)
            && child["Node Type"] != "Limit"
            && child["Node Type"] != "Result"
    };
    let named = |child: &Value| {
        ["Index Cond", "Recheck Cond"].iter().any(|name| {
            child[*name]
                .as_str()
                .is_some_and(|text| text.contains("= ANY ("))
        })
    };
    if node["Node Type"] == "Nested Loop"
        && !node["Join Filter"].is_null()
        && !sides().next().is_some_and(named)
        && sides().nth(1).is_some_and(keyless)
    {
        found.push(format!(
            "compares each row with each: {}",
            node["Join Filter"]
        ));
    }
    for child in children() {
        squares(child, found);
    }
}

/// The tables of [`GROWING`] that are small, and usually empty.
fn narrow() -> Vec<&'static str> {
    let narrow = GROWING.into_iter();
    narrow
        .filter(|name| name.ends_with("_due") || ["work", "held"].contains(name))
        .collect()
}

/// A generic plan is kept until the next autoanalyze. It must also do when it was made for a new
/// database, or while the statistics say that nothing is due, as at the start of a backlog.
#[tokio::test]
async fn a_plan_for_empty_tables_also_serves_full_ones() {
    let (_database, mut connection) = migrated().await;
    execute(&mut connection, "SET enable_seqscan = off").await;
    let mut faults = BTreeMap::new();
    for filled in [false, true] {
        if filled {
            fill(&mut connection).await;
            for forget in [
                "UPDATE pg_class SET reltuples = 0, relpages = 1
                 WHERE oid IN (SELECT to_regclass(name) FROM unnest($1::text[]) name)
                    OR oid IN (SELECT indexrelid FROM pg_index JOIN unnest($1::text[]) name ON to_regclass(name) = indrelid)",
                "DELETE FROM pg_statistic WHERE starelid IN (SELECT to_regclass(name) FROM unnest($1::text[]) name)",
            ] {
                let forgotten = sqlx::query(forget).bind(narrow()).execute(&mut connection).await;
                assert!(forgotten.unwrap().rows_affected() > 0);
            }
        }
        for statement in statements() {
            let plan = plan(&mut connection, &statement).await;
            let mut found = Vec::new();
            walks(&plan, false, &mut found);
            squares(&plan, &mut found);
            if !found.is_empty() {
                faults.insert(format!("-- filled: {filled}\n{}", statement.text), found);
            }
        }
    }
    let reviewed = [&WALKS[..], &SMALL, &EMPTY].concat();
    let faults = compare(&faults, &reviewed);
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[tokio::test]
async fn every_statement_finds_its_rows_by_an_index_and_names_a_key() {
    let (_database, mut connection) = migrated().await;
    fill(&mut connection).await;
    let mut walking = BTreeMap::new();
    let mut without_key = BTreeMap::new();
    for statement in statements() {
        let plan = plan(&mut connection, &statement).await;
        let mut found = Vec::new();
        walks(&plan, false, &mut found);
        if !found.is_empty() {
            walking.insert(statement.text.clone(), found);
        }
        let mut found = Vec::new();
        keyless(&plan, &mut found);
        if !found.is_empty() {
            without_key.insert(statement.text, found);
        }
    }
    let walking = compare(&walking, &[&WALKS[..], &COUNTS].concat());
    assert!(walking.is_empty(), "{}", walking.join("\n"));
    let per_system = [&PER_SYSTEM[..], &PAGES, &WALKS, &COUNTS].concat();
    let without_key = compare(&without_key, &per_system);
    assert!(without_key.is_empty(), "{}", without_key.join("\n"));

    // The rules find what they are for.
    for (text, fault) in rows! {
        "SELECT count(*) FROM orders" => "reads all of orders";
        "SELECT FROM placements WHERE state = $1 ORDER BY placement_id LIMIT 10" => "reads all of placements";
        "SELECT FROM deliveries WHERE created_at > now() - interval '100 days'" => "of deliveries";
    } {
        let parameters = if text.contains('$') {
            vec!["Text".to_owned()]
        } else {
            Vec::new()
        };
        let text = text.to_owned();
        let plan = plan(&mut connection, &Statement { text, parameters }).await;
        let mut found = Vec::new();
        walks(&plan, false, &mut found);
        assert!(
            found.iter().any(|one| one.contains(fault)),
            "{fault}: {found:?}"
        );
        let mut found = Vec::new();
        keyless(&plan, &mut found);
        assert_eq!(found.len(), 1, "{fault}");
    }
}

/// What PostgreSQL starts for one order at a batch size of one: the nodes that modify or lock rows,
/// and the indexes that the modifying ones open. They are opened at the start of a statement,
/// whether or not the node changes anything, and cost more than the rows themselves.
#[tokio::test]
async fn one_order_opens_few_indexes_and_starts_few_nodes() {
    const PATH: [(&str, &str); 4] = rows! {
        "INSERT INTO orders (order_id, partner_id, external_order_id" => "stored";
        "FOR UPDATE SKIP LOCKED\n           ), claimed AS (" => "claimed";
        "INSERT INTO esims (topup_id, provider, provider_unit_id, iccid, profile, ready_at, delivery_id, code_digest)\n                   SELECT topup_id, provider, provider_unit_id, iccid, profile, now(), delivery_id, code_digest FROM unit" => "settled";
        "d.delivery_id = new.delivery_id AND d.state = 'pending' AND d.attempt = 0" => "delivered";
    };
    let (_database, mut connection) = migrated().await;
    let all = statements();
    let mut nodes = 0;
    let mut opens = 0;
    for (part, step) in PATH {
        let of_step: Vec<&Statement> = all.iter().filter(|one| one.text.contains(part)).collect();
        assert_eq!(of_step.len(), 1, "{step}");
        let plan = plan(&mut connection, of_step[0]).await;
        let mut tables = Vec::new();
        nodes += modifying(&plan, &mut tables);
        for table in tables {
            let indexes = "SELECT count(*) FROM pg_index WHERE indrelid = to_regclass($1)";
            let indexes: i64 = sqlx::query_scalar(indexes)
                .bind(table)
                .fetch_one(&mut connection)
                .await
                .unwrap();
            opens += indexes;
        }
    }
    assert!(nodes <= 10, "{nodes} nodes modify or lock");
    // 26: the unique index of activation codes keeps one eSIM from two partners.
    assert!(opens <= 26, "{opens} indexes are opened");
}

/// The tables that one order opens at a batch size of one. Each costs some 30 µs while it is cold,
/// which is more than its rows do.
#[tokio::test]
async fn one_order_opens_few_tables() {
    const PATH: [(&str, &str); 5] = rows! {
        "INSERT INTO orders (order_id, partner_id, external_order_id" => "archived_orders, orders, placements, topups";
        "FOR UPDATE SKIP LOCKED\n           ), claimed AS (" => "placements, providers";
        "profile, delivery_id, code_digest, option_id, external_order_id, traceparent,\n" => "deliveries, esims, placements";
        "AND (SELECT version FROM system) = $2" => "deliveries, esims, system";
        "d.delivery_id = new.delivery_id AND d.state = 'pending' AND d.attempt = 0" => "deliveries, partner_endpoints";
    };
    let (_database, mut connection) = migrated().await;
    let all = statements();
    for (part, expected) in PATH {
        let of_step: Vec<&Statement> = all.iter().filter(|one| one.text.contains(part)).collect();
        assert_eq!(of_step.len(), 1, "{part}");
        let plan = plan(&mut connection, of_step[0]).await;
        let mut opened = BTreeSet::new();
        tables(&plan, &mut opened);
        let opened: Vec<&str> = opened.iter().map(String::as_str).collect();
        assert_eq!(opened.join(", "), expected);
    }
}

/// Collects the tables of a plan.
fn tables(node: &Value, found: &mut BTreeSet<String>) {
    found.extend(node["Relation Name"].as_str().map(str::to_owned));
    for child in node["Plans"].as_array().into_iter().flatten() {
        tables(child, found);
    }
}

/// Counts the nodes that modify or lock rows, and collects the tables of the modifying ones.
fn modifying(node: &Value, tables: &mut Vec<String>) -> usize {
    let kind = node["Node Type"].as_str().unwrap();
    if kind == "ModifyTable" {
        tables.push(node["Relation Name"].as_str().unwrap().to_owned());
    }
    let here = usize::from(kind == "ModifyTable" || kind == "LockRows");
    let below = node["Plans"].as_array().into_iter().flatten();
    here + below.map(|child| modifying(child, tables)).sum::<usize>()
}
