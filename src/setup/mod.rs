//! What needs no running loop: finding out what a repository is made of and writing its first configuration.

pub mod demo;
pub mod detect;
pub mod doctor;
mod ecosystems;
pub mod init;
mod probe;
mod render;
pub mod service;

pub use detect::{Detected, Found, FoundAgent, Language, detect};
pub use render::render_config;

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "a child of its own writes the file")]
mod testing {
    use std::io::Write as _;
    use std::path::Path;
    use std::process::{Command, Stdio};

    /// Makes `path` a shell script. A child writes it: had this process the file open while another test forks, running it
    /// would fail as "text file busy".
    pub(super) fn program(path: &Path, text: &str) {
        let mut sh = Command::new("/bin/sh");
        sh.args(["-c", "cat > \"$1\" && chmod 755 \"$1\"", "sh"]).arg(path).stdin(Stdio::piped());
        let mut child = sh.spawn().unwrap();
        child.stdin.take().unwrap().write_all(format!("#!/bin/sh\n{text}\n").as_bytes()).unwrap();
        assert!(child.wait().unwrap().success());
    }
}
