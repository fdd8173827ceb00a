//! How long each class of data is kept, as operators see and set it (`esimctl retention`). The
//! notifier erases what is older; see [`crate::retention`].

use pg::{
    Result,
    actions::{ActionChange, Mode},
    transaction,
};
use serde_json::json;
use sqlx::PgConnection;

use crate::retention::DataClass;

/// The term of a class.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Term {
    pub class: String,
    /// The number of days after which data of the class is erased. `None` keeps it for ever.
    pub days: Option<i32>,
}

/// The terms of all classes.
pub async fn list(connection: &mut PgConnection) -> Result<Vec<Term>> {
    let classes = DataClass::ALL.map(DataClass::as_str);
    let terms = sqlx::query_as!(
        Term,
        "SELECT name AS class, days FROM walks WHERE name = ANY ($1::text[]) ORDER BY name",
        &classes as &[&str],
    );
    Ok(terms.fetch_all(connection).await?)
}

/// Sets the term of a class; `None` keeps its data for ever. If that changes the term, the walk of
/// the class begins again, so that a shorter term also applies to data that the walk has passed.
pub async fn set(
    connection: &mut PgConnection,
    class: DataClass,
    days: Option<i32>,
    mode: Mode<'_>,
) -> Result<()> {
    transaction!(connection, "terms::set", |transaction| {
        let before = sqlx::query_scalar!(
            "SELECT days FROM walks WHERE name = $1 FOR UPDATE",
            class.as_str()
        );
        let before = before.fetch_optional(&mut **transaction).await?.flatten();
        let statement = sqlx::query!(
            "UPDATE walks SET days = $2, after = '', up_to = '-infinity', began_at = now()
         WHERE name = $1 AND days IS DISTINCT FROM $2",
            class.as_str(),
            days,
        );
        statement.execute(&mut **transaction).await?;
        let changed = ActionChange::between(json!({ "days": before }), json!({ "days": days }));
        mode.record(transaction, 1, changed).await?;
        Ok(mode.end(()))
    })
}
