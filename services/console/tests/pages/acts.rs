//! The acts that needed a shell before: on a partner, its endpoints and its eSIMs.

#![expect(clippy::unwrap_used, reason = "a helper that fails fails its test")]

use console::access::OperatorRole;
use pg::PgConnection;
use reqwest::Response;
use store::providers;
use testkit::settings::MASTER_KEY;
use vault::Purpose;

use crate::support::{Bench, Browser, URL_SECRET, text, text_when, vault};

/// The hidden value with which the form that goes to `action` says what its page showed.
fn seen(page: &str, action: &str) -> String {
    let (_, form) = page
        .split_once(&format!("action=\"{action}\""))
        .unwrap_or_else(|| panic!("no form for {action} in {page}"));
    let (_, seen) = form.split_once("name=\"seen\" value=\"").unwrap();
    seen.split('"').next().unwrap().replace("&#38;", "&")
}

/// Sends the form of a page with further fields, twice. The second time it must do nothing.
async fn twice(
    browser: &mut Browser,
    (page, action): (&str, &str),
    fields: &[(&str, &str)],
) -> Response {
    let shown = text(browser, page).await;
    let seen = seen(&shown, action);
    let token = browser.token.clone();
    let mut form = vec![
        ("token", token.as_str()),
        ("seen", &seen),
        ("reason", "a test"),
        ("back", page),
    ];
    form.extend(fields);
    let first = browser.post(action, &form).await;
    let second = browser.post(action, &form).await;
    assert_eq!(
        second.status(),
        409,
        "{action}: {}",
        second.text().await.unwrap()
    );
    first
}

