//! Where things are kept on this machine, and what the environment says beside. Client and daemon compute the same
//! places from the same user, whatever session each of them was started in.

#![expect(clippy::disallowed_methods, reason = "this is where `config` reads the environment")]

use super::files::{FileError, check_private, private_folder};
use crate::domain::ProjectId;
use sha2::{Digest as _, Sha256};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

/// Longest path of a socket, in bytes: what `sockaddr_un` holds less the final NUL.
pub const SOCKET_MAX: usize = if cfg!(target_os = "linux") { 107 } else { 103 };

/// Why there are no places.
#[derive(Debug, thiserror::Error)]
pub enum PlacesError {
    #[error("this user has no home folder; set OVERNIGHT_HOME to a folder to keep everything in")]
    NoHome,
    #[error("OVERNIGHT_HOME is {0:?}, which does not start at the root")]
    Relative(PathBuf),
}

/// The folders and files of this user's Overnight. Nothing is made before it is needed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Places {
    /// The user's own settings.
    pub config: PathBuf,
    /// Everything that must outlive a restart of the machine.
    pub data: PathBuf,
    /// The lock and, where its path is short enough, the socket.
    pub runtime: PathBuf,
    /// The folder of the socket: `runtime`, or a short one under `/tmp`.
    socket_folder: PathBuf,
}

impl Places {
    /// The places of this user: below `OVERNIGHT_HOME` where that is set, else where the platform keeps such things.
    pub fn from_env() -> Result<Self, PlacesError> {
        match std::env::var_os("OVERNIGHT_HOME").filter(|home| !home.is_empty()) {
            Some(home) => {
                let home = PathBuf::from(home);
                if home.is_absolute() { Ok(Self::under(&home)) } else { Err(PlacesError::Relative(home)) }
            }
            None => {
                let dirs = directories::ProjectDirs::from("", "", "overnight").ok_or(PlacesError::NoHome)?;
                Ok(Self::new(dirs.config_dir(), dirs.data_local_dir()))
            }
        }
    }

    /// Everything below one folder.
    pub fn under(home: &Path) -> Self {
        Self::new(&home.join("config"), &home.join("data"))
    }

    fn new(config: &Path, data: &Path) -> Self {
        // Two spellings of one folder (a link, `..`) must lead to one socket.
        let data = resolved(data);
        // Not XDG_RUNTIME_DIR: it differs between a service, a login, cron and sudo, and the system removes it at the
        // last logout, under a daemon that goes on. The lock lives as long as the data that it protects.
        let runtime = data.join("run");
        let fits = runtime.join(SOCKET).as_os_str().len() <= SOCKET_MAX;
        let socket_folder = if fits { runtime.clone() } else { short_folder(&data) };
        Self { config: config.to_owned(), data, runtime, socket_folder }
    }

    /// The control socket, at most `SOCKET_MAX` bytes.
    pub fn socket(&self) -> PathBuf {
        self.socket_folder.join(SOCKET)
    }

    /// The file that whoever writes the data holds locked.
    pub fn lock(&self) -> PathBuf {
        self.runtime.join("overnight.lock")
    }

    /// One project's mirror, worktrees and approved configuration.
    pub fn project(&self, id: &ProjectId) -> PathBuf {
        self.data.join("projects").join(id.as_str())
    }

    /// Run folders, one per child program.
    pub fn runs(&self) -> PathBuf {
        self.data.join("runs")
    }

    pub fn board_db(&self) -> PathBuf {
        self.data.join("board.db")
    }

    pub fn beats_db(&self) -> PathBuf {
        self.data.join("beats.db")
    }

    pub fn logs(&self) -> PathBuf {
        self.data.join("logs")
    }

    /// Makes the data and runtime folders (mode 0700) and checks that they are this user's alone.
    pub fn prepare(&self) -> Result<(), FileError> {
        for folder in [&self.data, &self.runtime, &self.socket_folder] {
            private_folder(folder)?;
        }
        Ok(())
    }

