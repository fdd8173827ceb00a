//! The OpenID provider by which people sign in at the console: whether a console with these
//! settings could use it.
//!
//! Orders do not need the console, so what is wrong here is a warning, except for a clock that is
//! so wrong that it concerns the stages, too.

use console_pages::openid::{OpenIdConfig, OpenIdExamination, examine};
use desk::operator::health::finding::Clock;

use crate::{
    doctor::{database::skew, line::Lines},
    output::one_line,
};

const SEE: &str = "docs/operations.md#operators-of-the-console";

pub async fn check(config: &OpenIdConfig, lines: &mut Lines<'_>) {
    // The same as the services have: TLS needs it before the first connection.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let examined = match examine(config).await {
        Ok(Some(examined)) => examined,
        Ok(None) => {
            lines.fine("openid", "no OpenID provider is set (OIDC_ISSUER)");
            return;
        }
        Err(error) => {
            lines.warning(
                "openid",
                format!(
                    "a console with these settings does not start: {}",
                    one_line(&format!("{error:#}"))
                ),
                "correct the setting here and for the console",
                SEE,
            );
            return;
        }
    };
    roles(&examined, lines);
    match &examined.keys {
        Ok(keys) => lines.fine(
            "openid",
            format!("{} responds and publishes its keys ({keys})", examined.issuer),
        ),
        Err(reason) => lines.warning(
            "openid",
            format!(
                "nobody can sign in by {}: {}",
                examined.issuer,
                one_line(reason)
            ),
            "write OIDC_ISSUER exactly as the provider's metadata do, and see whether this machine and the console reach it; \
             meanwhile `esimctl operator create` makes an account",
            SEE,
        ),
    }
    if let Some(ahead) = examined.ahead {
        skew(Clock::Openid, ahead.as_seconds_f64(), lines);
    }
}

fn roles(examined: &OpenIdExamination, lines: &mut Lines<'_>) {
    let roles = &examined.roles;
    if let Some((higher, lower)) = roles.twice {
        lines.warning(
            "openid roles",
            format!(
                "{higher} and {lower} have the same value, so everybody who has it is {higher}"
            ),
            format!(
                "set OIDC_{} and OIDC_{} to different groups",
                higher.to_uppercase(),
                lower.to_uppercase()
            ),
            SEE,
        );
        return;
    }
    let missing = if roles.missing.is_empty() {
        String::new()
    } else {
        format!("; nobody becomes {} by it", roles.missing.join(" or "))
    };
    lines.fine(
        "openid roles",
        format!("it gives {}{missing}", roles.given.join(", ")),
    );
}
