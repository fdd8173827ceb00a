//! What must hold in both cells before a partner moves. Each check refuses a move that would fail,
//! or that would be wrong, while nothing has changed yet.

use std::collections::HashSet;

use time::OffsetDateTime;
use uuid::Uuid;

use super::{
    copy,
    moving::{Move, NotMoved},
    parts::Part,
};

/// The largest difference between the clocks of the two servers, in seconds. It shortens the
/// settling delay.
const SKEW: f64 = 2.0;

impl Move<'_> {
    pub(super) async fn check_clocks(&mut self) -> Result<(), NotMoved> {
        let query = "SELECT clock_timestamp()";
        let before: OffsetDateTime = sqlx::query_scalar(query)
            .fetch_one(&mut *self.source)
            .await?;
        let target: OffsetDateTime = sqlx::query_scalar(query)
            .fetch_one(&mut *self.target)
            .await?;
        let after: OffsetDateTime = sqlx::query_scalar(query)
            .fetch_one(&mut *self.source)
            .await?;
        let early = (before - target).as_seconds_f64();
        let late = (target - after).as_seconds_f64();
        let skew = early.max(late);
        if skew > SKEW {
            return Err(NotMoved::Clocks(skew));
        }
        Ok(())
    }

    pub(super) async fn check_columns(&mut self) -> Result<(), NotMoved> {
        let parts = Part::ALL.map(Part::table);
        for table in parts
            .into_iter()
            .chain(["partners", "partner_endpoints", "resends"])
        {
            let source = copy::columns(self.source, table, &[]).await?;
            if source != copy::columns(self.target, table, &[]).await? {
                return Err(NotMoved::Columns(table));
            }
        }
        Ok(())
    }

    /// Every option that the partner's environment offers must be the same in the target, because
    /// its units name options, and webhooks and look-ups read them. A further provider that only one
    /// of the cells asks is a difference, too.
    pub(super) async fn check_catalogue(&mut self) -> Result<(), NotMoved> {
        let query = "SELECT option_id::text || ' ' || provider || ' ' || provider_option_id || ' ' || environment
                            || ' ' || alternatives
                     FROM options WHERE environment = $1 OR environment = 'sandbox'";
        let environment: String =
            sqlx::query_scalar("SELECT environment FROM partners WHERE partner_id = $1")
                .bind(self.partner_id.uuid())
                .fetch_one(&mut *self.source)
                .await?;
        let source: Vec<String> = sqlx::query_scalar(query)
            .bind(&environment)
            .fetch_all(&mut *self.source)
            .await?;
        let target: HashSet<String> = sqlx::query_scalar(query)
            .bind(&environment)
            .fetch_all(&mut *self.target)
            .await?
            .into_iter()
            .collect();
        let missing = source
            .iter()
            .filter(|option| !target.contains(*option))
            .count();
        if missing > 0 {
            return Err(NotMoved::Catalogue {
                cell: self.to.clone(),
                options: i64::try_from(missing).unwrap_or(i64::MAX),
            });
        }
        Ok(())
    }

    /// A provisioner of the target must have served every provider of the catalogue that one of the
    /// source has served. Otherwise an order that moves, or goes to its next provider there, would wait
    /// for ever.
    pub(super) async fn check_providers(&mut self) -> Result<(), NotMoved> {
        let source: Vec<String> = sqlx::query_scalar(
            "SELECT name FROM providers WHERE name = ANY (ARRAY (
                 SELECT provider FROM options
                 UNION SELECT pair->>'provider' FROM options, jsonb_array_elements(alternatives) pair))
             ORDER BY name",
        )
        .fetch_all(&mut *self.source)
        .await?;
        let target: Vec<String> = sqlx::query_scalar("SELECT name FROM providers")
            .fetch_all(&mut *self.target)
            .await?;
        let missing = source.into_iter().filter(|name| !target.contains(name));
        let missing: Vec<String> = missing.collect();
        if !missing.is_empty() {
            return Err(NotMoved::Providers {
                cell: self.to.clone(),
                providers: missing.join(", "),
            });
        }
        Ok(())
    }

    /// No resend of several partners may be sending webhooks of the partner again. It would go on in
    /// the target, where nobody could see or cancel it as a part of the resend.
    pub(super) async fn check_resends(&mut self) -> Result<(), NotMoved> {
        if copy::columns(self.source, "resends", &[]).await?.is_empty() {
            // This schema has no resends.
            return Ok(());
        }
        let resend: Option<Uuid> = sqlx::query_scalar(
            "SELECT batch_id FROM resends WHERE partner_id = $1 AND ended_at IS NULL AND batch_id IS NOT NULL",
        )
        .bind(self.partner_id.uuid())
        .fetch_optional(&mut *self.source)
        .await?;
        match resend {
            Some(id) => Err(NotMoved::Resend(id)),
            None => Ok(()),
        }
    }

    /// No other partner of the target may have one of the access keys, because the activation would
    /// fail then.
    pub(super) async fn check_keys(&mut self) -> Result<(), NotMoved> {
        let keys: Vec<String> = sqlx::query_scalar(
            "SELECT key FROM partners, unnest(ARRAY[access_key, old_access_key]) AS key
             WHERE partner_id = $1 AND key IS NOT NULL",
        )
        .bind(self.partner_id.uuid())
        .fetch_all(&mut *self.source)
        .await?;
        let taken: bool = sqlx::query_scalar(
            "SELECT EXISTS (SELECT FROM partners WHERE partner_id <> $1 AND (access_key = ANY ($2) OR old_access_key = ANY ($2)))",
        )
        .bind(self.partner_id.uuid())
        .bind(&keys)
        .fetch_one(&mut *self.target)
        .await?;
        if taken {
            return Err(NotMoved::KeyTaken(self.to.clone()));
        }
        Ok(())
    }
}
