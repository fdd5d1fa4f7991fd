//! The daemon as a service of the machine: systemd on Linux (of the user, or of the system for one user), launchd on macOS.
//! The definitions are in `systemd/` and `launchd/`; what is filled in is this program's path, and the PATH that agents
//! and checks are found on, for a service manager starts with next to none.

#![expect(clippy::disallowed_methods, reason = "service managers are asked by their own programs")]

use crate::config::files::{private_folder, write_whole};
use crate::daemon::chain;
use crate::protocol::ErrorKind;
use crate::setup::init::SetupError;
use std::path::{Path, PathBuf};
use std::process::Command;

const UNIT: &str = include_str!("../../systemd/overnight.service");
const PLIST: &str = include_str!("../../launchd/overnight.plist");
/// The unit's name.
pub const NAME: &str = "overnight.service";
/// The first line of what we made.
const MARK: &str = "# Made by `overnight service install`";
/// What launchd knows it by; also the file's name.
const LABEL: &str = "dev.overnight";

/// What a service needs to know of whoever installs it.
#[derive(Debug, Clone)]
pub struct Surround {
    /// This program.
    pub program: PathBuf,
    /// The present PATH, as it is.
    pub path: String,
    /// `OVERNIGHT_HOME`, where it is set.
    pub home: Option<String>,
    pub logs: PathBuf,
}

/// Whose service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Scope {
    /// Of the user who installs it, in their own service manager.
    User,
    /// Of the machine, run as this user; takes root.
    System { user: String },
}

impl Scope {
    /// Where the unit's file goes; `config` is the user's folder for settings.
    pub fn file(&self, config: &Path) -> PathBuf {
        match self {
            Self::User => config.join("systemd/user").join(NAME),
            Self::System { .. } => Path::new("/etc/systemd/system").join(NAME),
        }
    }

    /// `systemctl` for this manager.
    fn systemctl(&self) -> Command {
        let mut command = Command::new("systemctl");
        if *self == Self::User {
            command.arg("--user");
        }
        command
    }
}

/// The text of the systemd unit.
///
/// # Errors
/// A path that no unit can hold.
pub fn unit(surround: &Surround, scope: &Scope) -> Result<String, SetupError> {
    let mut environment = vec![assignment("PATH", &clean_path(&surround.path)?)?];
    if let Some(home) = &surround.home {
        environment.push(assignment("OVERNIGHT_HOME", home)?);
    }
    let mut lines: Vec<String> = environment.into_iter().map(|one| format!("Environment={one}")).collect();
    let target = match scope {
        Scope::User => "default.target",
        Scope::System { user } => {
            let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
            if user.is_empty() || !user.chars().all(plain) {
                return Err(SetupError::new(ErrorKind::Usage, format!("{user:?} is no user's name")));
            }
            lines.push(format!("User={user}"));
            "multi-user.target"
        }
    };
    let program = text(&surround.program)?;
    // A variable's sign is one in the command line alone.
    let exec = format!("{} __daemon", quoted(program)?.replace('$', "$$"));
    // By whole lines, so that nothing that is filled in is read as a place for more.
    let filled = UNIT.lines().map(|line| match line {
        "ExecStart=@EXEC@" => format!("ExecStart={exec}\n"),
        "@ENVIRONMENT@" => lines.join("\n") + "\n",
        "WantedBy=@TARGET@" => format!("WantedBy={target}\n"),
        line => format!("{line}\n"),
    });
    Ok(filled.collect())
}

/// The text of the launchd agent.
///
/// # Errors
/// A path that is no text.
pub fn plist(surround: &Surround) -> Result<String, SetupError> {
    let broken = |e: plist::Error| SetupError::new(ErrorKind::Unexpected, format!("the property list: {e}"));
    let mut value = plist::Value::from_reader_xml(PLIST.as_bytes()).map_err(broken)?;
    let mut environment = plist::Dictionary::new();
    environment.insert("PATH".into(), clean_path(&surround.path)?.into());
    if let Some(home) = &surround.home {
        environment.insert("OVERNIGHT_HOME".into(), home.clone().into());
    }
    let log = text(&surround.logs.join("launchd.log"))?.to_owned();
    if let Some(dict) = value.as_dictionary_mut() {
        let program = text(&surround.program)?.to_owned();
        let arguments = vec![program.into(), "__daemon".into()];
        dict.insert("ProgramArguments".into(), plist::Value::Array(arguments));
        dict.insert("EnvironmentVariables".into(), plist::Value::Dictionary(environment));
        dict.insert("StandardOutPath".into(), log.clone().into());
        dict.insert("StandardErrorPath".into(), log.into());
    }
    let mut out = Vec::new();
    value.to_writer_xml(&mut out).map_err(broken)?;
    Ok(String::from_utf8_lossy(&out).into_owned() + "\n")
}

