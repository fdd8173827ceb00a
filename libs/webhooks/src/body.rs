//! The body of the specified webhook: nine fields, in the order of the specification. The notifier
//! sends it, and ingress shows the same fields in self-service.

use accounts::profile::Profile;
use domain::{Agreed, OptionId, TopupId};
use serde::Serialize;
use utoipa::ToSchema;

use crate::qr::QrUrls;

// The body contains the activation code, so it must never be logged. The doc comment below is part
// of the API description that partners read.
/// The nine fields of the webhook.
#[derive(Clone, Serialize, ToSchema)]
#[schema(as = Esim)]
pub struct WebhookBody<'a> {
    #[schema(value_type = String, example = "20250129123456123456789012")]
    topup_id: &'a TopupId,
    #[schema(value_type = Uuid, example = "424b7b26-96e7-5c95-8df9-6654a3998070")]
    option_id: OptionId,
    #[schema(example = "8982123456789012345")]
    iccid: &'a str,
    #[schema(example = "smdp.example.com")]
    smdp: &'a str,
    #[schema(example = "A1B2C3D4E5F60718")]
    activate_code: &'a str,
    #[schema(example = "LPA:1$smdp.example.com$A1B2C3D4E5F60718")]
    download_link: String,
    /// A PNG picture of the QR code of `download_link`. The last part of the path is its width in
    /// pixels; you may replace it by a number from 64 to 1024. Keep `?mac=…` if it is there. It has
    /// no expiry date, but do not rely on it for years: you can draw the QR code of `download_link`
    /// yourself.
    #[schema(
        example = "https://esim.example.com/qr/LPA%3A1%24smdp.example.com%24A1B2C3D4E5F60718/300"
    )]
    qrcode_img_url: String,
    /// The last day, in UTC, on which the eSIM can still be started, which means installed and
    /// first used; tell your customer that it ends at some time of that day. Of a provider that
    /// does not say it, it is a day until which its eSIMs can usually be started. It does not say
    /// how long the data lasts: the option does, and `ends_at` of the data use once the eSIM is
    /// started.
    #[schema(example = "2026-12-20", format = Date)]
    expired_date: &'a str,
    #[schema(example = "A-1042")]
    external_order_id: &'a str,
}

impl<'a> WebhookBody<'a> {
    pub fn new(
        topup_id: &'a TopupId,
        agreed: &'a Agreed,
        external_order_id: &'a str,
        iccid: &'a str,
        profile: &'a Profile,
        qr: &QrUrls,
    ) -> Self {
        // Every field is named, so that a new one cannot be forgotten.
        let Agreed {
            option_id,
            price: _,
        } = agreed;
        Self {
            topup_id,
            option_id: *option_id,
            iccid,
            smdp: profile.code.smdp(),
            activate_code: profile.code.matching_id(),
            download_link: profile.code.download_link(),
            qrcode_img_url: qr.url(&profile.code),
            expired_date: &profile.expired_date,
            external_order_id,
        }
    }
}

#[cfg(test)]
mod tests {
    use domain::ActivationCode;
    use signing::qr::QrKeys;

    use super::*;

    #[test]
    fn the_body_has_the_nine_fields_in_their_order() {
        let topup_id = "20250129123456123456789012".parse().unwrap();
        let profile = Profile {
            code: ActivationCode::new("smdp.example.com", "A1-B2").unwrap(),
            expired_date: "2025-12-31".into(),
        };
        let agreed = Agreed::new("0197b0a0-0000-7000-8000-000000000001".parse().unwrap());
        let body = WebhookBody::new(
            &topup_id,
            &agreed,
            "their \"order\" é",
            "8982123456789012345",
            &profile,
            &QrUrls::new("https://esim.example.com".into(), QrKeys::default()),
        );
        assert_eq!(
            serde_json::to_string(&body).unwrap(),
            concat!(
                r#"{"topup_id":"20250129123456123456789012","#,
                r#""option_id":"0197b0a0-0000-7000-8000-000000000001","#,
                r#""iccid":"8982123456789012345","smdp":"smdp.example.com","activate_code":"A1-B2","#,
                r#""download_link":"LPA:1$smdp.example.com$A1-B2","#,
                r#""qrcode_img_url":"https://esim.example.com/qr/LPA%3A1%24smdp.example.com%24A1-B2/300","#,
                r#""expired_date":"2025-12-31","external_order_id":"their \"order\" é"}"#
            )
        );
    }
}
