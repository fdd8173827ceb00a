//! Spoils the clock of a process, its flushes, its memory, or the space on its disk, by the library
//! of `preload.c`, which tests/faults/run builds. The library is loaded into the process and maps a
//! file that is named like the process id. For each kind the file says what to spoil, and how often
//! the process has met it.

use anyhow::{Context, Result};
use std::collections::BTreeMap;
use std::fs::{File, OpenOptions, Permissions};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// The variable of a process that names the folder of these files.
const FOLDER: &str = "PRELOAD_FOLDER";

/// In the order of `preload.c`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spoiled {
    /// The wall clock is ahead by so many seconds.
    Clock,
    /// Not 0 while the process can open nothing. The kernel sees to that; the library only counts.
    Files,
    /// Each flush takes so many milliseconds, or until this becomes 0.
    Flushes,
    /// Not 0 while no file grows.
    Space,
    /// Not 0 while the process gets no memory.
    Memory,
}

/// The variables that load the library into a process. Its files lie below `folder`.
pub fn variables(folder: &Path) -> Result<Vec<(String, String)>> {
    let library =
        std::env::var("PRELOAD_LIBRARY").context("PRELOAD_LIBRARY, set by tests/faults/run")?;
    // The user that PostgreSQL runs as must be able to read the one and to write into the other.
    let own = folder.join("preload.so");
    std::fs::copy(&library, &own).with_context(|| format!("cannot copy {library}"))?;
    std::fs::set_permissions(&own, Permissions::from_mode(0o755))?;
    let files = folder.join("preload");
    std::fs::create_dir(&files)?;
    std::fs::set_permissions(&files, Permissions::from_mode(0o777))?;
    let text = |path: PathBuf| path.into_os_string().into_string();
    let (Ok(own), Ok(files)) = (text(own), text(files)) else {
        anyhow::bail!("the folder is no text");
    };
    Ok(vec![("LD_PRELOAD".into(), own), (FOLDER.into(), files)])
}

/// Something that is spoiled until it is lifted.
pub struct Spoiling {
    file: File,
    what: Spoiled,
    met_before: u64,
}

impl Spoiling {
    /// Spoils it for the process with these variables and this id.
    pub fn begin(
        variables: &BTreeMap<String, String>,
        pid: Option<u32>,
        what: Spoiled,
        value: i64,
    ) -> Result<Self> {
        let folder = variables.get(FOLDER).context("nothing is loaded into it")?;
        let path = Path::new(folder).join(pid.context("it does not run")?.to_string());
        let file = OpenOptions::new().read(true).write(true).open(&path);
        let file = file.with_context(|| format!("cannot open {}", path.display()))?;
        let spoiling = Self {
            met_before: met(&file, what)?,
            file,
            what,
        };
        spoiling.set(value)?;
        Ok(spoiling)
    }

    /// Ends it, and returns how often the process met it.
    pub fn lift(self) -> Result<u64> {
        self.set(0)?;
        Ok(met(&self.file, self.what)? - self.met_before)
    }

    fn set(&self, value: i64) -> Result<()> {
        let at = 16 * self.what as u64;
        Ok(self.file.write_all_at(&value.to_ne_bytes(), at)?)
    }
}

/// How often the process has met it since it began.
fn met(file: &File, what: Spoiled) -> Result<u64> {
    let mut met = [0; 8];
    file.read_exact_at(&mut met, 16 * what as u64 + 8)?;
    Ok(u64::from_ne_bytes(met))
}
