//! The pipeline's own state: which stages run, and what waits.

use std::time::Duration;

use store::{
    PgConnection,
    deliveries::endpoints,
    operator::health,
    providers::{self, Backlog, BreakerState},
    retention,
};

use crate::doctor::{database::round, line::Lines};

/// A row is late from this age on, and needs a person from the second one on.
const LATE: Duration = Duration::from_mins(1);
const VERY_LATE: Duration = Duration::from_mins(15);
const RETENTION_LATE: Duration = Duration::from_hours(24);
/// The maximum number of endpoints that a line names.
const NAMED: usize = 3;

/// Each stage commits a pulse once a second, by which the doctor sees it.
pub async fn stages(connection: &mut PgConnection, lines: &mut Lines<'_>) {
    let running = match health::running(connection).await {
        Ok(running) => running,
        Err(error) => return unread("stages", &error, lines),
    };
    for (stage, see) in [
        ("ingress", "docs/operations.md#ingressdown"),
        ("provisioner", "docs/operations.md#provisionerdown"),
        ("notifier", "docs/operations.md#notifierdown"),
    ] {
        let processes = running
            .iter()
            .find(|one| one.stage == stage)
            .map_or(0, |one| one.processes);
        if processes > 0 {
            lines.fine("stages", format!("{stage}: {processes} running"));
        } else {
            lines.fault(
                "stages",
                format!("{stage}: no process has committed for ten seconds"),
                "start it, or read its log; a process that cannot commit is not ready",
                see,
            );
        }
    }
}

fn unread(check: &'static str, error: &store::Error, lines: &mut Lines<'_>) {
    lines.fault(
        check,
        format!("cannot be read: {error}"),
        "log in as esim_operator, and run `esimctl migrate` as the owner if its privileges are missing",
        "docs/operations.md#databasedown",
    );
}

pub async fn check(connection: &mut PgConnection, lines: &mut Lines<'_>) {
    breakers(connection, lines).await;
    placements(connection, lines).await;
    deliveries(connection, lines).await;
    blocked(connection, lines).await;
    erasure(connection, lines).await;
}

async fn breakers(connection: &mut PgConnection, lines: &mut Lines<'_>) {
    let providers = match providers::list(connection).await {
        Ok(providers) => providers,
        Err(error) => return unread("breakers", &error, lines),
    };
    let mut open = false;
    for provider in &providers {
        if provider.state == BreakerState::Closed {
            continue;
        }
        open = true;
        let reason = provider
            .reason
            .as_deref()
            .unwrap_or("no reason is recorded");
        lines.bad(
            provider.state == BreakerState::Open && provider.name != "sandbox",
            "breakers",
            format!(
                "that of {} is {}: {reason}",
                provider.name,
                provider.state.as_str().replace('_', " ")
            ),
            if provider.lost_commits() {
                "run `esimctl recover` first; closing the breaker before could buy again what was forgotten".into()
            } else {
                format!(
                    "when the cause is gone: `esimctl provider close {}`",
                    provider.name
                )
            },
            "docs/operations.md#providerbreakeropen",
        );
    }
    if !open {
        lines.fine("breakers", format!("all {} are closed", providers.len()));
    }
}

async fn placements(connection: &mut PgConnection, lines: &mut Lines<'_>) {
    let backlogs = match providers::backlogs(connection, &[]).await {
        Ok(backlogs) => backlogs,
        Err(error) => return unread("placements", &error, lines),
    };
    let parked: u64 = backlogs.iter().map(|one| one.parked).sum();
    if parked > 0 {
        lines.warning(
            "parked",
            format!("{parked} placements wait for a person"),
            "`esimctl placement list --state parked`, then `esimctl placement resolve`",
            "docs/operations.md#placementsparked",
        );
    } else {
        lines.fine("parked", "no placement waits for a person");
    }
    let give_backs: u64 = backlogs.iter().map(|one| one.give_backs_parked).sum();
    if give_backs > 0 {
        lines.warning(
            "parked give-backs",
            format!("{give_backs} wait for a person"),
            "`esimctl give-back list`, then `esimctl give-back resolve`",
            "docs/operations.md#givebacksparked",
        );
    } else {
        lines.fine("parked give-backs", "none waits for a person");
    }
    unserved(connection, &backlogs, lines).await;
    let mut late = false;
    for one in &backlogs {
        if one.oldest_overdue < LATE {
            continue;
        }
        late = true;
        let very = one.oldest_overdue >= VERY_LATE && one.provider != "sandbox";
        lines.bad(
            very,
            "due placements",
            format!(
                "{}: {} are due, the oldest for {:?}",
                one.provider,
                one.due,
                round(one.oldest_overdue)
            ),
            "see whether its breaker is open, and whether a provisioner serves it",
            if very {
                "docs/operations.md#provisionerfarbehind"
            } else {
                "docs/operations.md#provisionerbehind"
            },
        );
    }
    if !late {
        let due: u64 = backlogs.iter().map(|one| one.due).sum();
        lines.fine("due placements", format!("{due}, none for long"));
    }
}

