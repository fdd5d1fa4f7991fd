//! The second stage of a start: the process that becomes the child. It makes itself fit (own session, clean signals, dies
//! with its shim), waits at the gate until the shim has put on disk who it is, and executes the program. What goes wrong
//! comes back in words over a pipe that a successful exec closes.

use super::folder::{Folder, Spec};
use super::system;
use std::ffi::{CString, OsString};
use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Longest message sent back; a pipe takes it in one piece.
pub(super) const MESSAGE_MAX: usize = 4000;

/// Entry point of `overnight __stage <folder> <shim pid> <gate fd> <error fd>`; the shim is its only caller.
pub fn main(args: impl Iterator<Item = OsString>) -> ExitCode {
    system::shed_descriptors(true);
    let args: Vec<OsString> = args.collect();
    let number = |i: usize| args.get(i).and_then(|a| a.to_str()?.parse::<i32>().ok());
    let (Some(folder), Some(shim), Some(gate), Some(errors)) = (args.first(), number(1), number(2), number(3)) else {
        return ExitCode::FAILURE;
    };
    let (Some(gate), Some(mut errors)) = (system::adopt_descriptor(gate), system::adopt_descriptor(errors)) else {
        return ExitCode::FAILURE;
    };
    // A panic's text would look like output of the child.
    std::panic::set_hook(Box::new(|_| {}));
    if let Err(mut message) = become_child(Path::new(folder), shim, gate) {
        message.truncate(message.floor_char_boundary(MESSAGE_MAX));
        let _ = errors.write_all(message.as_bytes());
    }
    ExitCode::FAILURE
}

/// Returns only with what went wrong.
fn become_child(folder: &Path, shim: i32, mut gate: File) -> Result<(), String> {
    let _ = nix::unistd::setsid();
    system::die_with_parent();
    // The shim may have ended before the line above took effect.
    if nix::unistd::getppid().as_raw() != shim {
        return Err("its shim has ended".into());
    }
    nix::sys::stat::umask(nix::sys::stat::Mode::from_bits_truncate(0o022));
    system::default_limits();
    let spec = Folder::at(folder.to_owned()).spec();
    let spec = spec.map_err(|e| format!("its order could not be read: {e}"))?.ok_or("it has no order")?;
    let argv = strings(spec.argv.iter().map(String::as_bytes))?;
    let env = strings(spec.env.iter().map(|(k, v)| [k.as_bytes(), b"=", v.as_bytes()].concat()))?;
    let mut byte = [0];
    gate.read_exact(&mut byte).map_err(|_| "its shim ended before the gate was opened".to_owned())?;
    std::env::set_current_dir(&spec.cwd).map_err(|e| format!("cannot enter {}: {e}", spec.cwd.display()))?;
    system::default_signals();
    let error = execute(&spec, &argv, &env);
    Err(explain(&spec, error))
}

fn strings<B: AsRef<[u8]>>(words: impl Iterator<Item = B>) -> Result<Vec<CString>, String> {
    words.map(|w| CString::new(w.as_ref()).map_err(|_| "an argument or variable holds a NUL byte".to_owned())).collect()
}

/// Looks the program up in the order's own PATH, as execvp would, and executes it.
fn execute(spec: &Spec, argv: &[CString], env: &[CString]) -> io::Error {
    let mut error = io::Error::from_raw_os_error(libc::ENOENT);
    for program in candidates(spec) {
        let Ok(path) = CString::new(program.as_os_str().as_bytes()) else { continue };
        let Err(e) = nix::unistd::execve(&path, argv, env);
        match e {
            nix::errno::Errno::ENOENT | nix::errno::Errno::ENOTDIR if !program.exists() => {}
            // A file that may not be executed does not hide a later one that may, but it is the better reason.
            nix::errno::Errno::EACCES => error = e.into(),
            e => return e.into(),
        }
    }
    error
}

fn candidates(spec: &Spec) -> Vec<PathBuf> {
    let Some(name) = spec.argv.first() else { return Vec::new() };
    if name.contains('/') {
        return vec![PathBuf::from(name)];
    }
    let path = spec.env.get("PATH").map_or("/usr/bin:/bin", String::as_str);
    path.split(':').filter(|d| !d.is_empty()).map(|d| Path::new(d).join(name)).collect()
}

fn explain(spec: &Spec, error: io::Error) -> String {
    let name = spec.argv.first().map_or("", String::as_str);
    let mut text = format!("cannot run {name:?} in {}: {error}", spec.cwd.display());
    match error.raw_os_error() {
        Some(libc::ENOENT) => match candidates(spec).iter().find(|p| p.exists()) {
            Some(found) => {
                let interpreter = interpreter(found).unwrap_or_else(|| "the loader it names".into());
                text += &format!(" ({} is there, its interpreter {interpreter} is not)", found.display());
            }
            None if !name.contains('/') => {
                let path = spec.env.get("PATH").map_or("/usr/bin:/bin", String::as_str);
                text = format!("cannot run {name:?}: it is in no folder of PATH\nlooked in {path}");
            }
            None => {}
        },
        Some(libc::E2BIG) => {
            let longest = spec.argv.iter().map(String::len).max().unwrap_or(0);
            let all: usize = spec.argv.iter().map(String::len).sum();
            text += &format!(" (arguments of {all} bytes, the longest {longest}; one may have 131071 on Linux)");
        }
        Some(libc::ENOEXEC) => text += " (neither a program nor a script with a #! line)",
        _ => {}
    }
    text
}

/// What the file's `#!` line names.
fn interpreter(program: &Path) -> Option<String> {
    let mut head = [0; 256];
    let n = File::open(program).ok()?.read(&mut head).ok()?;
    let line = head[..n].strip_prefix(b"#!")?.split(|b| *b == b'\n').next()?;
    let line = String::from_utf8_lossy(line);
    // A carriage return at its end is the usual reason why an interpreter "does not exist".
    line.trim_matches(' ').split(' ').next().map(|i| format!("{i:?}"))
}
