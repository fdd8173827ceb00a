//! What somebody can do who has stolen the database role of one program, and nothing else: no
//! master key, no other role. Each test logs in as that role.

use std::collections::{BTreeMap, BTreeSet};

use accounts::profile::Profile;
use desk::self_service::{self, WebhookPosition};
use domain::{ActivationCode, DeliveryId, PartnerId, TopupId, WebhookId, event::EventKind};
use pg::schema::{self, DatabaseRole, ROLES};
use sqlx::{AssertSqlSafe, Connection, PgConnection};
use store::deliveries::{self, DeliveryClaim, DeliveryContent};
use store::{esim_requests, extensions};
use testkit::rows;
use time::OffsetDateTime;
use uuid::Uuid;

use crate::{
    bench::{
        Bench, LEASE, PROVIDER, VAULT, bought, delivery_id, execute, order, placement, ready,
        topups,
    },
    further::READY,
};

/// The page whose table this module reads.
const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/security.md");

/// A connection as somebody with the password of a role has it.
pub async fn connect(bench: &Bench, stage: &str) -> PgConnection {
    PgConnection::connect(&bench.database.url_of(stage).unwrap())
        .await
        .unwrap()
}

/// The SQLSTATE of a statement that fails; `None` if it is done. Nothing stays of it.
async fn refusal(connection: &mut PgConnection, statement: &str) -> Option<String> {
    let mut transaction = connection.begin().await.unwrap();
    let done = sqlx::raw_sql(AssertSqlSafe(statement))
        .execute(&mut *transaction)
        .await;
    transaction.rollback().await.unwrap();
    let error = done.err()?;
    let refused = error.as_database_error();
    let refused = refused.unwrap_or_else(|| panic!("{statement}: {error}"));
    Some(refused.code().unwrap().into_owned())
}

/// What each role can do, by the words of the table in `docs/security.md`: each part between two
/// semicolons with statements that do it.
type Claims = &'static [(&'static str, &'static [&'static str])];

