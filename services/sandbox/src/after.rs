//! What becomes of a unit after its delivery: how much of its data is used, and whether it can be
//! given back. It follows from the script of its option, from its age and from the ledger, so all
//! protocols and a restarted sandbox agree on it.

use std::sync::Arc;

use runtime::clock;
use time::{Duration, OffsetDateTime};

use crate::{
    error::SandboxError,
    profile::UnitNumber,
    purchase::LedgerPurchase,
    script::{self, AfterDeliveryScript},
    state::Sandbox,
};

const GIB: u64 = 1024 * 1024 * 1024;
/// The data of each unit, in bytes. The catalogue says the same.
const TOTAL: u64 = 5 * GIB;
/// What an installed unit has used, in bytes.
const USED: u64 = 3 * GIB / 2;
/// How long a unit can be used.
const LASTS: Duration = Duration::days(30);

/// How long one lasts that runs out.
const RUN_OUT: Duration = Duration::minutes(19);

/// What a unit that runs out has used at this age: a tenth, then more in each step of five minutes,
/// because ingress asks about one eSIM at most once in that time.
fn running_out(age: Duration) -> u64 {
    let percent = match age.whole_minutes() {
        ..4 => 10,
        4..9 => 80,
        9..14 => 95,
        14.. => 100,
    };
    TOTAL / 100 * percent + if percent == 100 { TOTAL % 100 } else { 0 }
}

/// A unit after its delivery.
pub struct UnitInUse {
    pub unit: UnitNumber,
    pub bought_at: OffsetDateTime,
    pub is_installed: bool,
    pub is_canceled: bool,
    /// Bytes.
    pub used: u64,
    pub total: u64,
    pub ends_at: OffsetDateTime,
}

/// How a give-back ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GiveBackResult {
    Done,
    /// It was taken back before.
    Again,
    Installed,
    /// There is no such unit.
    Unknown,
}

/// The purchase of a unit, and what its option says.
fn find(sandbox: &Sandbox, unit: UnitNumber) -> Option<(Arc<LedgerPurchase>, AfterDeliveryScript)> {
    let purchase = sandbox.ledger.containing(unit)?;
    let after = purchase
        .units()
        .find(|(number, _)| *number == unit)
        .map(|(_, option_id)| script::of(option_id).after)?;
    Some((purchase, after))
}

/// Looks at a unit; `None` if a request names none, or one that was never bought.
pub fn look(
    sandbox: &Sandbox,
    unit: Option<UnitNumber>,
) -> Result<Option<UnitInUse>, SandboxError> {
    let found = unit.and_then(|unit| Some((unit, find(sandbox, unit)?)));
    let Some((unit, (purchase, after))) = found else {
        return Ok(None);
    };
    let is_canceled = sandbox.ledger.is_canceled(unit);
    if is_canceled && after == AfterDeliveryScript::UnclearReturn {
        return Err(SandboxError::Failed);
    }
    Ok(Some(of(&purchase, unit, after, is_canceled)))
}

/// A unit of a purchase, without the faults of its script.
pub fn of(
    purchase: &LedgerPurchase,
    unit: UnitNumber,
    after: AfterDeliveryScript,
    is_canceled: bool,
) -> UnitInUse {
    let is_installed = after.is_installed();
    let lasts = match after {
        AfterDeliveryScript::RunsOut => RUN_OUT,
        _ => LASTS,
    };
    UnitInUse {
        unit,
        bought_at: purchase.at,
        is_installed,
        is_canceled,
        used: match after {
            AfterDeliveryScript::RunsOut => running_out(clock::now() - purchase.at),
            _ if is_installed => USED,
            _ => 0,
        },
        total: TOTAL,
        ends_at: purchase.at.saturating_add(lasts).truncate_to_second(),
    }
}

/// Takes a unit back.
pub fn give_back(sandbox: &Sandbox, unit: UnitNumber) -> Result<GiveBackResult, SandboxError> {
    let Some((_, after)) = find(sandbox, unit) else {
        return Ok(GiveBackResult::Unknown);
    };
    if after.is_installed() {
        return Ok(GiveBackResult::Installed);
    }
    let is_again = sandbox.ledger.is_canceled(unit);
    let is_known = sandbox.ledger.cancel(unit, clock::now());
    if !is_known.map_err(SandboxError::Ledger)? {
        return Ok(GiveBackResult::Unknown);
    }
    match (after, is_again) {
        (AfterDeliveryScript::UnclearReturn, _) | (AfterDeliveryScript::LostReturn, false) => {
            Err(SandboxError::Failed)
        }
        (_, true) => Ok(GiveBackResult::Again),
        (_, false) => Ok(GiveBackResult::Done),
    }
}
