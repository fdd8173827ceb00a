//! The recorded commands in the words of people. A command that is not among them is shown as it is: a
//! newer version may record others.

use domain::PartnerId;

/// What somebody did, after their name: `paused an endpoint`.
pub(crate) fn done(command: &str) -> &str {
    match command {
        "archive restore" => "brought archived orders back",
        "archive run" => "archived orders",
        "catalogue pull" => "pulled a catalogue",
        "catalogue pull --disable-gone" => "pulled a catalogue, and took what is gone out of sale",
        "delivery replay" | "delivery resend" | "topup redeliver" => "sent a webhook again",
        "endpoint create" => "made an endpoint",
        "endpoint delete" => "removed an endpoint",
        "endpoint pause" => "paused an endpoint",
        "endpoint resume" => "resumed an endpoint",
        "endpoint secret rotate" | "partner rotate-webhook-secret" | "webhook secret rotate" => {
            "changed a webhook secret"
        }
        "endpoint set" => "changed an endpoint",
        "give back" => "gave an eSIM back",
        "give-back resolve --not-returned" => "said that an eSIM was not taken back",
        "give-back resolve --returned" => "said that an eSIM was taken back",
        "keys rotate" | "partner rotate-keys" => "changed the keys",
        "operation cancel" => "stopped sending many webhooks again",
        "operation start" => "began to send many webhooks again",
        "operator create" => "made an account",
        "operator disable" => "disabled an account",
        "operator enable" => "enabled an account",
        "operator reset" => "made a new link for an account",
        "operator role" => "changed the role of an account",
        "operator set-up" => "set a password",
        "operator sign-out" => "ended the sessions of somebody",
        "option disable" => "took a product out of sale",
        "option enable" => "put a product on sale",
        "order cancel" => "cancelled an order",
        "order erase" => "erased an order",
        "partner create" => "made a partner",
        "partner disable" => "disabled a partner",
        "partner enable" => "enabled a partner",
        "partner erase" => "erased a partner",
        "partner move" => "moved a partner to another cell",
        "partner set-events" => "chose the events of a partner",
        "partner set-limits" => "changed the limits of a partner",
        "partner set-signing" => "changed how a partner signs",
        "partner set-webhook" | "webhook set" => "set a webhook URL",
        "placement enter" => "entered eSIMs by hand",
        "placement resolve --bought" => "said that a purchase was bought",
        "placement resolve --not-bought" => "said that a purchase was not bought",
        "placement resolve --retry" => "had a purchase bought again",
        "provider close" => "let a provider buy again",
        "provider open" => "stopped buying at a provider",
        "topup show-code" => "saw an activation code",
        "webhook events" => "chose the events of the webhook",
        "webhooks redeliver" => "had webhooks sent again",
        "webhooks redeliver cancel" => "stopped having webhooks sent again",
        other => other,
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
