//! Repositories of every make, each with exactly the tools that are said.

#![expect(
    clippy::disallowed_methods,
    reason = "tests play the user and the machine: they start programs, wait with limits and read the environment"
)]

use super::*;
use crate::config;
use crate::domain::chain::{CheckVerdict, judge_check};
use crate::domain::verdict::{Exit, RunEnd};
use crate::setup::render_config;
use crate::setup::testing::program;
use std::process::Command;

struct Place {
    _top: tempfile::TempDir,
    repo: PathBuf,
    bin: PathBuf,
}

impl Place {
    /// A folder with `files` (path, content; a final `*` of the path makes it executable) and a PATH with `tools`.
    fn new(files: &[(&str, &str)], tools: &[&str]) -> Self {
        let top = tempfile::tempdir().unwrap();
        let (repo, bin) = (top.path().join("repo"), top.path().join("bin"));
        for folder in [&repo, &bin] {
            fs::create_dir(folder).unwrap();
        }
        for (name, text) in files {
            let path = repo.join(name.trim_end_matches('*'));
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(&path, text).unwrap();
            if name.ends_with('*') {
                fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
            }
        }
        for tool in tools {
            fs::write(bin.join(tool), "").unwrap();
            fs::set_permissions(bin.join(tool), fs::Permissions::from_mode(0o755)).unwrap();
        }
        Self { _top: top, repo, bin }
    }

    fn path(&self) -> String {
        self.bin.to_str().unwrap().to_owned()
    }

    fn detect(&self) -> Detected {
        detect(&self.repo, &self.path())
    }

    fn git(&self, args: &str) {
        let mut git = Command::new("git");
        git.arg("-C").arg(&self.repo).args(["-c", "user.name=t", "-c", "user.email=t@t"]).args(args.split(' '));
        let done = git.env("GIT_CONFIG_GLOBAL", "/dev/null").env("GIT_CONFIG_SYSTEM", "/dev/null").output().unwrap();
        assert!(done.status.success(), "git {args}: {}", String::from_utf8_lossy(&done.stderr));
    }
}

fn shown(detected: &Detected) -> Vec<String> {
    detected.checks.iter().map(|c| format!("{}: {}", c.name, c.run.shown())).collect()
}

const PYTEST: &str = "test: pytest; code=$?; [ \"$code\" -eq 5 ] && exit 78; exit \"$code\"";
const PACKAGE: &str = r#"{"scripts":{"lint":"eslint .","test":"vitest","build":"tsc","start":"x"}}"#;

/// What it is, the files, the tools on PATH, and the checks.
type Case = (&'static str, &'static [(&'static str, &'static str)], &'static [&'static str], &'static [&'static str]);

