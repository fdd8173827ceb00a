//! What moves with an order: the tables, and the ids of their rows.
//!
//! Every row of a partner is reached from one of its orders, except for the events about the
//! partner itself.

use std::fmt::Write;

use pg::Result;
use sqlx::PgConnection;
use uuid::Uuid;

/// How many rows a step has moved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Moved {
    pub orders: usize,
    pub placements: usize,
    pub topups: usize,
    pub esims: usize,
    pub deliveries: usize,
    pub delivery_attempts: usize,
    /// Rows that name the deliveries of a topup to further endpoints.
    pub further_deliveries: usize,
    /// Rows of `work`, which are what is left to do.
    pub work: usize,
    pub held: usize,
    /// What the partner has asked about delivered eSIMs.
    pub esim_requests: usize,
    /// What did not go straight.
    pub history: usize,
}

impl Moved {
    pub fn add(&mut self, other: Self) {
        self.orders += other.orders;
        self.placements += other.placements;
        self.topups += other.topups;
        self.esims += other.esims;
        self.deliveries += other.deliveries;
        self.delivery_attempts += other.delivery_attempts;
        self.further_deliveries += other.further_deliveries;
        self.work += other.work;
        self.held += other.held;
        self.esim_requests += other.esim_requests;
        self.history += other.history;
    }
}

/// The ids of what belongs to some orders, as arrays in SQL.
#[derive(Default)]
pub(super) struct Ids {
    pub(super) orders: Vec<Uuid>,
    pub(super) placements: Vec<Uuid>,
    pub(super) topups: Vec<String>,
    pub(super) deliveries: Vec<Uuid>,
    /// The ids of the rows of `work` about the topups themselves, which are derived from them.
    pub(super) of_topups: Vec<Uuid>,
}

/// An array of ids as SQL. Ids of topups are visible ASCII without quotes, as `domain` ensures, but
/// they are escaped, because they come from a database.
pub(super) fn array<T: ToString>(ids: &[T], of: &str) -> String {
    let mut list = String::from("ARRAY[");
    for (index, id) in ids.iter().enumerate() {
        let comma = if index == 0 { "" } else { "," };
        let _ = write!(list, "{comma}'{}'", id.to_string().replace('\'', "''"));
    }
    let _ = write!(list, "]::{of}[]");
    list
}

impl Ids {
    /// Reads what belongs to these orders. With `lock` the placements are locked first, in the
    /// order of their ids, so that no claim or settlement changes anything of the orders any more.
    pub(super) async fn of(
        connection: &mut PgConnection,
        orders: Vec<Uuid>,
        lock: bool,
    ) -> Result<Self> {
        let locked = if lock { "FOR UPDATE" } else { "" };
        let placements: Vec<Uuid> = sqlx::query_scalar(sqlx::AssertSqlSafe(format!(
            "SELECT placement_id FROM placements WHERE order_id = ANY ($1) ORDER BY placement_id {locked}"
        )))
        .bind(&orders)
        .fetch_all(&mut *connection)
        .await?;
        let topups: Vec<String> =
            sqlx::query_scalar("SELECT topup_id FROM topups WHERE placement_id = ANY ($1)")
                .bind(&placements)
                .fetch_all(&mut *connection)
                .await?;
        // The webhooks of ready topups are named by their eSIMs, and the id of an event
        // `topup.failed` is derived from the topup. Those to further endpoints are listed.
        let deliveries: Vec<Uuid> = sqlx::query_scalar(
            "SELECT delivery_id FROM esims WHERE topup_id = ANY ($1) AND delivery_id IS NOT NULL
             UNION ALL
             SELECT delivery_id FROM deliveries
             WHERE delivery_id = ANY (ARRAY (SELECT md5('topup.failed ' || id)::uuid FROM unnest($1) AS id))
             UNION ALL
             SELECT delivery_id FROM further_deliveries WHERE topup_id = ANY ($1)",
        )
        .bind(&topups)
        .fetch_all(&mut *connection)
        .await?;
        let of_topups: Vec<Uuid> = sqlx::query_scalar(
            "SELECT md5(kind || ' ' || id)::uuid FROM unnest($1) AS id, unnest('{erase,usage,give_back}'::text[]) AS kind",
        )
        .bind(&topups)
        .fetch_all(&mut *connection)
        .await?;
        Ok(Self {
            orders,
            placements,
            topups,
            deliveries,
            of_topups,
        })
    }

    /// The condition for the rows of a table that belong to these ids. `work` and `held` have one
    /// row for a placement or a delivery, and `work` also some about topups.
    pub(super) fn condition(&self, part: Part) -> String {
        let (column, ids) = match part {
            Part::Orders | Part::History => ("order_id", array(&self.orders, "uuid")),
            Part::Placements => ("placement_id", array(&self.placements, "uuid")),
            Part::Topups | Part::Esims | Part::EsimRequests | Part::FurtherDeliveries => {
                ("topup_id", array(&self.topups, "text"))
            }
            Part::Deliveries | Part::DeliveryAttempts => {
                ("delivery_id", array(&self.deliveries, "uuid"))
            }
            Part::Work | Part::Held => {
                let all = [&self.placements[..], &self.deliveries, &self.of_topups].concat();
                ("id", array(&all, "uuid"))
            }
        };
        format!("{column} = ANY ({ids})")
    }
}

/// A table whose rows move with an order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    Orders,
    Placements,
    Topups,
    Esims,
    EsimRequests,
    Deliveries,
    DeliveryAttempts,
    FurtherDeliveries,
    Work,
    Held,
    History,
}

impl Part {
    /// In the order in which they are copied.
    pub(super) const ALL: [Self; 11] = [
        Self::Orders,
        Self::Placements,
        Self::Topups,
        Self::Esims,
        Self::EsimRequests,
        Self::Deliveries,
        Self::DeliveryAttempts,
        Self::FurtherDeliveries,
        Self::Work,
        Self::Held,
        Self::History,
    ];

    pub(super) fn table(self) -> &'static str {
        match self {
            Self::Orders => "orders",
            Self::Placements => "placements",
            Self::Topups => "topups",
            Self::Esims => "esims",
            Self::EsimRequests => "esim_requests",
            Self::Deliveries => "deliveries",
            Self::DeliveryAttempts => "delivery_attempts",
            Self::FurtherDeliveries => "further_deliveries",
            Self::Work => "work",
            Self::Held => "held",
            Self::History => "history",
        }
    }

    pub(super) fn counted(self, moved: &mut Moved) -> &mut usize {
        match self {
            Self::Orders => &mut moved.orders,
            Self::Placements => &mut moved.placements,
            Self::Topups => &mut moved.topups,
            Self::Esims => &mut moved.esims,
            Self::EsimRequests => &mut moved.esim_requests,
            Self::Deliveries => &mut moved.deliveries,
            Self::DeliveryAttempts => &mut moved.delivery_attempts,
            Self::FurtherDeliveries => &mut moved.further_deliveries,
            Self::Work => &mut moved.work,
            Self::Held => &mut moved.held,
            Self::History => &mut moved.history,
        }
    }
}