/// PATH as a service can have it: absolute folders only, each once.
fn clean_path(path: &str) -> Result<String, SetupError> {
    let mut folders: Vec<&str> = Vec::new();
    for folder in path.split(':').filter(|f| f.starts_with('/')) {
        if folder.contains(['\n', '\r', '\0']) {
            let message =
                format!("PATH has a folder with a line break in its name ({folder:?}), which no service can have");
            return Err(SetupError::new(ErrorKind::Usage, message).hint("take it out of PATH, and install it again"));
        }
        if !folders.contains(&folder) {
            folders.push(folder);
        }
    }
    if folders.is_empty() {
        return Err(SetupError::new(ErrorKind::Usage, "PATH names no folder at all"));
    }
    Ok(folders.join(":"))
}

fn text(path: &Path) -> Result<&str, SetupError> {
    let why = || SetupError::new(ErrorKind::Usage, format!("{} is no text, which no service can have", path.display()));
    path.to_str().ok_or_else(why)
}

fn assignment(name: &str, value: &str) -> Result<String, SetupError> {
    quoted(&format!("{name}={value}"))
}

/// One word of a unit's line: quotes, backslashes and the `%` of specifiers mean themselves (systemd.syntax(7),
/// systemd.unit(5)).
fn quoted(word: &str) -> Result<String, SetupError> {
    if word.contains(['\n', '\r', '\0']) {
        return Err(SetupError::new(ErrorKind::Usage, format!("{word:?} has a line break, which no service can have")));
    }
    let inner = word.replace('\\', "\\\\").replace('"', "\\\"").replace('%', "%%");
    Ok(format!("\"{inner}\""))
}

/// Writes the unit, tells the manager, and starts it where that is asked for. Gives what was done, in lines.
pub fn install(surround: &Surround, scope: &Scope, config: &Path, now: bool) -> Result<Vec<String>, SetupError> {
    let file = scope.file(config);
    if let Ok(present) = std::fs::read_to_string(&file)
        && !present.starts_with(MARK)
    {
        let message = format!("{} is there and is not ours", file.display());
        return Err(SetupError::new(ErrorKind::WrongState, message).hint("move it away, and install again"));
    }
    let unit = unit(surround, scope)?;
    let written = match file.parent() {
        Some(folder) if *scope == Scope::User => private_folder(folder),
        Some(_) | None => Ok(()),
    };
    written.and_then(|()| write_whole(&file, unit.as_bytes())).map_err(|e| {
        SetupError::new(ErrorKind::Failed, chain(&e))
            .hint("a service of the system takes root: sudo overnight service install --system")
    })?;
    readable(&file)?;
    let mut said = vec![format!("wrote      {}", file.display())];
    run(scope.systemctl().arg("daemon-reload"))?;
    let mut enable = scope.systemctl();
    enable.arg("enable");
    if now {
        enable.arg("--now");
    }
    run(enable.arg(NAME))?;
    said.push(
        if now { "started    it starts with the machine from now on" } else { "enabled    it starts with the machine" }
            .into(),
    );
    if *scope == Scope::User && lingers() == Some(false) {
        said.push(
            "note       it ends when you log out: `loginctl enable-linger` keeps it running through the night".into(),
        );
    }
    Ok(said)
}

/// The managers of the system must be able to read it; there is nothing secret in it.
fn readable(file: &Path) -> Result<(), SetupError> {
    use std::os::unix::fs::PermissionsExt as _;
    std::fs::set_permissions(file, std::fs::Permissions::from_mode(0o644))
        .map_err(|e| SetupError::new(ErrorKind::Failed, format!("{} cannot be made readable: {e}", file.display())))
}

