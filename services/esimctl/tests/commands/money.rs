//! `esimctl price` and `esimctl account`: prices by files and by a rule, payments that are booked
//! once, an export for accounting, and a check that finds what somebody has changed by hand.

use serde_json::{Value, json};

use crate::support::{CONFIRMED, Ended, Operator, words};
use crate::{option, text};

/// A catalogue of these options, each with its cost in US dollars, and the options' ids.
async fn catalogue<const N: usize>(operator: &Operator, costs: [Option<&str>; N]) -> [String; N] {
    let mut ids = [const { String::new() }; N];
    let mut options = Vec::new();
    for (index, cost) in costs.into_iter().enumerate() {
        let mut one = option(&format!("option-{index}"));
        if let Some(cost) = cost {
            let (price, currency) = cost.split_once(' ').unwrap();
            one["standard"] = json!({
                "countries": ["JP"], "data_mb": 1024, "days": 7, "cost": {"price": price, "currency": currency},
            });
        }
        text(&one, "option_id").clone_into(&mut ids[index]);
        options.push(one);
    }
    let file = json!({ "options": options }).to_string();
    let apply = ["option", "apply", "-f", "-"];
    operator.run_with_input(&apply, file).await.text();
    ids
}

/// Applies a file to the list `retail`, in EUR.
async fn apply(operator: &Operator, more: &[&str], file: String) -> Ended {
    let apply = words("price apply retail --currency EUR -f -");
    let arguments = [&apply, more].concat();
    operator.run_with_input(&arguments, file).await
}

/// The prices of the list `retail`, by the names of their options.
async fn prices(operator: &Operator) -> Vec<(String, Value)> {
    let listed = operator.json(&words("price list retail")).await;
    let listed = listed.as_array().unwrap().iter();
    let pairs = listed.map(|one| (text(one, "option").to_owned(), one["price"].clone()));
    pairs.collect()
}

fn pairs(expected: &[(&str, Value)]) -> Vec<(String, Value)> {
    let owned = expected.iter();
    owned
        .map(|(name, price)| ((*name).to_owned(), price.clone()))
        .collect()
}

