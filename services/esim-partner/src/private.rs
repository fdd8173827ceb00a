//! What only the user may see: the files of keys and secrets, and a key while it is typed.
//!
//! On Unix files have their mode from the start. On Windows a new file has the rights of its
//! folder, which in the profile of a user are the user's alone, so nothing is set and nobody is
//! warned.

use std::{
    fs::{DirBuilder, Metadata, OpenOptions},
    io,
    path::Path,
};

/// Options of a new file that only the user can read.
pub(crate) fn new_file() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options
}

/// Makes a folder that only the user can read, and those above it.
pub(crate) fn make_folder(folder: &Path) -> io::Result<()> {
    let mut builder = DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(folder)
}

/// Whether others than the user can use a file.
#[cfg(unix)]
pub(crate) fn is_exposed(metadata: &Metadata) -> bool {
    use std::os::unix::fs::PermissionsExt;
    exposed(metadata.permissions().mode())
}

#[cfg(not(unix))]
pub(crate) fn is_exposed(_: &Metadata) -> bool {
    false
}

/// Whether others than the owner can use a file of this mode. Kubernetes mounts a secret with mode
/// 0440: it belongs to root, and the pod's group reads it. Nobody in the pod could change that, so
/// there is nothing to warn of.
#[cfg(unix)]
fn exposed(mode: u32) -> bool {
    mode & 0o077 != 0 && mode & 0o777 != 0o440
}

/// While this exists, the terminal does not show what is typed. Dropping it restores the terminal,
/// also after an error.
#[cfg(unix)]
pub(crate) struct Hidden(rustix::termios::Termios);

#[cfg(unix)]
impl Hidden {
    pub(crate) fn begin() -> anyhow::Result<Self> {
        use rustix::termios::{LocalModes, OptionalActions, tcgetattr, tcsetattr};
        let before = tcgetattr(io::stdin())?;
        let mut silent = before.clone();
        silent.local_modes.remove(LocalModes::ECHO);
        // What was typed or pasted before the question stays, so that all answers can be pasted at
        // once.
        tcsetattr(io::stdin(), OptionalActions::Now, &silent)?;
        Ok(Self(before))
    }
}

#[cfg(unix)]
impl Drop for Hidden {
    fn drop(&mut self) {
        use rustix::termios::{OptionalActions, tcsetattr};
        let _ = tcsetattr(io::stdin(), OptionalActions::Now, &self.0);
    }
}

#[cfg(not(unix))]
pub(crate) struct Hidden;

#[cfg(not(unix))]
impl Drop for Hidden {
    fn drop(&mut self) {}
}

#[cfg(not(unix))]
impl Hidden {
    pub(crate) fn begin() -> anyhow::Result<Self> {
        anyhow::bail!(
            "on this system a key cannot be typed without being shown: put the keys into a file, and use login --from FILE"
        )
    }
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    #[test]
    fn a_mounted_secret_is_not_exposed() {
        let private = [0o100_600, 0o100_400, 0o100_440];
        let open = [0o100_640, 0o100_644, 0o100_444];
        assert_eq!(private.map(exposed), [false; 3]);
        assert_eq!(open.map(exposed), [true; 3]);
    }
}