/// Stops the service and removes its file; agents go on under their shims.
pub fn uninstall(scope: &Scope, config: &Path) -> Result<Vec<String>, SetupError> {
    let file = scope.file(config);
    match std::fs::read_to_string(&file) {
        Ok(present) if present.starts_with(MARK) => {}
        Ok(_) => {
            let message = format!("{} is not ours, and stays", file.display());
            return Err(SetupError::new(ErrorKind::WrongState, message));
        }
        Err(_) => {
            return Err(SetupError::new(ErrorKind::NotFound, "there is no such service")
                .hint("`overnight service install` makes it"));
        }
    }
    run(scope.systemctl().args(["disable", "--now", NAME]))?;
    std::fs::remove_file(&file)
        .map_err(|e| SetupError::new(ErrorKind::Failed, format!("{} cannot be removed: {e}", file.display())))?;
    run(scope.systemctl().arg("daemon-reload"))?;
    Ok(vec![
        format!("removed    {}", file.display()),
        "agents that run go on and are taken up at the next start".into(),
    ])
}

/// Whether the user's own service is there for this very data: then it is the manager that starts the daemon.
pub fn is_for(surround: &Surround, config: &Path) -> bool {
    let present = std::fs::read_to_string(Scope::User.file(config)).unwrap_or_default();
    let ours = surround.home.as_deref().map(|home| assignment("OVERNIGHT_HOME", home).unwrap_or_default());
    let theirs =
        present.lines().find_map(|l| l.strip_prefix("Environment=").filter(|l| l.starts_with("\"OVERNIGHT_HOME=")));
    present.starts_with(MARK) && theirs == ours.as_deref()
}

/// Has the manager start the user's own service; returns when the daemon is ready.
pub fn start() -> Result<(), SetupError> {
    run(Scope::User.systemctl().args(["start", NAME]))
}

/// How the service stands.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct ServiceState {
    pub installed: bool,
    /// `active`, `failed`, … in the manager's words; empty where there is no manager.
    pub active: String,
    pub pid: u32,
    pub restarts: u32,
    /// Whether the user's services go on after a log-out; unknown where nobody can tell.
    pub lingers: Option<bool>,
}

pub fn status(scope: &Scope, config: &Path) -> ServiceState {
    let mut ask = scope.systemctl();
    ask.args(["show", NAME, "--property=ActiveState,MainPID,NRestarts"]);
    let said = ask.output().map(|out| String::from_utf8_lossy(&out.stdout).into_owned()).unwrap_or_default();
    let value = |name: &str| said.lines().find_map(|l| l.strip_prefix(name)?.strip_prefix('=')).unwrap_or_default();
    ServiceState {
        installed: scope.file(config).exists(),
        active: value("ActiveState").to_owned(),
        pid: value("MainPID").parse().unwrap_or(0),
        restarts: value("NRestarts").parse().unwrap_or(0),
        lingers: (*scope == Scope::User).then(lingers).flatten(),
    }
}

fn lingers() -> Option<bool> {
    let user = nix::unistd::User::from_uid(nix::unistd::getuid()).ok().flatten()?.name;
    let out = Command::new("loginctl").args(["show-user", &user, "--property=Linger"]).output().ok()?;
    match String::from_utf8_lossy(&out.stdout).trim() {
        "Linger=yes" => Some(true),
        "Linger=no" => Some(false),
        // A user who is not logged in and does not linger is unknown there.
        _ => Path::new("/var/lib/systemd/linger")
            .is_dir()
            .then(|| Path::new("/var/lib/systemd/linger").join(&user).exists()),
    }
}

fn run(command: &mut Command) -> Result<(), SetupError> {
    let shown = format!("{command:?}").replace('"', "");
    match command.output() {
        Ok(out) if out.status.success() => Ok(()),
        Ok(out) => {
            let said = String::from_utf8_lossy(&out.stderr).trim().to_owned();
            Err(SetupError::new(ErrorKind::Failed, format!("{shown}: {said}")))
        }
        Err(e) => {
            Err(SetupError::new(ErrorKind::Failed, format!("{shown}: {e}")).hint("is this a machine with systemd?"))
        }
    }
}

/// The launchd agent of a user, in place of the unit, where the machine is a Mac.
pub mod launchd {
    use super::{Command, ErrorKind, LABEL, PathBuf, SetupError, Surround, chain, plist, run, write_whole};
    use std::path::Path;

