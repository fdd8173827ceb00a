//! The pipeline's own state: which stages run, and what waits. The report is the one that `esimctl
//! status`, `attention` and the console show.

use desk::operator::{
    books::{self, CheckedNow},
    health::{self, HealthReport},
    words::counted,
};
use pg::PgConnection;
use store::proofs;

use crate::{
    account,
    doctor::{
        command::DoctorArgs,
        line::{self, Area, Line, Lines},
    },
};

pub async fn check(command: &DoctorArgs, connection: &mut PgConnection, lines: &mut Vec<Line>) {
    if command.wants(Area::Work) {
        proved(connection, &mut Lines::of(Area::Work, lines)).await;
        accounted(connection, &mut Lines::of(Area::Work, lines)).await;
    }
    let report = health::examine(connection).await;
    for area in [Area::Stages, Area::Work] {
        if !command.wants(area) {
            continue;
        }
        let mut found = Lines::of(area, lines);
        match &report {
            Ok(report) if area == Area::Stages => stages(report, &mut found),
            Ok(report) => work(report, &mut found),
            Err(error) => found.fault(
                "report",
                format!("cannot be read: {error}"),
                "log in as esim_operator, and run `esimctl migrate` as the owner if its privileges are missing",
                "docs/operations.md#databasedown",
            ),
        }
    }
    // What the pulses of the stages tell belongs to areas that are checked from here, too.
    if let Ok(report) = report {
        line::others(lines, report.findings, |area| command.wants(area));
    }
}

/// What was proved of our accounts at providers (`esimctl provider prove`), and what that left
/// there.
async fn proved(connection: &mut PgConnection, lines: &mut Lines<'_>) {
    let see = "docs/providers.md#prove-an-account";
    let read = async {
        let proofs = proofs::last(connection).await?;
        Ok::<_, pg::Error>((proofs, proofs::left_in_accounts(connection).await?))
    };
    let (proofs, left) = match read.await {
        Ok(read) => read,
        Err(error) => {
            let found = format!("cannot be read: {error}");
            return lines.fault("proofs", found, "run `esimctl migrate` as the owner", see);
        }
    };
    for one in left {
        let found = format!(
            "{} of a proof since {} at {} (account {}) may not be given back",
            counted(one.purchases, "purchase", "purchases"),
            one.since.date(),
            one.provider,
            one.account
        );
        let again = format!("run `esimctl provider prove {}`", one.provider);
        lines.warning("proofs", found, again, see);
    }
    for proof in proofs {
        let at = proof.proved_at.date();
        let account = format!("account {} at {}", proof.account, proof.provider);
        let again = format!("run `esimctl provider prove {}`", proof.provider);
        if !proof.same_again {
            let found =
                format!("{account}: a repeat was not the same purchase on {at}, so none is sent");
            lines.warning(
                "proofs",
                found,
                "ask the provider, then prove it again",
                see,
            );
        } else if proof.is_old {
            let found = format!("{account} was proved on {at}, more than a quarter of a year ago");
            lines.warning("proofs", found, again, see);
        } else {
            lines.fine("proofs", format!("{account} was proved on {at}"));
        }
    }
}

/// Compares the accounts of partners with their entries and with what was ordered. What disagrees
/// is kept, so the report of the system has it as a finding.
async fn accounted(connection: &mut PgConnection, lines: &mut Lines<'_>) {
    let see = "docs/reference.md#prices-and-accounts";
    match books::check_now(connection).await {
        Ok(CheckedNow { checked, .. }) if checked.disagreements.is_empty() => {
            lines.fine("accounts", account::checked_text(&checked));
        }
        Ok(CheckedNow { kept: Ok(()), .. }) => {}
        Ok(CheckedNow {
            checked,
            kept: Err(error),
        }) => {
            let number = counted(checked.disagreements.len(), "place", "places");
            let found = format!("disagree in {number}, which was not kept: {error}");
            lines.warning("accounts", found, "run `esimctl account check`", see);
        }
        Err(error) => {
            let found = format!("cannot be compared: {error}");
            lines.fault("accounts", found, "run `esimctl account check`", see);
        }
    }
}

fn stages(report: &HealthReport, lines: &mut Lines<'_>) {
    lines.findings(report.findings.iter().cloned(), &[]);
    for life in report.stages.iter().filter(|life| !life.is_dead()) {
        let stage = life.stage.as_str();
        lines.fine("stages", format!("{stage}: {} running", life.running));
    }
}

fn work(report: &HealthReport, lines: &mut Lines<'_>) {
    let (purchases, _) = report.waiting.sum(true);
    let (webhooks, _) = report.waiting.sum(false);
    let fine = [
        ("orders", report.orders.told()),
        (
            "breakers",
            format!("all {} are closed", report.breakers.len()),
        ),
        ("providers", "all of the catalogue are served".to_owned()),
        ("lanes", "none is held back".to_owned()),
        ("due placements", format!("{purchases} wait, none for long")),
        ("parked", "no placement waits for a person".to_owned()),
        ("parked give-backs", "none waits for a person".to_owned()),
        ("parked extensions", "none waits for a person".to_owned()),
        ("due webhooks", format!("{webhooks} wait, none for long")),
        (
            "webhooks without an address",
            "none waits for one".to_owned(),
        ),
        ("exhausted webhooks", "there are none".to_owned()),
        ("endpoints", "none is blocked or paused".to_owned()),
        ("balances", "none runs out at its pace".to_owned()),
        ("prices", "none is known to be below its cost".to_owned()),
        ("retention", "no row is past its term for long".to_owned()),
    ];
    lines.findings(report.findings.iter().cloned(), &fine);
}
