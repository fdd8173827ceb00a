//! What operators and partners do, as it is recorded.
//!
//! The name is that of the command of `esimctl` with its subcommand and the flags that say what was
//! decided; the console and the requests that partners sign record the same names. What it was done
//! to is the target of the record, and what it changed is its `before` and `after`.

use strum::{EnumString, IntoStaticStr};

/// A recorded command. Its name is stored, so a name is never changed, and one whose command is
/// gone stays here as long as its records are kept.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, Hash, EnumString, IntoStaticStr, strum::VariantArray,
)]
pub enum Command {
    // Purchases and eSIMs.
    /// The provider has the purchase.
    #[strum(serialize = "placement resolve --bought")]
    PlacementBought,
    /// The provider does not have the purchase, or has refunded it.
    #[strum(serialize = "placement resolve --not-bought")]
    PlacementNotBought,
    /// The provider does not have the purchase, so it is bought again.
    #[strum(serialize = "placement resolve --retry")]
    PlacementRetry,
    /// A profile was entered by hand.
    #[strum(serialize = "placement enter")]
    PlacementEnter,
    /// The provider has the eSIM back.
    #[strum(serialize = "give-back resolve --returned")]
    GiveBackReturned,
    /// The eSIM stays with its partner.
    #[strum(serialize = "give-back resolve --not-returned")]
    GiveBackNotReturned,
    /// The provider has added to the eSIM.
    #[strum(serialize = "extension resolve --added")]
    ExtensionAdded,
    /// The provider has added nothing.
    #[strum(serialize = "extension resolve --not-added")]
    ExtensionNotAdded,
    /// The partner asks the provider to take an eSIM back.
    #[strum(serialize = "give back")]
    GiveBack,
    /// The partner asks the provider to suspend an eSIM.
    #[strum(serialize = "topup suspend")]
    TopupSuspend,
    /// The partner asks the provider to resume an eSIM.
    #[strum(serialize = "topup resume")]
    TopupResume,
    /// The provider is asked for the data use of an eSIM.
    #[strum(serialize = "topup usage")]
    AskUsage,
    /// The partner cancels an order.
    #[strum(serialize = "order cancel")]
    OrderCancel,
    #[strum(serialize = "order erase")]
    OrderErase,
    /// An operator has seen an activation code.
    #[strum(serialize = "topup show-code")]
    ShowCode,
    // Webhooks.
    /// Webhooks are sent again.
    #[strum(serialize = "resend start")]
    ResendStart,
    #[strum(serialize = "resend cancel")]
    ResendCancel,
    // Versions before one resend recorded these.
    #[strum(serialize = "delivery replay")]
    DeliveryReplay,
    #[strum(serialize = "operation start")]
    OperationStart,
    #[strum(serialize = "operation cancel")]
    OperationCancel,
    /// The partner has the webhook of an eSIM sent again.
    #[strum(serialize = "topup redeliver")]
    TopupRedeliver,
    #[strum(serialize = "event redeliver")]
    EventRedeliver,
    /// The partner has many webhooks sent again.
    #[strum(serialize = "webhooks redeliver")]
    WebhooksRedeliver,
    #[strum(serialize = "webhooks redeliver cancel")]
    WebhooksRedeliverCancel,
    #[strum(serialize = "webhook set")]
    WebhookSet,
    #[strum(serialize = "webhook secret rotate")]
    WebhookSecretRotate,
    #[strum(serialize = "endpoint create")]
    EndpointCreate,
    #[strum(serialize = "endpoint set")]
    EndpointSet,
    #[strum(serialize = "endpoint delete")]
    EndpointDelete,
    #[strum(serialize = "endpoint secret rotate")]
    EndpointSecretRotate,
    #[strum(serialize = "endpoint pause")]
    EndpointPause,
    #[strum(serialize = "endpoint resume")]
    EndpointResume,
    /// An operator has seen a whole webhook URL.
    #[strum(serialize = "endpoint show-url")]
    ShowUrl,
    /// A test webhook is sent.
    #[strum(serialize = "endpoint test")]
    EndpointTest,
    #[strum(serialize = "notices set")]
    NoticesSet,
    #[strum(serialize = "notices verify")]
    NoticesVerify,
    #[strum(serialize = "notices remove")]
    NoticesRemove,
    /// A partner says how its travellers' pages look.
    #[strum(serialize = "install-page set")]
    InstallPageSet,
    /// A partner ends the page of an eSIM.
    #[strum(serialize = "install-page end")]
    InstallPageEnd,
    /// A partner opens a new page in place of one that it has ended.
    #[strum(serialize = "install-page open")]
    InstallPageOpen,
    // Partners.
    #[strum(serialize = "partner create")]
    PartnerCreate,
    #[strum(serialize = "partner enable")]
    PartnerEnable,
    #[strum(serialize = "partner disable")]
    PartnerDisable,
    #[strum(serialize = "partner set-signing")]
    PartnerSetSigning,
    #[strum(serialize = "partner set-events")]
    PartnerSetEvents,
    #[strum(serialize = "partner set-limits")]
    PartnerSetLimits,
    #[strum(serialize = "partner set-webhook")]
    PartnerSetWebhook,
    #[strum(serialize = "partner rotate-keys")]
    PartnerRotateKeys,
    /// Keys that are in wrong hands end at once.
    #[strum(serialize = "partner leaked")]
    PartnerLeaked,
    /// A further key of a partner, for a person or a program.
    #[strum(serialize = "partner key create")]
    KeyCreate,
    #[strum(serialize = "partner key set")]
    KeySet,
    #[strum(serialize = "partner key end")]
    KeyEnd,
    #[strum(serialize = "partner rotate-webhook-secret")]
    PartnerRotateWebhookSecret,
    /// The partner rotates its own keys.
    #[strum(serialize = "keys rotate")]
    KeysRotate,
    /// Somebody has told a partner what its endpoints lack, so nobody else has to for a day.
    #[strum(serialize = "partner told")]
    PartnerTold,
    /// Somebody has a finding until a time, so nobody else has to begin.
    #[strum(serialize = "attention take")]
    FindingTake,
    #[strum(serialize = "partner erase")]
    PartnerErase,
    // Providers and the catalogue.
    #[strum(serialize = "provider open")]
    ProviderOpen,
    #[strum(serialize = "provider close")]
    ProviderClose,
    /// The provider is asked which purchases on hold it has.
    #[strum(serialize = "provider reconcile")]
    ProviderReconcile,
    #[strum(serialize = "catalogue pull")]
    CataloguePull,
    #[strum(serialize = "catalogue pull --disable-gone")]
    CataloguePullDisableGone,
    /// A file of options.
    #[strum(serialize = "option apply")]
    OptionApply,
    #[strum(serialize = "option enable")]
    OptionEnable,
    #[strum(serialize = "option disable")]
    OptionDisable,
    /// Another provider of an option is asked first.
    #[strum(serialize = "option route")]
    OptionRoute,
    /// Prices of a list were set.
    #[strum(serialize = "price apply")]
    PriceApply,
    /// A partner got a price list, or lost it.
    #[strum(serialize = "price assign")]
    PriceAssign,
    /// An account was opened, or got another credit limit.
    #[strum(serialize = "account limit")]
    AccountLimit,
    /// A partner paid.
    #[strum(serialize = "account deposit")]
    AccountDeposit,
    /// A balance was corrected.
    #[strum(serialize = "account adjust")]
    AccountAdjust,
    /// The partner sets the balance below which it is told.
    #[strum(serialize = "balance warn")]
    BalanceWarn,
    #[strum(serialize = "recover")]
    Recover,
    #[strum(serialize = "recover --ledger")]
    RecoverLedger,
    /// A purchase of a provider that no order here has.
    #[strum(serialize = "recover --ledger (orphan)")]
    RecoverOrphan,
    // Operators and upkeep.
    #[strum(serialize = "operator set-up")]
    OperatorSetUp,
    #[strum(serialize = "operator create")]
    OperatorCreate,
    #[strum(serialize = "operator role")]
    OperatorRole,
    #[strum(serialize = "operator reset")]
    OperatorReset,
    #[strum(serialize = "operator sign-out")]
    OperatorSignOut,
    #[strum(serialize = "operator enable")]
    OperatorEnable,
    #[strum(serialize = "operator disable")]
    OperatorDisable,
    #[strum(serialize = "retention set")]
    RetentionSet,
    #[strum(serialize = "archive run")]
    ArchiveRun,
}

