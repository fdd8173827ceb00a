//! What one partner may do at once: its answers say what is left, and its share is named when it is
//! used up. Topup ids are here, too, because one partner must not learn from them what others buy.

use std::collections::BTreeSet;

use futures_util::future::join_all;
use serde_json::json;
use testkit::stack::{Stack, Stage};
use testkit::{raw, wait};
use tokio::io::AsyncWriteExt;

use crate::{
    partner::header,
    shop::{Shop, fresh},
};

const ACCOUNT: &str = "/api/v1/api_partner/account";
/// Half of the places of self-service requests, which are a constant of ingress.
const SHARE: usize = 32;
const LEFT: [&str; 3] = ["ratelimit-limit", "ratelimit-remaining", "ratelimit-reset"];

#[tokio::test]
async fn many_look_ups_at_once_are_served_by_an_idle_system() {
    // The machine that runs the tests may be busy, so they may wait longer than by default.
    let stack = Stack::with(Stage::Ingress, &[("QUEUE_DEADLINE", "20s")])
        .await
        .unwrap();
    let shop = Shop::open(&stack).await.unwrap();
    let answers = join_all((0..100).map(|_| shop.client.get(ACCOUNT).send())).await;
    for answer in answers {
        let answer = answer.unwrap();
        assert_eq!(answer.status, 200, "{answer:?}");
    }
}

/// A request keeps its place until its body has arrived, so unfinished ones hold exactly the share.
#[tokio::test]
async fn a_partner_beyond_its_share_learns_that_the_share_is_its_own() {
    let limits = [("QUEUE_DEADLINE", "100ms")];
    let mut stack = Stack::with(Stage::Ingress, &limits).await.unwrap();
    let shop = Shop::open(&stack).await.unwrap();
    let other = Shop::open(&stack).await.unwrap();
    let path = "/api/v1/api_partner/webhook";
    let lines = "Host: partner-api\r\nContent-Length: 100";
    let mut unfinished = Vec::new();
    for _ in 0..SHARE {
        let mut connection = raw::connect(&stack.base_url).await.unwrap();
        let head = raw::head_of(&shop.partner, "PUT", path, lines).unwrap();
        connection.write_all(&head).await.unwrap();
        unfinished.push(connection);
    }
    let held = async || {
        let metrics = stack.process(Stage::Ingress)?.metrics().await?;
        let gauge = format!("esim_self_service_in_flight {SHARE}");
        Ok(metrics.lines().any(|line| line == gauge).then_some(()))
    };
    wait::soon("the requests that hold the share", held).await;
    let refused = shop.client.get(ACCOUNT).send().await.unwrap();
    assert_eq!(
        (refused.status, header(&refused, "x-service-error")),
        (429, "share_in_use"),
        "{refused:?}"
    );
    assert_eq!(header(&refused, "retry-after"), "1");
    let served = other.client.get(ACCOUNT).send().await.unwrap();
    assert_eq!(served.status, 200, "{served:?}");
    // They give the places back.
    drop(unfinished);
    let free = async || {
        let answer = shop.client.get(ACCOUNT).send().await?;
        Ok((answer.status == 200).then_some(()))
    };
    wait::soon("a place of the share", free).await;
}

#[tokio::test]
async fn answers_say_how_much_is_left_of_the_partners_rate() {
    let stack = Stack::start().await.unwrap();
    let shop = Shop::open(&stack).await.unwrap();
    let limits = ["--requests-per-second", "10", "--orders-per-second", "1"];
    let set = [&["partner", "set", &shop.partner.access_key][..], &limits].concat();
    stack.esimctl.run::<serde_json::Value>(&set).await.unwrap();
    let applied = async || {
        let shown = shop.client.get(ACCOUNT).send().await?;
        Ok((header(&shown, "ratelimit-limit") == "10").then_some(shown))
    };
    let shown = wait::soon("the limits of the partner", applied).await;
    assert_eq!(LEFT.map(|name| header(&shown, name)), ["10", "9", "1"]);
    let unknown = shop
        .client
        .get("/api/v1/api_partner/orders/none")
        .send()
        .await
        .unwrap();
    assert_eq!(unknown.status, 404);
    assert_eq!(header(&unknown, "ratelimit-limit"), "10");
    let option = stack.option("ready").unwrap();
    let ordered = shop
        .client
        .order(&fresh("rate"), &[(option, 1)])
        .await
        .unwrap();
    assert_eq!(ordered.status, 201);
    assert_eq!(LEFT.map(|name| header(&ordered, name)), ["1", "0", "1"]);
    // An order that does not count as one, and other requests whose bodies are refused.
    for (body, status) in [("{}", 422), ("", 400), ("[]", 422)] {
        let refused = shop.client.post(body).send().await.unwrap();
        assert_eq!(
            (refused.status, header(&refused, "ratelimit-limit")),
            (status, "10"),
            "{body}"
        );
    }
    let encoded = shop.client.post("{}").method("PUT");
    let encoded = encoded.path("/api/v1/api_partner/webhook");
    let encoded = encoded.header("content-encoding", "gzip").send().await;
    let encoded = encoded.unwrap();
    assert_eq!(
        (encoded.status, header(&encoded, "ratelimit-limit")),
        (415, "10")
    );
}

