//! Which build systems a repository has, and the checks that follow. Only tools that are on PATH give checks: a check
//! that cannot run would hold every task.

use super::detect::{Detected, Found, Language, Look};
use crate::domain::chain::{Check, Command};
use serde_json::Value;
use std::path::Path;
use std::time::Duration;

const TIMEOUT: Duration = Duration::from_secs(30 * 60);

/// One build system of the repository.
struct Ecosystem {
    language: Language,
    tool: String,
    checks: Vec<Check>,
}

/// Fills languages, checks and warnings.
pub(super) fn ecosystems(look: &Look<'_>, out: &mut Detected) {
    let warnings = &mut out.warnings;
    let mut found: Vec<Ecosystem> =
        [cargo(look, warnings), go(look, warnings), node(look, warnings), python(look, warnings), java(look, warnings)]
            .into_iter()
            .flatten()
            .collect();
    // A Makefile or a script most often calls the same tests: only where nothing better says how to test.
    let tested = |found: &[Ecosystem]| found.iter().any(|e| e.checks.iter().any(|c| c.name == "test"));
    for other in [make, shell] {
        let Some(other) = other(look, warnings) else { continue };
        if tested(&found) {
            if let Some(check) = other.checks.first() {
                let text = format!("`{}` was found too and is not used; add it if it tests more", check.run.shown());
                warnings.push(text);
            }
        } else {
            found.push(other);
        }
    }
    if found.is_empty() {
        found.extend(javascript(look));
    }
    let several = found.iter().filter(|e| !e.checks.is_empty()).count() > 1;
    for ecosystem in found {
        for mut check in ecosystem.checks {
            if several {
                check.name = format!("{}-{}", ecosystem.language.word(), check.name);
            }
            out.checks.push(check);
        }
        out.languages.push(Found { language: ecosystem.language, tool: ecosystem.tool });
    }
    if out.checks.is_empty() {
        out.warnings.push("nothing was found that tells a good tree from a bad one: write a check".into());
    }
}

fn check(name: &str, argv: &[&str]) -> Check {
    let run = Command::Argv(argv.iter().map(|s| (*s).to_owned()).collect());
    Check { name: name.to_owned(), run, timeout: TIMEOUT }
}

fn shell_check(name: &str, text: &str) -> Check {
    Check { name: name.to_owned(), run: Command::Shell(text.to_owned()), timeout: TIMEOUT }
}

fn missing(warnings: &mut Vec<String>, file: &str, tool: &str) {
    warnings.push(format!("{file} is here but {tool} is not on PATH: nothing is checked with it"));
}

fn cargo(look: &Look<'_>, warnings: &mut Vec<String>) -> Option<Ecosystem> {
    let manifest = look.read("Cargo.toml", warnings)?;
    let mut checks = Vec::new();
    if look.tool("cargo").is_none() {
        missing(warnings, "Cargo.toml", "cargo");
    } else {
        let workspace = match manifest.parse::<toml::Table>() {
            Ok(table) => table.contains_key("workspace"),
            Err(_) => {
                warnings.push("Cargo.toml is no sound TOML".into());
                false
            }
        };
        // In a workspace whose root is a package too, cargo alone leaves the other members out.
        let mut add = |name: &str, args: &[&str]| {
            let all: &[&str] = if workspace { &["--workspace"] } else { &[] };
            checks.push(check(name, &[&["cargo"], args, all].concat()));
        };
        add("build", &["build"]);
        if clippy(look) {
            add("lint", &["clippy", "--all-targets"]);
        }
        add("test", &["test"]);
    }
    Some(Ecosystem { language: Language::Rust, tool: "cargo".into(), checks })
}

/// Whether clippy is there. rustup puts a proxy for it on PATH also where no toolchain has it.
fn clippy(look: &Look<'_>) -> bool {
    let Some(bin) = look.tool("cargo-clippy") else { return false };
    let proxy = bin.canonicalize().is_ok_and(|real| real.file_name().is_some_and(|name| name == "rustup"));
    let toolchains = bin.ancestors().nth(3).map(|home| home.join(".rustup/toolchains"));
    match toolchains.and_then(|folder| std::fs::read_dir(folder).ok()) {
        Some(list) if proxy => list.flatten().any(|one| one.path().join("bin/cargo-clippy").exists()),
        Some(_) | None => true,
    }
}

