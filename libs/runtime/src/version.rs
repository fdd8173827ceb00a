//! Version and commit of the program.

/// The version of all programs of the workspace.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The commit of the build, with `-dirty` if files differed; `None` in a development build (see `build.rs`).
pub const COMMIT: Option<&str> = option_env!("BUILD_COMMIT");

/// The text after the program's name in `--version`.
pub(crate) const DESCRIPTION: &str = concat!(env!("CARGO_PKG_VERSION"), " (", env!("BUILD"), ")");
