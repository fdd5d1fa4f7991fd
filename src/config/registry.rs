//! The projects this user has: `projects.json` in the data folder. Changed only under a lock and written whole, so two
//! `init` at once both stay.

use super::files::{FileError, Locked, private_folder, read_whole, write_whole};
use crate::domain::ProjectId;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// One known project.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Project {
    pub id: ProjectId,
    /// The user's code repository, its real path.
    pub code: PathBuf,
    /// The user's folder of the state repo, its real path.
    pub state: PathBuf,
}

/// Why the list was not changed.
#[derive(Debug, thiserror::Error)]
pub enum RegistryError {
    #[error(transparent)]
    File(#[from] FileError),
    #[error("{path:?} cannot be a project's folder: {why}")]
    Path { path: PathBuf, why: String },
    #[error("project `{id}` is already there, at {}", code.display())]
    IdTaken { id: ProjectId, code: PathBuf },
    #[error("{} already belongs to project `{id}`", path.display())]
    PathTaken { path: PathBuf, id: ProjectId },
}

/// The list of projects below a data folder.
#[derive(Debug, Clone)]
pub struct Registry {
    data: PathBuf,
}

#[derive(Serialize, Deserialize)]
struct Document {
    version: u32,
    projects: Vec<Project>,
}

const VERSION: u32 = 1;

impl Registry {
    /// The list in the data folder `data`.
    pub fn new(data: impl Into<PathBuf>) -> Self {
        Self { data: data.into() }
    }

    /// All projects, by id.
    pub fn list(&self) -> Result<Vec<Project>, FileError> {
        let path = self.file();
        let Some(bytes) = read_whole(&path)? else { return Ok(Vec::new()) };
        let damaged = |why: String| FileError::Damaged { path: path.clone(), why };
        let document: Document = serde_json::from_slice(&bytes).map_err(|e| damaged(e.to_string()))?;
        if document.version != VERSION {
            let why = format!("it has version {}, this program knows {VERSION}", document.version);
            return Err(damaged(why));
        }
        Ok(document.projects)
    }

    pub fn get(&self, id: &ProjectId) -> Result<Option<Project>, FileError> {
        Ok(self.list()?.into_iter().find(|project| project.id == *id))
    }

    /// Adds a project; both folders must exist. Adding the same once more changes nothing.
    pub fn add(&self, id: ProjectId, code: &Path, state: &Path) -> Result<Project, RegistryError> {
        let new = Project { id, code: real(code)?, state: real(state)? };
        if new.code == new.state {
            let why = "code and state cannot be in one folder".into();
            return Err(RegistryError::Path { path: new.code, why });
        }
        self.change(|projects| {
            for old in projects.iter().filter(|old| **old != new) {
                if old.id == new.id {
                    return Err(RegistryError::IdTaken { id: old.id.clone(), code: old.code.clone() });
                }
                for path in [&new.code, &new.state] {
                    if [&old.code, &old.state].contains(&path) {
                        return Err(RegistryError::PathTaken { path: path.clone(), id: old.id.clone() });
                    }
                }
            }
            if !projects.contains(&new) {
                projects.push(new.clone());
                projects.sort_by(|a, b| a.id.cmp(&b.id));
            }
            Ok(())
        })?;
        Ok(new)
    }

    /// Takes a project off the list and returns it; its folders and data stay.
    pub fn remove(&self, id: &ProjectId) -> Result<Option<Project>, RegistryError> {
        let mut removed = None;
        self.change(|projects| {
            removed = projects.iter().position(|p| p.id == *id).map(|i| projects.remove(i));
            Ok(())
        })?;
        Ok(removed)
    }

    /// The project whose code or state folder `path` is in: the nearest one, looking upwards.
    pub fn find(&self, path: &Path) -> Result<Option<Project>, FileError> {
        let Ok(path) = path.canonicalize() else { return Ok(None) };
        let projects = self.list()?;
        let here = |folder: &Path| projects.iter().find(|p| p.code == folder || p.state == folder).cloned();
        Ok(path.ancestors().find_map(here))
    }

    fn change(&self, change: impl FnOnce(&mut Vec<Project>) -> Result<(), RegistryError>) -> Result<(), RegistryError> {
        private_folder(&self.data)?;
        let _locked = Locked::wait(&self.data.join("projects.lock"))?;
        let mut projects = self.list()?;
        let before = projects.clone();
        change(&mut projects)?;
        if projects != before {
            let document = Document { version: VERSION, projects };
            let mut bytes = serde_json::to_vec_pretty(&document)
                .map_err(|e| FileError::Write { path: self.file(), source: e.into() })?;
            bytes.push(b'\n');
            write_whole(&self.file(), &bytes)?;
        }
        Ok(())
    }

