//! What is added to a delivered eSIM, at the stand-in of each provider: what can be added, the
//! attempt, and the look for one whose answer was lost. How the pipeline buys an extension is not
//! the matter here, so these tests need no database.

use std::{sync::Arc, time::Duration};

use domain::{ExtensionId, PlacementId, esim_change::GiveBackCause, extension::Baseline};
use provisioner::providers::{
    AddedExtension, BeforeExtension, DeliveredEsim, ExtendResponse, Extension, ExtensionSeen,
    FindExtension, GiveBackResponse, LookUpRequest, LookUpResponse, Provider, ProviderUnitState,
    Purchase, Trouble,
};
use runtime::clock::Moment;
use serde_json::json;
use testkit::wait;

use crate::{hostile::connect, seller::Seller, support::provider_option};

const ALL: [&str; 5] = ["airalo", "esim-access", "sandbox", "usimsa", "zendit"];
/// What each option of the stand-ins adds.
const ADDS: u64 = 5 << 30;
const DAYS: u32 = 30;

/// An account at a stand-in.
struct Shop {
    seller: Seller,
    name: &'static str,
    provider: Arc<dyn Provider>,
}

impl Shop {
    async fn open(name: &'static str) -> Self {
        let seller = Seller::start(None).await;
        let provider = connect(name, seller.url().as_str());
        Self {
            seller,
            name,
            provider,
        }
    }

    /// Buys an eSIM of this option.
    async fn esim(&self, option: &str) -> DeliveredEsim {
        let placement_id = PlacementId::new();
        let purchase = Purchase {
            placement_id,
            items: vec![(provider_option(option), 1)],
            send_by: Moment::now() + Duration::from_mins(1),
        };
        self.provider.purchase(&purchase).await.unwrap();
        let look_up = LookUpRequest {
            placement_id,
            reference: None,
            options: Vec::new(),
            attempt_age: Duration::from_secs(1),
            arrives_within: Duration::from_mins(1),
        };
        let bought = wait::soon("the eSIM", async || {
            match self.provider.look_up(&look_up).await {
                Ok(LookUpResponse::Found(bought)) if bought.is_complete(1) => Ok(Some(bought)),
                _ => Ok(None),
            }
        })
        .await;
        let unit = bought.units.into_iter().next().unwrap();
        let ProviderUnitState::Ready(profile) = unit.state else {
            panic!("it is complete")
        };
        DeliveredEsim {
            unit_id: unit.unit_id,
            iccid: profile.iccid,
        }
    }

    /// Reads the baseline. What the provider does not say of the package is that of the option of
    /// our catalogue.
    async fn before(&self, extension: &Extension) -> Baseline {
        let before = self.provider.before_extension(extension).await;
        let Ok(BeforeExtension::Possible(baseline)) = before else {
            panic!("{}: {before:?}", self.name)
        };
        Baseline {
            adds_data: baseline.adds_data.or(Some(ADDS)),
            adds_days: baseline.adds_days.or(Some(DAYS)),
            ..baseline
        }
    }

    async fn extend(&self, extension: &Extension) -> String {
        match self.provider.extend(extension).await {
            Ok(ExtendResponse::Added(added)) => told(&added),
            Ok(ExtendResponse::Refused { status, .. }) => format!("refused {status}"),
            Err(trouble) => trouble.class().to_owned(),
        }
    }

    async fn find(&self, extension: &Extension, baseline: &Baseline) -> String {
        match self.provider.find_extension(extension, baseline).await {
            Ok(ExtensionSeen::Added(added)) => told(&added),
            Ok(ExtensionSeen::NotAdded) => "not added".to_owned(),
            Ok(ExtensionSeen::Refused { status, .. }) => format!("refused {status}"),
            Err(trouble) => trouble.class().to_owned(),
        }
    }

    fn is_exact(&self) -> bool {
        self.provider.capabilities().extend == Some(FindExtension::Exact)
    }
}

fn told(added: &AddedExtension) -> String {
    if added.profile.is_some() {
        "another eSIM".to_owned()
    } else {
        "added".to_owned()
    }
}

