//! The signed webhook about one eSIM.

use crate::client;
use crate::partner::Partner;
use anyhow::{Result, ensure};
use serde::Serialize;
use std::time::{SystemTime, UNIX_EPOCH};

/// Where partners fetch pictures of QR codes. No peer draws any.
const PICTURES: &str = "https://esim.example.com/qr";

/// What is stored of a delivered unit. It has no `Debug`, because it holds an activation code.
pub struct Stored {
    pub topup_id: String,
    pub option_id: String,
    pub external_order_id: String,
    pub iccid: String,
    pub smdp: String,
    pub activate_code: String,
    pub expired_date: String,
}

/// The nine fields of the specification.
#[derive(Serialize)]
struct Body<'a> {
    topup_id: &'a str,
    option_id: &'a str,
    iccid: &'a str,
    smdp: &'a str,
    activate_code: &'a str,
    download_link: &'a str,
    qrcode_img_url: &'a str,
    expired_date: &'a str,
    external_order_id: &'a str,
}

impl Stored {
    fn body(&self) -> Result<Vec<u8>> {
        let link = format!("LPA:1${}${}", self.smdp, self.activate_code);
        let encoded = link.replace(':', "%3A").replace('$', "%24");
        let body = Body {
            topup_id: &self.topup_id,
            option_id: &self.option_id,
            iccid: &self.iccid,
            smdp: &self.smdp,
            activate_code: &self.activate_code,
            download_link: &link,
            qrcode_img_url: &format!("{PICTURES}/{encoded}/300"),
            expired_date: &self.expired_date,
            external_order_id: &self.external_order_id,
        };
        Ok(serde_json::to_vec(&body)?)
    }
}

#[derive(Clone)]
pub struct Webhooks(reqwest::Client);

impl Webhooks {
    pub fn new() -> Result<Self> {
        Ok(Self(client()?))
    }

    /// Delivers a webhook. A repeat has the same `webhook-id`, so that the partner can drop it.
    pub async fn deliver(&self, partner: &Partner, stored: &Stored) -> Result<()> {
        let id = format!("msg_{}", stored.topup_id);
        let now = SystemTime::now().duration_since(UNIX_EPOCH)?;
        let now = i64::try_from(now.as_secs())?;
        let body = stored.body()?;
        let signature = partner.webhook_secret.sign(&id, now, &body);
        let request = self.0.post(&partner.webhook_url);
        let request = request
            .header("content-type", "application/json")
            .header("webhook-id", id)
            .header("webhook-timestamp", now)
            .header("webhook-signature", signature);
        let status = request.body(body).send().await?.status();
        ensure!(status.is_success(), "the endpoint answered {status}");
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::partner::{Partners, Row};
    use axum::{Router, body::Bytes, http::HeaderMap, routing::post};
    use tokio::sync::mpsc;

    #[tokio::test]
    async fn a_webhook_has_the_nine_fields_and_a_valid_signature() {
        let (sent, mut received) = mpsc::channel(1);
        let receive = move |headers: HeaderMap, body: Bytes| async move {
            sent.send((headers, body)).await.unwrap();
        };
        let endpoint = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/hook", endpoint.local_addr().unwrap());
        let app = Router::new().route("/hook", post(receive));
        tokio::spawn(async move { axum::serve(endpoint, app).await });

        let row = Row::new(url).unwrap();
        let partners = Partners::default();
        partners.add(row.clone()).unwrap();
        let partner = partners.by_id(row.partner_id).unwrap();
        let stored = Stored {
            topup_id: "20250129123456123456789012".into(),
            option_id: "o".into(),
            external_order_id: "A-1".into(),
            iccid: "8982".into(),
            smdp: "smdp.example".into(),
            activate_code: "A1".into(),
            expired_date: "2026-12-31".into(),
        };
        let webhooks = Webhooks::new().unwrap();
        webhooks.deliver(&partner, &stored).await.unwrap();

        let (headers, body) = received.recv().await.unwrap();
        let header = |name: &str| headers[name].to_str().unwrap().to_owned();
        let timestamp = header("webhook-timestamp").parse().unwrap();
        assert!(partner.webhook_secret.verify(
            &header("webhook-id"),
            timestamp,
            &body,
            &header("webhook-signature"),
        ));
        assert_eq!(
            body,
            r#"{"topup_id":"20250129123456123456789012","option_id":"o","iccid":"8982","smdp":"smdp.example","activate_code":"A1","download_link":"LPA:1$smdp.example$A1","qrcode_img_url":"https://esim.example.com/qr/LPA%3A1%24smdp.example%24A1/300","expired_date":"2026-12-31","external_order_id":"A-1"}"#
        );
    }
}
