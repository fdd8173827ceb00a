//! The recorded commands in the words of people. One that a newer version has recorded is shown by
//! its name.

use domain::{Command, PartnerId, Stored};
use strum::VariantArray;

/// What somebody did, after their name: `paused an endpoint`.
pub(crate) fn done(command: &Stored<Command>) -> &str {
    match command {
        Stored::Known(command) => words(*command),
        Stored::Unknown(name) => name,
    }
}

/// The acts that a filter offers: each once, in the words of people, with the command that stands
/// for it.
pub(crate) fn to_choose() -> Vec<(&'static str, &'static str)> {
    let mut acts: Vec<_> = Command::VARIANTS
        .iter()
        .map(|command| (command.as_str(), words(*command)))
        .collect();
    acts.sort_by_key(|(_, words)| *words);
    acts.dedup_by_key(|(_, words)| *words);
    acts
}

/// Whether a recorded command is the same act as this one in the words of people.
pub(crate) fn is_same(recorded: &Stored<Command>, command: Command) -> bool {
    recorded
        .known()
        .is_some_and(|known| words(known) == words(command))
}

fn words(command: Command) -> &'static str {
    match command {
        Command::ArchiveRun => "archived orders",
        Command::CataloguePull => "pulled a catalogue",
        Command::CataloguePullDisableGone => {
            "pulled a catalogue, and took what is gone out of sale"
        }
        Command::DeliveryReplay | Command::TopupRedeliver | Command::EventRedeliver => {
            "sent a webhook again"
        }
        Command::EndpointCreate => "made an endpoint",
        Command::EndpointDelete => "removed an endpoint",
        Command::EndpointPause => "paused an endpoint",
        Command::EndpointResume => "resumed an endpoint",
        Command::EndpointSecretRotate
        | Command::PartnerRotateWebhookSecret
        | Command::WebhookSecretRotate => "changed a webhook secret",
        Command::EndpointTest => "sent a test webhook",
        Command::EndpointSet => "changed an endpoint",
        Command::AskUsage => "asked for data use",
        Command::ProviderReconcile => "asked a provider which purchases it has",
        Command::GiveBack => "asked to give an eSIM back",
        Command::TopupSuspend => "asked to suspend an eSIM",
        Command::TopupResume => "asked to resume an eSIM",
        Command::ExtensionAdded => "said that an extension was added",
        Command::ExtensionNotAdded => "said that an extension was not added",
        Command::GiveBackNotReturned => "said that an eSIM was not taken back",
        Command::GiveBackReturned => "said that an eSIM was taken back",
        Command::KeyCreate => "made a further key",
        Command::KeySet => "changed a further key",
        Command::KeyEnd => "ended a further key",
        Command::KeysRotate | Command::PartnerRotateKeys => "changed the keys",
        Command::ResendCancel | Command::OperationCancel => "stopped sending many webhooks again",
        Command::ResendStart => "sent webhooks again",
        Command::OperationStart => "began to send many webhooks again",
        Command::OperatorCreate => "made an account",
        Command::OperatorDisable => "disabled an account",
        Command::OperatorEnable => "enabled an account",
        Command::OperatorReset => "made a new link for an account",
        Command::OperatorRole => "changed the role of an account",
        Command::OperatorSetUp => "set a password",
        Command::OperatorSignOut => "ended the sessions of somebody",
        Command::OptionApply => "changed products by a file",
        Command::OptionDisable => "took a product out of sale",
        Command::OptionRoute => "put another provider of a product first",
        Command::OptionEnable => "put a product on sale",
        Command::PriceApply => "set the prices of a list",
        Command::PriceAssign => "gave a partner another price list",
        Command::AccountLimit => "set what a partner may owe",
        Command::AccountDeposit => "booked a payment of a partner",
        Command::AccountAdjust => "corrected the balance of a partner",
        Command::BalanceWarn => "set the balance below which it is told",
        Command::OrderCancel => "cancelled an order",
        Command::OrderErase => "erased an order",
        Command::PartnerCreate => "made a partner",
        Command::PartnerDisable => "disabled a partner",
        Command::PartnerEnable => "enabled a partner",
        Command::PartnerLeaked => "ended keys that are in wrong hands",
        Command::PartnerTold => "told a partner what it lacks",
        Command::FindingTake => "took a matter on",
        Command::PartnerErase => "erased a partner",
        Command::PartnerSetEvents => "chose the events of a partner",
        Command::PartnerSetLimits => "changed the limits of a partner",
        Command::PartnerSetSigning => "changed how a partner signs",
        Command::PartnerSetWebhook | Command::WebhookSet => "set a webhook URL",
        Command::PlacementEnter => "entered eSIMs by hand",
        Command::PlacementBought => "said that a purchase was bought",
        Command::PlacementNotBought => "said that a purchase was not bought",
        Command::PlacementRetry => "had a purchase bought again",
        Command::ProviderClose => "let a provider buy again",
        Command::ProviderOpen => "stopped buying at a provider",
        Command::ShowUrl => "saw a whole webhook URL",
        Command::ShowCode => "saw an activation code",
        Command::WebhooksRedeliver => "had webhooks sent again",
        Command::WebhooksRedeliverCancel => "stopped having webhooks sent again",
        Command::NoticesSet => "set a channel for notices",
        Command::NoticesVerify => "proved a channel for notices",
        Command::NoticesRemove => "removed a channel for notices",
        Command::InstallPageSet => "set how its pages to install from look",
        Command::InstallPageEnd => "ended a page to install from",
        Command::InstallPageOpen => "opened a new page to install from",
        Command::Recover => "took up purchases after a restore",
        Command::RecoverLedger => "compared with the list of a provider",
        Command::RecoverOrphan => "found a purchase that no order has",
        Command::RetentionSet => "changed how long data is kept",
    }
}

/// The partner that a target such as `partner 0199…` or `endpoint 0199… of partner 0199…` names.
pub(crate) fn partner_of(target: &str) -> Option<PartnerId> {
    let (_, partner) = target.rsplit_once("partner ")?;
    partner.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_names_its_partner() {
        let id = PartnerId::new();
        for target in [
            format!("partner {id}"),
            format!("endpoint {id} of partner {id}"),
        ] {
            assert_eq!(partner_of(&target), Some(id), "{target}");
        }
        for target in ["operator ada", "partner", "purchase 1 at x, partner Acme"] {
            assert_eq!(partner_of(target), None, "{target}");
        }
    }
}
