//! The version of this program.

/// The version of all programs of this repository.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The commit of this build, with `-dirty` if files differed from it; `None` in a development build (see
/// `build.rs`).
pub const COMMIT: Option<&str> = option_env!("BUILD_COMMIT");

/// The text that `--version` prints after the program's name.
pub const DESCRIPTION: &str = concat!(env!("CARGO_PKG_VERSION"), " (", env!("BUILD"), ")");
