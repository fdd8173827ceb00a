//! The eSIMs that a proof has bought, compared with each other: whether each has an activation code
//! of its own, and whether an ICCID is sold again after it was given back.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Instant,
};

use domain::{ActivationCode, Iccid};
use provisioner::providers::{DeliveredEsim, ProviderUnit, ProviderUnitState};

use super::purchases::ProofBuy;

/// An eSIM with its profile.
struct Bought {
    iccid: Iccid,
    code: ActivationCode,
    /// By its code nobody can install it, because the account is in a test mode.
    is_code_shared: bool,
    /// Whether its ICCID was given back before it was bought.
    is_resold: bool,
}

#[derive(Default)]
pub struct BoughtEsims {
    /// By the provider's id of the unit.
    all: BTreeMap<String, Bought>,
    /// When each ICCID was given back.
    returned: BTreeMap<String, Instant>,
    /// Whether anything was bought after that.
    is_bought_later: bool,
}

impl BoughtEsims {
    pub fn number(&self) -> usize {
        self.all.len()
    }

    /// Adds the units of a purchase.
    pub fn add(&mut self, bought: &ProofBuy, units: &[ProviderUnit]) {
        for unit in units {
            let ProviderUnitState::Ready(profile) = &unit.state else {
                continue;
            };
            self.is_bought_later |= self.returned.values().any(|at| bought.is_later(*at));
            let returned = self.returned.get(profile.iccid.as_str());
            let esim = Bought {
                iccid: profile.iccid.clone(),
                code: profile.code.clone(),
                is_code_shared: profile.is_code_shared,
                is_resold: returned.is_some_and(|at| bought.is_later(*at)),
            };
            self.all.insert(unit.unit_id.as_str().to_owned(), esim);
        }
    }

    pub fn note_return(&mut self, esim: &DeliveredEsim) {
        let iccid = esim.iccid.as_str().to_owned();
        self.returned.entry(iccid).or_insert_with(Instant::now);
    }

    /// Whether each one has another code, which it must have; `None` if there is only one, and
    /// without a judgement if the account is in a test mode.
    pub fn codes(&self) -> Option<(&'static str, Option<bool>)> {
        if self.all.len() < 2 {
            return None;
        }
        let codes = self.all.values().map(|one| one.code.download_link());
        let is_test = self.all.values().any(|one| one.is_code_shared);
        Some(if self.each_has_another(codes) {
            ("each has one of its own", Some(true))
        } else if is_test {
            ("one is that of several, as in a test mode", None)
        } else {
            ("one is that of several", Some(false))
        })
    }

    /// The same of ICCIDs, of which no document says it.
    pub fn iccids(&self) -> &'static str {
        let iccids = self.all.values().map(|one| one.iccid.as_str().to_owned());
        if self.each_has_another(iccids) {
            "each has one of its own"
        } else {
            "one is that of several"
        }
    }

    fn each_has_another(&self, values: impl Iterator<Item = String>) -> bool {
        values.collect::<BTreeSet<_>>().len() == self.all.len()
    }

    /// Whether an ICCID was sold again; `None` if nothing was bought after a give-back.
    pub fn resold(&self) -> Option<&'static str> {
        let is_resold = self.all.values().any(|one| one.is_resold);
        self.is_bought_later.then_some(if is_resold {
            "it was sold again"
        } else {
            "it was not sold again so soon"
        })
    }
}
