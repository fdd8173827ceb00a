//! Takes an option out of sale, and puts it back (`esimctl option set`); and puts another one of
//! its providers first (`esimctl option route`), of which the console has a page, too.

use domain::{OptionId, cut::OptionAtProvider};
use pg::{
    Error, Result,
    actions::{ActionChange, Mode},
    transaction,
};
use serde::Serialize;
use serde_json::json;
use sqlx::PgConnection;
use uuid::Uuid;

/// An option that an operator named.
#[derive(Clone, Debug, Serialize)]
pub struct NamedOption {
    pub option_id: OptionId,
    pub name: String,
    pub provider: String,
    pub provider_option_id: String,
    pub environment: String,
    /// Whether partners can order it.
    pub enabled: bool,
}

/// The options that an operator may mean: the one with this id, or else all with this name, in any
/// case, or this name at the provider. Names are not unique.
pub async fn named(connection: &mut PgConnection, named: &str) -> Result<Vec<NamedOption>> {
    let id: Option<Uuid> = named.parse().ok();
    let found = sqlx::query!(
        "SELECT option_id, name, provider, provider_option_id, environment, enabled FROM options
         WHERE option_id = $1 OR lower(name) = lower($2) OR provider_option_id = $2 ORDER BY environment, provider, name, option_id",
        id,
        named,
    );
    let rows = found.fetch_all(connection).await?;
    let options = rows.into_iter().map(|row| NamedOption {
        option_id: row.option_id.into(),
        name: row.name,
        provider: row.provider,
        provider_option_id: row.provider_option_id,
        environment: row.environment,
        enabled: row.enabled,
    });
    Ok(options.collect())
}

/// The names of what partners can order, at most so many of them, for who chooses one.
pub async fn names(connection: &mut PgConnection, most: i64) -> Result<Vec<String>> {
    let found = sqlx::query_scalar!(
        "SELECT DISTINCT name FROM options WHERE enabled ORDER BY name LIMIT $1",
        most,
    );
    Ok(found.fetch_all(connection).await?)
}

/// Sets whether partners can order an option, and returns whether that has changed anything. The
/// change gets a new version, so every ingress reads it.
pub async fn set_enabled(
    connection: &mut PgConnection,
    option: OptionId,
    enabled: bool,
    mode: Mode<'_>,
) -> Result<bool> {
    transaction!(connection, "options::set_enabled", |transaction| {
        let statement = sqlx::query!(
            "UPDATE options SET enabled = $2 WHERE option_id = $1 AND enabled <> $2",
            option.uuid(),
            enabled,
        );
        let changed = statement.execute(&mut **transaction).await?.rows_affected() > 0;
        let what = if changed {
            ActionChange::between(
                json!({ "enabled": !enabled }),
                json!({ "enabled": enabled }),
            )
        } else {
            ActionChange::nothing()
        };
        mode.record(transaction, i64::from(changed), what).await?;
        Ok(mode.end(changed))
    })
}

/// A product with the providers that sell it, in the order in which they are asked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RoutedOption {
    pub option_id: OptionId,
    pub name: String,
    pub environment: String,
    /// Whether partners can order it.
    pub enabled: bool,
    pub routes: Vec<OptionAtProvider>,
}

impl RoutedOption {
    /// The names of its providers in their order, which a form sends back so that nobody changes
    /// another order than the page has shown.
    pub fn order(&self) -> String {
        let names: Vec<&str> = self
            .routes
            .iter()
            .map(|one| one.provider.as_str())
            .collect();
        names.join(", ")
    }
}

/// Why another provider was not put first.
#[derive(Debug, thiserror::Error)]
pub enum NotRouted {
    #[error("there is no such option")]
    NoSuchOption,
    #[error("the option is sold by {0} only; `esimctl option apply` adds another provider to it")]
    NotSoldThere(String),
    #[error("the order of its providers has changed since it was shown, and is {0} now")]
    Changed(String),
    #[error(transparent)]
    Store(#[from] Error),
}

pg::store_error!(NotRouted);

/// The options that this provider sells, as their first one or as a further one, at most so many
/// after the first ones; of all providers if none is named.
pub async fn routed(
    connection: &mut PgConnection,
    provider: Option<&str>,
    (from, most): (i64, i64),
) -> Result<Vec<RoutedOption>> {
    let found = sqlx::query_as!(
        RouteRow,
        r#"SELECT option_id, name, environment, enabled, provider, provider_option_id, alternatives::text AS "alternatives!"
           FROM options
           WHERE $1::text IS NULL OR provider = $1 OR alternatives @> jsonb_build_array(jsonb_build_object('provider', $1))
           ORDER BY environment, name, option_id LIMIT $2 OFFSET $3"#,
        provider,
        most,
        from,
    );
    let rows = found.fetch_all(connection).await?;
    rows.into_iter().map(RouteRow::read).collect()
}

/// How many options a provider sells.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RoutedCounts {
    pub all: i64,
    /// Those of which it is the first provider.
    pub first: i64,
    /// Those of these that can be bought elsewhere now.
    pub elsewhere: i64,
}

