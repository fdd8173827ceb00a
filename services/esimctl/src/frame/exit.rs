//! How a command ends: its exit status, and the line that says why it failed.

use pg::config::{BadDatabase, MasterKeyError};
use runtime::terminal::{is_closed, say};

use super::{console::NoDatabase, output::one_line};

/// Exit status of a command that failed.
pub const FAILED: u8 = 1;
/// Exit status for wrong arguments or settings.
pub const USAGE: u8 = 2;
/// Exit status if something was found that needs somebody: a difference from a provider's list of
/// purchases, what `attention` shows, an account that does not agree with its entries, or what a
/// dry run of `partner apply`, `option apply`, `price apply` or `price markup` would change.
pub const FOUND: u8 = 3;

/// A comparison with a list of a provider found something. It is an error, so that a script sees it
/// by the exit status.
#[derive(Debug, thiserror::Error)]
#[error(
    "purchases in the list of {provider} without a placement: {orphans}; in contradiction to the database: {mismatches}; \
     of ours that it lacks: {missing}. They are listed above, each with what to do"
)]
pub struct Discrepancies {
    pub provider: String,
    pub orphans: i64,
    pub mismatches: i64,
    pub missing: i64,
}

/// A dry run has found that what was asked for differs from the database. It is an error, so that a
/// pipeline sees it by the exit status.
#[derive(Debug, thiserror::Error)]
#[error(
    "what was asked for differs from the database ({created} to create, {changed} to change); run the command without --dry-run to \
     apply it"
)]
pub struct WouldChange {
    pub created: usize,
    pub changed: usize,
}

/// Accounts do not agree with their entries or their units. It is an error, so that a script sees
/// it by the exit status.
#[derive(Debug, thiserror::Error)]
#[error(
    "the accounts and what they rest on disagree in {0}, listed above: find out what changed the rows, because no command \
     of ours does, and correct a balance with `esimctl account adjust`"
)]
pub struct AccountsDisagree(pub String);

/// The exit status of a result. An error is printed.
pub fn status(result: anyhow::Result<()>) -> u8 {
    let error = match result {
        Ok(()) => return 0,
        // The reader, such as `head`, has all that it wanted, and whatever the command changed is
        // done.
        Err(error) if is_closed(&error) => return 0,
        Err(error) => error,
    };
    say(format_args!("esimctl: {}", one_line(&with_causes(&error))));
    let wrong_settings =
        error.is::<NoDatabase>() || error.is::<BadDatabase>() || error.is::<MasterKeyError>();
    if wrong_settings {
        USAGE
    } else if error.is::<Discrepancies>()
        || error.is::<WouldChange>()
        || error.is::<AccountsDisagree>()
    {
        FOUND
    } else {
        FAILED
    }
}

/// The error followed by its causes. Some errors end with the text of their cause already; such a
/// cause is not repeated.
pub fn with_causes(error: &anyhow::Error) -> String {
    let mut said = String::new();
    for cause in error.chain().map(ToString::to_string) {
        if said.is_empty() {
            said = cause;
        } else if !said.ends_with(&cause) {
            said = format!("{said}: {cause}");
        }
    }
    said
}
