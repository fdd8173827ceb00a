//! Which version of the program this is.

/// The version of all our programs.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The commit that it was built from, with `-dirty` if files differed from it; `None` in a development build
/// (see `build.rs`).
pub const COMMIT: Option<&str> = option_env!("BUILD_COMMIT");

/// What `--version` prints after the program's name.
pub const DESCRIPTION: &str = concat!(env!("CARGO_PKG_VERSION"), " (", env!("BUILD"), ")");