#[tokio::test]
async fn a_file_of_prices_is_applied_whole_or_not_at_all() {
    let operator = Operator::new().await;
    let [one, two] = catalogue(&operator, [None, None]).await;
    let unknown = domain::OptionId::new();
    // What a spreadsheet writes where numbers have a decimal comma.
    let rows = |price: &str| {
        format!(
            "\u{feff}option_id;price;valid_from\r\n{one};4.50;\r\n{two};{price};\r\n{two};9.90;2099-12-01T00:00:00Z\r\n"
        )
    };
    let comma = apply(&operator, &[], rows("5,20")).await;
    comma.fails(1, r#"line 3: price: "5,20" has a comma"#);
    let lists = operator.json(&["price", "list"]).await;
    assert_eq!(lists, json!([]), "the list was made by a file with a fault");

    let planned = apply(&operator, &["--dry-run"], rows("5.20")).await;
    assert_eq!(planned.code, Some(3), "{planned:?}");
    assert!(
        planned
            .stdout
            .contains("not in the list → 5.20 EUR; at once"),
        "{planned:?}"
    );
    assert_eq!(operator.json(&["price", "list"]).await, json!([]));
    let done = apply(&operator, &["--reason", "ticket 1"], rows("5.20")).await;
    assert_eq!(
        done.text().lines().last(),
        Some("2 created, 1 changed, 0 unchanged")
    );
    let expected = [
        ("option-0", json!("4.50")),
        ("option-1", json!("5.20")),
        ("option-1", json!("9.90")),
    ];
    assert_eq!(prices(&operator).await, pairs(&expected));

    // All faults come at once, also those that only the database knows, and nothing is changed.
    let faulty = json!([
        {"option_id": unknown, "price": "1"},
        {"option_id": one, "price": "7"},
        {"option_id": two, "price": "1", "valid_from": "2001-01-01T00:00:00Z"},
    ]);
    let refused = apply(&operator, &[], faulty.to_string()).await;
    let line = refused.line(1);
    assert!(
        line.contains("prices[0]: there is no option") && line.contains("prices[2]: the price of"),
        "{line}"
    );
    assert_eq!(prices(&operator).await, pairs(&expected));

    // What is printed can be applied again, and null takes an option out.
    let printed = operator.json(&words("price list retail")).await;
    let again = apply(&operator, &[], printed.to_string()).await;
    assert_eq!(again.text(), "0 created, 0 changed, 3 unchanged\n");
    let out = json!({ "prices": [{"option_id": one, "price": null}] });
    let done = apply(&operator, &[], out.to_string()).await;
    done.says("4.50 EUR → not in the list");
    assert_eq!(
        prices(&operator).await[0],
        ("option-0".to_owned(), json!(null))
    );
    let dollars = words("price apply retail --currency USD -f -");
    operator
        .run_with_input(&dollars, out.to_string())
        .await
        .fails(1, "the list has prices in EUR");
    let counted = operator.json(&["price", "list"]).await;
    assert_eq!(
        (&counted[0]["options"], &counted[0]["currency"]),
        (&json!(1), &json!("EUR"))
    );

    let actions = operator.actions().await;
    let recorded: Vec<_> = actions
        .iter()
        .filter(|action| text(action, "command") == "price apply")
        .map(|action| {
            (
                text(action, "target"),
                text(action, "reason"),
                action["affected"].clone(),
            )
        })
        .collect();
    let target = "price list retail";
    let expected = [(target, "", json!(1)), (target, "ticket 1", json!(3))];
    assert_eq!(recorded, expected);
}

#[tokio::test]
async fn a_rule_over_the_costs_sets_prices_and_names_what_it_leaves_out() {
    let operator = Operator::new().await;
    let costs = [Some("4.1234 USD"), Some("0.10 USD"), Some("3.00 EUR"), None];
    catalogue(&operator, costs).await;
    let markup =
        words("price markup retail --currency USD --percent 30 --minimum 0.50 --round-to 0.10");
    let planned = operator.run(&[&markup[..], &["--dry-run"]].concat()).await;
    assert_eq!(planned.code, Some(3), "{planned:?}");
    for left_out in [
        "option-2 (it costs 3.00 EUR, which is another currency)",
        "option-3 (its cost is not known)",
    ] {
        assert!(planned.stderr.contains(left_out), "{planned:?}");
    }
    let done = operator.json(&markup).await;
    assert_eq!(
        (&done["created"], &done["new_list"]),
        (&json!(2), &json!(true))
    );
    assert_eq!(done["left_out"].as_array().unwrap().len(), 2, "{done}");
    let expected = [("option-0", json!("5.40")), ("option-1", json!("0.60"))];
    assert_eq!(prices(&operator).await, pairs(&expected));
    assert_eq!(operator.json(&markup).await["unchanged"], 2);
    for (arguments, code, part) in testkit::rows! {
        "--currency USD --percent 30 --round-to 0", 1 => "--round-to must be more than 0";
        "--currency USD --percent 30 --minimum=-1", 1 => "--minimum is below 0";
        "--currency USD --percent 30 --minimum 0.005", 1 => "--minimum 0.005 in USD: it is not an amount";
        "--currency JPY --percent 30", 1 => "no option has a cost in JPY";
        "--currency USDT --percent 30", 2 => "three capital letters";
        "--currency USD --percent 30%", 2 => "it is not a percentage";
    } {
        let arguments = format!("price markup other {arguments}");
        let refused = operator.run(&words(&arguments)).await;
        refused.fails(code, part);
    }
}

#[tokio::test]
async fn a_partner_gets_a_list_and_loses_it_with_a_record() {
    let operator = Operator::new().await;
    let [one] = catalogue(&operator, [None]).await;
    let partner = operator.create_partner().await;
    let id = text(&partner, "partner_id");
    let file = json!([{"option_id": one, "price": "4.50"}]);
    apply(&operator, &[], file.to_string()).await.text();
    let assign = [&["price", "assign", "Acme", "retail"][..], &CONFIRMED].concat();
    let done = operator.run(&assign).await;
    done.says("gets the price list retail")
        .says("warning: it has no account in the currency of the list");
    let limit = ["account", "limit", id, "EUR", "--prepaid"];
    operator
        .run(&[&limit[..], &CONFIRMED].concat())
        .await
        .text();
    let again = operator.run(&assign).await;
    assert!(
        again
            .says("has the price list retail already")
            .text()
            .lines()
            .count()
            == 1
    );
    let lists = operator.json(&["price", "list"]).await;
    assert_eq!(lists[0]["partners"], json!(["Acme"]));
    let none = ["price", "assign", id, "--none"];
    let preview = operator.run(&[&none[..], &["--dry-run"]].concat()).await;
    preview
        .says("would get no price list, so it orders without prices; it had the price list retail");
    operator.run(&[&none[..], &CONFIRMED].concat()).await.text();
    assert_eq!(
        operator.json(&["price", "list"]).await[0]["partners"],
        json!([])
    );
    let unknown = ["price", "assign", id, "gold"];
    let unknown = operator.run(&[&unknown[..], &CONFIRMED].concat()).await;
    unknown.fails(
        1,
        "there is no price list gold; `esimctl price list` shows all",
    );
    operator
        .run(&["price", "list", "gold"])
        .await
        .fails(1, "`esimctl price list` shows all");
    operator
        .run(&["price", "assign", id])
        .await
        .fails(2, "LIST");
}

/// Opens an account and books a deposit of 100.00 EUR.
async fn with_account(operator: &Operator) -> String {
    let partner = operator.create_partner().await;
    let id = text(&partner, "partner_id").to_owned();
    let open = ["account", "limit", &id, "EUR", "--credit", "20.00"];
    let opened = operator.run(&[&open[..], &CONFIRMED].concat()).await;
    opened.says("is opened: a credit of 20.00 EUR");
    let deposit = [
        "account",
        "deposit",
        &id,
        "100.00",
        "EUR",
        "--reference",
        "INV-42",
    ];
    let booked = operator.run(&[&deposit[..], &CONFIRMED].concat()).await;
    booked.says("as entry 1: the balance goes from 0.00 EUR to 100.00 EUR");
    id
}

#[tokio::test]
async fn a_payment_is_booked_once_and_a_mistake_is_adjusted() {
    let operator = Operator::new().await;
    let id = with_account(&operator).await;
    let deposit = [
        "account",
        "deposit",
        &id,
        "100.00",
        "EUR",
        "--reference",
        "INV-42",
    ];
    let again = operator.run(&[&deposit[..], &CONFIRMED].concat()).await;
    again.fails(
        1,
        r#"the reference "INV-42" was booked before, as entry 1 of 100.00 EUR"#,
    );
    let preview = operator.run(&[&deposit[..], &["--dry-run"]].concat()).await;
    preview.fails(1, "was booked before");
    let adjust = [
        "account",
        "adjust",
        &id,
        "-5.00",
        "EUR",
        "--reference",
        "COR-1",
    ];
    let preview = operator.run(&[&adjust[..], &["--dry-run"]].concat()).await;
    preview.says("an adjustment of -5.00 EUR would be booked");
    let asked = operator
        .run(&[&adjust[..], &["--reason", "twice"]].concat())
        .await;
    asked.fails(1, "confirm with --yes, or preview with --dry-run");
    let booked = operator.json(&[&adjust[..], &CONFIRMED].concat()).await;
    let figures = ["number", "amount", "balance"].map(|name| booked[name].clone());
    assert_eq!(figures, [json!(2), json!(-500), json!(9500)]);

    let shown = operator.json(&["account", "show", "Acme"]).await;
    let account = &shown["accounts"][0];
    let figures = ["balance", "held", "available", "entries"].map(|name| account[name].clone());
    assert_eq!(figures, [json!(9500), json!(0), json!(11500), json!(2)]);
    let newest = &account["last_entries"][0];
    assert_eq!(
        (
            text(newest, "reference"),
            text(newest, "made_by"),
            text(newest, "reason")
        ),
        ("COR-1", "test", "a test")
    );
    let shown = operator.run(&["account", "show", &id]).await;
    shown
        .says("a credit of 20.00 EUR")
        .says("115.00 EUR")
        .says("COR-1");

    let postpaid = ["account", "limit", &id, "EUR", "--postpaid"];
    let changed = operator.run(&[&postpaid[..], &CONFIRMED].concat()).await;
    changed.says("is now postpaid; it was a credit of 20.00 EUR");
    let actions = operator.actions().await;
    let commands: Vec<_> = actions
        .iter()
        .rev()
        .map(|one| text(one, "command"))
        .collect();
    let expected = [
        "account limit",
        "account deposit",
        "account adjust",
        "account limit",
    ];
    assert_eq!(commands, expected);
    assert_eq!(
        text(&actions[1], "before"),
        r#"{"balance": 10000, "currency": "EUR"}"#
    );

    for (arguments, code, part) in testkit::rows! {
        "deposit Acme 0 EUR --reference x", 1 => "a deposit is more than 0";
        "deposit Acme -1 EUR --reference x", 1 => "a deposit is more than 0";
        "adjust Acme 0.00 EUR --reference x", 1 => "an adjustment of 0 changes nothing";
        "deposit Acme 1.005 EUR --reference x", 1 => "1.005 in EUR: it is not an amount";
        "deposit Acme 100,00 EUR --reference x", 1 => "it is not an amount";
        "deposit Acme 1 USD --reference x", 1 => "`esimctl account limit` opens one";
        "deposit Acme 1 Euro --reference x", 2 => "three capital letters";
        "deposit Nobody 1 EUR --reference x", 1 => "see `esimctl partner list`";
        "limit Acme EUR --credit=-1", 1 => "--prepaid is an account without credit";
        "limit Acme EUR", 2 => "--prepaid";
    } {
        let arguments = format!("account {arguments} --dry-run");
        let refused = operator.run(&words(&arguments)).await;
        refused.fails(code, part);
    }
}

#[tokio::test]
async fn an_export_has_a_line_for_each_entry_and_its_amounts_stay_numbers() {
    let operator = Operator::new().await;
    let id = with_account(&operator).await;
    let mut adjust = words("account adjust Acme -5.00 EUR --reference =1+1 --yes --reason");
    adjust.push("a \"correction\", really");
    operator.run(&adjust).await.text();
    let export = ["account", "export", &id, "EUR"];
    let csv = operator.run(&export).await;
    let lines: Vec<&str> = csv.text().lines().collect();
    assert_eq!(lines.len(), 3, "{csv:?}");
    assert_eq!(
        lines[0],
        "number,at,kind,amount,balance,currency,released,topup_id,extension_id,reference,reason,made_by"
    );
    assert!(
        lines[1].starts_with("1,")
            && lines[1].contains(",deposit,100.00,100.00,EUR,0.00,,,INV-42,")
    );
    let adjusted = ",adjustment,-5.00,95.00,EUR,0.00,,,'=1+1,\"a \"\"correction\"\", really\",test";
    assert!(lines[2].ends_with(adjusted), "{}", lines[2]);
    let from = operator
        .run(&[&export[..], &["--from", "2"]].concat())
        .await;
    assert_eq!(from.text().lines().count(), 2, "{from:?}");
    let none = operator
        .run(&[&export[..], &["--from", "3"]].concat())
        .await;
    assert_eq!(none.text().lines().count(), 1, "{none:?}");
    let first = operator.json(&[&export[..], &["--to", "1"]].concat()).await;
    assert_eq!(
        (first[0]["amount"].clone(), first[1].clone()),
        (json!(10_000), Value::Null)
    );
    let dollars = ["account", "export", &id, "USD"];
    operator
        .run(&dollars)
        .await
        .fails(1, "has no account in USD; see `esimctl account show");
}

#[tokio::test]
async fn a_row_that_somebody_has_changed_is_found() {
    let operator = Operator::new().await;
    let check = ["account", "check"];
    operator
        .run(&check)
        .await
        .says("0 accounts with 0 entries and 0 units");
    with_account(&operator).await;
    operator
        .run(&check)
        .await
        .says("1 account with 1 entry and 0 units that have prices agree");
    let mut superuser = operator.database.connect().await.unwrap();
    for (tamper, mend, part) in testkit::rows! {
        "UPDATE account_entries SET amount = 9999" , "UPDATE account_entries SET amount = 10000"
            => "Acme in EUR: entry 1 does not follow from the one before";
        "UPDATE accounts SET posted = 10001", "UPDATE accounts SET posted = 10000"
            => "Acme in EUR: the balance is 10001, and the entries add up to 10000";
        "UPDATE accounts SET held = 450", "UPDATE accounts SET held = 0"
            => "Acme in EUR: 450 is held, and the open units cost 0";
    } {
        for (statement, tampered) in [(tamper, true), (mend, false)] {
            let statement = format!(
                "ALTER TABLE account_entries DISABLE TRIGGER account_entry_stays; {statement};
                 ALTER TABLE account_entries ENABLE TRIGGER account_entry_stays"
            );
            let done = sqlx::raw_sql(sqlx::AssertSqlSafe(statement));
            done.execute(&mut superuser).await.unwrap();
            let checked = operator.run(&check).await;
            if tampered {
                assert_eq!(checked.code, Some(3), "{checked:?}");
                assert!(checked.stdout.contains(part), "{checked:?}");
                assert!(
                    checked.stderr.contains("find out what changed the rows"),
                    "{checked:?}"
                );
            } else {
                checked.says("agree to the least unit");
            }
        }
    }
}

/// The books may add up and still not be about what was ordered.
#[tokio::test]
async fn an_entry_that_is_not_about_the_price_of_its_unit_is_found() {
    let operator = Operator::new().await;
    let id = with_account(&operator).await;
    let partner = json!({ "partner_id": id });
    let (mut superuser, order) = operator.ready_order(&partner, "o-1").await;
    let terms = |amount: u32| {
        let topup = &order.topup;
        format!(
            r#"UPDATE topups SET terms = '{{"price":{{"amount":{amount},"currency":"EUR"}}}}' WHERE topup_id = '{}'"#,
            topup.as_str()
        )
    };
    let charge = format!("SELECT account_for(ARRAY['{}'::uuid])", order.placement);
    let held = "UPDATE accounts SET held = 450".to_owned();
    for statement in [terms(450), held, charge] {
        let done = sqlx::raw_sql(sqlx::AssertSqlSafe(statement));
        done.execute(&mut superuser).await.unwrap();
    }
    let check = ["account", "check"];
    let agrees = operator.run(&check).await;
    agrees.says("1 account with 2 entries and 1 unit that have prices agree");
    let shown = operator.run(&["account", "show", &id]).await;
    shown.says("95.50 EUR").says(order.topup.as_str());
    let cheaper = sqlx::raw_sql(sqlx::AssertSqlSafe(terms(440)));
    cheaper.execute(&mut superuser).await.unwrap();
    let checked = operator.run(&check).await;
    assert_eq!(checked.code, Some(3), "{checked:?}");
    let found = format!(
        "entry 2 is not about the price of unit {}, which is 440",
        order.topup.as_str()
    );
    assert!(checked.stdout.contains(&found), "{checked:?}");
}

#[tokio::test]
async fn a_margin_is_told_by_what_is_asked_for_and_never_mixes_currencies() {
    let operator = Operator::new().await;
    let partner = operator.create_partner().await;
    let id = text(&partner, "partner_id").to_owned();
    let limit = [
        "account",
        "limit",
        &id,
        "EUR",
        "--prepaid",
        "--reason",
        "x",
        "--yes",
    ];
    operator.run(&limit).await.text();
    // As the settlement of units writes them, of two months.
    let entries = format!(
        "ALTER TABLE account_entries DISABLE TRIGGER entry_costed;
         INSERT INTO account_entries (partner_id, currency, number, kind, amount, balance, released, topup_id, made_by, at, provider,
                                      cost, cost_currency)
         SELECT '{id}', 'EUR', n, 'charge', -450, -450 * n, 450, 't' || n, 'system', at::timestamptz, 'airalo', 31234, code
         FROM (VALUES (1, '2026-10-31 23:59:59Z', 'EUR'), (2, '2026-11-01 00:00:00Z', 'EUR'), (3, '2026-11-30 23:59:59Z', 'USD'),
                      (4, '2026-12-01 00:00:00Z', 'EUR')) AS entry (n, at, code)"
    );
    let mut superuser = operator.database.connect().await.unwrap();
    let entries = sqlx::raw_sql(sqlx::AssertSqlSafe(entries));
    entries.execute(&mut superuser).await.unwrap();
    let margin = words("account margin --from 2026-10 --to 2026-11 --by month,provider");
    let lines = operator.json(&margin).await;
    let told = lines.as_array().unwrap().iter();
    let told: Vec<(&str, &str, &Value, &Value)> = told
        .map(|line| {
            (
                text(line, "month"),
                text(line, "cost_currency"),
                &line["margin"],
                &line["sold"],
            )
        })
        .collect();
    assert_eq!(
        told,
        [
            ("2026-10", "EUR", &json!("1.3766"), &json!(1)),
            ("2026-11", "EUR", &json!("1.3766"), &json!(1)),
            ("2026-11", "USD", &json!(null), &json!(1)),
        ]
    );
    assert!(lines[0].get("partner").is_none(), "{lines}");
    let table = operator.run(&margin).await;
    table.says("no rate from USD to EUR is known");
    let csv = operator
        .run(&[&margin[..], &["--partner", "Acme", "--csv"]].concat())
        .await;
    let expected = "2026-11,,,airalo,,,1,0,EUR,4.50,EUR,3.1234,1.3766,30.5";
    assert_eq!(csv.text().lines().nth(2), Some(expected));
    let none = operator
        .run(&words(
            "account margin --from 2026-10 --to 2026-11 --provider other",
        ))
        .await;
    none.says("Nothing was charged");
    operator
        .run(&words("account margin --from 2026-11 --to 2026-10"))
        .await
        .fails(1, "--from 2026-11 is after the last month, 2026-10");
}