fn go(look: &Look<'_>, warnings: &mut Vec<String>) -> Option<Ecosystem> {
    let file = ["go.mod", "go.work"].into_iter().find(|file| look.has(file))?;
    let mut checks = Vec::new();
    if look.tool("go").is_some() {
        for (name, verb) in [("build", "build"), ("vet", "vet"), ("test", "test")] {
            checks.push(check(name, &["go", verb, "./..."]));
        }
    } else {
        missing(warnings, file, "go");
    }
    Some(Ecosystem { language: Language::Go, tool: "go".into(), checks })
}

fn node(look: &Look<'_>, warnings: &mut Vec<String>) -> Option<Ecosystem> {
    let text = look.read("package.json", warnings)?;
    let Ok(package) = serde_json::from_str::<Value>(text.trim_start_matches('\u{feff}')) else {
        warnings.push("package.json is no sound JSON".into());
        return None;
    };
    let tool = node_tool(look, &package);
    let mut checks = Vec::new();
    if look.tool(tool).is_none() {
        missing(warnings, "package.json", tool);
    } else {
        for name in ["build", "lint", "test"] {
            let script = package["scripts"][name].as_str().unwrap_or_default();
            // What `npm init` writes when nobody wrote a test.
            let placeholder = name == "test" && script.contains("no test specified");
            if !placeholder && !script.trim().is_empty() {
                checks.push(check(name, &[tool, "run", name]));
            }
        }
        let needs = |key: &str| package[key].as_object().is_some_and(|list| !list.is_empty());
        if !checks.is_empty() && (needs("dependencies") || needs("devDependencies")) {
            // A new worktree has no node_modules, and without them no other check can run.
            checks.insert(0, check("install", node_install(look, tool)));
        }
    }
    Some(Ecosystem { language: Language::Node, tool: tool.into(), checks })
}