/// How many options there are of those that [`routed`] lists. `buying` are the providers at which
/// something is bought now.
pub async fn routed_counts(
    connection: &mut PgConnection,
    provider: Option<&str>,
    buying: &[String],
) -> Result<RoutedCounts> {
    let query = sqlx::query_as!(
        RoutedCounts,
        r#"SELECT count(*) AS "all!", count(*) FILTER (WHERE provider = $1) AS "first!",
                  count(*) FILTER (WHERE provider = $1 AND EXISTS (
                      SELECT FROM jsonb_array_elements(alternatives) further
                      WHERE further->>'provider' = ANY ($2))) AS "elsewhere!"
           FROM options
           WHERE $1::text IS NULL OR provider = $1 OR alternatives @> jsonb_build_array(jsonb_build_object('provider', $1))"#,
        provider,
        buying,
    );
    Ok(query.fetch_one(connection).await?)
}

struct RouteRow {
    option_id: Uuid,
    name: String,
    environment: String,
    enabled: bool,
    provider: String,
    provider_option_id: String,
    alternatives: String,
}

impl RouteRow {
    fn read(self) -> Result<RoutedOption> {
        let mut routes = vec![OptionAtProvider {
            provider: self.provider,
            provider_option_id: self.provider_option_id,
        }];
        let further: Vec<OptionAtProvider> = serde_json::from_str(&self.alternatives)
            .map_err(|error| Error::Unreadable(format!("alternatives of an option: {error}")))?;
        routes.extend(further);
        Ok(RoutedOption {
            option_id: self.option_id.into(),
            name: self.name,
            environment: self.environment,
            enabled: self.enabled,
            routes,
        })
    }
}

/// How an option is routed now.
pub async fn route(
    connection: &mut PgConnection,
    option: OptionId,
) -> Result<Option<RoutedOption>> {
    let found = sqlx::query_as!(
        RouteRow,
        r#"SELECT option_id, name, environment, enabled, provider, provider_option_id, alternatives::text AS "alternatives!"
           FROM options WHERE option_id = $1"#,
        option.uuid(),
    );
    let row = found.fetch_optional(connection).await?;
    row.map(RouteRow::read).transpose()
}

/// An option whose new orders are bought elsewhere.
#[derive(Clone, Debug, Serialize)]
pub struct PutFirst {
    #[serde(flatten)]
    pub option: RoutedOption,
    /// Whether the order of its providers is another one now.
    pub changed: bool,
}

/// Puts one of its providers first, so that new orders of an option are bought there; the others
/// keep their order. Orders that were accepted before stay where they are: the record says that
/// none was moved, and from what at which provider to what at which one. `seen` is the order that
/// whoever decides has seen. Returns the new order.
///
/// What the option costs is known of its first provider only, so it is not known until the next
/// pull of the catalogue.
pub async fn put_first(
    connection: &mut PgConnection,
    option: OptionId,
    (provider, seen): (&str, Option<&str>),
    mode: Mode<'_>,
) -> std::result::Result<PutFirst, NotRouted> {
    transaction!(connection, "options::put_first", |transaction| {
        let now = route(transaction, option).await?;
        let now = now.ok_or(NotRouted::NoSuchOption)?;
        if seen.is_some_and(|seen| seen != now.order()) {
            return Err(NotRouted::Changed(now.order()));
        }
        let mut next = now.clone();
        let place = next.routes.iter().position(|one| one.provider == provider);
        let place = place.ok_or_else(|| NotRouted::NotSoldThere(now.order()))?;
        next.routes[..=place].rotate_right(1);
        let changed = place > 0;
        if changed {
            // The function compares what was read above with what is stored by now.
            let query = sqlx::query_scalar!(
                r#"SELECT route_option($1, $2, $3::text::jsonb) AS "routed!""#,
                option.uuid(),
                provider,
                json!(now.routes).to_string(),
            );
            if !query.fetch_one(&mut **transaction).await? {
                let now = route(transaction, option).await?;
                let now = now.ok_or(NotRouted::NoSuchOption)?;
                return Err(NotRouted::Changed(now.order()));
            }
        }
        let what = if changed {
            let bought = |at: &RoutedOption| json!(at.routes.first());
            ActionChange::between(
                json!({ "providers": now.order(), "bought": bought(&now) }),
                json!({
                    "providers": next.order(), "bought": bought(&next), "orders_moved": 0, "units_moved": 0,
                }),
            )
        } else {
            ActionChange::nothing()
        };
        mode.record(transaction, i64::from(changed), what).await?;
        Ok(mode.end(PutFirst {
            option: next,
            changed,
        }))
    })
}
