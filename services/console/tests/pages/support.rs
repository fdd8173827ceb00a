//! A console on a database of the test's own, with something to show, and browsers of each role.

#![expect(clippy::unwrap_used, reason = "a helper that fails fails its test")]

use std::{collections::BTreeMap, time::Duration};

use ::accounts::{
    partners::{self, NewPartner},
    profile::Profile,
};
use console::{Config, access::OperatorRole};
use desk::operator::{accounts, resends};
use domain::{
    ActivationCode, DeliveryId, Environment, Iccid, OptionId, OrderId, PartnerId, PlacementId,
    TopupId, TopupIds, standing::DeliveryState,
};
use pg::{
    PgConnection,
    actions::{Action, Actor},
    schema,
};
use reqwest::{Client, Response, header};
use runtime::{Shutdown, clock};
use secrecy::ExposeSecret;
use signing::{SecretKey, webhook::Secret};
use store::{
    deliveries::resends::ResendSelection,
    orders::{self, NewOrder, NewPlacement, NewTopup},
    placements::{
        self, AttemptOutcome, PlacementClaim, PlacementSettlement, Progress, ReadyProfile,
        SettledUnit,
    },
    providers::{self, AfterDelivery},
};
use testkit::{database::Database, ports, settings::MASTER_KEY, wait};
use tokio::task::JoinHandle;
use uuid::Uuid;
use vault::Vault;

pub const PATIENCE: Duration = Duration::from_secs(20);
pub const PASSWORD: &str = "correct horse battery staple";
/// An external order id with every character that has a meaning in a URL.
pub const EXTERNAL: &str = "a/b?c=d&e#f %41+g;h";
/// An activation code that no page may show by itself.
pub const CODE: &str = "TOP-SECRET-CODE";
/// The part of a webhook URL that is a secret of the partner.
pub const URL_SECRET: &str = "path-that-is-secret";
pub const ICCID: &str = "8981000000000000001";

/// A running console, and what is stored in its database.
pub struct Bench {
    pub database: Database,
    pub base: String,
    pub order: OrderId,
    pub topup: TopupId,
    pub partner: PartnerId,
    /// A placement that waits for an operator.
    pub parked: PlacementId,
    running: RunningConsole,
}

/// The process of a console.
pub struct RunningConsole {
    shutdown: Shutdown,
    task: JoinHandle<anyhow::Result<()>>,
}

impl RunningConsole {
    pub async fn stop(self) {
        self.shutdown.stop();
        let stopped = tokio::time::timeout(PATIENCE, self.task).await;
        stopped.unwrap().unwrap().unwrap();
    }
}

/// Starts a console with these settings, and waits until it is ready. Returns the address of its
/// pages.
async fn serve(database: &Database, more: &[(&str, &str)]) -> (String, RunningConsole) {
    let listen = format!("127.0.0.1:{}", ports::free().unwrap());
    let admin = format!("127.0.0.1:{}", ports::free().unwrap());
    let url = database.url_of("console").unwrap();
    let own = [
        ("LISTEN", listen.as_str()),
        ("ADMIN_LISTEN", &admin),
        ("DATABASE_URL", &url),
    ];
    let settings: BTreeMap<String, String> = own
        .into_iter()
        .chain(more.iter().copied())
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect();
    let config: Config = testkit::settings::parse(&settings);
    let shutdown = Shutdown::new();
    let task = tokio::spawn(console::run(config, shutdown.clone()));
    let ready = format!("http://{admin}/readyz");
    let asked = wait::until(PATIENCE, "a console that is ready", async || {
        let answer = testkit::http::client()?.get(&ready).send().await;
        Ok(answer.ok().filter(|answer| answer.status().is_success()))
    });
    asked.await.unwrap();
    (
        format!("http://{listen}"),
        RunningConsole { shutdown, task },
    )
}

pub fn vault() -> Vault {
    Vault::parse(&MASTER_KEY.to_owned().into()).unwrap()
}

