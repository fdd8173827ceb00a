//! The keys of an account: the first one, which the specification knows and [`super::account`]
//! rotates, and further ones for people and programs, each with its rights, networks and limit.
//!
//! Guarantees: the secret of a key is shown only in the answer that makes it. A key gives no other
//! key more than it has itself. A key of another partner is answered like an unknown one.

use accounts::partners::keys::{self as stored, FurtherKey, KeyUpdate, NewKey};
use axum::{extract::Request, http::StatusCode, response::Response};
use desk::self_service::{self, KeyChanged};
use domain::{
    KeyId, KeyTerms, PartnerId, Right, Rights,
    partner_key::{MOST_KEYS, MOST_NAME, MOST_NETWORKS, Network, network},
};
use pg::PgConnection;
use serde::Serialize;
use serde_json::Value;
use signing::generate;
use strum::VariantArray;
use time::{OffsetDateTime, serde::rfc3339};
use utoipa::ToSchema;

use super::{
    fields::BodyFields,
    session::{PathId, Session, json},
};
use crate::http::{
    body,
    codes::ErrorCode,
    error::{ApiError, RequestFault},
};

/// A key of the account.
#[derive(Serialize, ToSchema)]
struct AccountKey {
    /// Names the key. It stays the same for its whole life.
    #[schema(value_type = Uuid)]
    key_id: KeyId,
    /// Whether it is the first key of the account, which has all rights and is replaced with `POST
    /// /keys`.
    first: bool,
    name: String,
    access_key: String,
    /// What it may do.
    #[schema(example = json!(["order", "read"]))]
    rights: Vec<String>,
    /// The networks and addresses that it may be used from; an empty list means anywhere.
    #[schema(example = json!(["198.51.100.0/24"]))]
    networks: Vec<String>,
    /// How many units it may order in a day of UTC; null if it has no limit.
    units_per_day: Option<u32>,
    /// How many units it has ordered today; only counted if it has a limit.
    units_today: i64,
    /// When a request was signed with it, to the minute; null if none was.
    #[serde(with = "rfc3339::option")]
    last_used_at: Option<OffsetDateTime>,
    #[serde(with = "rfc3339")]
    created_at: OffsetDateTime,
}

impl From<FurtherKey> for AccountKey {
    fn from(key: FurtherKey) -> Self {
        Self {
            key_id: key.key_id.into(),
            first: false,
            name: key.name,
            access_key: key.access_key,
            rights: key.rights,
            networks: key.networks,
            units_per_day: key.units_per_day,
            units_today: key.units_today,
            last_used_at: key.last_used_at,
            created_at: key.created_at,
        }
    }
}

/// All keys of the account.
#[derive(Serialize, ToSchema)]
struct AccountKeys {
    /// The first key and then the further ones, the oldest first.
    keys: Vec<AccountKey>,
}

/// List the keys
///
/// The first key has all rights. Secret keys are never shown.
#[utoipa::path(get, path = "/account/keys", operation_id = "list_keys", tag = "Account",
    responses((status = 200, description = "The keys", body = AccountKeys)))]
pub(super) async fn list(session: Session) -> Result<Response, ApiError> {
    let read = async |connection: &mut PgConnection, partner: PartnerId| {
        let account = self_service::account(&mut *connection, partner).await?;
        let used_at = stored::first_used_at(&mut *connection, partner).await?;
        Ok::<_, pg::Error>((
            account,
            used_at,
            stored::list(connection, partner, None).await?,
        ))
    };
    let (account, last_used_at, further) = session.run(read).await?;
    let account = account.ok_or(ErrorCode::NotFound)?;
    let names = Rights::all().names();
    let first = AccountKey {
        key_id: session.id().first_key(),
        first: true,
        name: "first key".to_owned(),
        access_key: account.access_key,
        rights: names.into_iter().map(str::to_owned).collect(),
        networks: Vec::new(),
        units_per_day: None,
        units_today: 0,
        last_used_at,
        created_at: account.created_at,
    };
    let further = further.into_iter().map(AccountKey::from);
    let keys = std::iter::once(first).chain(further).collect();
    Ok(json(StatusCode::OK, &AccountKeys { keys }))
}

/// A new key with its secret.
#[derive(Serialize, ToSchema)]
struct MadeAccountKey {
    #[serde(flatten)]
    key: AccountKey,
    /// The secret key in Base64, which only this answer shows. Decode it before you sign with it.
    secret_key: String,
}

/// Make a key
///
/// A key for a person or a program, with the rights that it needs: `order` (order, cancel and give
/// back), `read` (everything that only shows something, activation codes included), `webhooks`
/// (where webhooks and notices go, and sending them again) and `keys`. A key can give no right that
/// it lacks itself, and none outside of its own networks; one with a limit of units cannot give
/// `order`. An account has at most ten keys with the first one. The signature must cover the body.
/// If the answer is lost, list the keys, and end the one whose secret you do not have.
#[utoipa::path(post, path = "/account/keys", operation_id = "create_key", tag = "Account", request_body = NewKeyRequest,
    responses(
        (status = 201, description = "The key with its secret", body = MadeAccountKey),
        (status = 400, response = crate::http::described::InvalidJson),
        (status = 409, description = "The account has the maximum number of keys (`too_many_keys`)", body = crate::http::described::Message),
        (status = 422, response = crate::http::described::Unprocessable)))]
