//! temp
use std::process::ExitCode;
fn main() -> ExitCode {
    let mut args = std::env::args_os();
    let first = args.nth(1).unwrap_or_default();
    let places = || overnight::config::Places::from_env().unwrap();
    match first.to_str() {
        Some("__shim") => overnight::process::shim::main(args),
        Some("__stage") => overnight::process::stage::main(args),
        Some("init") => {
            let o = overnight::setup::init::InitOptions {
                repo: std::env::current_dir().unwrap(),
                name: None,
                base: None,
                state: None,
                places: places(),
            };
            match overnight::setup::init::init(&o) {
                Ok(d) => {
                    for (a, b) in d.lines {
                        println!("  {a:<10} {b}");
                    }
                }
                Err(e) => println!("{e:?}"),
            }
            ExitCode::SUCCESS
        }
        Some("approve") => {
            let pl = places();
            let b = std::fs::read("overnight.toml").unwrap();
            let c = overnight::config::parse(std::path::Path::new("overnight.toml"), &b).unwrap();
            println!("{}", overnight::config::Approvals::new(pl.data.clone()).approve(&c.name, &b).unwrap());
            ExitCode::SUCCESS
        }
        Some("demo") => {
            let d = overnight::setup::demo::prepare(&overnight::setup::demo::DemoOptions {
                agent: args.next().map(|a| a.into_string().unwrap()),
                dir: Some("/tmp/demo".into()),
            })
            .unwrap();
            println!("{d:?}");
            overnight::daemon::run(
                &d.places,
                overnight::daemon::How::Foreground { until_idle: true, project: None, verbose: false },
            )
        }
        Some("run") => overnight::daemon::run(
            &places(),
            overnight::daemon::How::Foreground {
                until_idle: true,
                project: None,
                verbose: std::env::var_os("V").is_some(),
            },
        ),
        Some("req") => {
            let r: overnight::protocol::Request = serde_json::from_str(args.next().unwrap().to_str().unwrap()).unwrap();
            println!("{}", serde_json::to_string_pretty(&overnight::daemon::serve(&places(), r)).unwrap());
            ExitCode::SUCCESS
        }
        _ => ExitCode::SUCCESS,
    }
}
