//! Single settings in the text of a configuration: read with their defaults, and set with every other byte kept.

use crate::config::SHIPPED;
use crate::error::CliError;
use serde_json::Value as Json;
use std::fmt;
use toml_edit::{DocumentMut, Item, Value};

/// Tables whose settings all have a default that the shipped file says.
const WITH_DEFAULTS: [&str; 5] = ["project", "limits", "merge", "git", "env"];
/// Settings of theirs whose default follows from others.
const DERIVED: [&str; 3] = ["project.name", "project.state", "merge.into"];

/// A setting's name: keys with dots between them.
#[derive(Debug)]
pub(super) struct Path(Vec<String>);

/// A setting found.
#[derive(Debug, PartialEq)]
pub(super) struct Found {
    /// A text bare, anything else as TOML.
    pub(super) text: String,
    pub(super) json: Json,
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.join("."))
    }
}

impl Path {
    pub(super) fn parse(text: &str) -> Result<Self, CliError> {
        let parts: Vec<String> = text.split('.').map(str::to_owned).collect();
        let plain = |part: &String| {
            !part.is_empty() && part.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_'))
        };
        if parts.iter().all(plain) {
            Ok(Self(parts))
        } else {
            Err(CliError::usage(format!("{text:?} names no setting"))
                .hint("write it with its tables, as in limits.wall"))
        }
    }
}

/// The setting as the file has it, else its default.
pub(super) fn get(text: &str, key: &Path) -> Result<Option<Found>, CliError> {
    if let Some(found) = find(&document(text)?, key) {
        return Ok(Some(found));
    }
    let name = key.to_string();
    let has_default =
        WITH_DEFAULTS.contains(&key.0[0].as_str()) && key.0.len() == 2 && !DERIVED.contains(&name.as_str());
    if !has_default && name != "agents.script" {
        return Ok(None);
    }
    Ok(find(&document(&written_out())?, key))
}

/// The file with the setting changed. Text that is TOML is that value; any other is a string.
pub(super) fn set(text: &str, key: &Path, value: &str) -> Result<String, CliError> {
    let mut document = document(text)?;
    let mut new = value.parse::<Value>().unwrap_or_else(|_| Value::from(value));
    let Some((last, tables)) = key.0.split_last() else { return Ok(text.to_owned()) };
    let mut here: &mut Item = document.as_item_mut();
    for part in tables {
        let table = here.as_table_like_mut().ok_or_else(|| no_table(key, part))?;
        here = table.entry(part).or_insert_with(|| {
            let mut table = toml_edit::Table::new();
            table.set_implicit(true);
            Item::Table(table)
        });
    }
    if let Item::Table(table) = here {
        table.set_implicit(false);
    }
    let table = here.as_table_like_mut().ok_or_else(|| no_table(key, last))?;
    match table.get_mut(last) {
        Some(Item::Value(old)) => {
            // A comment behind the old value stays behind the new one.
            *new.decor_mut() = old.decor().clone();
            *old = new;
        }
        Some(Item::None) | None => {
            table.insert(last, Item::Value(new));
        }
        Some(Item::Table(_) | Item::ArrayOfTables(_)) => {
            let error = CliError::usage(format!("{key} is a whole section"));
            return Err(error.hint("name a setting in it, or use `overnight config edit`"));
        }
    }
    Ok(document.to_string())
}

fn no_table(key: &Path, part: &str) -> CliError {
    CliError::usage(format!("{key} names no setting: what stands before `{part}` is no section"))
        .hint("`overnight config edit` opens the file")
}

fn document(text: &str) -> Result<DocumentMut, CliError> {
    text.parse().map_err(|e: toml_edit::TomlError| {
        CliError::usage(format!("overnight.toml cannot be read: {}", e.message())).hint("overnight config check")
    })
}

