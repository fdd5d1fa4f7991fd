//! The one binary: a shim or its second stage when a daemon starts it as such, else the command line.

use std::process::ExitCode;

fn main() -> ExitCode {
    let mut args = std::env::args_os();
    // Before anything else: a shim starts no thread and reads no settings.
    match args.nth(1).as_deref().and_then(|word| word.to_str()) {
        Some("__shim") => overnight::process::shim::main(args),
        Some("__stage") => overnight::process::stage::main(args),
        _ => overnight::cli::main(std::env::args_os()),
    }
}
