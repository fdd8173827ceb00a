//! Opens and closes the breakers of providers, as operators do, and records it.

use std::time::Duration;

use pg::{
    Error, TransactionEnd,
    actions::{self, Action, ActionChange},
    transaction,
};
use serde_json::{Value, json};
use sqlx::PgConnection;
use store::providers::{self, BreakerState, ProviderBreaker};

/// Why a breaker stays as it is.
#[derive(Debug, thiserror::Error)]
pub enum BreakerNotChanged {
    #[error("there is no such provider")]
    Unknown,
    /// What an operator who has only seen the breaker may not know.
    #[error(
        "the breaker is open because the database has lost commits. Closing it before `esimctl recover` could buy again what \
         was forgotten, so it is closed with a shell only"
    )]
    LostCommits,
    #[error("the breaker has changed since it was shown, and is {} now", .0.as_str())]
    Changed(BreakerState),
    #[error(transparent)]
    Store(#[from] Error),
}

pg::store_error!(BreakerNotChanged);

/// Opens a breaker for a time, or closes it; see [`providers::open`] and [`providers::close`].
/// `seen` is the version that the operator has looked at: if there is one, a breaker that has
/// changed since or is open because of lost commits stays as it is.
pub async fn set(
    connection: &mut PgConnection,
    name: &str,
    seen: Option<i64>,
    open_for: Option<Duration>,
    action: Action<'_>,
) -> Result<ProviderBreaker, BreakerNotChanged> {
    transaction!(connection, "breakers::set", |transaction| {
        let before = find(transaction, name, seen).await?;
        let after = match open_for {
            Some(duration) => providers::open(transaction, name, duration, action.reason).await?,
            None => providers::close(transaction, name).await?,
        };
        let after = after.ok_or(BreakerNotChanged::Unknown)?;
        // The update counts on from the version that it finds, which may no longer be that of the
        // look.
        if seen.is_some() && after.version != before.version + 1 {
            return Err(BreakerNotChanged::Changed(after.state));
        }
        let changed = ActionChange::between(shown(&before), shown(&after));
        actions::record(transaction, action, 1, changed).await?;
        Ok(TransactionEnd::Commit(after))
    })
}

/// The breaker before the change.
async fn find(
    connection: &mut PgConnection,
    name: &str,
    seen: Option<i64>,
) -> Result<ProviderBreaker, BreakerNotChanged> {
    let all = providers::list(connection).await?;
    let found = all.into_iter().find(|one| one.name == name);
    let found = found.ok_or(BreakerNotChanged::Unknown)?;
    match seen {
        Some(_) if found.lost_commits() => Err(BreakerNotChanged::LostCommits),
        Some(version) if version != found.version => Err(BreakerNotChanged::Changed(found.state)),
        _ => Ok(found),
    }
}

fn shown(breaker: &ProviderBreaker) -> Value {
    json!({ "state": breaker.state.as_str(), "reason": breaker.reason })
}

/// Why a provider is not asked anything now although somebody has asked it to be, and what ends
/// that. `None` if it is asked within seconds. The question is stored in each case, so nobody has
/// to ask again.
pub fn not_asked(
    name: &str,
    breaker: Option<&ProviderBreaker>,
    provisioner_runs: bool,
) -> Option<String> {
    let stands = "The question is kept, and is asked then.";
    let Some(breaker) = breaker else {
        return Some(format!(
            "{name} is not asked, because no provisioner serves it. {stands}"
        ));
    };
    let is_stopped = breaker.state != BreakerState::Closed;
    if !is_stopped && provisioner_runs {
        return None;
    }
    let why = if breaker.lost_commits() {
        "the database has lost commits, so nothing goes there until somebody with a shell has run `esimctl recover` and \
         closed its breaker"
    } else if breaker.denied {
        "it denies our account: set its key right"
    } else if breaker.opened_by_operator() {
        "an operator has stopped it: let it buy again on Providers, or wait for the end of that time"
    } else if !provisioner_runs {
        "no provisioner runs: start one"
    } else {
        "it fails, and is tested by one call at a time: wait until it works again"
    };
    Some(format!("{name} is not asked now, because {why}. {stands}"))
}

#[cfg(test)]
mod tests {
    use time::{OffsetDateTime, macros::datetime};

    use super::*;

    const NOW: OffsetDateTime = datetime!(2026-11-27 12:00 UTC);

    fn breaker(state: BreakerState, open_until: Option<OffsetDateTime>) -> ProviderBreaker {
        ProviderBreaker {
            name: "airalo".to_owned(),
            state,
            open_until,
            reason: None,
            openings: 0,
            version: 1,
            changed_at: NOW,
            failing_since: None,
            denied: false,
            balance: None,
            balance_at: None,
        }
    }

    #[test]
    fn whoever_asks_is_told_why_nobody_is_asked() {
        let closed = breaker(BreakerState::Closed, None);
        let denied = ProviderBreaker {
            denied: true,
            openings: 3,
            ..breaker(BreakerState::HalfOpen, None)
        };
        let fails = ProviderBreaker {
            openings: 3,
            ..breaker(BreakerState::Open, Some(NOW))
        };
        let by_operator = breaker(BreakerState::Open, Some(NOW));
        let lost = breaker(BreakerState::Open, Some(datetime!(9999-12-31 0:00 UTC)));
        assert_eq!(not_asked("airalo", Some(&closed), true), None);
        for (breaker, runs, says) in [
            (None, true, "no provisioner serves it"),
            (Some(&closed), false, "no provisioner runs"),
            (Some(&denied), true, "set its key right"),
            (Some(&by_operator), true, "an operator has stopped it"),
            (Some(&lost), true, "`esimctl recover`"),
            (Some(&fails), true, "it fails, and is tested"),
            (Some(&fails), false, "no provisioner runs"),
        ] {
            let told = not_asked("airalo", breaker, runs).unwrap_or_default();
            assert!(told.contains(says), "{says}: {told}");
        }
    }
}