fn extension(esim: &DeliveredEsim, option: &str) -> Extension {
    Extension {
        id: ExtensionId::new(),
        esim: esim.clone(),
        provider_option_id: provider_option(option),
        send_by: Moment::now() + Duration::from_mins(1),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_esim_gets_what_it_is_offered_once() {
    for name in ALL {
        let shop = Shop::open(name).await;
        let esim = shop.esim("in-use").await;
        let extension = extension(&esim, "extension");
        let offers = shop.provider.offers(&esim).await.unwrap();
        // USIMSA and Zendit have no list of what an eSIM takes.
        assert_eq!(offers.is_none(), ["usimsa", "zendit"].contains(&name));
        if let Some(offers) = offers {
            let product = shop.provider.product(&extension.provider_option_id);
            let mut offers = offers.into_iter();
            let offer = offers.find(|one| one.provider_option_id.as_str() == product);
            let offer = offer.unwrap();
            assert_eq!((offer.data, offer.days), (Some(ADDS), Some(DAYS)), "{name}");
            let cost = offer.cost.map(|cost| cost.to_string());
            let expected = match name {
                "airalo" => Some("4.50 USD".to_owned()),
                "esim-access" => Some("1.50 USD".to_owned()),
                _ => None,
            };
            assert_eq!(cost, expected);
        }
        let baseline = shop.before(&extension).await;
        assert_eq!(
            shop.find(&extension, &baseline).await,
            "not added",
            "{name}"
        );
        // Zendit carries it out after it has accepted it.
        let said = if name == "zendit" {
            "proves_nothing"
        } else {
            "added"
        };
        assert_eq!(shop.extend(&extension).await, said, "{name}");
        assert_eq!(shop.find(&extension, &baseline).await, "added", "{name}");
        let status = shop.provider.status(&esim).await.unwrap();
        let total = status.reading.data_total;
        assert_eq!(
            total,
            (name != "usimsa").then_some(2 * ADDS),
            "{name} shows what the eSIM has now"
        );
        assert_eq!(shop.seller.extensions().await.len(), 1, "{name}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_added_without_an_answer_is_found() {
    for name in ALL {
        let shop = Shop::open(name).await;
        let esim = shop.esim("in-use").await;
        let extension = extension(&esim, "extension-lost");
        let baseline = shop.before(&extension).await;
        assert_eq!(shop.extend(&extension).await, "unknown", "{name}");
        assert_eq!(shop.find(&extension, &baseline).await, "added", "{name}");
        assert_eq!(shop.seller.extensions().await.len(), 1, "{name}");
    }
}

/// A look before the effect proves nothing, so whoever waits hears of it.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_added_later_than_its_answer_was_lost_is_found_later() {
    for name in ALL {
        let shop = Shop::open(name).await;
        let esim = shop.esim("in-use").await;
        let extension = extension(&esim, "extension-late");
        let baseline = shop.before(&extension).await;
        assert_eq!(shop.extend(&extension).await, "unknown", "{name}");
        let early = shop.find(&extension, &baseline).await;
        // Who knows the extension by our id must not say that there is none.
        let expected = if shop.is_exact() {
            "proves_nothing"
        } else {
            "not added"
        };
        assert_eq!(early, expected, "{name}");
        wait::soon("the effect", async || {
            let found = shop.find(&extension, &baseline).await;
            Ok((found == "added").then_some(()))
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_not_added_is_not_found() {
    for name in ALL {
        let shop = Shop::open(name).await;
        let esim = shop.esim("in-use").await;
        let extension = extension(&esim, "extension");
        let baseline = shop.before(&extension).await;
        shop.seller.faults(json!({ "error_rate": 1 })).await;
        assert_eq!(shop.extend(&extension).await, "unknown", "{name}");
        assert_eq!(shop.find(&extension, &baseline).await, "unknown", "{name}");
        shop.seller.faults(json!({})).await;
        assert_eq!(
            shop.find(&extension, &baseline).await,
            "not added",
            "{name}"
        );
        assert!(shop.seller.extensions().await.is_empty(), "{name}");
    }
}

/// Another package, or the same one twice, is not exactly this package.
#[tokio::test(flavor = "multi_thread")]
async fn another_difference_than_exactly_the_package_is_not_taken_for_it() {
    for name in ["esim-access", "usimsa"] {
        let shop = Shop::open(name).await;
        let esim = shop.esim("in-use").await;
        let ours = extension(&esim, "extension-lost");
        let baseline = shop.before(&ours).await;
        let other = Baseline {
            adds_data: Some(1 << 30),
            adds_days: Some(7),
            ..baseline.clone()
        };
        assert_eq!(shop.extend(&ours).await, "unknown");
        assert_eq!(shop.find(&ours, &other).await, "not added", "{name}");
        assert_eq!(shop.extend(&ours).await, "unknown");
        assert_eq!(shop.seller.extensions().await.len(), 2, "{name}: twice");
        assert_eq!(shop.find(&ours, &baseline).await, "not added", "{name}");
    }
}

/// What a repeat does is documented for none of them, so nothing is ever sent twice. The sandbox
/// refuses it, as an order.
#[tokio::test(flavor = "multi_thread")]
async fn a_repeat_adds_again_wherever_no_document_says_otherwise() {
    for name in ALL {
        let shop = Shop::open(name).await;
        let esim = shop.esim("in-use").await;
        let extension = extension(&esim, "extension");
        let first = shop.extend(&extension).await;
        let second = shop.extend(&extension).await;
        let sold = shop.seller.extensions().await.len();
        if name == "sandbox" {
            assert_eq!((&*second, sold), ("unknown", 1));
        } else {
            assert_eq!((second, sold), (first, 2), "{name}");
        }
    }
}

/// Airalo may not keep our description: an example of its documents has another one. eSIM Access
/// may name our id: the types of one client have it.
#[tokio::test(flavor = "multi_thread")]
async fn the_second_witness_finds_what_the_first_one_does_not_name() {
    let shop = Shop::open("airalo").await;
    let esim = shop.esim("in-use").await;
    let lost = extension(&esim, "extension-lost");
    let baseline = shop.before(&lost).await;
    assert_eq!(baseline.packages.len(), 1);
    shop.seller
        .faults(json!({ "detect_duplicates": false }))
        .await;
    assert_eq!(shop.extend(&lost).await, "unknown");
    assert_eq!(shop.find(&lost, &baseline).await, "added");
    let without = Baseline {
        packages: Vec::new(),
        ..baseline.clone()
    };
    assert_eq!(shop.find(&lost, &without).await, "not added");
    let another = extension(&esim, "extension");
    assert_eq!(shop.find(&another, &baseline).await, "not added");

    let shop = Shop::open("esim-access").await;
    let esim = shop.esim("package-ids").await;
    let lost = extension(&esim, "extension-lost");
    assert_eq!(shop.extend(&lost).await, "unknown");
    let nothing = Baseline::default();
    assert_eq!(shop.find(&lost, &nothing).await, "added");
    let another = extension(&esim, "extension-lost");
    assert_eq!(shop.find(&another, &nothing).await, "not added");
}

/// The eSIM has expired between the look and the request. Where the code of that is not documented,
/// it is no refusal.
#[tokio::test(flavor = "multi_thread")]
async fn an_esim_that_expires_in_between_gets_nothing() {
    for (name, said, found) in [
        ("airalo", "refused 23", "not added"),
        ("esim-access", "unknown", "not added"),
        ("sandbox", "refused 9006", "not added"),
        ("usimsa", "unknown", "not added"),
        ("zendit", "proves_nothing", "refused FAILED"),
    ] {
        let shop = Shop::open(name).await;
        let esim = shop.esim("in-use").await;
        let extension = extension(&esim, "extension-expired");
        let baseline = shop.before(&extension).await;
        assert_eq!(shop.extend(&extension).await, said, "{name}");
        assert_eq!(shop.find(&extension, &baseline).await, found, "{name}");
        assert!(shop.seller.extensions().await.is_empty(), "{name}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refusal_is_what_the_documents_call_one() {
    for (name, refused, sold_out) in [
        ("airalo", "refused 23", "refused 33"),
        ("esim-access", "refused 310242", "refused 310242"),
        ("sandbox", "refused 9001", "refused 9005"),
        ("usimsa", "unknown", "unknown"),
        ("zendit", "refused NOT_FOUND", "refused FAILED"),
    ] {
        let shop = Shop::open(name).await;
        let esim = shop.esim("in-use").await;
        for (option, said) in [("refused", refused), ("out-of-stock", sold_out)] {
            let extension = extension(&esim, option);
            assert_eq!(shop.extend(&extension).await, said, "{name} {option}");
        }
        assert!(shop.seller.extensions().await.is_empty(), "{name}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_esim_that_is_sold_instead_comes_with_its_profile() {
    for name in ["sandbox", "usimsa", "zendit"] {
        let shop = Shop::open(name).await;
        let esim = shop.esim("in-use").await;
        let extension = extension(&esim, "extension-other");
        let baseline = shop.before(&extension).await;
        let extended = shop.provider.extend(&extension).await;
        let found = shop.provider.find_extension(&extension, &baseline).await;
        let added = match (extended, found) {
            (Ok(ExtendResponse::Added(added)), Ok(ExtensionSeen::NotAdded)) if name == "usimsa" => {
                added
            }
            (Ok(ExtendResponse::Added(_)), Ok(ExtensionSeen::Added(added)))
                if name == "sandbox" =>
            {
                added
            }
            (Err(Trouble::Unknown { .. }), Ok(ExtensionSeen::Added(added))) if name == "zendit" => {
                added
            }
            other => panic!("{name}: {other:?}"),
        };
        let profile = added.profile.unwrap();
        assert_ne!(profile.iccid, esim.iccid, "{name}");
        if name != "sandbox" {
            assert_ne!(added.reference.unwrap(), esim.unit_id, "{name}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_begun_that_the_provider_would_not_add() {
    let refused = async |shop: &Shop, extension: &Extension| -> String {
        let before = shop.provider.before_extension(extension).await;
        let Ok(BeforeExtension::Refused(reason)) = before else {
            panic!("{} {}: {before:?}", shop.name, extension.provider_option_id)
        };
        reason
    };
    for name in ALL {
        let shop = Shop::open(name).await;
        let esim = shop.esim("in-use").await;
        // Only the first two say what an eSIM takes.
        if ["airalo", "esim-access"].contains(&name) {
            let reason = refused(&shop, &extension(&esim, "top-up")).await;
            assert_eq!(reason, "the provider does not add this to this eSIM now");
        }
        if ["airalo", "esim-access", "zendit"].contains(&name) {
            let dear = extension(&esim, "extension@1.00");
            let reason = refused(&shop, &dear).await;
            assert!(reason.contains("the price of the option is"), "{reason}");
            let exactly = match name {
                "airalo" => "extension@4.50",
                "esim-access" => "extension@1.50",
                _ => "extension@3.25",
            };
            let exactly = extension(&esim, exactly);
            shop.before(&exactly).await;
            assert_ne!(shop.extend(&exactly).await, "unknown", "{name}");
            assert_eq!(shop.seller.extensions().await.len(), 1, "{name}");
        }
        if ["esim-access", "sandbox", "usimsa"].contains(&name) {
            let esim = shop.esim("ready").await;
            let returned = shop.provider.give_back(&esim, GiveBackCause::Other).await;
            assert_eq!(returned, Ok(GiveBackResponse::Returned));
            refused(&shop, &extension(&esim, "extension")).await;
        }
    }
    let shop = Shop::open("airalo").await;
    let recycled = shop.esim("recycled").await;
    let extension = extension(&recycled, "extension");
    refused(&shop, &extension).await;
    assert_eq!(shop.extend(&extension).await, "refused 73");
    assert_eq!(
        shop.provider
            .offers(&recycled)
            .await
            .unwrap()
            .map(|all| all.len()),
        Some(0)
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn the_time_is_checked_again_after_other_calls() {
    for (name, option) in [("airalo", "extension"), ("zendit", "extension@3.25")] {
        let shop = Shop::open(name).await;
        let esim = shop.esim("in-use").await;
        let late = Extension {
            send_by: Moment::now(),
            ..extension(&esim, option)
        };
        assert_eq!(shop.extend(&late).await, "not_sent", "{name}");
        assert!(shop.seller.extensions().await.is_empty(), "{name}");
    }
}

/// Our orders are found by their description, and top-ups by theirs; neither is the other.
#[tokio::test(flavor = "multi_thread")]
async fn a_top_up_at_airalo_is_no_order_and_is_not_listed_as_one() {
    use provisioner::providers::PurchasePeriod;

    let shop = Shop::open("airalo").await;
    let esim = shop.esim("ready").await;
    let extension = extension(&esim, "extension");
    assert_eq!(shop.extend(&extension).await, "added");
    let now = runtime::clock::now();
    let span = PurchasePeriod {
        since: now - Duration::from_hours(24),
        until: now + Duration::from_hours(24),
    };
    let listed = shop.provider.purchases(span, 1).await.unwrap();
    assert_eq!(listed.entries.len(), 1);
    assert_eq!(listed.entries[0].units, 1);
    let look_up = LookUpRequest {
        placement_id: extension.id.uuid().into(),
        reference: None,
        options: Vec::new(),
        attempt_age: Duration::from_secs(1),
        arrives_within: Duration::from_mins(1),
    };
    let found = shop.provider.look_up(&look_up).await;
    assert!(matches!(found, Ok(LookUpResponse::NotFound)), "{found:?}");
}
