//! The version and the commit of the program.

/// The version of all programs of the workspace.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The commit of the build, followed by `-dirty` if files differed from it. It is `None` in a
/// development build, for a reason that `build.rs` explains.
pub const COMMIT: Option<&str> = option_env!("BUILD_COMMIT");

/// The text that follows the name of the program in the output of `--version`.
pub(crate) const DESCRIPTION: &str = concat!(env!("CARGO_PKG_VERSION"), " (", env!("BUILD"), ")");
