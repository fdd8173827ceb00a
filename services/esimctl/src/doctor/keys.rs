//! The master keys: whether they are readable, and open what is stored.

use std::{fs, os::unix::fs::PermissionsExt, path::Path};

use accounts::partners;
use desk::operator::words::counted;
use desk::{master_key, operator::health::session};
use pg::PgConnection;
use vault::{Keyring, Vault};

use crate::{
    doctor::{command::DoctorArgs, line::Lines},
    output::one_line,
};

const SEE: &str = "docs/operations.md#rotate-keys";

/// The variables that name files of keys.
const FILES: [&str; 4] = [
    "MASTER_KEY_FILE",
    "MASTER_KEY_PARTNERS_FILE",
    "MASTER_KEY_WEBHOOKS_FILE",
    "MASTER_KEY_PROFILES_FILE",
];

pub async fn check(command: &DoctorArgs, connection: &mut PgConnection, lines: &mut Lines<'_>) {
    let keys = &command.master_key;
    let given = [
        &keys.master_key,
        &keys.master_key_partners,
        &keys.master_key_webhooks,
        &keys.master_key_profiles,
    ];
    if given.iter().all(|key| key.is_none()) {
        lines.warning(
            "master keys",
            "not checked, because none is set",
            "set MASTER_KEY_PARTNERS_FILE, MASTER_KEY_WEBHOOKS_FILE and MASTER_KEY_PROFILES_FILE, or say --without keys",
            SEE,
        );
        return;
    }
    for name in FILES {
        if let Some(file) = std::env::var_os(name) {
            mode(name, Path::new(&file), lines);
        }
    }
    // Profiles are out of the operator's reach, so their keys are tried as the owner only.
    let is_owner = match session::session(connection).await {
        Ok(session) => session.is_superuser || session.owner.as_deref() == Some(&session.role),
        Err(_) => false,
    };
    let mut usable = true;
    for (ring, stored) in [
        (Keyring::Partners, true),
        (Keyring::Webhooks, true),
        (Keyring::Profiles, is_owner),
    ] {
        usable &= ring_of(command, ring, stored, connection, lines).await;
    }
    if usable
        && is_owner
        && let Ok(vault) = keys.vault(&Keyring::ALL)
    {
        rotation(&vault, connection, lines).await;
    }
}

fn mode(name: &str, file: &Path, lines: &mut Lines<'_>) {
    if let Ok(metadata) = fs::metadata(file)
        && metadata.permissions().mode() & 0o007 != 0
    {
        lines.warning(
            "key files",
            format!(
                "{name}={} may be read by everybody on this machine",
                file.display()
            ),
            format!("chmod o= {}", file.display()),
            SEE,
        );
    }
}

/// Whether the keys of one purpose are complete and open what is stored.
async fn ring_of(
    command: &DoctorArgs,
    ring: Keyring,
    stored: bool,
    connection: &mut PgConnection,
    lines: &mut Lines<'_>,
) -> bool {
    let vault = match command.master_key.vault(&[ring]) {
        Ok(vault) => vault,
        Err(error) => {
            lines.fault(
                "master keys",
                one_line(&error.to_string()),
                "set the file of keys that the stages have",
                SEE,
            );
            return false;
        }
    };
    if !stored {
        lines.fine(
            "master keys",
            format!("those for {ring} can be read; only the owner of the tables can try them"),
        );
        return true;
    }
    match partners::check_master_key(connection, &vault).await {
        Ok(()) => {
            lines.fine(
                "master keys",
                format!("those for {ring} open what is stored"),
            );
            true
        }
        Err(error) => {
            lines.fault(
                "master keys",
                format!(
                    "those for {ring} do not open what is stored: {}",
                    one_line(&error.to_string())
                ),
                "add the key that is missing; it may be an older one, or one for another purpose",
                SEE,
            );
            false
        }
    }
}

/// Whether values are left under a key that no longer encrypts.
async fn rotation(vault: &Vault, connection: &mut PgConnection, lines: &mut Lines<'_>) {
    match master_key::usages(connection)
        .await
        .map(|usages| master_key::left(&usages, vault))
    {
        Ok(0) => lines.fine("rotation", "every value is under the newest key"),
        Ok(left) => lines.warning(
            "rotation",
            format!(
                "{} under older keys, so these keys must stay",
                counted(left, "value is", "values are")
            ),
            "run `esimctl master-key reencrypt --replicas-restarted`",
            SEE,
        ),
        Err(error) => lines.warning(
            "rotation",
            format!("cannot be read: {error}"),
            "see the log of PostgreSQL",
            "docs/operations.md#databasedown",
        ),
    }
}