/// Providers that the catalogue names, first or as alternatives, and that no provisioner has ever
/// served. Orders that come to them wait for ever.
async fn unserved(connection: &mut PgConnection, backlogs: &[Backlog], lines: &mut Lines<'_>) {
    let served = match providers::list(connection).await {
        Ok(served) => served,
        Err(error) => return unread("providers", &error, lines),
    };
    let missing = backlogs
        .iter()
        .map(|one| one.provider.as_str())
        .filter(|name| served.iter().all(|one| one.name != *name));
    let missing: Vec<&str> = missing.collect();
    if missing.is_empty() {
        lines.fine(
            "providers",
            format!("all {} of the catalogue are served", backlogs.len()),
        );
    } else {
        lines.warning(
            "providers",
            format!(
                "options name {}, which no provisioner has ever served",
                missing.join(", ")
            ),
            "add it to PROVIDERS of ingress and provisioner, or import the options without it",
            "docs/operations.md#provisionerdown",
        );
    }
}

async fn deliveries(connection: &mut PgConnection, lines: &mut Lines<'_>) {
    let backlog = match endpoints::backlog(connection).await {
        Ok(backlog) => backlog,
        Err(error) => return unread("deliveries", &error, lines),
    };
    let mut late = false;
    for (environment, overdue) in [
        ("live", backlog.overdue_live),
        ("sandbox", backlog.overdue_sandbox),
    ] {
        if overdue < LATE {
            continue;
        }
        late = true;
        let very = overdue >= VERY_LATE && environment == "live";
        lines.bad(
            very,
            "due webhooks",
            format!(
                "the oldest to {environment} partners has been due for {:?}",
                round(overdue)
            ),
            "see whether notifiers run and can reach the internet",
            if very {
                "docs/operations.md#notifierfarbehind"
            } else {
                "docs/operations.md#notifierbehind"
            },
        );
    }
    if !late {
        lines.fine("due webhooks", format!("{}, none for long", backlog.due));
    }
    if backlog.exhausted > 0 {
        lines.warning(
            "exhausted webhooks",
            format!("{} have used up their retries", backlog.exhausted),
            "when the endpoint works again: `esimctl delivery replay`",
            "docs/operations.md#deliveriesexhausted",
        );
    } else {
        lines.fine("exhausted webhooks", "there are none");
    }
}

async fn blocked(connection: &mut PgConnection, lines: &mut Lines<'_>) {
    let endpoints = match endpoints::list(connection, None).await {
        Ok(endpoints) => endpoints,
        Err(error) => return unread("endpoints", &error, lines),
    };
    let mut fine = true;
    for (state, remedy) in [
        (
            "blocked",
            "tell the partner; the block ends by itself when a probe succeeds",
        ),
        (
            "paused",
            "when it may have webhooks again: `esimctl endpoint resume`",
        ),
    ] {
        let of: Vec<String> = endpoints
            .iter()
            .filter(|one| one.state == state)
            .map(|one| format!("{} ({})", one.name, one.partner_id))
            .collect();
        if of.is_empty() {
            continue;
        }
        fine = false;
        let more = of.len().saturating_sub(NAMED);
        let more = if more > 0 {
            format!(" and {more} more")
        } else {
            String::new()
        };
        lines.warning(
            "endpoints",
            format!("{state}: {}{more}", of[..of.len().min(NAMED)].join(", ")),
            remedy,
            "docs/operations.md#endpointsblocked",
        );
    }
    if fine {
        lines.fine(
            "endpoints",
            format!("none of {} is blocked or paused", endpoints.len()),
        );
    }
}

async fn erasure(connection: &mut PgConnection, lines: &mut Lines<'_>) {
    match retention::backlog(connection).await {
        Ok(backlog) => {
            let overdue = backlog.overdue.into_iter().max().unwrap_or_default();
            if overdue > RETENTION_LATE {
                lines.warning(
                    "retention",
                    format!("rows have been past their term for {:?}", round(overdue)),
                    "see whether a notifier runs, which erases them",
                    "docs/operations.md#retentionbehind",
                );
            } else {
                lines.fine("retention", "no row is past its term for long");
            }
        }
        Err(error) => unread("retention", &error, lines),
    }
}