/// Each change of an account leaves a record that is kept, so a partner makes only so many.
#[tokio::test]
async fn changes_that_are_recorded_have_a_rate_of_their_own() {
    let stack = Stack::start().await.unwrap();
    let shop = Shop::open(&stack).await.unwrap();
    let path = |verb: &str| {
        let first = &shop.partner.partner_id;
        format!("/api/v1/api_partner/endpoints/{first}/{verb}")
    };
    let ask = async |verb: &str| {
        let request = shop.client.post("").path(&path(verb));
        request.send().await.unwrap()
    };
    // Eight side by side, because one after the other they may stay within the rate on a busy
    // machine. Some find the endpoint paused already.
    let mut refused = None;
    for _ in 0..100 {
        let verbs = ["pause", "resume"].into_iter().cycle().take(8);
        let answers = futures_util::future::join_all(verbs.map(ask)).await;
        refused = answers.into_iter().find(|answer| answer.status == 429);
        if refused.is_some() {
            break;
        }
    }
    let refused = &refused.expect("eight hundred changes in a few seconds");
    assert_eq!(
        (
            header(refused, "x-service-error"),
            header(refused, "ratelimit-limit")
        ),
        ("rate_limited", "10")
    );
    // What changes nothing goes on.
    assert_eq!(shop.client.get(ACCOUNT).send().await.unwrap().status, 200);
}

#[tokio::test]
async fn topup_ids_that_exist_already_are_replaced_and_the_order_succeeds() {
    let stack = Stack::start().await.unwrap();
    let shop = Shop::open(&stack).await.unwrap();
    let mut database = stack.database.connect().await.unwrap();
    // The first two topups of the test collide, as if another process had made the same ids.
    let collide = "
        CREATE SEQUENCE collisions;
        GRANT USAGE ON SEQUENCE collisions TO PUBLIC;
        CREATE FUNCTION collide() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN
            IF nextval('collisions') <= 2 THEN
                RAISE unique_violation USING CONSTRAINT = 'topups_topup_id_key';
            END IF;
            RETURN NEW;
        END $$;
        CREATE TRIGGER collide BEFORE INSERT ON topups FOR EACH ROW EXECUTE FUNCTION collide();";
    sqlx::raw_sql(collide).execute(&mut database).await.unwrap();
    let option = stack.option("ready").unwrap();
    let answer = shop
        .client
        .order(&fresh("collision"), &[(option, 3)])
        .await
        .unwrap();
    assert_eq!(answer.status, 201, "{answer:?}");
    let ids: BTreeSet<String> = answer
        .products()
        .unwrap()
        .into_iter()
        .map(|product| product.topup_id)
        .collect();
    let stored: Vec<String> = sqlx::query_scalar("SELECT topup_id FROM topups ORDER BY topup_id")
        .fetch_all(&mut database)
        .await
        .unwrap();
    assert_eq!(stored, ids.into_iter().collect::<Vec<_>>());
    let tried: i64 = sqlx::query_scalar("SELECT last_value FROM collisions")
        .fetch_one(&mut database)
        .await
        .unwrap();
    assert!(tried >= 5, "two collisions and three new ids: {tried}");
}

#[tokio::test]
async fn one_account_cannot_take_all_places_of_listening() {
    let stack = Stack::start().await.unwrap();
    let shop = Shop::open(&stack).await.unwrap();
    let other = Shop::open(&stack).await.unwrap();
    let listen = |shop: &Shop, wait: u32| {
        let path = "/api/v1/api_partner/webhook/listen";
        shop.client.get(path).query(&format!("wait={wait}")).send()
    };
    let several = join_all((0..6).map(|_| listen(&shop, 3)));
    let (several, others) = tokio::join!(several, listen(&other, 1));
    assert_eq!(others.unwrap().status, 200);
    let several: Vec<_> = several.into_iter().map(Result::unwrap).collect();
    let refused = several.iter().filter(|answer| answer.status != 200);
    let refused: Vec<_> = refused
        .map(|answer| (answer.status, header(answer, "x-service-error")))
        .collect();
    assert_eq!(refused, [(429, "share_in_use"), (429, "share_in_use")]);
    let text = several
        .iter()
        .find(|answer| answer.status == 429)
        .unwrap()
        .json()
        .unwrap();
    assert_eq!(
        text,
        json!({"error": "Your account's share is in use: 4 of its requests are in progress"})
    );
}
