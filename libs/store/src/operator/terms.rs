//! The term of each class of data, by default and for single partners.

use domain::PartnerId;
use sqlx::{Connection, PgConnection};
use uuid::Uuid;

use super::actions::{self, Mode};
use crate::{Error, Result, retention::Class};

/// The most different terms of one class: each has a walk of its own over the history.
const MOST_TERMS: i64 = 8;

/// The term of a class.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Term {
    pub class: String,
    /// The partner; `None` for the default.
    pub partner_id: Option<Uuid>,
    /// The days after which data of the class is erased; `None` keeps it for ever.
    pub days: Option<i32>,
}

/// A new value of a term.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keep {
    /// Erase after this many days.
    Days(i32),
    /// Erase nothing.
    ForEver,
    /// Remove the partner's own term.
    Default,
}

/// Why a term was not set.
#[derive(Debug, thiserror::Error)]
pub enum NotSet {
    /// Each term costs a walk over the history.
    #[error("this class already has {MOST_TERMS} different terms; use one of them")]
    TooMany,
    #[error(transparent)]
    Store(#[from] Error),
}

/// All terms, the defaults first.
pub async fn list(connection: &mut PgConnection) -> Result<Vec<Term>> {
    let terms = sqlx::query_as!(
        Term,
        r#"SELECT class, nullif(partner_id, '00000000-0000-0000-0000-000000000000') AS partner_id, days
           FROM retention_terms t
           ORDER BY t.partner_id <> '00000000-0000-0000-0000-000000000000', class, t.partner_id"#
    );
    Ok(terms.fetch_all(connection).await?)
}

/// Sets the default of a class, or a partner's own term. The walks of the class begin again, so a shorter term also
/// applies to data that an earlier walk passed.
pub async fn set(
    connection: &mut PgConnection,
    class: Class,
    partner_id: Option<PartnerId>,
    keep: Keep,
    mode: Mode<'_>,
) -> Result<(), NotSet> {
    let partner = partner_id.map_or_else(Uuid::nil, PartnerId::uuid);
    let mut transaction = connection.begin().await?;
    let days = match keep {
        Keep::Days(days) => Some(days),
        Keep::ForEver | Keep::Default => None,
    };
    if keep == Keep::Default && partner_id.is_some() {
        let statement =
            sqlx::query!("DELETE FROM retention_terms WHERE class = $1 AND partner_id = $2", class.as_str(), partner);
        statement.execute(&mut *transaction).await?;
    } else {
        let statement = sqlx::query!(
            "INSERT INTO retention_terms (class, partner_id, days) VALUES ($1, $2, $3)
             ON CONFLICT (class, partner_id) DO UPDATE SET days = excluded.days",
            class.as_str(),
            partner,
            days,
        );
        statement.execute(&mut *transaction).await?;
    }
    let query = sqlx::query_scalar!(
        r#"SELECT count(DISTINCT days) AS "terms!" FROM retention_terms WHERE class = $1"#,
        class.as_str()
    );
    if query.fetch_one(&mut *transaction).await? > MOST_TERMS {
        return Err(NotSet::TooMany);
    }
    let statement = sqlx::query!(
        "UPDATE retention_walks SET after = '', up_to = '-infinity', began_at = now() WHERE class = $1",
        class.as_str()
    );
    statement.execute(&mut *transaction).await?;
    actions::finish(transaction, mode, 1).await?;
    Ok(())
}