async fn one<T>(connection: &mut PgConnection, sql: &'static str) -> T
where
    T: Send + Unpin + for<'r> sqlx::Decode<'r, sqlx::Postgres> + sqlx::Type<sqlx::Postgres>,
{
    sqlx::query_scalar(sql).fetch_one(connection).await.unwrap()
}

#[tokio::test]
async fn new_keys_are_shown_once_and_old_ones_work_for_the_overlap() {
    let bench = Bench::start_with(&[
        ("MASTER_KEY_PARTNERS", MASTER_KEY),
        ("MASTER_KEY_WEBHOOKS", MASTER_KEY),
    ])
    .await;
    let mut browser = bench.sign_in("ana", OperatorRole::Operator).await;
    let mut connection = bench.database.connect().await.unwrap();
    let path = format!("/partners/{}/keys", bench.partner);
    let answer = twice(&mut browser, (&path, &path), &[("overlap", "24h")]).await;
    assert_eq!(answer.status(), 200);
    let page = answer.text().await.unwrap();
    let key: String = one(&mut connection, "SELECT access_key FROM partners").await;
    assert!(page.contains(&key) && page.contains("Secret key"), "{page}");
    let changing = text(&mut browser, &path).await;
    assert!(
        changing.contains("The partner has sent 2 orders in the last 24 hours."),
        "{changing}"
    );
    let sealed: Vec<u8> = one(&mut connection, "SELECT secret_key FROM partners").await;
    vault()
        .open(Purpose::SecretKey(bench.partner), &sealed)
        .unwrap();
    let old: String = one(&mut connection, "SELECT old_access_key FROM partners").await;
    assert_eq!(old, "ak_0123456789abcdef01234567");

    // Within the overlap the page offers what a further change may do, and both end at once.
    let page = text(&mut browser, &path).await;
    assert!(
        !page.contains("value=\"7d\"") && page.contains("value=\"keep\""),
        "{page}"
    );
    twice(&mut browser, (&path, &path), &[("overlap", "0")]).await;
    let old: Option<String> = one(&mut connection, "SELECT old_access_key FROM partners").await;
    assert_eq!(old, None);

    let path = format!("/partners/{}/webhook-secret", bench.partner);
    let answer = twice(&mut browser, (&path, &path), &[("overlap", "7d")]).await;
    assert!(answer.text().await.unwrap().contains("whsec_"));
    let secrets: i32 = one(
        &mut connection,
        "SELECT cardinality(secrets) FROM partner_endpoints WHERE nth = 0",
    )
    .await;
    assert_eq!(secrets, 2);
    assert_eq!(
        bench.recorded().await,
        [
            "ana partner rotate-keys",
            "ana partner rotate-keys",
            "ana partner rotate-webhook-secret"
        ]
    );
    bench.stop().await;
}

/// Support ends a key at once, without a master key and without an operator; nobody makes one
/// there.
#[tokio::test]
async fn a_key_in_wrong_hands_ends_at_once_by_support() {
    let bench = Bench::start().await;
    let mut viewer = bench.sign_in("vic", OperatorRole::Viewer).await;
    let mut support = bench.sign_in("sue", OperatorRole::Support).await;
    let mut connection = bench.database.connect().await.unwrap();
    let access = format!("/partners/{}/access", bench.partner);
    let path = format!("/partners/{}/leaked", bench.partner);
    assert!(!text(&mut viewer, &access).await.contains("in wrong hands"));
    assert_eq!(viewer.get(&path).await.status(), 403);
    let shown = text(&mut support, &access).await;
    assert!(shown.contains(&format!("href=\"{path}\"")), "{shown}");
    let shown = text(&mut support, &path).await;
    let key = "ak_0123456789abcdef01234567";
    for part in [
        "You may end the key at once; do not wait for an operator.",
        "Its only one: all its orders stop until it has new ones.",
        "The partner has sent 2 orders in the last 24 hours.",
        key,
    ] {
        assert!(shown.contains(part), "no {part:?} in {shown}");
    }
    assert!(
        !shown.contains("--overlap") && !shown.contains("value=\"all\""),
        "{shown}"
    );
    let answer = twice(&mut support, (&path, &path), &[("key", key)]).await;
    assert_eq!(answer.status(), 200);
    let page = answer.text().await.unwrap();
    for part in [
        "We ended it on",
        "You have no valid key now",
        "has no key now",
    ] {
        assert!(page.contains(part), "no {part:?} in {page}");
    }
    let ended: bool = one(
        &mut connection,
        "SELECT starts_with(access_key, 'ended-') AND secret_key IS NULL AND old_keys_until IS NULL FROM partners",
    )
    .await;
    assert!(ended);
    let shown = text(&mut support, &access).await;
    assert!(
        shown.contains("none: the last one was ended") && !shown.contains(&path),
        "{shown}"
    );
    assert_eq!(bench.recorded().await, ["sue partner leaked"]);
    bench.stop().await;
}

/// The keys of a partner's people and programs, of which support ends one with a reason.
#[tokio::test]
async fn a_further_key_is_listed_and_ended_with_a_reason() {
    let bench = Bench::start().await;
    let mut viewer = bench.sign_in("vic", OperatorRole::Viewer).await;
    let mut support = bench.sign_in("sue", OperatorRole::Support).await;
    let mut connection = bench.database.connect().await.unwrap();
    let id = "0199b2a0-7c1e-7d52-9b43-2f6a8c0d1e57";
    let key = "INSERT INTO partner_keys (key_id, partner_id, name, access_key, secret_key, rights, units_per_day)
               SELECT '0199b2a0-7c1e-7d52-9b43-2f6a8c0d1e57', partner_id, 'their <agent>', 'ak_further', 'x', '{order,read}', 20
               FROM partners";
    sqlx::raw_sql(key).execute(&mut connection).await.unwrap();
    let access = format!("/partners/{}/access", bench.partner);
    let path = format!("/partners/{}/end-key", bench.partner);
    let shown = text(&mut viewer, &access).await;
    for part in [
        "ak_further",
        "order, read",
        "0 of 20 ordered",
        "never noted",
        "anywhere",
    ] {
        assert!(shown.contains(part), "no {part:?} in {shown}");
    }
    assert!(
        !shown.contains("<agent>") && !shown.contains(&path),
        "{shown}"
    );
    let answer = twice(&mut support, (&access, &path), &[("key", id)]).await;
    assert_eq!(answer.status(), 303);
    // It stays known as one that has ended, and cannot be ended again.
    let shown = text(&mut support, &access).await;
    let (keys, ended) = shown.split_once("<h2>Ended keys</h2>").unwrap();
    assert!(
        !keys.contains("ak_further") && !shown.contains(&path),
        "{shown}"
    );
    assert!(
        ended.contains("ak_further") && ended.contains("not used"),
        "{shown}"
    );
    assert_eq!(bench.recorded().await, ["sue partner key end"]);
    bench.stop().await;
}

#[tokio::test]
async fn a_console_without_the_master_key_names_the_command_that_makes_keys() {
    let bench = Bench::start().await;
    let mut browser = bench.sign_in("ana", OperatorRole::Operator).await;
    for what in ["keys", "webhook-secret"] {
        let path = format!("/partners/{}/{what}", bench.partner);
        let page = text(&mut browser, &path).await;
        let command = format!("esimctl partner rotate ak_0123456789abcdef01234567 {what}");
        assert!(page.contains(&command), "{page}");
        assert!(!page.contains("name=\"overlap\""), "{page}");
        let token = browser.token.clone();
        let form = [("token", token.as_str()), ("reason", "x"), ("overlap", "0")];
        assert_eq!(browser.post(&path, &form).await.status(), 409);
    }
    assert_eq!(bench.recorded().await, Vec::<String>::new());
    bench.stop().await;
}

#[tokio::test]
async fn the_webhook_url_is_set_and_only_its_host_is_recorded() {
    let bench = Bench::start().await;
    let mut browser = bench.sign_in("ana", OperatorRole::Operator).await;
    let mut connection = bench.database.connect().await.unwrap();
    let path = format!("/partners/{}/webhook-url", bench.partner);
    let page = text(&mut browser, &path).await;
    assert!(page.contains("https://hooks.example.com/•••"), "{page}");
    assert!(!page.contains(URL_SECRET), "{page}");
    let token = browser.token.clone();
    let form = [
        ("token", token.as_str()),
        ("reason", "x"),
        ("url", "ftp://x.example"),
    ];
    // What was typed is kept, and the page says what is wrong with it.
    let answer = browser.post(&path, &form).await;
    assert_eq!(answer.status(), 422);
    let page = answer.text().await.unwrap();
    for part in [
        "name=\"url\" value=\"ftp://x.example\" aria-invalid=\"true\" aria-describedby=\"wrong-url\"",
        "id=\"wrong-url\">The URL cannot be set",
        "name=\"reason\" value=\"x\"",
    ] {
        assert!(page.contains(part), "no {part:?} in {page}");
    }
    let new = "https://new.example.com/also-secret";
    let answer = twice(&mut browser, (&path, &path), &[("url", new)]).await;
    assert_eq!(answer.status(), 303, "{}", answer.text().await.unwrap());
    let url: String = one(
        &mut connection,
        "SELECT url FROM partner_endpoints WHERE nth = 0",
    )
    .await;
    assert_eq!(url, new);
    let recorded: String = one(
        &mut connection,
        "SELECT concat(before, after) FROM operator_actions WHERE command = 'partner set-webhook'",
    )
    .await;
    assert!(
        recorded.contains("new.example.com") && !recorded.contains("secret"),
        "{recorded}"
    );

    // The whole URL is shown to an operator, who says why.
    let partner = format!("/partners/{}", bench.partner);
    let page = text(&mut browser, &partner).await;
    assert!(!page.contains("also-secret"), "{page}");
    let form = [
        ("token", token.as_str()),
        ("reason", "x"),
        ("back", &partner),
    ];
    let shown = browser
        .post(&format!("/endpoints/{}/show-url", bench.partner), &form)
        .await;
    assert!(shown.text().await.unwrap().contains(new));
    assert_eq!(
        bench.recorded().await,
        ["ana partner set-webhook", "ana endpoint show-url"]
    );
    bench.stop().await;
}

/// Both have seen the same page, so only one of them may act.
#[tokio::test]
async fn of_two_who_set_the_url_at_once_one_learns_of_the_other() {
    let bench = Bench::start().await;
    let mut browsers = [
        bench.sign_in("ana", OperatorRole::Operator).await,
        bench.sign_in("ben", OperatorRole::Operator).await,
    ];
    let path = format!("/partners/{}/webhook-url", bench.partner);
    let shown = seen(&text(&mut browsers[0], &path).await, &path);
    let tokens = browsers.each_ref().map(|browser| browser.token.clone());
    let [ana, ben] = tokens.each_ref().map(|token| {
        [
            ("token", token.as_str()),
            ("seen", &shown),
            ("reason", "a test"),
            ("url", "https://new.example.com/"),
        ]
    });
    let [by_ana, by_ben] = &mut browsers;
    let (one, other) = tokio::join!(by_ana.post(&path, &ana), by_ben.post(&path, &ben));
    let mut statuses = [one.status().as_u16(), other.status().as_u16()];
    statuses.sort_unstable();
    assert_eq!(statuses, [303, 409]);
    assert_eq!(bench.recorded().await.len(), 1);
    bench.stop().await;
}

#[tokio::test]
async fn limits_are_set_and_taken_back() {
    let bench = Bench::start().await;
    let mut browser = bench.sign_in("ana", OperatorRole::Operator).await;
    let mut connection = bench.database.connect().await.unwrap();
    let path = format!("/partners/{}/limits", bench.partner);
    let token = browser.token.clone();
    for bad in ["0", "x", "1000001", "-1"] {
        let form = [
            ("token", token.as_str()),
            ("reason", "x"),
            ("orders_per_second", bad),
        ];
        let answer = browser.post(&path, &form).await;
        assert_eq!(answer.status(), 422, "{bad}");
        let page = answer.text().await.unwrap();
        assert!(page.contains(&format!("value=\"{bad}\"")), "{page}");
        assert_eq!(page.matches("aria-invalid").count(), 1, "{page}");
    }
    let sql = "SELECT orders_per_second FROM partners";
    let answer = twice(&mut browser, (&path, &path), &[("orders_per_second", "20")]).await;
    assert_eq!(answer.status(), 303);
    assert_eq!(one::<Option<i32>>(&mut connection, sql).await, Some(20));
    let access = text(&mut browser, &format!("/partners/{}/access", bench.partner)).await;
    assert!(access.contains("<dd>20</dd>"), "{access}");
    twice(&mut browser, (&path, &path), &[]).await;
    assert_eq!(one::<Option<i32>>(&mut connection, sql).await, None);
    bench.stop().await;
}

/// A payment, a correction and a limit: each says what it changes before anybody gives a reason,
/// and a wrong one is named beside its field.
#[tokio::test]
async fn money_is_booked_after_its_effect_was_shown() {
    let bench = Bench::start().await;
    let mut browser = bench.sign_in("ana", OperatorRole::Operator).await;
    let partner = format!("/partners/{}", bench.partner);
    let token = browser.token.clone();
    let question = format!("{partner}/deposit");
    let page = text(&mut browser, &question).await;
    assert!(!page.contains("name=\"reason\""), "{page}");
    for (typed, wrong) in [
        ("amount=10.00&currency=EUR&reference=r", "no account in EUR"),
        (
            "amount=10.001&currency=EUR&reference=r",
            "an amount of its currency",
        ),
        (
            "amount=-1&currency=EUR&reference=r",
            "a payment is more than 0",
        ),
        (
            "amount=10&currency=XYZ&reference=r",
            "no currency of ISO 4217",
        ),
        ("amount=10&currency=EUR", "needs a reference"),
    ] {
        let page = text(&mut browser, &format!("{question}?{typed}")).await;
        assert!(
            page.contains(wrong) && page.contains("aria-invalid"),
            "{typed}: {page}"
        );
        assert!(!page.contains("name=\"reason\""), "{page}");
    }

    // The limit opens the account.
    let asked = format!("{partner}/credit?currency=eur&limit=credit&amount=50");
    let page = text(&mut browser, &asked).await;
    assert!(
        page.contains("An account in EUR is opened. It may owe: 50.00 EUR."),
        "{page}"
    );
    let mut form = vec![
        ("token", token.as_str()),
        ("reason", "contract 7"),
        ("currency", "eur"),
        ("limit", "credit"),
        ("amount", "50"),
    ];
    let path = format!("{partner}/credit");
    assert_eq!(browser.post(&path, &form).await.status(), 303);
    let again = browser.post(&path, &form).await;
    assert_eq!(again.status(), 409, "the page has shown no account");
    form.push(("was", "50.00 EUR"));
    form[3].1 = "postpaid";
    assert_eq!(browser.post(&path, &form).await.status(), 303);

    for (path, amount, before, after) in [
        ("deposit", "100.00", "0.00", "100.00"),
        ("adjust", "-0.05", "100.00", "99.95"),
    ] {
        let path = format!("{partner}/{path}");
        let query = format!(
            "{path}?amount={amount}&currency=EUR&reference=INV-{}",
            path.len()
        );
        let page = text(&mut browser, &query).await;
        let effect = format!("the balance goes from {before} EUR to {after} EUR.");
        assert!(page.contains(&effect), "{page}");
        let reference = format!("INV-{}", path.len());
        let form = [
            ("token", token.as_str()),
            ("reason", "bank statement"),
            ("amount", amount),
            ("currency", "EUR"),
            ("reference", reference.as_str()),
        ];
        let without = [form[0], form[2], form[3], form[4]];
        assert_eq!(
            browser.post(&path, &without).await.status(),
            422,
            "no reason"
        );
        assert_eq!(browser.post(&path, &form).await.status(), 303);
        assert_eq!(
            browser.post(&path, &form).await.status(),
            409,
            "it is booked once"
        );
        let page = text(&mut browser, &query).await;
        assert!(
            page.contains("This reference was booked before, as entry"),
            "{page}"
        );
    }
    let recorded = bench.recorded().await;
    assert_eq!(recorded.len(), 4, "{recorded:?}");
    let mut connection = bench.database.connect().await.unwrap();
    let booked = "SELECT string_agg(made_by || ' ' || reason || ' ' || amount, ', ' ORDER BY number) FROM account_entries";
    let booked = one::<Option<String>>(&mut connection, booked)
        .await
        .unwrap();
    assert_eq!(booked, "ana bank statement 10000, ana bank statement -5");
    bench.stop().await;
}

/// Page by page by their numbers, and as CSV; what was sold has its margin.
#[tokio::test]
async fn entries_have_pages_and_what_was_sold_has_a_margin() {
    let bench = Bench::start().await;
    let mut browser = bench.sign_in("ann", OperatorRole::Viewer).await;
    let book = format!(
        "INSERT INTO accounts (partner_id, currency) VALUES ('{0}', 'EUR');
         SELECT book_entry('{0}', 'EUR', 'deposit', 100, 'r' || n, 'x', 'ann') FROM generate_series(1, 30) n;
         ALTER TABLE account_entries DISABLE TRIGGER entry_costed;
         INSERT INTO account_entries (partner_id, currency, number, kind, amount, balance, released, topup_id, made_by, at,
                                      provider, cost, cost_currency)
         SELECT '{0}', 'EUR', 30 + n, 'charge', -450, 3000 - n * 450, 450, 't' || n, 'system', now(), 'airalo', 31234, code
         FROM (VALUES (1, 'EUR'), (2, 'USD')) AS sold (n, code);
         UPDATE accounts SET last_entry = 32, posted = 2100",
        bench.partner
    );
    sqlx::raw_sql(sqlx::AssertSqlSafe(book))
        .execute(&mut bench.database.connect().await.unwrap())
        .await
        .unwrap();
    let path = format!("/partners/{}/entries?currency=EUR", bench.partner);
    let rows = |page: &str| page.matches("data-label=\"Entry\"").count();
    let newest = text(&mut browser, &path).await;
    assert_eq!(rows(&newest), 25);
    assert!(newest.contains("25 entries, newest first.") && !newest.contains(">Newest<"));
    let older = text(&mut browser, &format!("{path}&before=8")).await;
    assert_eq!(rows(&older), 7);
    assert!(
        older.contains(">Newest<") && !older.contains("Older"),
        "{older}"
    );
    assert!(newest.contains("before=8"), "{newest}");
    let csv = format!("/partners/{}/entries.csv?currency=EUR", bench.partner);
    let csv = text(&mut browser, &csv).await;
    assert_eq!(csv.lines().count(), 33, "{csv}");
    let first = csv.lines().nth(1).unwrap();
    assert!(
        first.starts_with("32,") && first.contains(",charge,-4.50,21.00,EUR,t2,"),
        "{first}"
    );
    let other = browser
        .get(&format!("/partners/{}/entries?currency=x", bench.partner))
        .await;
    assert_eq!(other.status(), 422);

    let margin = text(&mut browser, "/margin?by=provider").await;
    for part in [
        "airalo",
        "1.3766 EUR",
        "30.5 %",
        "no rate from USD to EUR is known",
    ] {
        assert!(margin.contains(part), "{part}: {margin}");
    }
    let csv = text(&mut browser, "/margin.csv?by=provider&partner=nobody").await;
    assert_eq!(csv.lines().count(), 1, "{csv}");
    let bad = browser.get("/margin?first_month=2026").await;
    assert_eq!(bad.status(), 422);
    bench.stop().await;
}

#[tokio::test]
async fn what_a_partner_has_is_shown_with_its_last_entries() {
    let bench = Bench::start().await;
    let mut browser = bench.sign_in("ann", OperatorRole::Viewer).await;
    let access = format!("/partners/{}/access", bench.partner);
    let without = text(&mut browser, &access).await;
    assert!(!without.contains("Balance in"), "{without}");
    let book = format!(
        "INSERT INTO accounts (partner_id, currency) VALUES ('{0}', 'JOD');
         SELECT book_entry('{0}', 'JOD', 'deposit', 12500, 'INV-42', 'paid <by> wire', 'ann')",
        bench.partner
    );
    sqlx::raw_sql(sqlx::AssertSqlSafe(book))
        .execute(&mut bench.database.connect().await.unwrap())
        .await
        .unwrap();
    let shown = text(&mut browser, &access).await;
    for part in [
        "Balance in JOD",
        "<dd>12.500 JOD</dd>",
        "nothing: it pays before",
        "INV-42 · paid &#60;by&#62; wire",
    ] {
        assert!(shown.contains(part), "{part}: {shown}");
    }
    bench.stop().await;
}

#[tokio::test]
async fn a_test_webhook_has_a_page_with_its_answer() {
    let bench = Bench::start().await;
    let mut browser = bench.sign_in("sue", OperatorRole::Support).await;
    let partner = format!("/partners/{}", bench.partner);
    let action = format!("/endpoints/{}/test", bench.partner);
    let answer = twice(&mut browser, (&partner, &action), &[]).await;
    assert_eq!(answer.status(), 303);
    let to = answer.headers()["location"].to_str().unwrap().to_owned();
    assert!(to.starts_with("/webhooks/"), "{to}");
    let page = text(&mut browser, &to).await;
    for part in ["<h1>webhook.test to hooks.example.com</h1>", "under way"] {
        assert!(page.contains(part), "no {part:?} in {page}");
    }
    assert_eq!(bench.recorded().await, ["sue endpoint test"]);
    bench.stop().await;
}

#[tokio::test]
async fn a_partner_that_was_told_needs_nobody_for_a_day() {
    let bench = Bench::start().await;
    let mut browser = bench.sign_in("sue", OperatorRole::Support).await;
    let mut connection = bench.database.connect().await.unwrap();
    let matter = "been given up";
    let action = format!("/partners/{}/told", bench.partner);
    let needs = text(&mut browser, "/needs").await;
    let (needed, _) = needs
        .split_once("Goes on by itself")
        .unwrap_or((&needs, ""));
    assert!(needed.contains(&action), "{needed}");
    twice(&mut browser, ("/needs", &action), &[]).await;
    let needs = text(&mut browser, "/needs").await;
    let (needed, rest) = needs.split_once("Goes on by itself").unwrap();
    assert!(!needed.contains(&action), "{matter}: {needed}");
    assert!(rest.contains("the partner was told at"), "{rest}");
    // A day later it is a matter again.
    sqlx::query(
        "UPDATE operator_actions SET at = at - interval '25 hours' WHERE command = 'partner told'",
    )
    .execute(&mut connection)
    .await
    .unwrap();
    text_when(&mut browser, "/needs", |needs| {
        let needed = needs.split("Goes on by itself").next();
        needed.is_some_and(|needed| needed.contains(&action))
    })
    .await;
    bench.stop().await;
}

#[tokio::test]
async fn the_use_of_an_esim_is_asked_for_and_it_is_given_back() {
    let bench = Bench::start().await;
    let mut support = bench.sign_in("sue", OperatorRole::Support).await;
    let mut operator = bench.sign_in("ana", OperatorRole::Operator).await;
    let mut connection = bench.database.connect().await.unwrap();
    let page = format!("/esims/{}", bench.topup);
    let usage = format!("{page}/usage");
    let answer = twice(&mut support, (&page, &usage), &[]).await;
    assert_eq!(answer.status(), 303);
    let shown = text(&mut support, &page).await;
    assert!(shown.contains("asked, the answer is awaited"), "{shown}");
    assert!(
        !shown.contains("/give-back\""),
        "support gives nothing back: {shown}"
    );
    sqlx::query(
        "UPDATE esim_requests SET usage_asked_at = NULL, read_at = now(), data_used = 1610612736, data_total = 5368709120",
    )
    .execute(&mut connection)
    .await
    .unwrap();
    let shown = text(&mut support, &page).await;
    assert!(shown.contains("1.5 GB of 5 GB; 3.5 GB left"), "{shown}");

    let cause = [("cause", "no_coverage")];
    let answer = twice(&mut operator, (&page, &format!("{page}/give-back")), &cause).await;
    assert_eq!(answer.status(), 303);
    let told: bool = one(
        &mut connection,
        "SELECT give_back_cause = 'no_coverage' FROM esim_requests",
    )
    .await;
    assert!(told);
    let work: i64 = one(
        &mut connection,
        "SELECT count(*) FROM work WHERE kind = 'give_back'",
    )
    .await;
    assert_eq!(work, 1);
    assert_eq!(bench.recorded().await, ["sue topup usage", "ana give back"]);
    bench.stop().await;
}

/// Support suspends an eSIM and resumes it, in the console's own role, and each act has its reason.
#[tokio::test]
async fn an_esim_is_suspended_and_resumed_by_support() {
    let bench = Bench::start().await;
    let mut viewer = bench.sign_in("vera", OperatorRole::Viewer).await;
    let mut support = bench.sign_in("sue", OperatorRole::Support).await;
    let mut connection = bench.database.connect().await.unwrap();
    let page = format!("/esims/{}", bench.topup);
    for (act, is_suspended) in [("suspend", true), ("resume", false)] {
        let path = format!("{page}/{act}");
        let shown = text(&mut viewer, &page).await;
        assert!(!shown.contains(&format!("{path}\"")), "{shown}");
        let answer = twice(&mut support, (&page, &path), &[]).await;
        assert_eq!(answer.status(), 303, "{act}");
        let asked = "SELECT suspend FROM esim_requests JOIN work ON lane = topup_id WHERE suspension = 'asked' AND kind = 'suspend'";
        assert_eq!(one::<bool>(&mut connection, asked).await, is_suspended);
        // Neither is offered while one is under way.
        let shown = text(&mut support, &page).await;
        assert!(
            !shown.contains("/suspend\"") && !shown.contains("/resume\""),
            "{shown}"
        );
        for done in [
            "UPDATE esim_requests SET suspension = 'done', suspension_ended_at = now(), suspension_asked_at = now() - interval '1 hour'",
            "DELETE FROM work WHERE kind = 'suspend'",
        ] {
            sqlx::query(done).execute(&mut connection).await.unwrap();
        }
    }
    assert_eq!(
        bench.recorded().await,
        ["sue topup suspend", "sue topup resume"]
    );
    // A provider that suspends none is not asked, also by a form that was open before.
    let shown = text(&mut support, &page).await;
    let suspend = format!("{page}/suspend");
    let seen = seen(&shown, &suspend);
    sqlx::query("UPDATE providers SET suspends = NULL")
        .execute(&mut connection)
        .await
        .unwrap();
    let shown = text(&mut support, &page).await;
    assert!(!shown.contains("/suspend\""), "{shown}");
    let token = support.token.clone();
    let form = [
        ("token", token.as_str()),
        ("seen", &seen),
        ("reason", "x"),
        ("back", &page),
    ];
    let answer = support.post(&suspend, &form).await;
    assert_eq!(answer.status(), 409);
    bench.stop().await;
}

/// What a provider does not do is not offered, and a refusal is told in words.
#[tokio::test]
async fn only_what_the_provider_of_an_esim_does_is_offered() {
    let bench = Bench::start().await;
    let mut browser = bench.sign_in("ana", OperatorRole::Operator).await;
    let mut connection = bench.database.connect().await.unwrap();
    let page = format!("/esims/{}", bench.topup);
    let shown = text(&mut browser, &page).await;
    let give_back = format!("{page}/give-back");
    let seen = seen(&shown, &give_back);
    for (usage, takes_back, says) in [
        (
            "false",
            "false",
            "Its provider shows no data use, and takes no eSIM back.",
        ),
        ("true", "false", "Its provider takes no eSIM back."),
        ("NULL", "NULL", "No provisioner has said yet whether"),
    ] {
        let sql = format!("UPDATE providers SET shows_usage = {usage}, takes_back = {takes_back}");
        sqlx::query(sqlx::AssertSqlSafe(sql))
            .execute(&mut connection)
            .await
            .unwrap();
        let shown = text(&mut browser, &page).await;
        assert!(shown.contains(says), "no {says:?} in {shown}");
        assert_eq!(shown.contains("/usage\""), usage == "true", "{shown}");
        assert!(!shown.contains("/give-back\""), "{shown}");
        // A form that was open before is refused with the same words.
        let token = browser.token.clone();
        let form = [
            ("token", token.as_str()),
            ("seen", &seen),
            ("reason", "x"),
            ("back", &page),
        ];
        let answer = browser.post(&give_back, &form).await;
        assert_eq!(answer.status(), 409);
        let answer = answer.text().await.unwrap();
        assert!(answer.contains(says), "no {says:?} in {answer}");
    }
    sqlx::query(
        "INSERT INTO esim_requests (topup_id, partner_id, provider, give_back, give_back_asked_at, reason, ended_at)
         SELECT $1, $2, 'sandbox', 'refused', now(), 'not_available', now()",
    )
    .bind(bench.topup.as_str())
    .bind(bench.partner.uuid())
    .execute(&mut connection)
    .await
    .unwrap();
    let shown = text(&mut browser, &page).await;
    assert!(
        shown.contains("(the provider takes no eSIM back)") && !shown.contains("not_available"),
        "{shown}"
    );
    assert_eq!(bench.recorded().await, Vec::<String>::new());
    bench.stop().await;
}

/// A partner's page counts what is its own, and not what others have on hold, too.
#[tokio::test]
async fn the_page_of_a_partner_counts_its_own_purchases_on_hold() {
    let bench = Bench::start().await;
    let mut connection = bench.database.connect().await.unwrap();
    let other: uuid::Uuid = one(
        &mut connection,
        "WITH partner AS (
             INSERT INTO partners (partner_id, name, environment, access_key)
             VALUES (gen_random_uuid(), 'Other', 'sandbox', 'ak_other') RETURNING partner_id
         ), o AS (
             INSERT INTO orders (order_id, partner_id, external_order_id, answer_by)
             SELECT gen_random_uuid(), partner_id, 'theirs', now() FROM partner RETURNING order_id, partner_id
         ), p AS (
             INSERT INTO placements (placement_id, order_id, partner_id, provider, lane, state, attempt, reason)
             SELECT gen_random_uuid(), order_id, partner_id, 'sandbox', 'ready', 'parked', 1, 'outcome_unknown: no answer'
             FROM o, generate_series(1, 3) RETURNING placement_id, partner_id
         ), t AS (
             INSERT INTO topups (topup_id, placement_id, position, option_id, provider_option_id)
             SELECT left(placement_id::text, 20), placement_id, 0, gen_random_uuid(), 'ready' FROM p
         ), h AS (
             INSERT INTO held (id, state, provider, partner_id) SELECT placement_id, 'parked', 'sandbox', partner_id FROM p
         )
         SELECT partner_id FROM partner",
    )
    .await;
    // The first page that is opened reads what is on hold, and it is kept for some seconds.
    let mut browser = bench.sign_in("ana", OperatorRole::Viewer).await;
    let all = text(&mut browser, "/needs").await;
    assert!(all.contains("4 purchases are on hold at sandbox"), "{all}");
    let shown = text(&mut browser, &format!("/partners/{other}")).await;
    assert!(
        shown.contains("3 purchases are on hold at sandbox"),
        "{shown}"
    );
    let mine = text(&mut browser, &format!("/partners/{}", bench.partner)).await;
    assert!(
        mine.contains("order parked is on hold at sandbox") && !mine.contains("4 purchases"),
        "{mine}"
    );
    bench.stop().await;
}