pub(super) async fn create(session: Session, request: Request) -> Result<Response, ApiError> {
    session.requires_signed_body()?;
    let wanted = NewKeyRequest::read(&session, request).await?;
    let (access_key, secret_key) = generate::keys().map_err(ApiError::internal)?;
    let vault = &session.service().vault;
    let terms = KeyTerms {
        rights: wanted.rights,
        networks: wanted.networks.unwrap_or_default(),
        units_per_day: wanted.units_per_day,
    };
    let key_id = KeyId::new();
    let new = NewKey {
        key_id,
        partner_id: session.id(),
        name: &wanted.name,
        access_key: &access_key,
        secret_key: &secret_key,
        terms: &terms,
    };
    let signed_by = &session.partner.credential.access_key;
    let creating = session.change(async |connection, _| {
        self_service::create_key(connection, vault, signed_by, &new).await
    });
    answered(&session, creating.await?)?;
    tracing::info!(partner.id = %session.id(), key.id = %key_id, "a partner made a further key");
    let made = MadeAccountKey {
        key: current(&session, key_id).await?,
        secret_key: secret_key.to_base64(),
    };
    Ok(json(StatusCode::CREATED, &made))
}

/// Change a key
///
/// The change holds within a second. The first key cannot be changed. The key that signs the
/// request must have all that the changed key has afterwards, as if it made a new one, and the
/// signature must cover the body.
#[utoipa::path(put, path = "/account/keys/{key_id}", operation_id = "change_key", tag = "Account", request_body = KeyChange,
    params(("key_id" = Uuid, Path, description = "The id of the key")),
    responses(
        (status = 200, description = "The key", body = AccountKey),
        (status = 400, response = crate::http::described::InvalidJson),
        (status = 404, response = crate::http::described::NotFound),
        (status = 409, description = "It is the first key (`first_key`)", body = crate::http::described::Message),
        (status = 422, response = crate::http::described::Unprocessable)))]
pub(super) async fn change(
    session: Session,
    PathId(id): PathId<KeyId>,
    request: Request,
) -> Result<Response, ApiError> {
    session.requires_signed_body()?;
    not_first(&session, id)?;
    let change = KeyChange::read(&session, request).await?;
    let update = KeyUpdate {
        name: change.name,
        rights: change.rights,
        networks: change.networks,
        units_per_day: change.units_per_day,
    };
    let signed_by = &session.partner.credential.access_key;
    let changing = session.change(async |connection, partner| {
        self_service::change_key(connection, partner, signed_by, id, &update).await
    });
    answered(&session, changing.await?)?;
    tracing::info!(partner.id = %session.id(), key.id = %id, "a partner changed a further key");
    Ok(json(StatusCode::OK, &current(&session, id).await?))
}

/// End a key
///
/// Requests with it get a 401 within a second, and it never works again. What it has ordered goes
/// on. The first key cannot be ended: replace it with `POST /keys`, or ask us to end it.
#[utoipa::path(delete, path = "/account/keys/{key_id}", operation_id = "end_key", tag = "Account",
    params(("key_id" = Uuid, Path, description = "The id of the key")),
    responses(
        (status = 204, description = "The key has ended"),
        (status = 404, response = crate::http::described::NotFound),
        (status = 409, description = "It is the first key (`first_key`)", body = crate::http::described::Message)))]
pub(super) async fn end(
    session: Session,
    PathId(id): PathId<KeyId>,
) -> Result<StatusCode, ApiError> {
    not_first(&session, id)?;
    let signed_by = &session.partner.credential.access_key;
    let ending = session.change(async |connection, partner| {
        self_service::end_key(connection, partner, signed_by, id).await
    });
    answered(&session, ending.await?)?;
    tracing::info!(partner.id = %session.id(), key.id = %id, "a partner ended a further key");
    Ok(StatusCode::NO_CONTENT)
}

fn not_first(session: &Session, id: KeyId) -> Result<(), ApiError> {
    if id == session.id().first_key() {
        Err(ErrorCode::FirstKey.into())
    } else {
        Ok(())
    }
}

/// The error of a change that was not made.
fn answered(session: &Session, changed: KeyChanged) -> Result<(), ApiError> {
    match changed {
        KeyChanged::Done => Ok(()),
        KeyChanged::Unknown => Err(ErrorCode::NotFound.into()),
        KeyChanged::TooMany => Err(ApiError::with(ErrorCode::TooManyKeys, MOST_KEYS)),
        KeyChanged::NotGiven(why) => Err(ApiError::with(ErrorCode::KeyNotGiven, why)),
        KeyChanged::Ended => Err(session.gate().authenticator.unknown_key()),
    }
}

/// The key with this id, as it is shown.
async fn current(session: &Session, id: KeyId) -> Result<AccountKey, ApiError> {
    let text = id.to_string();
    let found = session
        .run(async |connection, partner| stored::list(connection, partner, Some(&text)).await);
    Ok(found.await?.pop().ok_or(ErrorCode::NotFound)?.into())
}

