//! The program's entry: the hidden first arguments by which it starts itself as a shim or a second stage, before anything
//! else; then its faces.

use std::process::ExitCode;

fn main() -> ExitCode {
    let mut args = std::env::args_os();
    let first = args.nth(1).unwrap_or_default();
    match first.to_str() {
        Some("__shim") => overnight::process::shim::main(args),
        Some("__stage") => overnight::process::stage::main(args),
        _ => {
            println!("overnight {}", env!("CARGO_PKG_VERSION"));
            ExitCode::SUCCESS
        }
    }
}
