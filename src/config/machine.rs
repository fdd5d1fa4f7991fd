//! Settings of this user's daemon, for all projects: `config.toml` in the configuration folder. There need be none.

use super::files::{FileError, read_whole};
use super::places::Places;
use serde::Deserialize;

/// Name of the file in the configuration folder.
const MACHINE_FILE: &str = "config.toml";

/// What the file says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Machine {
    /// Agents at once over all projects, 1 to 512.
    pub slots: u32,
}

impl Default for Machine {
    fn default() -> Self {
        Self { slots: 8 }
    }
}

/// Why the file is not used.
#[derive(Debug, thiserror::Error)]
pub enum MachineError {
    #[error("the daemon's settings cannot be read")]
    Read(#[from] FileError),
    #[error("{file}: {why}")]
    Wrong { file: String, why: String },
}

impl Machine {
    /// Reads the file; the defaults where there is none.
    pub fn load(places: &Places) -> Result<Self, MachineError> {
        let file = places.config.join(MACHINE_FILE);
        let wrong = |why: String| MachineError::Wrong { file: file.display().to_string(), why };
        let Some(bytes) = read_whole(&file)? else { return Ok(Self::default()) };
        let text = String::from_utf8(bytes).map_err(|e| wrong(e.to_string()))?;
        let machine: Self = toml::from_str(&text).map_err(|e| wrong(e.to_string().trim_end().to_owned()))?;
        if !(1..=512).contains(&machine.slots) {
            return Err(wrong(format!("slots = {} is not between 1 and 512", machine.slots)));
        }
        Ok(machine)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_may_be_missing_and_says_what_is_wrong() {
        let dir = tempfile::tempdir().unwrap();
        let places = Places::under(dir.path());
        assert_eq!(Machine::load(&places).unwrap(), Machine::default());
        std::fs::create_dir_all(&places.config).unwrap();
        let load = |text: &str| {
            std::fs::write(places.config.join(MACHINE_FILE), text).unwrap();
            Machine::load(&places).map_err(|e| e.to_string())
        };
        assert_eq!(load("slots = 3\n").unwrap().slots, 3);
        for bad in ["slots = 0", "slots = 1000000000", "slots = \"four\"", "slot = 3", "slots = -1"] {
            let text = load(bad).unwrap_err();
            assert!(text.contains("config.toml") && text.contains("slot"), "{text}");
        }
    }
}
