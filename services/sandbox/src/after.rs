//! What becomes of a unit after its delivery: how much of its data is used, what is added to it,
//! whether it is suspended, and whether it can be given back. It follows from the script of its
//! option, from its age and from the ledger, so all protocols and a restarted sandbox agree on it.

use std::sync::Arc;

use runtime::clock;
use time::{Duration, OffsetDateTime};

use crate::{
    error::SandboxError,
    ledger::{Ledger, Repeats},
    profile::UnitNumber,
    protocol::Product,
    purchase::{LedgerExtension, LedgerPurchase},
    sale,
    script::{self, AfterDeliveryScript, AtExtend, ScriptedRefusal},
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
    /// The extensions that have taken effect.
    pub extensions: Vec<LedgerExtension>,
    pub bought_at: OffsetDateTime,
    pub is_installed: bool,
    pub is_canceled: bool,
    pub is_suspended: bool,
    /// Bytes.
    pub used: u64,
    pub total: u64,
    pub ends_at: OffsetDateTime,
}

/// What an extension adds: the data, in bytes, and the days.
pub const ADDS: u64 = TOTAL;
pub const ADDS_DAYS: Duration = LASTS;

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
    Ok(Some(of(
        &sandbox.ledger,
        &purchase,
        unit,
        after,
        is_canceled,
    )))
}

/// A unit of a purchase, without the faults of its script.
pub fn of(
    ledger: &Ledger,
    purchase: &LedgerPurchase,
    unit: UnitNumber,
    after: AfterDeliveryScript,
    is_canceled: bool,
) -> UnitInUse {
    let now = clock::now();
    let extensions =
        ledger.extensions(|one| one.unit == unit && one.instead.is_none() && one.at <= now);
    let times = u32::try_from(extensions.len()).unwrap_or(u32::MAX);
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
        is_suspended: ledger.is_suspended(unit),
        used: match after {
            AfterDeliveryScript::RunsOut => running_out(now - purchase.at),
            _ if is_installed => USED,
            _ => 0,
        },
        total: TOTAL + ADDS * u64::from(times),
        ends_at: purchase
            .at
            .saturating_add(lasts.saturating_add(ADDS_DAYS * times))
            .truncate_to_second(),
        extensions,
    }
}

/// How an extension ended. In all other cases it ends with a [`SandboxError`].
pub enum ExtendResult {
    Done(LedgerExtension),
    /// A script refuses it; nothing was added.
    Refused(ScriptedRefusal),
    /// The eSIM has expired, or is cancelled.
    Over,
    /// There is no such unit.
    Unknown,
}

/// Adds an option to a unit. `extension_id` is empty in a protocol that has no id for it, and
/// `repeats` says what a second extension with the same id does.
pub async fn extend(
    sandbox: &Sandbox,
    extension_id: String,
    unit: Option<UnitNumber>,
    option_id: String,
    repeats: Repeats,
) -> Result<ExtendResult, SandboxError> {
    let Some(esim) = look(sandbox, unit)? else {
        return Ok(ExtendResult::Unknown);
    };
    let now = clock::now();
    let script = script::of(&option_id);
    if esim.is_canceled
        || esim.is_suspended
        || esim.ends_at <= now
        || script.at_extend == AtExtend::HasExpired
    {
        return Ok(ExtendResult::Over);
    }
    let attempts = if extension_id.is_empty() {
        format!("extension of {}", esim.unit)
    } else {
        extension_id.clone()
    };
    let is_same = |one: &LedgerExtension| one.extension_id == extension_id;
    let is_repeated = !extension_id.is_empty() && !sandbox.ledger.extensions(is_same).is_empty();
    if is_repeated && repeats == Repeats::Refused {
        return Err(SandboxError::Duplicate);
    }
    if let Some(refusal) = sale::begin(sandbox, &attempts, script.at_post)? {
        return Ok(ExtendResult::Refused(refusal));
    }
    let instead = match script.at_extend {
        AtExtend::SellsAnother => {
            let product = Product {
                option_id: option_id.clone(),
                qty: 1,
            };
            let bought = sandbox
                .ledger
                .buy(attempts, vec![product], now, Repeats::Bought);
            bought.map_err(SandboxError::Ledger)?
        }
        _ => None,
    };
    let delay = match script.at_extend {
        AtExtend::AddsAfter(delay) => delay,
        _ => std::time::Duration::ZERO,
    };
    let extension = LedgerExtension {
        at: (now + delay).truncate_to_millisecond(),
        extension_id,
        unit: esim.unit,
        option_id,
        instead: instead.map(|purchase| purchase.first_unit),
    };
    let is_new = sandbox.ledger.extend(extension.clone(), repeats);
    if !is_new.map_err(SandboxError::Ledger)? {
        return Err(SandboxError::Duplicate);
    }
    sale::end(sandbox, script.at_post).await?;
    Ok(ExtendResult::Done(extension))
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

/// How a request to suspend or to resume a unit ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SuspendResult {
    Done,
    /// The eSIM has expired, or is cancelled.
    Over,
    /// There is no such unit.
    Unknown,
}

/// Suspends a unit, or resumes it. The unit whose give-back is answered with 500 answers this so,
/// too, if it changes anything.
pub fn suspend(
    sandbox: &Sandbox,
    unit: UnitNumber,
    suspend: bool,
) -> Result<SuspendResult, SandboxError> {
    let Some((_, after)) = find(sandbox, unit) else {
        return Ok(SuspendResult::Unknown);
    };
    let Some(esim) = look(sandbox, Some(unit))? else {
        return Ok(SuspendResult::Unknown);
    };
    if esim.is_canceled || esim.ends_at <= clock::now() {
        return Ok(SuspendResult::Over);
    }
    let suspended = sandbox.ledger.suspend(unit, suspend);
    suspended.map_err(SandboxError::Ledger)?;
    if after == AfterDeliveryScript::LostReturn && esim.is_suspended != suspend {
        return Err(SandboxError::Failed);
    }
    Ok(SuspendResult::Done)
}
