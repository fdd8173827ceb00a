//! Typed ids. All of them are UUIDs, but each kind is a type of its own, so that the compiler
//! refuses a partner's id where an order's id is meant.

use std::{fmt, marker::PhantomData, str::FromStr};

use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// A text does not have the shape of an id. The message describes the shape that was expected.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("{0}")]
pub struct NotAnId(pub(crate) &'static str);

/// A UUID that identifies a `Kind`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Id<Kind>(Uuid, #[serde(skip)] PhantomData<Kind>);

/// Identifies a partner account.
pub type PartnerId = Id<kind::PartnerMarker>;
/// Identifies an order. Partners see it in the error `API connection error (Order ID: …)`.
pub type OrderId = Id<kind::OrderMarker>;
/// Identifies a placement. It is the order id at the provider, the same in every attempt.
pub type PlacementId = Id<kind::PlacementMarker>;
/// Identifies an extension of a delivered eSIM. It is our id at the provider, the same in every
/// attempt.
pub type ExtensionId = Id<kind::ExtensionMarker>;
/// Identifies an option of the catalogue.
pub type OptionId = Id<kind::OptionMarker>;

/// Identifies an endpoint of a partner. That of its first endpoint, which is the webhook URL of the
/// specification, is the partner's own id.
pub type EndpointId = Id<kind::EndpointMarker>;

/// Identifies a key of a partner. That of its first one is the partner's own id.
pub type KeyId = Id<kind::KeyMarker>;

/// Identifies a delivery. Partners see it as a [`WebhookId`](crate::WebhookId).
pub type DeliveryId = Id<kind::DeliveryMarker>;

/// Empty types that tell the kinds of [`Id`] apart. They have no values.
pub mod kind {
    #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
    pub enum PartnerMarker {}
    #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
    pub enum OrderMarker {}
    #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
    pub enum PlacementMarker {}
    #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
    pub enum ExtensionMarker {}
    #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
    pub enum OptionMarker {}
    #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
    pub enum DeliveryMarker {}
    #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
    pub enum EndpointMarker {}
    #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
    pub enum KeyMarker {}
}

impl<Kind> Id<Kind> {
    /// Makes a new id. It is a UUID of version 7, which begins with the time, so that ids made
    /// later sort later and new rows are neighbours in an index.
    pub fn new() -> Self {
        Uuid::now_v7().into()
    }

    pub fn uuid(self) -> Uuid {
        self.0
    }
}

impl<Kind> Default for Id<Kind> {
    fn default() -> Self {
        Self::new()
    }
}

impl<Kind> From<Uuid> for Id<Kind> {
    fn from(uuid: Uuid) -> Self {
        Self(uuid, PhantomData)
    }
}

impl PartnerId {
    /// The id of the partner's first endpoint.
    pub fn first_endpoint(self) -> EndpointId {
        self.0.into()
    }

    /// The id of the partner's first key.
    pub fn first_key(self) -> KeyId {
        self.0.into()
    }
}

impl<Kind> FromStr for Id<Kind> {
    type Err = NotAnId;

    /// Parses the hyphenated form, in lower or upper case. The other forms that the crate `uuid`
    /// knows are refused.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        text.parse::<uuid::fmt::Hyphenated>()
            .map(|hyphenated| hyphenated.into_uuid().into())
            .map_err(|_| NotAnId("an id of this kind is a UUID with its hyphens, such as 0199b2a0-7c1e-7d52-9b43-2f6a8c0d1e57"))
    }
}

impl<Kind> fmt::Display for Id<Kind> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl<Kind> fmt::Debug for Id<Kind> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The id of a scripted option of the sandbox, which is the same in every catalogue. The sandbox
/// knows its options by it, and ingress those that make it misbehave.
pub fn sandbox_option(name: &str) -> OptionId {
    Uuid::new_v5(&Uuid::NAMESPACE_OID, format!("sandbox/{name}").as_bytes()).into()
}

/// The id that the import of a provider's catalogue gives to the option for a product. It is the
/// same in every import, so that the catalogues of several systems name one product by one id.
pub fn option_of(provider: &str, product: &str) -> OptionId {
    let name = format!("{provider}/{product}");
    Uuid::new_v5(&Uuid::NAMESPACE_OID, name.as_bytes()).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_hyphenated_form_is_an_id() {
        let id = OptionId::new();
        assert_eq!(id.to_string().parse::<OptionId>().unwrap(), id);
        assert_eq!(
            id.to_string().to_uppercase().parse::<OptionId>().unwrap(),
            id
        );
        for bad in [
            "",
            "1",
            &id.uuid().simple().to_string(),
            &format!("{{{id}}}"),
            &format!("{id} "),
        ] {
            assert!(bad.parse::<OptionId>().is_err(), "{bad}");
        }
    }

    #[test]
    fn ids_travel_as_plain_text() {
        let id = OrderId::new();
        let text = serde_json::to_string(&id).unwrap();
        assert_eq!(text, format!("\"{id}\""));
        assert_eq!(serde_json::from_str::<OrderId>(&text).unwrap(), id);
    }
}