fn find(document: &DocumentMut, key: &Path) -> Option<Found> {
    let mut here = document.as_item();
    for part in &key.0 {
        here = here.as_table_like()?.get(part)?;
    }
    let text = match here {
        Item::Value(Value::String(text)) => text.value().clone(),
        Item::Value(value) => value.clone().decorated("", "").to_string(),
        Item::None => return None,
        section @ (Item::Table(_) | Item::ArrayOfTables(_)) => {
            let text = toml::to_string(&json(section)).or_else(|_| serde_json::to_string(&json(section)));
            text.unwrap_or_default().trim_end().to_owned()
        }
    };
    Some(Found { text, json: json(here) })
}

fn json(item: &Item) -> Json {
    match item {
        Item::None => Json::Null,
        Item::Value(value) => value_json(value),
        Item::Table(table) => table.iter().map(|(key, item)| (key.to_owned(), json(item))).collect(),
        Item::ArrayOfTables(tables) => tables.iter().map(|table| json(&Item::Table(table.clone()))).collect(),
    }
}

fn value_json(value: &Value) -> Json {
    match value {
        Value::String(text) => text.value().as_str().into(),
        Value::Integer(n) => (*n.value()).into(),
        Value::Float(n) => (*n.value()).into(),
        Value::Boolean(on) => (*on.value()).into(),
        Value::Datetime(at) => at.value().to_string().into(),
        Value::Array(items) => items.iter().map(value_json).collect(),
        Value::InlineTable(table) => table.iter().map(|(key, value)| (key.to_owned(), value_json(value))).collect(),
    }
}

/// The shipped file with every default written out; what it shows as an example only is in other tables.
fn written_out() -> String {
    let line = |line: &'static str| match line.strip_prefix('#') {
        Some(rest) if !rest.is_empty() && !rest.starts_with(' ') => rest,
        _ => line,
    };
    SHIPPED.lines().map(line).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str =
        "# mine\n[project]\nname = \"p\"\nbase = \"main\"   # the trunk\n\n[agents.claude]\nargs = [\"-x\"]\n";

    fn get(key: &str) -> Option<String> {
        super::get(FILE, &Path::parse(key).unwrap()).unwrap().map(|found| found.text)
    }

    fn set(key: &str, value: &str) -> String {
        super::set(FILE, &Path::parse(key).unwrap(), value).unwrap()
    }

    #[test]
    fn settings_are_found_with_their_defaults() {
        assert_eq!(get("project.base").as_deref(), Some("main"));
        assert_eq!(get("agents.claude.args").as_deref(), Some("[\"-x\"]"));
        assert_eq!(get("project.slots").as_deref(), Some("2"));
        assert_eq!(get("limits.wall").as_deref(), Some("1h"));
        assert_eq!(get("agents.script").as_deref(), Some("false"));
        for none in ["project.state", "merge.into", "agents.mine.bin", "agents.claude.model", "checks", "project.none"]
        {
            assert_eq!(get(none), None, "{none}");
        }
        assert!(get("agents").is_some_and(|text| text.contains("args")));
        for bad in ["", "a..b", "a.\"b\"", "a b"] {
            assert_eq!(Path::parse(bad).unwrap_err().exit_code(), 2);
        }
    }

    #[test]
    fn one_setting_changes_and_every_other_byte_stays() {
        assert_eq!(set("project.base", "trunk"), FILE.replace("\"main\"", "\"trunk\""));
        assert_eq!(set("project.slots", "4"), FILE.replace("# the trunk\n", "# the trunk\nslots = 4\n"));
        assert_eq!(
            set("agents.script", "true"),
            FILE.replace("\n[agents.claude]", "\n[agents]\nscript = true\n\n[agents.claude]")
        );
        assert!(set("limits.wall", "2h").ends_with("\n[limits]\nwall = \"2h\"\n"));
        let refused = super::set(FILE, &Path::parse("agents.claude").unwrap(), "x").unwrap_err();
        assert_eq!(refused.exit_code(), 2);
        assert_eq!(super::set(FILE, &Path::parse("project.name.x").unwrap(), "1").unwrap_err().exit_code(), 2);
    }
}