/// What the number of changed rows of a record counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CountedRows {
    /// Webhooks that are due because of it.
    Webhooks,
    /// Rows of something else.
    Rows,
    /// Nothing: it only shows something.
    Nothing,
}

impl Command {
    /// The name that is stored.
    pub fn as_str(self) -> &'static str {
        self.into()
    }

    /// Whether it changes an endpoint, so that what a page showed of it before is no longer true.
    pub fn is_of_endpoint(self) -> bool {
        match self {
            Self::EndpointCreate
            | Self::EndpointSet
            | Self::EndpointSecretRotate
            | Self::EndpointDelete
            | Self::EndpointPause
            | Self::EndpointResume => true,
            Self::PlacementBought
            | Self::PlacementNotBought
            | Self::PlacementRetry
            | Self::PlacementEnter
            | Self::GiveBackReturned
            | Self::GiveBackNotReturned
            | Self::ExtensionAdded
            | Self::ExtensionNotAdded
            | Self::GiveBack
            | Self::TopupSuspend
            | Self::TopupResume
            | Self::AskUsage
            | Self::OrderCancel
            | Self::OrderErase
            | Self::ShowCode
            | Self::ShowUrl
            | Self::ResendStart
            | Self::ResendCancel
            | Self::DeliveryReplay
            | Self::OperationStart
            | Self::OperationCancel
            | Self::TopupRedeliver
            | Self::EventRedeliver
            | Self::WebhooksRedeliver
            | Self::WebhooksRedeliverCancel
            | Self::WebhookSet
            | Self::WebhookSecretRotate
            | Self::EndpointTest
            | Self::NoticesSet
            | Self::NoticesVerify
            | Self::NoticesRemove
            | Self::InstallPageSet
            | Self::InstallPageEnd
            | Self::InstallPageOpen
            | Self::PartnerCreate
            | Self::PartnerEnable
            | Self::PartnerDisable
            | Self::PartnerSetSigning
            | Self::PartnerSetEvents
            | Self::PartnerSetLimits
            | Self::PartnerSetWebhook
            | Self::PartnerRotateKeys
            | Self::PartnerLeaked
            | Self::PartnerRotateWebhookSecret
            | Self::KeyCreate
            | Self::KeySet
            | Self::KeyEnd
            | Self::KeysRotate
            | Self::PartnerTold
            | Self::FindingTake
            | Self::PartnerErase
            | Self::ProviderOpen
            | Self::ProviderClose
            | Self::ProviderReconcile
            | Self::CataloguePull
            | Self::CataloguePullDisableGone
            | Self::OptionApply
            | Self::OptionEnable
            | Self::OptionDisable
            | Self::OptionRoute
            | Self::PriceApply
            | Self::PriceAssign
            | Self::AccountLimit
            | Self::AccountDeposit
            | Self::AccountAdjust
            | Self::BalanceWarn
            | Self::Recover
            | Self::RecoverLedger
            | Self::RecoverOrphan
            | Self::OperatorSetUp
            | Self::OperatorCreate
            | Self::OperatorRole
            | Self::OperatorReset
            | Self::OperatorSignOut
            | Self::OperatorEnable
            | Self::OperatorDisable
            | Self::RetentionSet
            | Self::ArchiveRun => false,
        }
    }

    /// What the number of its changed rows counts.
    pub fn counts(self) -> CountedRows {
        match self {
            Self::ResendStart
            | Self::DeliveryReplay
            | Self::OperationStart
            | Self::TopupRedeliver
            | Self::EventRedeliver
            | Self::WebhooksRedeliver => CountedRows::Webhooks,
            Self::ShowCode | Self::ShowUrl => CountedRows::Nothing,
            Self::PlacementBought
            | Self::PlacementNotBought
            | Self::PlacementRetry
            | Self::PlacementEnter
            | Self::GiveBackReturned
            | Self::GiveBackNotReturned
            | Self::ExtensionAdded
            | Self::ExtensionNotAdded
            | Self::GiveBack
            | Self::TopupSuspend
            | Self::TopupResume
            | Self::AskUsage
            | Self::OrderCancel
            | Self::OrderErase
            | Self::ResendCancel
            | Self::OperationCancel
            | Self::WebhooksRedeliverCancel
            | Self::WebhookSet
            | Self::WebhookSecretRotate
            | Self::EndpointCreate
            | Self::EndpointSet
            | Self::EndpointDelete
            | Self::EndpointSecretRotate
            | Self::EndpointPause
            | Self::EndpointResume
            | Self::EndpointTest
            | Self::NoticesSet
            | Self::NoticesVerify
            | Self::NoticesRemove
            | Self::InstallPageSet
            | Self::InstallPageEnd
            | Self::InstallPageOpen
            | Self::PartnerCreate
            | Self::PartnerEnable
            | Self::PartnerDisable
            | Self::PartnerSetSigning
            | Self::PartnerSetEvents
            | Self::PartnerSetLimits
            | Self::PartnerSetWebhook
            | Self::PartnerRotateKeys
            | Self::PartnerLeaked
            | Self::PartnerRotateWebhookSecret
            | Self::KeyCreate
            | Self::KeySet
            | Self::KeyEnd
            | Self::KeysRotate
            | Self::PartnerTold
            | Self::FindingTake
            | Self::PartnerErase
            | Self::ProviderOpen
            | Self::ProviderClose
            | Self::ProviderReconcile
            | Self::CataloguePull
            | Self::CataloguePullDisableGone
            | Self::OptionApply
            | Self::OptionEnable
            | Self::OptionDisable
            | Self::OptionRoute
            | Self::PriceApply
            | Self::PriceAssign
            | Self::AccountLimit
            | Self::AccountDeposit
            | Self::AccountAdjust
            | Self::BalanceWarn
            | Self::Recover
            | Self::RecoverLedger
            | Self::RecoverOrphan
            | Self::OperatorSetUp
            | Self::OperatorCreate
            | Self::OperatorRole
            | Self::OperatorReset
            | Self::OperatorSignOut
            | Self::OperatorEnable
            | Self::OperatorDisable
            | Self::RetentionSet
            | Self::ArchiveRun => CountedRows::Rows,
        }
    }
}

#[cfg(test)]
mod tests {
    use strum::VariantArray;

    use super::*;

    #[test]
    fn each_command_is_read_as_it_was_recorded() {
        for command in Command::VARIANTS {
            assert_eq!(command.as_str().parse(), Ok(*command));
        }
    }

    #[test]
    fn only_what_makes_webhooks_due_is_counted_in_webhooks() {
        let counts = |name: &str| name.parse::<Command>().unwrap().counts();
        for name in ["resend start", "delivery replay", "webhooks redeliver"] {
            assert_eq!(counts(name), CountedRows::Webhooks, "{name}");
        }
        for name in [
            "webhooks redeliver cancel",
            "partner disable",
            "endpoint resume",
        ] {
            assert_eq!(counts(name), CountedRows::Rows, "{name}");
        }
        assert_eq!(counts("topup show-code"), CountedRows::Nothing);
    }
}