const CAN: [(&str, Claims); 5] = rows! {
    "ingress" => &[
        ("read partners' keys, profiles, and the URLs, secrets and headers of endpoints, of which only the URLs are not sealed",
         &["SELECT secret_key, profile, url, secrets, headers FROM partners, esims, partner_endpoints"]),
        ("store orders in the name of any partner",
         &["INSERT INTO orders (order_id, partner_id, external_order_id, answer_by) VALUES (gen_random_uuid(), gen_random_uuid(), 'x', now())",
           "INSERT INTO placements (placement_id, order_id, partner_id, provider, lane) VALUES (gen_random_uuid(), gen_random_uuid(), gen_random_uuid(), '', '')"]),
        ("refuse or cancel an order of which nothing is bought or may be", &["SELECT refuse_order(gen_random_uuid(), true)"]),
        ("replace a partner's keys", &["UPDATE partners SET access_key = partner_id::text, secret_key = ''",
           "UPDATE partner_keys SET rights = '{order}', networks = '{}', units_per_day = NULL", "DELETE FROM partner_keys"]),
        ("redirect webhooks, and add, pause and delete endpoints",
         &["UPDATE partner_endpoints SET url = 'https://attacker.example/', blocked_until = 'infinity'", "DELETE FROM partner_endpoints"]),
        ("send webhooks again and invent events",
         &["INSERT INTO resends (resend_id, partner_id, since, until, phase) VALUES (gen_random_uuid(), gen_random_uuid(), now(), now(), 'sending')",
           "INSERT INTO deliveries (delivery_id, partner_id, kind) VALUES (gen_random_uuid(), gen_random_uuid(), 'webhook.test')"]),
        ("put off webhooks, and mark one as delivered that was not sent",
         &["UPDATE work SET at = '9999-01-01'", "UPDATE deliveries SET state = 'delivered'"]),
        ("ask for the give-back or the extension of any eSIM",
         &["INSERT INTO esim_requests (topup_id, partner_id, provider, give_back) SELECT 'a', gen_random_uuid(), '', 'asked'",
           "INSERT INTO extensions (extension_id, partner_id, topup_id, provider, external_id, option_id, provider_option_id)
            VALUES (gen_random_uuid(), gen_random_uuid(), 'a', '', 'x', gen_random_uuid(), 'x')"]),
        ("say what an order costs, and how much of an account is held", &["UPDATE accounts SET held = 0"]),
        ("record changes in the name of partners",
         &["INSERT INTO operator_actions (action_id, operator, command, target, affected, reason, via)
            VALUES (gen_random_uuid(), 'partner', 'x', 'x', 0, '', 'api')"]),
        ("delete what is stored of refused requests", &["DELETE FROM refused_requests"]),
        ("stop all buying", &["SELECT commits_lost(gen_random_uuid(), 1, NULL)"]),
    ];
    "provisioner" => &[
        ("read and write sealed profiles, and erase them", &["SELECT profile FROM esims", "UPDATE esims SET profile = NULL"]),
        ("have a placement bought again or give it up, and fail a unit, which its partner is told",
         &["UPDATE placements SET state = 'accepted'", "UPDATE placements SET state = 'failed'", "UPDATE topups SET state = 'failed'"]),
        ("name the provider and its product",
         &["UPDATE placements SET provider = 'x', lane = 'x'", "UPDATE topups SET provider_option_id = 'x'"]),
        ("give eSIMs back and extend them",
         &["UPDATE esim_requests SET give_back = 'returned'", "SELECT mark_returned('a')", "UPDATE extensions SET state = 'added'"]),
        ("create deliveries, in which it names an order and an option",
         &["INSERT INTO deliveries (delivery_id, partner_id, order_id, option_id, external_order_id)
            VALUES (gen_random_uuid(), gen_random_uuid(), gen_random_uuid(), gen_random_uuid(), 'x')"]),
        ("open and close breakers", &["UPDATE providers SET open_until = NULL"]),
        ("stop all buying", &["SELECT commits_lost(gen_random_uuid(), 1, NULL)"]),
    ];
    "notifier" => &[
        ("read profiles, and the URLs, secrets and headers of endpoints, of which only the URLs are not sealed",
         &["SELECT profile, url, secrets, headers FROM esims, partner_endpoints"]),
        ("create and delete deliveries, and record any result of them",
         &["INSERT INTO deliveries (delivery_id, partner_id, kind) VALUES (gen_random_uuid(), gen_random_uuid(), 'topup.ready')",
           "DELETE FROM deliveries", "UPDATE deliveries SET state = 'delivered'"]),
        ("put off or delete its own work", &["UPDATE work SET at = '9999-01-01'", "DELETE FROM work", "DELETE FROM held"]),
        ("block, pause and resume endpoints, and say which code verifies a channel",
         &["UPDATE partner_endpoints SET blocked_until = 'infinity', paused_by_partner = true, code_digest = ''"]),
        ("erase profiles, attempts and the operators' record",
         &["UPDATE esims SET profile = NULL", "DELETE FROM delivery_attempts", "DELETE FROM operator_actions", "DELETE FROM history"]),
        ("hide what the comparison of accounts has found", &["UPDATE walks SET result = NULL"]),
        ("stop all buying", &["SELECT commits_lost(gen_random_uuid(), 1, NULL)"]),
    ];
    "console" => &[
        ("read orders with sealed profiles, and partners with sealed keys, secrets and headers",
         &["SELECT profile, secret_key, secrets, headers FROM esims, partners, partner_endpoints, orders"]),
        ("open sessions and set passwords, so an attacker in it acts as anybody at the console",
         &["INSERT INTO operator_sessions (token_digest, operator_id, source, ends_at) VALUES ('', gen_random_uuid(), '', now())",
           "UPDATE operators SET password = ''"]),
        ("record actions of the console in the name of somebody who has an account or a session",
         &["INSERT INTO operator_actions (action_id, operator, command, target, affected, reason, via)
            VALUES (gen_random_uuid(), 'ana', 'x', 'x', 0, '', 'console')"]),
        ("resolve parked placements, extensions and give-backs, which erases the profile of an eSIM that its provider has back",
         &["SELECT resolve_placement(gen_random_uuid(), 'retry', NULL, NULL)", "SELECT resolve_give_back('a', 1, true)",
           "SELECT resolve_extension(gen_random_uuid(), 1, true)"]),
        ("put off, make due or delete work", &["UPDATE work SET at = '9999-01-01'", "DELETE FROM work", "DELETE FROM held"]),
        ("mark a webhook as delivered that was not sent", &["UPDATE deliveries SET state = 'delivered'"]),
        ("send webhooks again and send tests",
         &["INSERT INTO resends (resend_id, partner_id, since, until, phase, asked_by, via)
            VALUES (gen_random_uuid(), gen_random_uuid(), now(), now(), 'sending', 'ana', 'console')",
           "INSERT INTO deliveries (delivery_id, partner_id, kind) VALUES (gen_random_uuid(), gen_random_uuid(), 'webhook.test')"]),
        ("ask for the give-back of any eSIM", &["UPDATE esim_requests SET give_back = 'asked'"]),
        ("open and close breakers", &["UPDATE providers SET open_until = NULL"]),
        ("choose which of its providers an option is bought at first", &["SELECT route_option(gen_random_uuid(), '', '[]')"]),
        ("disable and enable a partner, change its limits, and lock it out of its account by other keys",
         &["UPDATE partners SET disabled_at = NULL, max_in_flight = 1, secret_key = ''", "DELETE FROM partner_keys"]),
        ("redirect webhooks, pause and resume endpoints", &["UPDATE partner_endpoints SET url = 'https://attacker.example/', blocked_until = NULL"]),
        ("book payments and corrections, and set what a partner may owe",
         &["SELECT book_entry(gen_random_uuid(), 'EUR', 'deposit', 1, 'x', 'x', 'x')", "UPDATE accounts SET credit_limit = NULL"]),
        ("stop all buying", &["SELECT commits_lost(gen_random_uuid(), 1, NULL)"]),
    ];
    "operator" => &[
        ("change partners, endpoints, options, terms and due work",
         &["UPDATE partners SET name = ''", "UPDATE partner_endpoints SET url = 'https://attacker.example/'", "UPDATE options SET enabled = true",
           "UPDATE walks SET days = 1", "DELETE FROM work"]),
        ("resolve what is parked and enter profiles, so it can move any placement and any delivery",
         &["SELECT resolve_placement(gen_random_uuid(), 'bought', NULL, NULL)", "UPDATE placements SET state = 'placed'",
           "UPDATE deliveries SET state = 'delivered'"]),
        ("set prices and credit limits, and book deposits and corrections of any account",
         &["UPDATE prices SET amount = 0", "UPDATE accounts SET credit_limit = NULL", "UPDATE partners SET price_list = NULL"]),
        ("erase orders and partners", &["UPDATE esims SET profile = NULL", "UPDATE orders SET erased_at = now()", "DELETE FROM deliveries"]),
        ("create accounts for the console and give them roles",
         &["INSERT INTO operators (operator_id, name, role) VALUES (gen_random_uuid(), 'x', 'operator')", "UPDATE operators SET role = 'operator'"]),
        ("record actions of `esimctl` under any name",
         &["INSERT INTO operator_actions (action_id, operator, command, target, affected, reason, via)
            VALUES (gen_random_uuid(), 'anybody', 'x', 'x', 0, '', 'esimctl')"]),
    ];
};

const CANNOT: [(&str, Claims); 5] = rows! {
    "ingress" => &[
        ("move a placement, fail a unit or free the external id of an order that is bought or may be",
         &["UPDATE placements SET state = 'refused'", "UPDATE topups SET state = 'failed'", "UPDATE orders SET refused_at = now()",
           "UPDATE placements SET attempt = 0", "INSERT INTO placements (placement_id, state) VALUES (gen_random_uuid(), 'placed')",
           "DELETE FROM orders"]),
        ("see or change the work of the provisioner",
         &["INSERT INTO work VALUES (gen_random_uuid(), 'buy', 'sandbox', '', gen_random_uuid(), now())", "DELETE FROM work",
           "UPDATE providers SET open_until = NULL"]),
        ("change an option, an eSIM, or a partner's name, environment and limits",
         &["UPDATE extensions SET state = 'added'", "UPDATE options SET provider_option_id = 'cheap'", "UPDATE esims SET profile = ''", "UPDATE esims SET iccid = '1'",
           "UPDATE partners SET name = ''", "UPDATE partners SET environment = 'live'", "UPDATE partners SET max_in_flight = NULL",
           "UPDATE partners SET signed_body_required = false", "UPDATE partners SET disabled_at = NULL",
           "INSERT INTO partners (partner_id) VALUES (gen_random_uuid())"]),
        ("book an entry, or change a price, a limit or a balance of an account",
         &["INSERT INTO account_entries (partner_id, currency, number, kind, amount, balance, made_by, at)
            VALUES (gen_random_uuid(), 'EUR', 1, 'deposit', 1, 1, 'x', now())",
           "SELECT book_entry(gen_random_uuid(), 'EUR', 'deposit', 1, 'x', 'x', 'x')", "UPDATE accounts SET posted = 1",
           "UPDATE accounts SET credit_limit = NULL", "UPDATE prices SET amount = 0", "UPDATE partners SET price_list = NULL"]),
        ("move a delivery or an endpoint to another partner, or verify a channel without its code",
         &["UPDATE deliveries SET partner_id = gen_random_uuid()", "UPDATE deliveries SET kind = 'key.expiring'",
           "INSERT INTO deliveries (topup_id) VALUES ('a')", "UPDATE partner_endpoints SET partner_id = gen_random_uuid()",
           "UPDATE partner_endpoints SET verified_at = now()", "DELETE FROM further_deliveries"]),
        ("record anything in an operator's name, at another time or for another role, or delete a record",
         &["INSERT INTO operator_actions (action_id, operator, command, target, affected, reason, via)
            VALUES (gen_random_uuid(), 'ana', 'x', 'x', 0, '', 'console')",
           "INSERT INTO operator_actions (action_id, operator, command, target, affected, reason, via)
            VALUES (gen_random_uuid(), 'partner', 'x', 'x', 0, '', 'esimctl')",
           "INSERT INTO operator_actions (action_id, operator, command, target, affected, reason, via, at)
            VALUES (gen_random_uuid(), 'partner', 'x', 'x', 0, '', 'api', '2020-01-01')",
           "INSERT INTO operator_actions (action_id, operator, command, target, affected, reason, via, database_role)
            VALUES (gen_random_uuid(), 'partner', 'x', 'x', 0, '', 'api', 'esim_operator')",
           "INSERT INTO resends (resend_id, partner_id, since, until, phase, asked_by, via)
            VALUES (gen_random_uuid(), gen_random_uuid(), now(), now(), 'sending', 'ana', 'console')",
           "INSERT INTO history (kind) VALUES ('resolved')", "UPDATE operator_actions SET reason = ''", "DELETE FROM operator_actions",
           "DELETE FROM delivery_attempts"]),
    ];
    "provisioner" => &[
        ("read a partner, its keys or its endpoints",
         &["SELECT partner_id FROM partners", "SELECT url FROM partner_endpoints", "SELECT response_start FROM delivery_attempts"]),
        ("store or refuse an order",
         &["INSERT INTO orders (order_id) VALUES (gen_random_uuid())", "INSERT INTO placements (placement_id) VALUES (gen_random_uuid())",
           "UPDATE orders SET refused_at = now()", "SELECT refuse_order(gen_random_uuid(), true)"]),
        ("change what a partner has ordered, or a partner, an endpoint or an option",
         &["UPDATE extensions SET option_id = gen_random_uuid()", "SELECT resolve_extension(gen_random_uuid(), 1, true)",
           "UPDATE topups SET option_id = gen_random_uuid()", "UPDATE topups SET terms = '{}'",
           "UPDATE topups SET placement_id = gen_random_uuid()",
           "UPDATE placements SET partner_id = gen_random_uuid()", "UPDATE options SET enabled = false",
           "UPDATE partner_endpoints SET url = 'https://attacker.example/'", "DELETE FROM esims"]),
        ("book an entry, or change a price, a limit or a balance of an account",
         &["INSERT INTO account_entries (partner_id, currency, number, kind, amount, balance, made_by, at)
            VALUES (gen_random_uuid(), 'EUR', 1, 'deposit', 1, 1, 'x', now())",
           "SELECT book_entry(gen_random_uuid(), 'EUR', 'deposit', 1, 'x', 'x', 'x')", "UPDATE accounts SET posted = 1",
           "UPDATE accounts SET credit_limit = NULL", "UPDATE prices SET amount = 0", "UPDATE partners SET price_list = NULL"]),
        ("create an event",
         &["INSERT INTO deliveries (delivery_id, partner_id, kind) VALUES (gen_random_uuid(), gen_random_uuid(), 'topup.failed')",
           "SELECT make_events('topup.failed', 'a')", "SELECT tell_of_use('a', 'topup.failed', NULL, NULL)"]),
        ("see, change or delete a delivery or the work of the notifier",
         &["SELECT state FROM deliveries", "UPDATE deliveries SET state = 'delivered'", "DELETE FROM deliveries",
           "INSERT INTO work VALUES (gen_random_uuid(), 'resend', '', '', gen_random_uuid(), now())"]),
        ("record anything in an operator's name",
         &["INSERT INTO operator_actions (action_id, operator, command, target, affected, reason)
            VALUES (gen_random_uuid(), 'ana', 'x', 'x', 0, '')",
           "INSERT INTO history (kind) VALUES ('resolved')", "INSERT INTO history (kind, at) VALUES ('parked', '2020-01-01')"]),
    ];
    "notifier" => &[
        ("read request keys",
         &["SELECT secret_key FROM partners", "SELECT old_secret_key FROM partners", "SELECT access_key FROM partners", "SELECT * FROM partners"]),
        ("change a URL, a secret or a partner, or verify a channel",
         &["UPDATE partner_endpoints SET url = 'https://attacker.example/'", "UPDATE partner_endpoints SET secrets = '{}'",
           "UPDATE partner_endpoints SET verified_at = now()", "DELETE FROM partner_endpoints",
           "INSERT INTO partner_endpoints (endpoint_id) VALUES (gen_random_uuid())", "UPDATE partners SET name = ''",
           // Granted for FOR SHARE only: the trigger of partners refuses it.
           "UPDATE partners SET created_at = now()"]),
        ("store, refuse or buy an order",
         &["INSERT INTO orders (order_id) VALUES (gen_random_uuid())", "INSERT INTO placements (placement_id) VALUES (gen_random_uuid())",
           "UPDATE orders SET refused_at = now()", "SELECT refuse_order(gen_random_uuid(), true)"]),
        ("change a placement, a unit, an ICCID or the work of the provisioner",
         &["UPDATE placements SET state = 'accepted'", "UPDATE topups SET state = 'failed'", "UPDATE esims SET iccid = '1'",
           "UPDATE extensions SET state = 'added'", "SELECT resolve_extension(gen_random_uuid(), 1, true)",
           "UPDATE walks SET days = 1", "INSERT INTO work VALUES (gen_random_uuid(), 'buy', 'sandbox', '', gen_random_uuid(), now())"]),
        ("book an entry, or change a price, a limit or a balance of an account",
         &["INSERT INTO account_entries (partner_id, currency, number, kind, amount, balance, made_by, at)
            VALUES (gen_random_uuid(), 'EUR', 1, 'deposit', 1, 1, 'x', now())",
           "SELECT book_entry(gen_random_uuid(), 'EUR', 'deposit', 1, 'x', 'x', 'x')", "UPDATE accounts SET posted = 1",
           "UPDATE accounts SET credit_limit = NULL", "UPDATE prices SET amount = 0", "UPDATE partners SET price_list = NULL"]),
        ("move a delivery to another partner", &["UPDATE deliveries SET partner_id = gen_random_uuid()",
           "UPDATE deliveries SET endpoint_id = gen_random_uuid()"]),
        ("record anything in an operator's name",
         &["INSERT INTO operator_actions (action_id, operator, command, target, affected, reason)
            VALUES (gen_random_uuid(), 'ana', 'x', 'x', 0, '')",
           "INSERT INTO history (kind) VALUES ('resolved')",
           "INSERT INTO resends (resend_id, since, until, phase, asked_by) VALUES (gen_random_uuid(), now(), now(), 'sending', 'ana')"]),
    ];
    "console" => &[
        ("move a placement or a unit that is not parked",
         &["UPDATE placements SET state = 'accepted'", "UPDATE placements SET attempt = 0", "UPDATE placements SET disputed = false",
           "UPDATE topups SET state = 'failed'", "UPDATE topups SET provider_option_id = 'x'"]),
        ("store or refuse an order",
         &["INSERT INTO orders (order_id) VALUES (gen_random_uuid())", "UPDATE orders SET refused_at = now()",
           "SELECT refuse_order(gen_random_uuid(), true)"]),
        ("change anything else of an option, a term, an eSIM, or anything else of a partner",
         &["UPDATE options SET enabled = true", "UPDATE options SET provider_option_id = 'x'",
           "UPDATE options SET alternatives = '[]'", "UPDATE walks SET days = 1", "UPDATE esims SET profile = NULL", "SELECT mark_returned('a')",
           "UPDATE partners SET environment = 'live'", "UPDATE partners SET name = ''", "UPDATE partner_keys SET rights = '{order}'",
           "UPDATE partner_endpoints SET partner_id = gen_random_uuid()", "UPDATE partner_endpoints SET verified_at = now()",
           "UPDATE partner_endpoints SET told = NULL", "UPDATE providers SET name = 'another'", "UPDATE esim_requests SET attempt = 0",
           "UPDATE extensions SET state = 'added'"]),
        ("change a price, an entry, or a balance without an entry",
         &["INSERT INTO account_entries (partner_id, currency, number, kind, amount, balance, made_by, at)
            VALUES (gen_random_uuid(), 'EUR', 1, 'deposit', 1, 1, 'x', now())", "UPDATE accounts SET posted = 1",
           "UPDATE prices SET amount = 0", "UPDATE partners SET price_list = NULL"]),
        ("create work or a wait for another partner",
         &["UPDATE work SET partner_id = gen_random_uuid()", "UPDATE held SET state = 'parked'",
           "INSERT INTO held (id, state, provider, partner_id) VALUES (gen_random_uuid(), 'parked', '', gen_random_uuid())"]),
        ("create an account, give one another role, or prolong a session",
         &["INSERT INTO operators (operator_id) VALUES (gen_random_uuid())", "DELETE FROM operators", "UPDATE operators SET role = 'operator'",
           "UPDATE operators SET disabled_at = NULL", "UPDATE operator_sessions SET ends_at = 'infinity'",
           "UPDATE operator_sessions SET role = 'operator'"]),
        ("record for anybody else, for `esimctl` or a partner, at another time or for another role, or change a record",
         &["INSERT INTO operator_actions (action_id, operator, command, target, affected, reason, via)
            VALUES (gen_random_uuid(), 'nobody', 'x', 'x', 0, '', 'console')",
           "INSERT INTO operator_actions (action_id, operator, command, target, affected, reason, via)
            VALUES (gen_random_uuid(), 'ana', 'x', 'x', 0, '', 'esimctl')",
           "INSERT INTO operator_actions (action_id, operator, command, target, affected, reason, via)
            VALUES (gen_random_uuid(), 'partner', 'x', 'x', 0, '', 'api')",
           "INSERT INTO operator_actions (action_id, operator, command, target, affected, reason, via, at)
            VALUES (gen_random_uuid(), 'ana', 'x', 'x', 0, '', 'console', '2020-01-01')",
           "INSERT INTO operator_actions (action_id, operator, command, target, affected, reason, via, database_role)
            VALUES (gen_random_uuid(), 'ana', 'x', 'x', 0, '', 'console', 'esim_operator')",
           "INSERT INTO history (kind, at) VALUES ('resolved', '2020-01-01')", "UPDATE operator_actions SET reason = ''",
           "DELETE FROM operator_actions", "DELETE FROM delivery_attempts"]),
    ];
    "operator" => &[
        ("read a profile", &["SELECT profile FROM esims"]),
        ("store an order or change how often one was bought",
         &["INSERT INTO orders (order_id) VALUES (gen_random_uuid())", "UPDATE placements SET attempt = 0",
           "UPDATE topups SET state = 'failed'", "UPDATE orders SET refused_at = now()"]),
        ("read the token of a session or open one",
         &["SELECT token_digest FROM operator_sessions", "INSERT INTO operator_sessions (operator_id) VALUES (gen_random_uuid())"]),
        ("record for the console or a partner, at another time or for another role, or change or delete a record",
         &["INSERT INTO operator_actions (action_id, operator, command, target, affected, reason, via)
            VALUES (gen_random_uuid(), 'ana', 'x', 'x', 0, '', 'console')",
           "INSERT INTO operator_actions (action_id, operator, command, target, affected, reason, via)
            VALUES (gen_random_uuid(), 'partner', 'x', 'x', 0, '', 'esimctl')",
           "INSERT INTO operator_actions (action_id, operator, command, target, affected, reason, via, at)
            VALUES (gen_random_uuid(), 'ana', 'x', 'x', 0, '', 'esimctl', '2020-01-01')",
           "INSERT INTO operator_actions (action_id, operator, command, target, affected, reason, via, database_role)
            VALUES (gen_random_uuid(), 'ana', 'x', 'x', 0, '', 'esimctl', 'esim_console')",
           "UPDATE operator_actions SET reason = ''", "DELETE FROM operator_actions", "DELETE FROM partners"]),
    ];
};

/// What no role may do, whatever the table says.
const NOBODY: [&str; 9] = [
    "CREATE TABLE mine ()",
    "DROP TABLE orders",
    "ALTER TABLE work DISABLE ROW LEVEL SECURITY",
    "CREATE FUNCTION mine() RETURNS int LANGUAGE sql AS 'SELECT 1'",
    "DELETE FROM _sqlx_migrations",
    "COPY partners TO PROGRAM 'cat'",
    "SELECT next_version_of_row()",
    "UPDATE account_entries SET amount = 0",
    "DELETE FROM account_entries",
];

/// The cells of the table in `docs/security.md`, by stage.
fn table() -> BTreeMap<String, Vec<String>> {
    let page = std::fs::read_to_string(PAGE).unwrap();
    let rows = page.lines().skip_while(|line| {
        !line.starts_with("| stage | holds keys for | its database role can | and can't |")
    });
    let rows = rows.skip(2).take_while(|line| line.starts_with('|'));
    rows.map(|row| {
        let mut cells = row
            .trim_matches('|')
            .split(" | ")
            .map(|cell| cell.trim().to_owned());
        (cells.next().unwrap(), cells.collect())
    })
    .collect()
}

fn claims(cell: &str) -> BTreeSet<&str> {
    cell.split("; ").collect()
}

/// Each claim of the table is tried with the role that it is about, and each claim that is tried
/// stands in the table.
#[tokio::test]
async fn the_table_of_stolen_roles_is_right_in_each_claim() {
    let bench = Bench::new().await;
    bench.partner(Some("https://partner.example/")).await;
    bench
        .sql("INSERT INTO operators (operator_id, name, role) VALUES (gen_random_uuid(), 'ana', 'viewer')")
        .await;
    let table = table();
    assert_eq!(table.len(), 6, "one row for each role and the owner");
    for (column, tried) in [(1, CAN), (2, CANNOT)] {
        for (stage, tried) in tried {
            let said = claims(&table[stage][column]);
            let tried_claims: BTreeSet<&str> = tried.iter().map(|(claim, _)| *claim).collect();
            assert_eq!(said, tried_claims, "{stage}, column {column}");
            let mut connection = connect(&bench, stage).await;
            let expected = (column == 2).then(|| "42501".to_owned());
            for (claim, statements) in tried {
                assert!(!statements.is_empty(), "{claim}");
                for statement in *statements {
                    let refused = refusal(&mut connection, statement).await;
                    assert_eq!(refused, expected, "{stage}: {claim}: {statement}");
                }
            }
        }
    }
    for role in ROLES {
        let mut connection = connect(&bench, role.of).await;
        for statement in NOBODY {
            let refused = refusal(&mut connection, statement).await;
            assert_eq!(
                refused.as_deref(),
                Some("42501"),
                "{}: {statement}",
                role.of
            );
        }
    }
}

/// What the promise says of two orders, of which one is being bought and the other one is ready.
/// Each statement finds what was done to them.
const BROKEN: &str = "SELECT unnest(ARRAY[
    CASE WHEN EXISTS (SELECT FROM placements WHERE state = 'accepted') THEN 'bought again' END,
    CASE WHEN EXISTS (SELECT FROM placements WHERE state IN ('failed', 'refused')) THEN 'given up' END,
    CASE WHEN EXISTS (SELECT FROM orders WHERE refused_at IS NOT NULL OR external_order_id NOT IN ('one', 'two'))
         THEN 'its id is free' END,
    CASE WHEN EXISTS (SELECT FROM topups WHERE state <> 'pending') THEN 'told as failed' END,
    CASE WHEN EXISTS (SELECT FROM deliveries WHERE state <> 'pending') THEN 'not sent' END,
    CASE WHEN EXISTS (SELECT FROM esims WHERE profile IS NULL) THEN 'profile lost' END,
    CASE WHEN (SELECT count(*) FROM orders) + (SELECT count(*) FROM placements) + (SELECT count(*) FROM topups)
              + (SELECT count(*) FROM esims) + (SELECT count(*) FROM deliveries) < 8 THEN 'lost' END])";

/// The only columns by which a role can break the promise, with how it does so. Each of them is
/// what the program is for, and the table in `docs/security.md` says it.
const BREAK: [(&str, &[&str]); 5] = rows! {
    "ingress" => &["UPDATE deliveries.state: not sent"];
    "provisioner" => &[
        "UPDATE esims.profile: profile lost", "UPDATE placements.state: bought again", "UPDATE placements.state: given up",
        "UPDATE topups.state: told as failed",
    ];
    "notifier" => &[
        "DELETE deliveries: lost", "UPDATE deliveries.state: not sent", "UPDATE esims.profile: profile lost",
    ];
    "operator" => &[
        "DELETE deliveries: lost", "UPDATE deliveries.state: not sent", "UPDATE esims.profile: profile lost",
        "UPDATE placements.state: bought again", "UPDATE placements.state: given up",
    ];
    "console" => &["UPDATE deliveries.state: not sent"];
};

/// Values that somebody might write into a column.
fn hostile(table: &str, column: &str, kind: &str) -> Vec<String> {
    let known: &[&str] = match (table, column) {
        ("placements", "state") => &[
            "accepted", "placing", "placed", "parked", "failed", "refused",
        ],
        ("topups", "state") => &["pending", "failed"],
        ("deliveries", "state") => &["pending", "delivered", "exhausted", "no_endpoint"],
        ("extensions", "state") => &["asked", "sending", "added", "refused", "parked"],
        ("esim_requests", "give_back") => &["asked", "sending", "returned", "refused", "parked"],
        _ => &[],
    };
    let of_kind: &[&str] = match kind {
        "text" => &["'x'", "''"],
        "uuid" => &["gen_random_uuid()"],
        "timestamptz" => &[
            "now()",
            "'0001-01-01 00:00:00+00'",
            "'9999-12-31 00:00:00+00'",
            "'-infinity'",
        ],
        "int4" | "int8" => &["0", "1000"],
        "bool" => &["true", "false"],
        "bytea" => &["''"],
        "jsonb" => &["'{}'", "'[]'"],
        "_text" | "_bytea" => &["'{}'"],
        _ => &[],
    };
    let known = known.iter().map(|state| format!("'{state}'"));
    let of_kind = of_kind.iter().map(|&value| value.to_owned());
    known.chain(of_kind).chain(["NULL".to_owned()]).collect()
}

/// The statements that change rows, for which a role has a privilege, each with what it is about.
async fn changes(connection: &mut PgConnection, role: DatabaseRole) -> Vec<(String, String)> {
    let mut found = Vec::new();
    for privilege in role.privileges() {
        if privilege.function || !["UPDATE", "DELETE"].contains(&privilege.verb) {
            continue;
        }
        let table = privilege.object;
        if privilege.verb == "DELETE" {
            found.push((format!("DELETE {table}"), format!("DELETE FROM {table}")));
            continue;
        }
        let columns: Vec<(String, String)> = sqlx::query_as(
            "SELECT attname::text, typname::text FROM pg_attribute JOIN pg_type t ON t.oid = atttypid
             WHERE attrelid = $1::regclass AND attnum > 0 AND NOT attisdropped AND attgenerated = ''
               AND ($2::text IS NULL OR attname = $2)",
        )
        .bind(table)
        .bind(privilege.column)
        .fetch_all(&mut *connection)
        .await
        .unwrap();
        assert!(!columns.is_empty(), "{privilege}");
        for (column, kind) in columns {
            for value in hostile(table, &column, &kind) {
                found.push((
                    format!("UPDATE {table}.{column}"),
                    format!("UPDATE {table} SET {column} = {value}"),
                ));
            }
        }
    }
    found
}

/// Each column of each privilege is tried: an order that may be bought is neither bought again nor
/// given up nor told as failed, its external id stays taken, and what is ready is kept and sent,
/// but for what the table says.
#[tokio::test]
async fn no_role_breaks_the_promise_by_a_column_that_it_may_change() {
    let bench = Bench::new().await;
    let partner = bench.partner(Some("https://partner.example/")).await;
    for (external, is_bought) in [("one", false), ("two", true)] {
        let mut new = order(partner, 1);
        new.external_order_id = external.to_owned();
        let new = bench.stored(new).await;
        bench.claim(&[placement(&new)]).await;
        if is_bought {
            let unit = ready(&topups(&new)[0]);
            bench
                .settle(&[bought(placement(&new), 1, vec![unit], false)])
                .await;
        }
    }
    let mut owner = bench.connection().await;
    let broken = async |connection: &mut PgConnection| {
        let found = sqlx::query_scalar::<_, Option<String>>(BROKEN);
        let found = found.fetch_all(connection).await.unwrap();
        found.into_iter().flatten().collect::<Vec<String>>()
    };
    assert_eq!(broken(&mut owner).await, Vec::<String>::new());
    for role in ROLES {
        let mut breaks = BTreeSet::new();
        let mut done = 0;
        for (what, statement) in changes(&mut owner, role).await {
            let mut transaction = owner.begin().await.unwrap();
            // Like a login of the role, but the owner can look at what came of it.
            let login = format!("SET LOCAL SESSION AUTHORIZATION {}", role.name);
            execute(&mut transaction, &login).await;
            let tried = sqlx::raw_sql(AssertSqlSafe(statement)).execute(&mut *transaction);
            if tried.await.is_ok() {
                done += 1;
                execute(&mut transaction, "RESET SESSION AUTHORIZATION").await;
                for how in broken(&mut transaction).await {
                    breaks.insert(format!("{what}: {how}"));
                }
            }
            transaction.rollback().await.unwrap();
        }
        assert!(done > 30, "{}: only {done} changes were possible", role.of);
        let expected = BREAK.iter().find(|(stage, _)| *stage == role.of).unwrap().1;
        let found: Vec<&str> = breaks.iter().map(String::as_str).collect();
        assert_eq!(found, expected, "{}", role.of);
    }
}

/// A ready unit of a partner, whose profile opens.
async fn ready_unit(bench: &Bench, partner: PartnerId) -> TopupId {
    let topup = bench.deliveries(partner, 1, true).await.remove(0);
    let profile = Profile {
        code: ActivationCode::new("smdp.example.com", "A1-B2").unwrap(),
        expired_date: "2026-12-31".into(),
    };
    let sealed = profile.seal(&VAULT, partner, &topup).unwrap().sealed;
    sqlx::query("UPDATE esims SET profile = $2 WHERE topup_id = $1")
        .bind(topup.as_str())
        .bind(sealed)
        .execute(&bench.pool)
        .await
        .unwrap();
    topup
}

/// Whether the notifier could send the code of a claimed delivery to where it goes.
fn could_be_sent(delivery: &deliveries::ClaimedDelivery) -> bool {
    match &delivery.content {
        DeliveryContent::Esim(esim) => {
            delivery.target.url.is_some()
                && Profile::open(&VAULT, delivery.partner_id, &esim.topup_id, &esim.profile).is_ok()
        }
        DeliveryContent::Event(_) => false,
    }
}

/// Inserts a webhook of a topup to an endpoint of a partner, which names the order of another
/// topup. The kind is the default, because the provisioner may name none.
async fn forge(
    bench: &Bench,
    stage: &str,
    (column, value): (&str, &str),
    partner: PartnerId,
    (topup, of_order): (&TopupId, &TopupId),
) -> DeliveryId {
    let order: Uuid = bench
        .value(
            "SELECT p.order_id FROM topups t JOIN placements p USING (placement_id) WHERE t.topup_id = $1",
            of_order,
        )
        .await;
    let id = DeliveryId::new();
    let insert = format!(
        "INSERT INTO deliveries (delivery_id, partner_id, topup_id, order_id, external_order_id, ordered_at, {column})
         VALUES ('{id}', '{partner}', '{topup}', '{order}', 'forged', now(), {value})"
    );
    execute(&mut connect(bench, stage).await, &insert).await;
    id
}

/// The role of the provisioner, or of the notifier, inserts a delivery of somebody else's unit to
/// an endpoint of its own. The honest notifier reads it, and does not send the profile.
#[tokio::test]
async fn a_forged_delivery_sends_no_profile_of_somebody_else() {
    let bench = Bench::new().await;
    let victim = bench.partner(Some("https://victim.example/")).await;
    let thief = bench.partner(Some("https://thief.example/")).await;
    bench
        .set(
            "INSERT INTO partner_endpoints (endpoint_id, partner_id, nth, purpose, url, events, created_at)
             SELECT gen_random_uuid(), $1::uuid, 1, 'webhooks', 'https://thief.example/2', '{topup.ready}', now()",
            thief,
        )
        .await;
    let topup = ready_unit(&bench, victim).await;
    let own = bench.deliveries(thief, 1, true).await.remove(0);
    let endpoint: Uuid = bench
        .value(
            "SELECT endpoint_id FROM partner_endpoints WHERE nth = 1 AND partner_id::text = $1",
            thief,
        )
        .await;
    let further = format!("'{endpoint}'");
    let mut forged: Vec<DeliveryId> = Vec::new();
    for (stage, columns, partner, names) in [
        (
            "provisioner",
            ("option_id", "gen_random_uuid()"),
            thief,
            &topup,
        ),
        (
            "provisioner",
            ("option_id", "gen_random_uuid()"),
            thief,
            &own,
        ),
        ("notifier", ("endpoint_id", "NULL"), thief, &topup),
        ("notifier", ("endpoint_id", "NULL"), thief, &own),
        ("notifier", ("endpoint_id", &further), victim, &topup),
        ("notifier", ("endpoint_id", &further), thief, &own),
    ] {
        forged.push(forge(&bench, stage, columns, partner, (&topup, names)).await);
    }
    // Its webhook is the one that the eSIM names, too.
    let named = format!(
        "UPDATE esims SET delivery_id = '{}' WHERE topup_id = '{topup}'",
        forged[0]
    );
    execute(&mut connect(&bench, "provisioner").await, &named).await;

    let mut connection = bench.connection().await;
    let younger_than = LEASE;
    let known = deliveries::claim(
        &mut connection,
        &forged,
        DeliveryClaim::Fresh { younger_than },
    )
    .await
    .unwrap();
    let target = known
        .targets
        .iter()
        .find(|(endpoint, ..)| endpoint.uuid() == thief.uuid());
    let version: i64 = sqlx::query_scalar("SELECT version FROM system")
        .fetch_one(&mut *connection)
        .await
        .unwrap();
    let any = bench.deliveries(thief, 1, true).await.remove(0);
    let learned = deliveries::claim(
        &mut connection,
        &[delivery_id(&any)],
        DeliveryClaim::Fresh { younger_than },
    )
    .await
    .unwrap();
    let learned = std::sync::Arc::clone(&learned.deliveries[0].target);
    assert!(target.is_none_or(|(_, target, _)| target.url == learned.url));
    let lean = deliveries::claim_known(
        &mut connection,
        &forged,
        younger_than,
        version,
        |endpoint, _| (endpoint.uuid() == thief.uuid()).then(|| std::sync::Arc::clone(&learned)),
    );
    let lean = lean.await.unwrap();
    assert!(!lean.is_empty(), "the lean claim reads none of them");
    for delivery in known.deliveries.iter().chain(&lean) {
        assert!(!could_be_sent(delivery), "{delivery:?}");
    }
    // The victim's own webhook is sent.
    let own = deliveries::claim(
        &mut connection,
        &[delivery_id(&topup)],
        DeliveryClaim::Fresh { younger_than },
    )
    .await
    .unwrap();
    assert!(could_be_sent(&own.deliveries[0]));
}

/// An event about somebody else's unit is not sent, whatever its kind is and whichever order it
/// names, and whoever listens is not shown it. What it says is true: the unit has failed.
#[tokio::test]
async fn a_forged_event_tells_nobody_of_somebody_elses_unit() {
    let bench = Bench::new().await;
    let victim = bench.partner(Some("https://victim.example/")).await;
    let thief = bench.partner(Some("https://thief.example/")).await;
    bench.set_events(thief, &EventKind::choices()).await;
    let topup = bench.deliveries(victim, 1, false).await.remove(0);
    let own = bench.deliveries(thief, 1, false).await.remove(0);
    bench
        .sql(
            "UPDATE orders SET answer_by = now();
             UPDATE esims SET ready_at = NULL;
             ALTER TABLE topups DISABLE TRIGGER topup_failed;
             UPDATE topups SET state = 'failed'",
        )
        .await;
    let mut connection = bench.connection().await;
    for (about, of_order, is_sent) in [
        (&topup, &own, false),
        (&topup, &topup, false),
        (&own, &topup, false),
        (&own, &own, true),
    ] {
        for kind in EventKind::choices() {
            // These are not true: the unit has failed, the order was not cancelled, and nobody has
            // extended it.
            let is_true = !matches!(
                kind,
                EventKind::TopupOnHold
                    | EventKind::OrderCancelled
                    | EventKind::ExtensionReady
                    | EventKind::ExtensionFailed
            );
            let is_sent = is_sent && is_true;
            let id = DeliveryId::new();
            let forge = format!(
                "INSERT INTO deliveries (delivery_id, partner_id, kind, topup_id, order_id, created_at, credential, ends_at, notice)
                 SELECT '{id}', '{thief}', '{kind}', '{about}', p.order_id, now() - interval '2 s', 'keys', now(),
                        CASE '{kind}'
                            WHEN 'order.cancelled' THEN jsonb '{{\"units\": 1}}'
                            WHEN 'options.changed' THEN jsonb '{{\"added\": [], \"removed\": [], \"changed\": [], \"repriced\": [],
                                                               \"total\": 1}}'
                            WHEN 'balance.low' THEN jsonb '{{\"currency\": \"EUR\", \"available\": 1, \"threshold\": 2,
                                                           \"as_of\": \"2026-01-01T00:00:00Z\", \"last_entry\": 0}}'
                        END
                 FROM topups t JOIN placements p USING (placement_id) WHERE t.topup_id = '{of_order}';
                 INSERT INTO work (id, kind, provider, lane, partner_id, at)
                 VALUES ('{id}', 'deliver', '', '', '{thief}', now())",
                kind = kind.as_str()
            );
            execute(&mut connect(&bench, "notifier").await, &forge).await;
            let start = WebhookPosition {
                at: OffsetDateTime::UNIX_EPOCH,
                webhook_id: String::new(),
            };
            let shown = self_service::webhooks(&mut connection, thief, &start, 100).await;
            let shown = shown.unwrap().after_flush(&mut connection).await.unwrap();
            let shown = shown.iter().find(|one| one.id == WebhookId::Event(id));
            assert_eq!(shown.unwrap().content.is_some(), is_sent, "{kind:?}");
            // A forged message cannot have it sent before its time.
            for (claim, is_sent) in [
                (
                    DeliveryClaim::Fresh {
                        younger_than: LEASE,
                    },
                    false,
                ),
                (DeliveryClaim::Due { lease: LEASE }, is_sent),
            ] {
                let claimed = deliveries::claim(&mut connection, &[id], claim).await;
                let claimed = claimed.unwrap().deliveries.len();
                assert_eq!(claimed, usize::from(is_sent), "{kind:?} by {claim:?}");
            }
        }
    }
}

/// A link from a topup to a webhook about another topup, or of another partner, does not commit.
#[tokio::test]
async fn a_link_leads_from_a_topup_to_its_own_webhooks_only() {
    let bench = Bench::new().await;
    let victim = bench.partner(Some("https://victim.example/")).await;
    let thief = bench.partner(Some("https://thief.example/")).await;
    let of_victim = bench.deliveries(victim, 1, true).await.remove(0);
    let of_thief = bench.deliveries(thief, 1, true).await.remove(0);
    let endpoint = bench.further(thief, "further", READY).await;
    let to_thief = format!("'{}'", endpoint.id);
    let to_thief = ("endpoint_id", to_thief.as_str());
    let forged = forge(&bench, "notifier", to_thief, thief, (&of_victim, &of_thief)).await;
    let mut notifier = connect(&bench, "notifier").await;
    for (topup, delivery) in [
        (&of_thief, delivery_id(&of_victim)),
        // It goes to the first endpoint.
        (&of_victim, delivery_id(&of_victim)),
        (&of_victim, DeliveryId::new()),
        (&of_victim, forged),
    ] {
        let link = format!("INSERT INTO further_deliveries VALUES ('{topup}', '{delivery}')");
        let linked = sqlx::raw_sql(AssertSqlSafe(link))
            .execute(&mut notifier)
            .await;
        let error = linked.unwrap_err();
        assert_eq!(
            error.as_database_error().unwrap().code().unwrap(),
            "23514",
            "{topup} {delivery}"
        );
    }
}

/// A request that names another provider or partner than its eSIM has asks nobody.
#[tokio::test]
async fn a_request_asks_the_provider_of_its_esim_only() {
    let bench = Bench::new().await;
    let partner = bench.partner(Some("https://partner.example/")).await;
    let other = bench.partner(Some("https://other.example/")).await;
    for (provider, by, is_asked) in [
        (PROVIDER, partner, true),
        ("another", partner, false),
        (PROVIDER, other, false),
    ] {
        let topup = bench.deliveries(partner, 1, true).await.remove(0);
        let ask = format!(
            "INSERT INTO esim_requests (topup_id, partner_id, provider, give_back, give_back_asked_at)
             VALUES ('{topup}', '{by}', '{provider}', 'asked', now());
             INSERT INTO work (id, kind, provider, lane, partner_id, at)
             VALUES (md5('give_back {topup}')::uuid, 'give_back', '{provider}', '{topup}', '{by}', now())"
        );
        execute(&mut connect(&bench, "ingress").await, &ask).await;
        let id: Uuid = bench
            .value(
                "SELECT id FROM work WHERE kind = 'give_back' AND lane = $1",
                &topup,
            )
            .await;
        let mut connection = bench.connection().await;
        let claimed = esim_requests::claim(
            &mut connection,
            provider,
            &[id],
            LEASE,
            esim_requests::RequestClaim::Due,
        )
        .await
        .unwrap();
        assert_eq!(claimed.len(), usize::from(is_asked), "{provider}");
        let state: String = bench
            .value(
                "SELECT give_back FROM esim_requests WHERE topup_id = $1",
                &topup,
            )
            .await;
        assert_eq!(state, if is_asked { "asked" } else { "refused" });
    }
}

/// The same for an extension.
#[tokio::test]
async fn an_extension_is_bought_at_the_provider_of_its_esim_for_its_partner_only() {
    let bench = Bench::new().await;
    let partner = bench.partner(Some("https://partner.example/")).await;
    let other = bench.partner(Some("https://other.example/")).await;
    for (provider, by, is_bought) in [
        (PROVIDER, partner, true),
        ("another", partner, false),
        (PROVIDER, other, false),
    ] {
        let topup = bench.deliveries(partner, 1, true).await.remove(0);
        let ask = format!(
            "INSERT INTO extensions (extension_id, partner_id, topup_id, provider, external_id, option_id, provider_option_id)
             VALUES (gen_random_uuid(), '{by}', '{topup}', '{provider}', '{topup}', gen_random_uuid(), 'eu-5');
             INSERT INTO work (id, kind, provider, lane, partner_id, at)
             VALUES (derived_id('extend', '{topup}'), 'extend', '{provider}', '{topup}', '{by}', now())"
        );
        execute(&mut connect(&bench, "ingress").await, &ask).await;
        let id = "SELECT id FROM work WHERE kind = 'extend' AND lane = $1";
        let id: Uuid = bench.value(id, &topup).await;
        let mut connection = bench.connection().await;
        let claim = esim_requests::RequestClaim::Due;
        let claimed = extensions::claim(&mut connection, provider, &[id], LEASE, claim).await;
        assert_eq!(claimed.unwrap().len(), usize::from(is_bought), "{provider}");
        let state = "SELECT state FROM extensions WHERE topup_id = $1";
        let state: String = bench.value(state, &topup).await;
        assert_eq!(state, if is_bought { "asked" } else { "refused" });
    }
}

/// What somebody has set for a stolen role (`ALTER ROLE`) ends with the next migration, although a
/// new password does not end it.
#[tokio::test]
async fn the_settings_of_a_stolen_role_end_with_the_next_migration() {
    let bench = Bench::new().await;
    let role = ROLES.into_iter().find(|role| role.of == "ingress").unwrap();
    let mut thief = connect(&bench, "ingress").await;
    let database: String = sqlx::query_scalar("SELECT current_database()")
        .fetch_one(&mut thief)
        .await
        .unwrap();
    let left = format!(
        r#"ALTER ROLE esim_ingress IN DATABASE "{database}" SET search_path = evil;
           ALTER ROLE esim_ingress IN DATABASE "{database}" SET default_transaction_read_only = on"#
    );
    execute(&mut thief, &left).await;
    let mut owner = bench.connection().await;
    assert_eq!(
        schema::settings(&mut owner, role).await.unwrap(),
        ["default_transaction_read_only=on", "search_path=evil"]
    );
    schema::migrate(&mut owner).await.unwrap();
    assert_eq!(
        schema::settings(&mut owner, role).await.unwrap(),
        Vec::<String>::new()
    );
}