fn node_tool(look: &Look<'_>, package: &Value) -> &'static str {
    let locks = [
        ("pnpm-lock.yaml", "pnpm"),
        ("yarn.lock", "yarn"),
        ("bun.lock", "bun"),
        ("bun.lockb", "bun"),
        ("package-lock.json", "npm"),
    ];
    if let Some((_, tool)) = locks.into_iter().find(|(file, _)| look.has(file)) {
        return tool;
    }
    let manager = package["packageManager"].as_str().unwrap_or_default();
    ["pnpm", "yarn", "bun"].into_iter().find(|tool| manager.starts_with(&format!("{tool}@"))).unwrap_or("npm")
}

fn node_install(look: &Look<'_>, tool: &str) -> &'static [&'static str] {
    match tool {
        "pnpm" if look.has("pnpm-lock.yaml") => &["pnpm", "install", "--frozen-lockfile"],
        "pnpm" => &["pnpm", "install"],
        "yarn" if look.has(".yarnrc.yml") => &["yarn", "install", "--immutable"],
        "yarn" => &["yarn", "install", "--frozen-lockfile"],
        "bun" => &["bun", "install"],
        _ if look.has("package-lock.json") || look.has("npm-shrinkwrap.json") => {
            &["npm", "ci", "--prefer-offline", "--no-audit", "--no-fund"]
        }
        _ => &["npm", "install", "--no-package-lock", "--prefer-offline", "--no-audit", "--no-fund"],
    }
}

fn python(look: &Look<'_>, warnings: &mut Vec<String>) -> Option<Ecosystem> {
    let project = ["pyproject.toml", "setup.py", "setup.cfg"].into_iter().find(|file| look.has(file));
    let loose = ["requirements.txt", "pytest.ini", "tox.ini"].into_iter().find(|file| look.has(file));
    let tests = has_python_tests(look.repo);
    let file = project.or(loose)?;
    let runner = [("uv.lock", "uv", "uv run pytest"), ("poetry.lock", "poetry", "poetry run pytest")]
        .into_iter()
        .find(|(lock, tool, _)| look.has(lock) && look.tool(tool).is_some())
        .map(|(_, tool, run)| (tool, run))
        .or_else(|| look.tool("pytest").map(|_| ("pytest", "pytest")));
    let mut checks = Vec::new();
    match runner {
        Some((_, run)) if tests || project.is_some() => {
            // Exit 5 is pytest's "no tests": nothing was checked, which is neither a pass nor a failure.
            let text = format!("{run}; code=$?; [ \"$code\" -eq 5 ] && exit 78; exit \"$code\"");
            checks.push(shell_check("test", &text));
        }
        None if tests => missing(warnings, file, "pytest"),
        Some(_) | None => {}
    }
    let tool = runner.map_or("pytest", |(tool, _)| tool);
    Some(Ecosystem { language: Language::Python, tool: tool.into(), checks })
}

fn has_python_tests(repo: &Path) -> bool {
    let is_test = |name: &str| name.ends_with(".py") && (name.starts_with("test_") || name.ends_with("_test.py"));
    names(repo).iter().any(|name| is_test(name)) || repo.join("tests").is_dir() || repo.join("test").is_dir()
}

fn java(look: &Look<'_>, warnings: &mut Vec<String>) -> Option<Ecosystem> {
    let gradle = ["build.gradle", "build.gradle.kts"];
    let (file, wrapper, tool, args): (_, _, _, &[&str]) = if look.has("pom.xml") {
        ("pom.xml", "./mvnw", "mvn", &["-B", "test"])
    } else {
        // A Gradle daemon would outlive the check.
        (gradle.into_iter().find(|file| look.has(file))?, "./gradlew", "gradle", &["--no-daemon", "check"])
    };
    let mut checks = Vec::new();
    if look.runs(wrapper) {
        checks.push(check("test", &[&[wrapper], args].concat()));
    } else if look.tool(tool).is_some() {
        checks.push(check("test", &[&[tool], args].concat()));
    } else {
        missing(warnings, file, tool);
    }
    Some(Ecosystem { language: Language::Java, tool: tool.into(), checks })
}

fn make(look: &Look<'_>, warnings: &mut Vec<String>) -> Option<Ecosystem> {
    let file = ["GNUmakefile", "makefile", "Makefile"].into_iter().find(|file| look.has(file))?;
    let text = look.read(file, warnings)?;
    let target = ["test", "check"].into_iter().find(|target| has_target(&text, target))?;
    let mut checks = Vec::new();
    if look.tool("make").is_some() {
        checks.push(check("test", &["make", target]));
    } else {
        missing(warnings, file, "make");
    }
    Some(Ecosystem { language: Language::Make, tool: "make".into(), checks })
}

/// Whether a Makefile has a rule for `target`: it stands before the colon of a line that is no assignment or recipe.
fn has_target(makefile: &str, target: &str) -> bool {
    makefile.lines().filter(|line| !line.starts_with(['\t', '#', ' '])).any(|line| {
        line.split_once(':').is_some_and(|(targets, rest)| {
            !rest.trim_start_matches(':').starts_with('=') && targets.split_whitespace().any(|t| t == target)
        })
    })
}

fn shell(look: &Look<'_>, _warnings: &mut Vec<String>) -> Option<Ecosystem> {
    let file = ["test.sh", "tests/run.sh", "run-tests.sh"].into_iter().find(|file| look.has(file))?;
    let run = format!("./{file}");
    let argv: &[&str] = if look.runs(file) { &[&run] } else { &["sh", &run] };
    Some(Ecosystem { language: Language::Shell, tool: file.into(), checks: vec![check("test", argv)] })
}

/// Plain scripts without a package: their syntax is all that can be checked.
fn javascript(look: &Look<'_>) -> Option<Ecosystem> {
    let is_script = |name: &String| name.ends_with(".js") || name.ends_with(".mjs") || name.ends_with(".cjs");
    if look.tool("node").is_none() || !names(look.repo).iter().any(is_script) {
        return None;
    }
    let text = "git ls-files -z '*.js' '*.mjs' '*.cjs' | xargs -0 -r -n 1 node --check";
    let checks = vec![shell_check("syntax", text)];
    Some(Ecosystem { language: Language::JavaScript, tool: "node".into(), checks })
}

/// Names in the repository's top folder.
fn names(repo: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(repo).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().into_string().ok()).take(10_000).collect()
}