#[tokio::test]
async fn all_products_of_a_provider_are_reached_page_by_page() {
    let bench = Bench::start().await;
    let mut connection = bench.database.connect().await.unwrap();
    sqlx::query(
        "INSERT INTO options (option_id, name, provider, provider_option_id, environment, version, alternatives)
         SELECT gen_random_uuid(), 'Many ' || lpad(n::text, 3, '0'), 'many', n::text, 'live', 0,
                '[{\"provider\": \"sandbox\", \"provider_option_id\": \"x\"}]'
         FROM generate_series(1, 130) n",
    )
    .execute(&mut connection)
    .await
    .unwrap();
    let mut browser = bench.sign_in("vera", OperatorRole::Viewer).await;
    let first = text(&mut browser, "/products?provider=many").await;
    let next = "/products?provider=many&#38;before=100";
    for part in [
        "130 products are bought at many first. 130 of them can be bought elsewhere now",
        "1 to 100 of 130 products",
        "Many 001",
        "Many 100",
        next,
    ] {
        assert!(first.contains(part), "no {part:?} in {first}");
    }
    assert!(
        !first.contains("Many 101") && !first.contains(">First</a>"),
        "{first}"
    );
    let rest = text(&mut browser, "/products?provider=many&before=100").await;
    for part in [
        "101 to 130 of 130 products",
        "Many 101",
        "Many 130",
        ">First</a>",
    ] {
        assert!(rest.contains(part), "no {part:?} in {rest}");
    }
    assert!(
        !rest.contains("Many 100") && !rest.contains("Next →"),
        "{rest}"
    );
    bench.stop().await;
}

