//! The hands against the real thing: real git, real files, real children, real databases, in temporary directories.

#![expect(
    clippy::disallowed_methods,
    reason = "tests play the user and the machine: they start programs, wait with limits and read the environment"
)]
#![expect(clippy::unwrap_used, reason = "a helper that fails fails its test")]

pub(crate) mod git_code;
mod git_kept;
mod git_state;
#[allow(dead_code, reason = "for benches/hands.rs")]
pub(crate) mod git_state_figures;
mod git_state_folder;
mod git_state_remote;
mod process;
pub(crate) mod store;

use std::path::PathBuf;
use std::sync::LazyLock;

/// A home folder of our own, made once; every test calls this before anything else. Its git configuration is as
/// unhelpful as a user's may be.
pub(crate) fn hermetic() -> &'static PathBuf {
    static HOME: LazyLock<PathBuf> = LazyLock::new(|| {
        let home = tempfile::tempdir().unwrap().keep();
        std::fs::write(
            home.join(".gitconfig"),
            "[commit]\n gpgSign = true\n[tag]\n gpgSign = true\n[gpg]\n program = /bin/false\n\
             [core]\n quotePath = true\n editor = /bin/false\n pager = /bin/false\n[color]\n ui = always\n\
             [diff]\n noprefix = true\n renames = copies\n external = /bin/false\n[status]\n showUntrackedFiles = no\n relativePaths = true\n\
             [branch]\n autoSetupMerge = always\n[column]\n ui = always\n[log]\n showSignature = true\n\
             [merge]\n ff = only\n autoStash = true\n[i18n]\n logOutputEncoding = latin1\n[fetch]\n prune = true\n",
        )
        .unwrap();
        // SAFETY: runs once, before the first test starts a child or another thread of this program reads variables.
        unsafe {
            std::env::set_var("HOME", &home);
            std::env::set_var("GIT_CONFIG_NOSYSTEM", "1");
            std::env::remove_var("XDG_CONFIG_HOME");
            std::env::remove_var("GIT_CONFIG_GLOBAL");
        }
        home
    });
    &HOME
}
