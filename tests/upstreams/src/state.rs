//! The state of the further protocols.

use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, Mutex},
};

use axum::{
    extract::FromRef,
    http::{HeaderMap, header},
};
use runtime::lock;
use sandbox::{Sandbox, channel::CallbackChannel, profile::UnitNumber, purchase::LedgerPurchase};
use serde::Serialize;

/// What the handlers of the further protocols share.
#[derive(Clone)]
pub(crate) struct Upstreams {
    pub(crate) sandbox: Sandbox,
    /// The token of the Airalo protocol. It ends with the process, as a token ends some day.
    pub(crate) token: Arc<str>,
    /// Where the callbacks of the protocol of eSIM Access go.
    pub(crate) esim_access: Option<Arc<CallbackChannel>>,
    /// Where those of the protocol of Zendit go.
    pub(crate) zendit: Option<Arc<CallbackChannel>>,
    /// Where the webhooks of Airalo about the use of eSIMs go.
    pub(crate) airalo: Option<Arc<CallbackChannel>>,
    /// The ids of purchases at Zendit that have failed without buying anything. They are in memory
    /// only.
    pub(crate) zendit_failed: Arc<Mutex<HashSet<String>>>,
    /// The ICCIDs of eSIM Access that are sold again.
    pub(crate) iccids: Arc<Iccids>,
    /// How many places the list of Airalo has beside those of the products.
    pub(crate) airalo_places: usize,
    /// How our account pays at Airalo.
    pub(crate) airalo_pricing: Arc<Mutex<Pricing>>,
    /// The claims of eSIMs at Airalo and Zendit, which people decide. They are in memory only.
    pub(crate) claims: Arc<Mutex<HashMap<UnitNumber, Claim>>>,
}

/// A claim.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Claim {
    /// How often it was sent.
    pub(crate) sent: u32,
    /// The reason that Airalo was told.
    pub(crate) reason: Option<String>,
    /// What the provider shows of it, if that is not what it shows without a verdict.
    pub(crate) state: Option<String>,
}

impl Upstreams {
    /// Notes that a claim was sent.
    pub(crate) fn claimed(&self, unit: UnitNumber, reason: Option<&str>) {
        let mut claims = lock(&self.claims);
        let claim = claims.entry(unit).or_default();
        claim.sent += 1;
        claim.reason = reason.map(str::to_owned);
    }

    pub(crate) fn claim(&self, unit: UnitNumber) -> Option<Claim> {
        lock(&self.claims).get(&unit).cloned()
    }

    /// Whether the provider does something else than it documents: `"detect_duplicates": false` of
    /// the faults. A proof has to catch it.
    pub(crate) fn lies(&self) -> bool {
        let faults = self.sandbox.faults.faults();
        faults.is_some_and(|faults| faults.detect_duplicates == Some(false))
    }

    /// The units that our account has paid, and the extensions: what was given back costs nothing.
    /// An eSIM that was sold instead of an extension is one of the units.
    pub(crate) fn paid_units(&self) -> u64 {
        let bought = self.sandbox.ledger.summary(None);
        let canceled = u64::try_from(bought.canceled).unwrap_or(u64::MAX);
        let extensions = self.sandbox.ledger.extensions(|one| one.instead.is_none());
        let extensions = u64::try_from(extensions.len()).unwrap_or(u64::MAX);
        (bought.units + extensions).saturating_sub(canceled)
    }
}

/// How an account pays at Airalo, which agrees it with each partner.
#[derive(Clone, Copy, Default)]
pub(crate) enum Pricing {
    /// Each package names what we pay.
    #[default]
    Net,
    /// No package does: we pay its price for consumers less this percentage.
    Discount(f64),
}

/// The ICCIDs of cancelled eSIMs, which eSIM Access sells again with another code. They are in
/// memory only: after a restart each eSIM has the ICCID that follows from its number.
#[derive(Default)]
pub(crate) struct Iccids(Mutex<Pool>);

#[derive(Default)]
struct Pool {
    free: Vec<String>,
    given: HashMap<UnitNumber, String>,
}

impl Iccids {
    /// Gives the eSIMs of a new purchase the ICCIDs that are free.
    pub(crate) fn sold(&self, purchase: &LedgerPurchase) {
        let mut pool = lock(&self.0);
        for (unit, _) in purchase.units() {
            if let Some(iccid) = (!pool.given.contains_key(&unit)).then(|| pool.free.pop()) {
                pool.given.extend(iccid.map(|iccid| (unit, iccid)));
            }
        }
    }

    /// Takes the ICCID of a cancelled eSIM back. `first` is the one that follows from its number.
    pub(crate) fn canceled(&self, unit: UnitNumber, first: String) {
        let mut pool = lock(&self.0);
        let iccid = pool.given.get(&unit).cloned().unwrap_or(first);
        if !pool.free.contains(&iccid) {
            pool.free.push(iccid);
        }
    }

    /// The ICCID of an eSIM, if it was sold before.
    pub(crate) fn of(&self, unit: UnitNumber) -> Option<String> {
        lock(&self.0).given.get(&unit).cloned()
    }
}

/// The key or token of a request.
pub(crate) fn bearer(headers: &HeaderMap) -> Option<&str> {
    let value = headers.get(header::AUTHORIZATION)?.to_str().ok()?;
    value.strip_prefix("Bearer ")
}

impl FromRef<Upstreams> for Sandbox {
    fn from_ref(upstreams: &Upstreams) -> Self {
        upstreams.sandbox.clone()
    }
}
