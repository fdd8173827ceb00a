//! What a partner sees and changes itself: its account, orders, units, deliveries and endpoints.
//!
//! The self-service handlers of ingress call these functions, after they have checked the signature
//! of the request. Guarantee: every statement filters by the partner (that of the catalogue by the
//! partner's environment), so the ids of another partner look like ids that do not exist. Where a
//! function reads by another id, its comment says who has checked the owner. Each change commits
//! together with its record, as the changes of operators do.
//!
//! Types with a `ToSchema` are answers of the API, and their doc comments become part of
//! `docs/openapi.json`, which partners read.

mod account;
mod balance;
mod changes;
mod deliveries;
mod endpoints;
pub mod esims;
pub mod extensions;
mod install_pages;
mod keys;
mod notices;
mod orders;
mod sandbox;
mod webhooks;

use domain::{Command, PartnerId};
use pg::{
    Result, Transaction, TransactionEnd,
    actions::{self, Action, ActionChange},
    transaction::{self, TransactionKind},
};
use sqlx::PgConnection;

pub use self::orders::first_id;
pub use self::{
    account::{OfferedOption, OptionFilter, OptionPage, PartnerAccount, account, options, rotate},
    balance::{
        PartnerBalance, StatementEntry, StatementHead, StatementRange, balances, entries,
        statements, warn_below,
    },
    changes::{ChangePage, ChangePosition, ChangedUnit, TopupChange, TopupChanges, changes},
    deliveries::{
        DeliveryPage, FurtherDelivery, SentAgain, UnitDelivery, attempts, deliveries, delivery,
        send_again,
    },
    endpoints::{
        AnyEndpoint, PauseChanged, change_endpoint, create_endpoint, delete_endpoint, endpoints,
        pause_endpoint, resume_endpoint,
    },
    install_pages::{
        InstallPage, InstallPages, end_install_page, install_page, install_pages,
        open_install_page, set_install_pages,
    },
    keys::{KeyChanged, change_key, create_key, end_key},
    notices::{
        NoticeChannel, SetChannel, Verification, VerificationLimits, channel, remove_channel,
        set_channel, verify_channel,
    },
    orders::{
        MOST_WITH_ICCID, NEWEST_WITH_ICCID, OrderHead, OrderPage, OrderState, PartnerUnit,
        PartnerUnitState, Units, count, order, orders, price, unit, units, units_with_iccid,
    },
    sandbox::{KeyExpiryResult, expire_keys, set_balance},
    webhooks::{FirstEndpoint, StoredWebhook, WebhookParts, WebhookPosition, endpoint, webhooks},
};
pub use crate::operator::deliveries::AttemptView as Attempt;

/// The reason that is recorded for these changes.
pub use pg::actions::REASON;

/// Runs statements that only read, and all of them on one snapshot. An answer that is composed of
/// several statements needs it: by default each statement sees what was committed before it began,
/// so that together they could show what was never true, for example an order that is not there
/// when its topups are read, because it was archived in between.
///
/// The statements take no locks and wait for none, so `work` must not decide what is written.
pub async fn snapshot<T>(
    connection: &mut PgConnection,
    work: impl AsyncFnOnce(&mut PgConnection) -> Result<T>,
) -> Result<T> {
    let read = async |transaction: &mut Transaction<'_>| {
        work(transaction).await.map(TransactionEnd::Commit)
    };
    transaction::once(
        connection,
        TransactionKind::Snapshot,
        "self_service::snapshot",
        read,
    )
    .await
}

/// Records a change of the account by its partner, in the transaction of the change, with what it
/// changed.
async fn record_change(
    transaction: &mut Transaction<'_>,
    command: Command,
    partner_id: PartnerId,
    changed: ActionChange,
) -> Result<()> {
    let target = format!("partner {partner_id}");
    let action = Action::of_partner(command, &target);
    Ok(actions::record(transaction, action, 1, changed).await?)
}

/// The same of a change of keys, with the access key that signed the request: after a leak it says
/// which key made another one.
async fn record_change_of_keys(
    transaction: &mut Transaction<'_>,
    command: Command,
    partner_id: PartnerId,
    signed_by: &str,
    changed: ActionChange,
) -> Result<()> {
    let target = format!("partner {partner_id}");
    let mut action = Action::of_partner(command, &target);
    action.actor.source = Some(signed_by);
    Ok(actions::record(transaction, action, 1, changed).await?)
}