const CASES: &[Case] = &[
    ("nothing", &[], &["cargo", "make"], &[]),
    (
        "cargo with clippy",
        &[("Cargo.toml", "[package]\n")],
        &["cargo", "cargo-clippy"],
        &["build: cargo build", "lint: cargo clippy --all-targets", "test: cargo test"],
    ),
    ("cargo without clippy", &[("Cargo.toml", "[package]\n")], &["cargo"], &["build: cargo build", "test: cargo test"]),
    (
        "a cargo workspace",
        &[("Cargo.toml", "[package]\n[workspace]\n")],
        &["cargo"],
        &["build: cargo build --workspace", "test: cargo test --workspace"],
    ),
    ("no cargo", &[("Cargo.toml", "[package]\n")], &[], &[]),
    (
        "go",
        &[("go.mod", "module x\n")],
        &["go"],
        &["build: go build ./...", "vet: go vet ./...", "test: go test ./..."],
    ),
    ("no go", &[("go.mod", "module x\n")], &[], &[]),
    ("lint only", &[("package.json", r#"{"scripts":{"lint":"x"}}"#)], &["npm"], &["lint: npm run lint"]),
    (
        "npm's placeholder",
        &[("package.json", r#"{"scripts":{"test":"echo \"Error: no test specified\" && exit 1"}}"#)],
        &["npm"],
        &[],
    ),
    (
        "npm",
        &[("package.json", PACKAGE)],
        &["npm"],
        &["build: npm run build", "lint: npm run lint", "test: npm run test"],
    ),
    (
        "pnpm with dependencies",
        &[("package.json", r#"{"scripts":{"test":"x"},"dependencies":{"a":"1"}}"#), ("pnpm-lock.yaml", "")],
        &["npm", "pnpm"],
        &["install: pnpm install --frozen-lockfile", "test: pnpm run test"],
    ),
    (
        "yarn by name",
        &[("package.json", r#"{"scripts":{"test":"x"},"packageManager":"yarn@4.1.0"}"#)],
        &["yarn", "npm"],
        &["test: yarn run test"],
    ),
    (
        "npm with a lock",
        &[("package.json", r#"{"scripts":{"test":"x"},"devDependencies":{"a":"1"}}"#), ("package-lock.json", "{}")],
        &["npm"],
        &["install: npm ci --prefer-offline --no-audit --no-fund", "test: npm run test"],
    ),
    ("yarn missing", &[("package.json", PACKAGE), ("yarn.lock", "")], &["npm"], &[]),
    ("no scripts", &[("package.json", "{}")], &["npm"], &[]),
    ("odd scripts", &[("package.json", r#"{"scripts":{"test":3,"lint":""}}"#)], &["npm"], &[]),
    ("broken json", &[("package.json", "{")], &["npm"], &[]),
    ("pyproject without tests", &[("pyproject.toml", "")], &["pytest"], &[PYTEST]),
    ("requirements with tests", &[("requirements.txt", ""), ("tests/x.py", "")], &["pytest"], &[PYTEST]),
    ("requirements without tests", &[("requirements.txt", "")], &["pytest"], &[]),
    ("pytest missing", &[("pyproject.toml", ""), ("tests/x.py", "")], &["python3"], &[]),
    ("make test", &[("Makefile", ".PHONY: test\nall test: x\n\tcc\n")], &["make"], &["test: make test"]),
    ("make check", &[("GNUmakefile", "check::\n")], &["make"], &["test: make check"]),
    ("no target", &[("Makefile", "test := 1\ntests:\n\ttest: x\n.PHONY: test\n")], &["make"], &[]),
    ("test.sh", &[("test.sh", "")], &[], &["test: sh ./test.sh"]),
    ("tests/run.sh", &[("tests/run.sh*", "")], &[], &["test: ./tests/run.sh"]),
    ("maven", &[("pom.xml", "")], &["mvn"], &["test: mvn -B test"]),
    ("maven wrapper", &[("pom.xml", ""), ("mvnw*", "")], &["mvn"], &["test: ./mvnw -B test"]),
    ("gradle", &[("build.gradle.kts", ""), ("gradlew*", "")], &[], &["test: ./gradlew --no-daemon check"]),
    (
        "scripts without a package",
        &[("a b.js", "")],
        &["node"],
        &["syntax: git ls-files -z '*.js' '*.mjs' '*.cjs' | xargs -0 -r -n 1 node --check"],
    ),
    (
        "two at once",
        &[("Cargo.toml", ""), ("package.json", r#"{"scripts":{"lint":"x"}}"#)],
        &["cargo", "npm"],
        &["rust-build: cargo build", "rust-test: cargo test", "node-lint: npm run lint"],
    ),
    (
        "a Makefile beside cargo",
        &[("Cargo.toml", ""), ("Makefile", "test:\n\tcargo test\n")],
        &["cargo", "make"],
        &["build: cargo build", "test: cargo test"],
    ),
];

#[test]
fn every_build_system_gives_its_checks() {
    for (what, files, tools, expected) in CASES {
        let place = Place::new(files, tools);
        let detected = place.detect();
        assert_eq!(shown(&detected), *expected, "{what}: {detected:?}");
        let text = render_config(&detected, "p", "main");
        let config = config::parse(Path::new("f"), text.as_bytes()).unwrap_or_else(|e| panic!("{what}\n{text}\n{e}"));
        assert_eq!(config.policy.checks, detected.checks, "{what}");
        assert_eq!(detected.checks.is_empty(), detected.warnings.iter().any(|w| w.contains("write a check")), "{what}");
    }
}

#[test]
fn missing_tools_and_broken_files_are_told() {
    for (files, tools, words) in [
        (("go.mod", ""), &[][..], "go.mod is here but go is not on PATH"),
        (("Cargo.toml", ""), &[], "cargo is not on PATH"),
        (("package.json", "{"), &["npm"], "package.json is no sound JSON"),
        (("Cargo.toml", "="), &["cargo"], "no sound TOML"),
        (("x", ""), &[], "neither claude nor codex"),
        (("x", ""), &[], "no git repository"),
    ] {
        let detected = Place::new(&[files], tools).detect();
        assert!(detected.warnings.iter().any(|w| w.contains(words)), "{words}: {:?}", detected.warnings);
    }
    let place = Place::new(&[("go.mod", "")], &[]);
    assert_eq!(place.detect().languages, [Found { language: Language::Go, tool: "go".into() }]);
}

#[test]
fn no_tests_is_no_failure_and_no_pass() {
    let place = Place::new(&[("pyproject.toml", "")], &["pytest"]);
    let check = place.detect().checks.remove(0);
    for (code, expected) in [(0, "pass"), (5, "skipped"), (1, "fail"), (2, "fail")] {
        program(&place.bin.join("pytest"), &format!("exit {code}"));
        let argv = check.run.argv();
        let status = Command::new(&argv[0]).args(&argv[1..]).env("PATH", place.path()).status().unwrap();
        let exit = Exit::Exited { code: status.code().unwrap() };
        let end = RunEnd { exit, took: Duration::ZERO, survivors: vec![], tail: String::new(), bytes: 0, cut: 0 };
        let word = match judge_check(&check, &end, false) {
            CheckVerdict::Pass => "pass",
            CheckVerdict::Skipped => "skipped",
            CheckVerdict::Fail { .. } => "fail",
            CheckVerdict::CouldNotRun { .. } => "could not run",
        };
        assert_eq!(word, expected, "exit {code}");
    }
}

#[test]
fn scripts_with_blanks_in_their_names_are_each_checked() {
    let place = Place::new(&[("a b.js", ""), ("-x.js", ""), ("y.js", "")], &["node"]);
    place.git("init -q");
    place.git("add -A");
    let check = place.detect().checks.remove(0);
    program(&place.bin.join("node"), "printf '<%s>' \"$2\"");
    let argv = check.run.argv();
    let path = format!("{}:/usr/bin:/bin", place.path());
    let done = Command::new(&argv[0]).args(&argv[1..]).current_dir(&place.repo).env("PATH", path).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&done.stdout), "<-x.js><a b.js><y.js>");
}

#[test]
fn the_base_branch() {
    let base = |steps: &[&str]| {
        let place = Place::new(&[("x", "")], &[]);
        for step in ["init -q -b start", "add -A", "commit -qm x"].iter().chain(steps) {
            place.git(step);
        }
        let found = place.detect();
        (found.base, found.bases)
    };
    let (some, list) =
        (|s: &str| Some(s.to_owned()), |l: &[&str]| l.iter().map(|s| (*s).to_owned()).collect::<Vec<_>>());
    assert_eq!(base(&["branch -m main"]), (some("main"), list(&["main"])));
    assert_eq!(base(&["branch main", "checkout -qb trunk"]), (some("trunk"), list(&["trunk", "main"])));
    assert_eq!(base(&[]), (some("start"), list(&["start"])), "the current one where nothing else is known");
    let origin =
        ["update-ref refs/remotes/origin/prod HEAD", "symbolic-ref refs/remotes/origin/HEAD refs/remotes/origin/prod"];
    assert_eq!(base(&origin).0, some("start"), "the remote's default is not here");
    assert_eq!(base(&[origin[0], origin[1], "branch prod"]), (some("prod"), list(&["prod", "start"])));
    assert_eq!(base(&["branch main", "checkout -q --detach"]), (None, list(&["main"])), "a person must choose");
    assert_eq!(base(&["branch main", "checkout -qb overnight/main"]), (None, list(&["main"])));
    let place = Place::new(&[], &[]);
    place.git("init -q -b main");
    let found = place.detect();
    assert_eq!(found.base, some("main"));
    assert!(found.warnings.iter().any(|w| w.contains("no commit yet")));
}

#[test]
fn tools_are_taken_from_the_users_path_only() {
    let place = Place::new(&[("node_modules/.bin/claude*", ""), ("codex*", "")], &["codex"]);
    fs::create_dir(place.bin.join("claude")).unwrap();
    program(&place.bin.join("codex"), "echo codex-cli 1.2.3");
    let inside = place.repo.join("node_modules/.bin");
    let path = format!("{}:.::node_modules/.bin:{}:/nowhere", inside.display(), place.path());
    let mut detected = detect(&place.repo, &path);
    let agents: Vec<_> = detected.agents.iter().map(|a| (a.kind, a.bin.clone())).collect();
    assert_eq!(agents, [(AgentKind::Codex, place.bin.join("codex"))]);
    detected.ask_versions("/usr/bin:/bin", Duration::from_secs(30));
    assert_eq!(detected.agents[0].version.as_deref(), Some("1.2.3"));
}

#[test]
fn what_init_writes_reads_back_for_every_combination() {
    let parts: [(&[(&str, &str)], &str); 9] = [
        (&[("Cargo.toml", "[workspace]\n")], "cargo"),
        (&[("go.mod", "")], "go"),
        (&[("package.json", PACKAGE)], "npm"),
        (&[("pyproject.toml", "")], "pytest"),
        (&[("pom.xml", "")], "mvn"),
        (&[("Makefile", "test:\n")], "make"),
        (&[("test.sh", ""), ("x.js", "")], "node"),
        (&[], "claude"),
        (&[], "codex"),
    ];
    for set in 0..1u32 << parts.len() {
        let chosen: Vec<_> = (0..parts.len()).filter(|i| set & (1 << i) != 0).map(|i| parts[i]).collect();
        let files: Vec<_> = chosen.iter().flat_map(|(files, _)| files.iter().copied()).collect();
        let tools: Vec<_> = chosen.iter().map(|(_, tool)| *tool).collect();
        let detected = Place::new(&files, &tools).detect();
        let base = ["main", "release/1.x", "é\"'x"][set as usize % 3];
        let text = render_config(&detected, "my-repo", base);
        let config =
            config::parse(Path::new("f"), text.as_bytes()).unwrap_or_else(|e| panic!("{tools:?}\n{text}\n{e}"));
        assert_eq!((config.name.as_str(), &*config.policy.base), ("my-repo", base));
        assert_eq!(config.policy.checks, detected.checks, "{tools:?}");
        let agent = if tools.contains(&"codex") && !tools.contains(&"claude") { "codex" } else { "claude" };
        assert_eq!(config.policy.agent, agent);
        assert!(text.lines().count() < 100, "short");
        let full: Vec<_> = text
            .lines()
            .map(|line| line.strip_prefix('#').filter(|rest| !rest.starts_with(' ')).unwrap_or(line))
            .collect();
        let read = config::parse(Path::new("f"), full.join("\n").as_bytes());
        assert!(read.is_ok(), "each offered setting is a sound one: {}", read.map(|_| ()).unwrap_err());
    }
}