    /// Where its file goes.
    pub fn file(home: &Path) -> PathBuf {
        home.join("Library/LaunchAgents").join(format!("{LABEL}.plist"))
    }

    /// Writes it and loads it; loaded, it runs.
    pub fn install(surround: &Surround, home: &Path) -> Result<Vec<String>, SetupError> {
        let file = file(home);
        write_whole(&file, plist(surround)?.as_bytes()).map_err(|e| SetupError::new(ErrorKind::Failed, chain(&e)))?;
        run(Command::new("launchctl").args(["load", "-w"]).arg(&file))?;
        Ok(vec![format!("wrote      {}", file.display()), "started    it starts when you log in".into()])
    }

    /// Unloads it and removes its file.
    pub fn uninstall(home: &Path) -> Result<Vec<String>, SetupError> {
        let file = file(home);
        if !file.exists() {
            return Err(SetupError::new(ErrorKind::NotFound, "there is no such service"));
        }
        run(Command::new("launchctl").args(["unload", "-w"]).arg(&file))?;
        std::fs::remove_file(&file)
            .map_err(|e| SetupError::new(ErrorKind::Failed, format!("{} cannot be removed: {e}", file.display())))?;
        Ok(vec![format!("removed    {}", file.display())])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn surround(path: &str) -> Surround {
        Surround {
            program: "/opt/a b/over%night\"$x\\".into(),
            path: path.into(),
            home: Some("/home/é & <co>".into()),
            logs: "/home/l".into(),
        }
    }

    #[test]
    fn a_unit_holds_awkward_paths_and_a_clean_path() {
        let text = unit(&surround("/a b:rel:/usr/bin:/a b::.:/c%d"), &Scope::User).unwrap();
        assert!(text.starts_with(MARK));
        for line in [
            "ExecStart=\"/opt/a b/over%%night\\\"$$x\\\\\" __daemon\n",
            "Environment=\"PATH=/a b:/usr/bin:/c%%d\"\n",
            "Environment=\"OVERNIGHT_HOME=/home/é & <co>\"\n",
            "KillMode=process\n",
            "WantedBy=default.target\n",
        ] {
            assert!(text.contains(line), "{line} is missing in\n{text}");
        }
        assert!(!text.contains('@'));
        let system = unit(&surround("/bin"), &Scope::System { user: "night".into() }).unwrap();
        assert!(system.contains("User=night\n") && system.contains("WantedBy=multi-user.target"));
        assert!(unit(&surround("/bin"), &Scope::System { user: "a\nb".into() }).is_err());
        assert!(unit(&surround("/a\nb:/bin"), &Scope::User).is_err());
        assert!(unit(&surround("rel:."), &Scope::User).is_err());
    }

    #[test]
    fn the_service_of_another_home_is_none_of_ours() {
        let config = tempfile::tempdir().unwrap();
        let file = Scope::User.file(config.path());
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        let (with, without) = (surround("/bin"), Surround { home: None, ..surround("/bin") });
        assert!(!is_for(&with, config.path()));
        for (one, other) in [(&with, &without), (&without, &with)] {
            std::fs::write(&file, unit(one, &Scope::User).unwrap()).unwrap();
            assert!(is_for(one, config.path()) && !is_for(other, config.path()));
        }
        std::fs::write(&file, "[Unit]\n").unwrap();
        assert!(!is_for(&without, config.path()));
    }

    #[test]
    fn a_property_list_reads_back_as_it_was_meant() {
        let text = plist(&surround("/a b&c:rel:/usr/bin")).unwrap();
        let value = plist::Value::from_reader_xml(text.as_bytes()).unwrap();
        let dict = value.as_dictionary().unwrap();
        let arguments = dict["ProgramArguments"].as_array().unwrap();
        assert_eq!(arguments[0].as_string(), Some("/opt/a b/over%night\"$x\\"));
        assert_eq!(arguments[1].as_string(), Some("__daemon"));
        let environment = dict["EnvironmentVariables"].as_dictionary().unwrap();
        assert_eq!(environment["PATH"].as_string(), Some("/a b&c:/usr/bin"));
        assert_eq!(environment["OVERNIGHT_HOME"].as_string(), Some("/home/é & <co>"));
        assert_eq!(dict["AbandonProcessGroup"].as_boolean(), Some(true));
        assert_eq!(dict["Label"].as_string(), Some(LABEL));
    }
}
