//! What the metrics call an error of create-order, wherever it arises: before the order is
//! submitted ([`super::create`]) or after ([`super::accept`]).

use crate::{
    http::{codes::ErrorCode, error::ApiError},
    metrics::OrderResult,
};

/// The name of the limit that an order reaches which waits in the queue for `QUEUE_DEADLINE`.
pub(super) const QUEUE_DEADLINE: &str = "queue_deadline";

/// The result of a create-order request that gets no 201.
pub(super) fn of(error: &ApiError) -> OrderResult {
    match error {
        ApiError::Internal(_) => OrderResult::Error,
        ApiError::Limited(_) => OrderResult::Limited,
        ApiError::HungUp => OrderResult::HungUp,
        ApiError::Unavailable { code, .. } if *code == ErrorCode::OrderUndecided => {
            OrderResult::Undecided
        }
        ApiError::Unavailable { limit_name, .. } if *limit_name == QUEUE_DEADLINE => {
            OrderResult::Expired
        }
        ApiError::Unavailable { .. } => OrderResult::Shed,
        ApiError::Unprocessable(faults) => {
            let names = |code| faults.iter().any(|fault| fault.code == code);
            match &faults[..] {
                [only] if only.code == ErrorCode::ExternalOrderIdTaken => OrderResult::Duplicate,
                _ if names(ErrorCode::ProviderRejected) => OrderResult::Refused,
                _ if names(ErrorCode::ProviderUnreachable)
                    || names(ErrorCode::ProviderUnavailable) =>
                {
                    OrderResult::Unreachable
                }
                _ => OrderResult::Invalid,
            }
        }
        ApiError::Plain {
            code: ErrorCode::OrderDiffers | ErrorCode::OrderArchived,
            ..
        } => OrderResult::Duplicate,
        ApiError::Plain { .. } => OrderResult::Invalid,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::error::RequestFault;

    #[test]
    fn each_error_of_create_order_has_its_outcome() {
        let plain = |code| ApiError::from(code);
        let faults = |codes: &[ErrorCode]| {
            ApiError::Unprocessable(codes.iter().copied().map(RequestFault::new).collect())
        };
        let undecided = ApiError::Unavailable {
            code: ErrorCode::OrderUndecided,
            limit_name: "undecided",
        };
        for (error, outcome) in [
            (undecided, "undecided"),
            (ApiError::overloaded(QUEUE_DEADLINE), "expired"),
            (ApiError::overloaded("memory_share"), "shed"),
            (ApiError::HungUp, "hung_up"),
            (plain(ErrorCode::InvalidJson), "invalid"),
            (faults(&[ErrorCode::ExternalOrderIdTaken]), "duplicate"),
            (
                faults(&[ErrorCode::ExternalOrderIdTaken, ErrorCode::QtyInvalid]),
                "invalid",
            ),
            (
                faults(&[ErrorCode::ProviderUnreachable, ErrorCode::ProviderRejected]),
                "refused",
            ),
            (plain(ErrorCode::OrderDiffers), "duplicate"),
            (plain(ErrorCode::OrderArchived), "duplicate"),
            (faults(&[ErrorCode::ProviderUnavailable]), "unreachable"),
            (ApiError::internal(anyhow::anyhow!("a test")), "error"),
        ] {
            assert_eq!(<&str>::from(of(&error)), outcome, "{error:?}");
        }
    }
}