/// A new key.
#[derive(ToSchema)]
struct NewKeyRequest {
    /// What you call it: whose it is, or of which program. At most 100 characters.
    #[schema(example = "Anna's laptop")]
    name: String,
    /// What it may do: some of `order`, `read`, `webhooks` and `keys`.
    #[schema(value_type = Vec<String>, example = json!(["order", "read"]))]
    rights: Rights,
    /// The networks and addresses that it may be used from, at most 50. The default is anywhere.
    #[schema(value_type = Option<Vec<String>>, example = json!(["198.51.100.0/24"]))]
    networks: Option<Vec<Network>>,
    /// How many units it may order in a day of UTC. The default is any number. An order of a key
    /// with a limit counts when it is stored, whatever becomes of it.
    #[schema(example = 20)]
    units_per_day: Option<u32>,
}

impl NewKeyRequest {
    async fn read(session: &Session, request: Request) -> Result<Self, ApiError> {
        let mut fields = fields(session, request).await?;
        let missing = || RequestFault::with(ErrorCode::KeyNameInvalid, MOST_NAME);
        let name = fields.required("name", missing(), key_name);
        let missing = RequestFault::with(ErrorCode::RightsInvalid, right_names());
        let rights = fields.required("rights", missing, rights);
        let networks = fields.read("networks", networks);
        let units_per_day = fields.read("units_per_day", units);
        let made = name.zip(rights).map(|(name, rights)| Self {
            name,
            rights,
            networks,
            units_per_day,
        });
        fields.check(made)
    }
}

/// The changes of a key; a field that is left out keeps its value.
#[derive(ToSchema)]
struct KeyChange {
    name: Option<String>,
    /// Replaces all rights.
    #[schema(value_type = Option<Vec<String>>, example = json!(["read"]))]
    rights: Option<Rights>,
    /// Replaces all networks; an empty list allows it to be used from anywhere.
    #[schema(value_type = Option<Vec<String>>, example = json!([]))]
    networks: Option<Vec<Network>>,
    /// Null removes the limit.
    #[expect(clippy::option_option, reason = "null is a value here")]
    #[schema(value_type = Option<u32>, example = 20)]
    units_per_day: Option<Option<u32>>,
}

impl KeyChange {
    async fn read(session: &Session, request: Request) -> Result<Self, ApiError> {
        let mut fields = fields(session, request).await?;
        let change = Self {
            name: fields.read("name", key_name),
            rights: fields.read("rights", rights),
            networks: fields.read("networks", networks),
            units_per_day: fields.nullable("units_per_day", units),
        };
        fields.check(Some(change))
    }
}

async fn fields(session: &Session, request: Request) -> Result<BodyFields, ApiError> {
    let (parts, body) = request.into_parts();
    let body = body::read(session.gate().max_body, &parts.headers, body).await?;
    BodyFields::of(&body)
}

fn key_name(given: &Value) -> Result<String, RequestFault> {
    let name = given.as_str().map(str::trim).unwrap_or_default();
    let is_fit = (1..=MOST_NAME).contains(&name.chars().count());
    if is_fit && !name.chars().any(char::is_control) {
        Ok(name.to_owned())
    } else {
        Err(RequestFault::with(ErrorCode::KeyNameInvalid, MOST_NAME))
    }
}

fn right_names() -> String {
    Rights::all().names().join(", ")
}

fn rights(given: &Value) -> Result<Rights, RequestFault> {
    let read = |one: &Value| -> Option<Right> {
        let name = one.as_str()?;
        Right::VARIANTS
            .iter()
            .copied()
            .find(|right| right.as_str() == name)
    };
    let given = given.as_array().filter(|given| !given.is_empty());
    given
        .and_then(|given| given.iter().map(read).collect())
        .ok_or_else(|| RequestFault::with(ErrorCode::RightsInvalid, right_names()))
}

fn networks(given: &Value) -> Result<Vec<Network>, RequestFault> {
    let wrong = |why: String| RequestFault::with(ErrorCode::NetworksInvalid, why);
    let Some(given) = given.as_array() else {
        return Err(wrong("they must be a list of strings".to_owned()));
    };
    if given.len() > MOST_NETWORKS {
        return Err(wrong(format!("at most {MOST_NETWORKS} are possible")));
    }
    let mut networks = Vec::with_capacity(given.len());
    for one in given {
        let text = one.as_str().unwrap_or_default();
        let short: String = text.chars().take(50).collect();
        let read = network(&short).map_err(|error| wrong(error.to_string()))?;
        if !networks.contains(&read) {
            networks.push(read);
        }
    }
    Ok(networks)
}

fn units(given: &Value) -> Result<u32, RequestFault> {
    let units = given.as_u64().and_then(|units| u32::try_from(units).ok());
    let units = units.filter(|units| i32::try_from(*units).is_ok());
    units.ok_or_else(|| RequestFault::new(ErrorCode::UnitsPerDayInvalid))
}