    /// The socket, for a client: `None` when its folder does not exist, so no daemon can be there; refused when the
    /// folder is not this user's alone, so somebody else could be.
    pub fn socket_to_call(&self) -> Result<Option<PathBuf>, FileError> {
        match check_private(&self.socket_folder) {
            Ok(()) => Ok(Some(self.socket())),
            Err(FileError::Read { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// The rest of what the environment says. Read once at the start and handed on as a value.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Surroundings {
    /// `OVERNIGHT_LOG`: levels, as in `debug` or `overnight=trace,warn`.
    pub log: Option<String>,
    /// `NO_COLOR` is set to something, or the terminal cannot.
    pub no_color: bool,
    /// `PATH`.
    pub path: OsString,
    /// `OVERNIGHT_RUN`: the run that this process was started in.
    pub run: Option<String>,
}

impl Surroundings {
    pub fn from_env() -> Self {
        let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
        Self {
            log: set("OVERNIGHT_LOG").map(|value| value.to_string_lossy().into_owned()),
            no_color: set("NO_COLOR").is_some() || set("TERM").is_some_and(|term| term == "dumb"),
            path: set("PATH").unwrap_or_default(),
            run: set("OVERNIGHT_RUN").map(|value| value.to_string_lossy().into_owned()),
        }
    }
}

/// This process's whole environment, as far as it is text: what children are given any of by name.
pub fn environment() -> BTreeMap<String, String> {
    std::env::vars_os().filter_map(|(k, v)| Some((k.into_string().ok()?, v.into_string().ok()?))).collect()
}

const SOCKET: &str = "overnight.sock";

/// A folder with a short name that is the same for every process of this user with this data folder.
fn short_folder(data: &Path) -> PathBuf {
    let digest = Sha256::digest(data.as_os_str().as_bytes());
    let hash: String = digest.iter().take(8).map(|byte| format!("{byte:02x}")).collect();
    PathBuf::from(format!("/tmp/overnight-{}-{hash}", nix::unistd::geteuid()))
}

/// `path` with the links in its existing part followed.
fn resolved(path: &Path) -> PathBuf {
    let mut rest = Vec::new();
    let mut head = path;
    loop {
        if let Ok(real) = head.canonicalize() {
            return rest.iter().rev().fold(real, |path, part| path.join(part));
        }
        match (head.parent(), head.file_name()) {
            (Some(parent), Some(name)) => {
                rest.push(name);
                head = parent;
            }
            (None, _) | (_, None) => return path.to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};

    #[test]
    fn everything_is_below_one_home_and_for_this_user_only() {
        let top = tempfile::tempdir().unwrap();
        let home = top.path().canonicalize().unwrap().join("home");
        let places = Places::under(&home);
        assert_eq!(places.socket_to_call().unwrap(), None, "nothing is made before it is needed");
        assert!(!home.exists());
        places.prepare().unwrap();
        for folder in [&places.data, &places.runtime] {
            assert_eq!(std::fs::metadata(folder).unwrap().mode() & 0o777, 0o700);
            assert!(folder.starts_with(&home));
        }
        assert_eq!(places.socket_to_call().unwrap(), Some(places.socket()));
        assert_eq!(places, Places::under(&home), "the same before and after it was made");
        let link = top.path().join("link");
        std::os::unix::fs::symlink(&home, &link).unwrap();
        assert_eq!(Places::under(&link).socket(), places.socket());
    }

    #[test]
    fn a_runtime_folder_that_others_may_write_to_is_refused_by_both_sides() {
        let top = tempfile::tempdir().unwrap();
        let places = Places::under(top.path());
        places.prepare().unwrap();
        std::fs::set_permissions(&places.runtime, std::fs::Permissions::from_mode(0o777)).unwrap();
        assert!(matches!(places.prepare(), Err(FileError::Unsafe { .. })));
        assert!(matches!(places.socket_to_call(), Err(FileError::Unsafe { .. })));
    }

    #[test]
    fn a_long_home_gets_a_short_socket_on_which_both_sides_agree() {
        let top = tempfile::tempdir().unwrap();
        let home = top.path().join("x".repeat(120));
        let daemon = Places::under(&home);
        daemon.prepare().unwrap();
        let client = Places::under(&home);
        assert!(client.socket().as_os_str().len() <= SOCKET_MAX);
        assert_eq!(client.socket_to_call().unwrap(), Some(daemon.socket()));
        let folder = daemon.socket().parent().unwrap().to_owned();
        assert_eq!(std::fs::metadata(&folder).unwrap().mode() & 0o777, 0o700);
        assert_ne!(Places::under(&top.path().join("y".repeat(120))).socket(), daemon.socket());
        std::fs::set_permissions(&folder, std::fs::Permissions::from_mode(0o770)).unwrap();
        assert!(matches!(client.socket_to_call(), Err(FileError::Unsafe { .. })));
        std::fs::remove_dir(folder).unwrap();
    }
}