fn action(reason: &'static str) -> Action<'static> {
    Action {
        actor: Actor::esimctl("test"),
        command: domain::Command::OperatorCreate,
        target: "test",
        reason,
    }
}

impl Bench {
    pub async fn start() -> Self {
        Self::start_with(&[]).await
    }

    /// Starts a console with these settings, and waits until it is ready.
    pub async fn start_with(more: &[(&str, &str)]) -> Self {
        let database = Database::create().await.unwrap();
        let mut connection = database.connect().await.unwrap();
        schema::migrate(&mut connection).await.unwrap();
        providers::register(&mut connection, &["sandbox".to_owned()])
            .await
            .unwrap();
        let can = AfterDelivery {
            usage: true,
            give_back: true,
            suspend: true,
        };
        providers::note_after_delivery(&mut connection, "sandbox", can)
            .await
            .unwrap();
        let partner = store_partner(&mut connection).await;
        let (order, topup, _) = store_order(&mut connection, partner, EXTERNAL, true).await;
        let (_, _, parked) = store_order(&mut connection, partner, "parked", false).await;
        park(&mut connection, parked, partner).await;

        let (base, running) = serve(&database, more).await;
        Self {
            database,
            base,
            order,
            topup,
            partner,
            parked,
            running,
        }
    }

    /// Another console on the same database.
    pub async fn beside(&self, more: &[(&str, &str)]) -> RunningConsole {
        serve(&self.database, more).await.1
    }

    /// Creates an account, and opens its set-up link: the whole way of a new operator.
    pub async fn sign_in(&self, name: &str, role: OperatorRole) -> Browser {
        let mut connection = self.database.connect().await.unwrap();
        let made = accounts::create(&mut connection, name, role, action("new"))
            .await
            .unwrap();
        let link = made.token.expose_secret().to_owned();
        let mut browser = self.browser();
        let page = browser.get("/set-up").await;
        let token = token_of(&page.text().await.unwrap());
        let set = browser
            .post(
                "/set-up",
                &[
                    ("token", &token),
                    ("link", &link),
                    ("password", PASSWORD),
                    ("again", PASSWORD),
                ],
            )
            .await;
        assert_eq!(set.status(), 303, "{:?}", set.text().await);
        let page = browser.get("/").await;
        assert_eq!(page.status(), 200);
        browser.token = token_of(&page.text().await.unwrap());
        browser
    }

    /// Starts a resend, which runs until it is cancelled because there is no notifier here.
    pub async fn resend(&self) -> Uuid {
        let mut connection = self.database.connect().await.unwrap();
        let wanted = ResendSelection {
            state: Some(DeliveryState::Exhausted),
            since: clock::now() - PATIENCE * 60,
            until: None,
        };
        let started = resends::start(
            &mut connection,
            Uuid::now_v7(),
            None,
            &wanted,
            action("a test"),
        )
        .await;
        started.unwrap().resend_id
    }

    /// Somebody who has not signed in.
    pub fn browser(&self) -> Browser {
        Browser {
            base: self.base.clone(),
            client: testkit::http::client().unwrap(),
            cookies: BTreeMap::new(),
            token: String::new(),
        }
    }

    /// The commands of recorded actions that came from the console, oldest first. Each sign-in of a
    /// test sets a password first, which is recorded, too, and left out here.
    pub async fn recorded(&self) -> Vec<String> {
        let mut connection = self.database.connect().await.unwrap();
        sqlx::query_scalar(
            "SELECT operator || ' ' || command FROM operator_actions WHERE via = 'console' AND command <> 'operator set-up' ORDER BY at",
        )
        .fetch_all(&mut connection)
        .await
        .unwrap()
    }

    pub async fn stop(self) {
        self.running.stop().await;
    }
}

/// A browser with its cookies.
pub struct Browser {
    base: String,
    client: Client,
    pub cookies: BTreeMap<String, String>,
    /// The token of its forms, once it has signed in.
    pub token: String,
}

/// The text of a page that there is.
pub async fn text(browser: &mut Browser, path: &str) -> String {
    let answer = browser.get(path).await;
    assert_eq!(answer.status(), 200, "{path}");
    answer.text().await.unwrap()
}

/// The text of a page, which is read again until it is as it has to be: what several viewers share
/// is some moments old.
pub async fn text_when(browser: &mut Browser, path: &str, is: impl Fn(&str) -> bool) -> String {
    for _ in 0..100 {
        let page = text(browser, path).await;
        if is(&page) {
            return page;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    panic!(
        "{path} did not become as it has to be: {}",
        text(browser, path).await
    );
}

impl Browser {
    pub async fn get(&mut self, path: &str) -> Response {
        let request = self.client.get(format!("{}{path}", self.base));
        self.send(request).await
    }

    pub async fn post(&mut self, path: &str, fields: &[(&str, &str)]) -> Response {
        let body: String = url::form_urlencoded::Serializer::new(String::new())
            .extend_pairs(fields)
            .finish();
        let request = self
            .client
            .post(format!("{}{path}", self.base))
            .header(header::CONTENT_TYPE, "application/x-www-form-urlencoded")
            .body(body);
        self.send(request).await
    }

    pub async fn send(&mut self, request: reqwest::RequestBuilder) -> Response {
        let cookies: Vec<String> = self
            .cookies
            .iter()
            .map(|(name, value)| format!("{name}={value}"))
            .collect();
        let answer = request
            .header(header::COOKIE, cookies.join("; "))
            .send()
            .await
            .unwrap();
        for cookie in answer.headers().get_all(header::SET_COOKIE) {
            let text = cookie.to_str().unwrap();
            assert!(
                text.contains("HttpOnly") && text.contains("SameSite="),
                "{text}"
            );
            let (name, value) = text.split(';').next().unwrap().split_once('=').unwrap();
            if text.contains("Max-Age=0") {
                self.cookies.remove(name);
            } else {
                self.cookies.insert(name.to_owned(), value.to_owned());
            }
        }
        answer
    }
}

/// The token of the first form on a page.
pub fn token_of(page: &str) -> String {
    let (_, rest) = page
        .split_once("name=\"token\" value=\"")
        .unwrap_or_else(|| panic!("no form in {page}"));
    rest.split('"').next().unwrap().to_owned()
}

async fn store_partner(connection: &mut PgConnection) -> PartnerId {
    let partner_id = PartnerId::new();
    let new = NewPartner {
        partner_id,
        name: "Acme & <Sons>",
        environment: Environment::Sandbox,
        access_key: "ak_0123456789abcdef01234567",
        secret_key: &SecretKey::from_bytes(vec![1; 32]).unwrap(),
        webhook_url: Some(&format!("https://hooks.example.com/{URL_SECRET}")),
        webhook_secret: &Secret::from_bytes(vec![2; 32]).unwrap(),
        limits: ::accounts::partners::PartnerLimits::default(),
    };
    partners::create(connection, &vault(), &new).await.unwrap();
    partner_id
}

/// Stores an order of one unit, whose eSIM is `ready` or not.
async fn store_order(
    connection: &mut PgConnection,
    partner: PartnerId,
    external_order_id: &str,
    ready: bool,
) -> (OrderId, TopupId, PlacementId) {
    let ids = TopupIds::new([u8::from(ready); 32]);
    let topup = ids.next(clock::now());
    let placement = NewPlacement {
        placement_id: PlacementId::new(),
        provider: "sandbox".to_owned(),
        lane: "ready".to_owned(),
        alternatives: Vec::new(),
        topups: vec![NewTopup::new(
            topup.clone(),
            0,
            OptionId::new(),
            "ready".to_owned(),
        )],
    };
    let placement_id = placement.placement_id;
    let order = NewOrder {
        traceparent: Some("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01".into()),
        ..NewOrder::new(partner, external_order_id.to_owned(), vec![placement])
    };
    let order_id = order.order_id;
    assert_eq!(orders::insert(connection, &[order]).await.unwrap(), [true]);
    if !ready {
        return (order_id, topup, placement_id);
    }
    let claimed = placements::claim(
        connection,
        "sandbox",
        &[placement_id],
        PlacementClaim::Fresh,
        PATIENCE,
    )
    .await
    .unwrap();
    let profile = Profile {
        code: ActivationCode::new("smdp.example.com", CODE).unwrap(),
        expired_date: "2027-01-29".to_owned(),
    };
    let unit = SettledUnit {
        topup_id: topup.clone(),
        provider_unit_id: "unit-1".to_owned(),
        progress: Progress::Ready(ReadyProfile {
            iccid: Iccid::parse(ICCID).unwrap(),
            profile: profile.seal(&vault(), partner, &topup).unwrap(),
            delivery_id: DeliveryId::new(),
        }),
    };
    let settlement = PlacementSettlement {
        placement_id,
        attempt: claimed[0].attempt,
        outcome: AttemptOutcome::Bought {
            reference: Some("P-4711".into()),
            units: vec![unit],
            listed: 1,
            collect_in: None,
            park: None,
            announced: true,
        },
        is_priced: false,
        known: None,
    };
    placements::settle(connection, &[settlement]).await.unwrap();
    // As if its retries had ended.
    sqlx::query(
        "WITH ended AS (UPDATE deliveries SET state = 'exhausted', attempt = 8, status = 500, error = 'status 500', attempted_at = now(),
                               duration_ms = 12 WHERE topup_id = $1 RETURNING delivery_id, partner_id)
         INSERT INTO held (id, state, provider, partner_id) SELECT delivery_id, 'exhausted', '', partner_id FROM ended",
    )
    .bind(topup.as_str())
    .execute(connection)
    .await
    .unwrap();
    (order_id, topup, placement_id)
}

async fn park(connection: &mut PgConnection, placement: PlacementId, partner: PartnerId) {
    sqlx::query(
        "WITH parked AS (UPDATE placements SET state = 'parked', attempt = 1, reason = 'outcome_unknown: no answer'
                         WHERE placement_id = $1)
         INSERT INTO held (id, state, provider, partner_id) VALUES ($1, 'parked', 'sandbox', $2)",
    )
    .bind(placement.uuid())
    .bind(partner.uuid())
    .execute(connection)
    .await
    .unwrap();
}