/// A product says what is known of it, and whether its provider or a file says so.
#[tokio::test]
async fn a_product_says_what_is_known_of_it_and_who_says_so() {
    let bench = Bench::start().await;
    let mut connection = bench.database.connect().await.unwrap();
    let id = "00000000-0000-4000-8000-000000000019";
    sqlx::query(
        "INSERT INTO options (option_id, name, provider, provider_option_id, environment, version, countries, data_mb, unlimited,
                              days, told, facts)
         VALUES ($1::uuid, 'Japan <7>', 'airalo', 'jp-7@4.50', 'live', 0, '{JP}', 1024, false, 7,
                 '{\"top_up\": \"yes\", \"hotspot\": false}', '{\"hotspot\": true, \"names\": {\"de\": \"Japan\"}}')",
    )
    .bind(id)
    .execute(&mut connection)
    .await
    .unwrap();
    let mut browser = bench.sign_in("vera", OperatorRole::Viewer).await;
    let list = text(&mut browser, "/products?provider=airalo").await;
    assert!(list.contains(&format!("href=\"/products/{id}\"")), "{list}");
    let page = text(&mut browser, &format!("/products/{id}")).await;
    for part in [
        "Japan &#60;7&#62;",
        "It is bought at airalo first, as jp-7@4.50.",
        "1024 MB",
        ">top_up</td><td role=\"cell\" data-label=\"Value\">yes</td><td role=\"cell\" data-label=\"Says who\">provider<",
        ">hotspot</td><td role=\"cell\" data-label=\"Value\">yes</td><td role=\"cell\" data-label=\"Says who\">file<",
        "de: Japan",
    ] {
        assert!(page.contains(part), "no {part:?} in {page}");
    }
    let none = browser
        .get("/products/00000000-0000-4000-8000-000000000020")
        .await;
    assert_eq!(none.status(), 404);
    bench.stop().await;
}

