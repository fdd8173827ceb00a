//! `esimctl delivery list --events`, and `esimctl delivery show` of an event.
//!
//! An event is a notification other than the webhook of a ready topup, such as `topup.failed` or
//! `webhook.test`. Its delivery is sent and retried like any other, but it is deleted together with
//! its attempts when their retention ends. That is why an old event cannot be found.

use anyhow::Context;
use domain::{DeliveryId, WebhookId};
use pg::PgConnection;
use serde_json::{Value, json};
use store::deliveries::{
    View,
    events::{self, EventPage},
};

use crate::{
    console::Console,
    lookup::find,
    output::{TableRow, at, cells, moment, or_dash, properties},
};

/// Lists the newest events of a partner.
pub async fn list(partner: &str, limit: u32, console: &Console) -> anyhow::Result<()> {
    let mut connection = console.connect().await?;
    let partner = find(&mut connection, partner).await?;
    let page = EventPage {
        before: None,
        limit: limit.into(),
    };
    let found = events::list(&mut connection, partner.partner_id.into(), &page).await?;
    console.print_list(&found, "There are no events of this partner.", row)
}

fn row(event: &View) -> TableRow<8> {
    cells!(event:
        event_id = or_dash(event.event_id.as_ref()), kind, topup_id = or_dash(event.topup_id.as_ref()), state, attempts,
        "last attempt" = at(event.attempted_at), error = or_dash(event.error.as_ref()),
        due = at(event.due_at),
    )
}

/// The event with this id, as JSON and as text.
pub async fn read(
    connection: &mut PgConnection,
    id: DeliveryId,
) -> anyhow::Result<(Value, String)> {
    let event = events::find(connection, None, id).await?.with_context(|| {
        format!(
            "there is no event {}; events are deleted with their attempts",
            WebhookId::Event(id)
        )
    })?;
    Ok((json!(event), describe(&event)))
}

fn describe(event: &View) -> String {
    properties(&cells!(event:
        event_id = or_dash(event.event_id.as_ref()), kind, topup_id = or_dash(event.topup_id.as_ref()), partner_id, state,
        due = at(event.due_at), delivered = at(event.delivered_at), error = or_dash(event.error.as_ref()),
        created = moment(event.created_at),
    ))
}