    fn file(&self) -> PathBuf {
        self.data.join("projects.json")
    }
}

fn real(path: &Path) -> Result<PathBuf, RegistryError> {
    let refused = |why: String| RegistryError::Path { path: path.to_owned(), why };
    let real = path.canonicalize().map_err(|e| refused(e.to_string()))?;
    if !real.is_dir() {
        return Err(refused("it is no folder".into()));
    }
    if real.to_str().is_none_or(|text| text.contains('\n')) {
        return Err(refused("its path is not UTF-8 or holds a line end".into()));
    }
    Ok(real)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::create_dir_all;

    fn id(text: &str) -> ProjectId {
        ProjectId::parse(text).unwrap()
    }

    fn setup() -> (tempfile::TempDir, PathBuf, Registry) {
        let top = tempfile::tempdir().unwrap();
        let real = top.path().canonicalize().unwrap();
        for folder in ["a/src/deep", "a-state/tasks", "a/vendor/b", "b-state"] {
            create_dir_all(real.join(folder)).unwrap();
        }
        let registry = Registry::new(real.join("data"));
        (top, real, registry)
    }

    #[test]
    fn projects_are_added_found_and_removed() {
        let (_top, at, registry) = setup();
        assert_eq!(registry.list().unwrap(), []);
        let a = registry.add(id("a"), &at.join("a"), &at.join("a/../a-state")).unwrap();
        assert_eq!(a.state, at.join("a-state"));
        assert_eq!(registry.add(id("a"), &at.join("a"), &at.join("a-state")).unwrap(), a, "once more is no change");
        let b = registry.add(id("b"), &at.join("a/vendor/b"), &at.join("b-state")).unwrap();
        let find = |path: &str| registry.find(&at.join(path)).unwrap().map(|p| p.id.to_string());
        assert_eq!(find("a/src/deep").as_deref(), Some("a"));
        assert_eq!(find("a-state/tasks").as_deref(), Some("a"));
        assert_eq!(find("a/vendor/b").as_deref(), Some("b"), "the nearest one");
        assert_eq!((find(""), find("nowhere")), (None, None));
        assert_eq!(registry.get(&id("b")).unwrap(), Some(b.clone()));
        assert_eq!(registry.remove(&id("b")).unwrap(), Some(b));
        assert_eq!(registry.remove(&id("b")).unwrap(), None);
        assert_eq!(registry.list().unwrap(), [a]);
    }

    #[test]
    fn one_name_and_one_folder_belong_to_one_project() {
        let (_top, at, registry) = setup();
        registry.add(id("a"), &at.join("a"), &at.join("a-state")).unwrap();
        let add = |name: &str, code: &str, state: &str| registry.add(id(name), &at.join(code), &at.join(state));
        assert!(matches!(add("a", "a/src", "b-state"), Err(RegistryError::IdTaken { .. })));
        assert!(matches!(add("b", "a", "b-state"), Err(RegistryError::PathTaken { .. })));
        assert!(matches!(add("b", "a/src", "a-state"), Err(RegistryError::PathTaken { .. })));
        assert!(matches!(add("b", "a/src", "a"), Err(RegistryError::PathTaken { .. })));
        assert!(matches!(add("b", "a/src", "a/src"), Err(RegistryError::Path { .. })));
        assert!(matches!(add("b", "missing", "b-state"), Err(RegistryError::Path { .. })));
        assert_eq!(registry.list().unwrap().len(), 1);
    }

    #[test]
    fn additions_at_once_all_stay() {
        let (_top, at, registry) = setup();
        std::thread::scope(|scope| {
            for i in 0..8 {
                let (registry, at) = (registry.clone(), &at);
                scope.spawn(move || {
                    let (code, state) = (at.join(format!("c{i}")), at.join(format!("s{i}")));
                    create_dir_all(&code).unwrap();
                    create_dir_all(&state).unwrap();
                    registry.add(id(&format!("p{i}")), &code, &state).unwrap();
                });
            }
        });
        assert_eq!(registry.list().unwrap().len(), 8);
    }

    #[test]
    fn a_damaged_or_newer_list_is_said_and_not_overwritten() {
        let (_top, at, registry) = setup();
        registry.add(id("a"), &at.join("a"), &at.join("a-state")).unwrap();
        for text in ["{", "", r#"{"version":2,"projects":[]}"#, r#"{"version":1,"projects":[{"id":"../x"}]}"#] {
            std::fs::write(at.join("data/projects.json"), text).unwrap();
            assert!(matches!(registry.list(), Err(FileError::Damaged { .. })), "{text}");
            assert!(registry.add(id("b"), &at.join("a/vendor/b"), &at.join("b-state")).is_err());
            assert_eq!(std::fs::read_to_string(at.join("data/projects.json")).unwrap(), text);
        }
    }
}