/// The products of a provider say where else they are bought, and one is bought there first by an
/// act with a preview; what only one provider sells has a sentence instead.
#[tokio::test]
async fn a_product_is_bought_at_another_provider_first() {
    let bench = Bench::start().await;
    let mut connection = bench.database.connect().await.unwrap();
    sqlx::query(
        "INSERT INTO options (option_id, name, provider, provider_option_id, environment, version, alternatives, cost,
                              cost_currency)
         VALUES ('00000000-0000-4000-8000-000000000009', 'Japan 3 GB', 'sandbox', 'jp', 'live', 0,
                 '[{\"provider\": \"second\", \"provider_option_id\": \"jp3\"}]', 150, 'USD'),
                ('00000000-0000-4000-8000-000000000010', 'Peru 1 GB', 'second', 'pe', 'live', 0, '[]', NULL, NULL)",
    )
    .execute(&mut connection)
    .await
    .unwrap();
    providers::register(&mut connection, &["second".to_owned()])
        .await
        .unwrap();
    let mut browser = bench.sign_in("ana", OperatorRole::Operator).await;
    let list = browser.get("/products?provider=sandbox").await;
    let list = list.text().await.unwrap();
    let path = "/products/00000000-0000-4000-8000-000000000009/route";
    for part in [
        "1 of them can be bought elsewhere, too",
        "<b>sandbox</b> (may buy), then <b>second</b> (may buy)",
        path,
    ] {
        assert!(list.contains(part), "no {part:?} in {list}");
    }
    assert!(!list.contains("Peru"), "{list}");
    let page = browser.get(path).await.text().await.unwrap();
    assert!(
        page.contains("It is bought at sandbox now (may buy)."),
        "{page}"
    );
    let token = browser.token.clone();
    let form = [
        ("token", token.as_str()),
        ("seen", "sandbox, second"),
        ("first", "second"),
        ("reason", "sandbox denies us"),
        ("back", "/products?provider=sandbox"),
    ];
    let done = browser.post(path, &form).await;
    assert_eq!(done.status(), 303);
    let stored: (String, String, String, Option<i64>) = sqlx::query_as(
        "SELECT provider, provider_option_id, alternatives::text, cost FROM options WHERE name = 'Japan 3 GB'",
    )
    .fetch_one(&mut connection)
    .await
    .unwrap();
    let further = r#"[{"provider": "sandbox", "provider_option_id": "jp"}]"#;
    assert_eq!(
        (
            stored.0.as_str(),
            stored.1.as_str(),
            stored.2.as_str(),
            stored.3
        ),
        ("second", "jp3", further, None)
    );
    let recorded: String = one(
        &mut connection,
        "SELECT before->>'bought' || ' ' || (after->>'bought') || ' moved ' || (after->>'units_moved')
         FROM operator_actions WHERE command = 'option route'",
    )
    .await;
    assert_eq!(
        recorded,
        r#"{"provider": "sandbox", "provider_option_id": "jp"} {"provider": "second", "provider_option_id": "jp3"} "#
            .to_owned()
            + "moved 0"
    );
    assert_eq!(browser.post(path, &form).await.status(), 409);
    assert_eq!(bench.recorded().await, ["ana option route"]);
    let only = "/products/00000000-0000-4000-8000-000000000010/route";
    let page = browser.get(only).await.text().await.unwrap();
    assert!(
        page.contains("No other provider of it is in the catalogue.")
            && !page.contains("<form class=\"pad"),
        "{page}"
    );
    bench.stop().await;
}
