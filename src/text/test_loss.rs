//! Whether a change takes tests away: removed test files, fewer tests, more that are skipped. Tests are counted by the
//! markers that the languages' usual frameworks have, each at the start of a line; what is not known is not counted.

use crate::domain::safe;

/// One file of a change, before and after; `None` where it is not there, or is too large or strange to be counted.
#[derive(Debug, Clone, Copy)]
pub struct FileChange<'a> {
    pub path: &'a [u8],
    pub removed: bool,
    pub added: bool,
    pub before: Option<&'a [u8]>,
    pub after: Option<&'a [u8]>,
}

/// What a change takes from the tests, a sentence's end each ("removes the test file a_test.go"). Tests that move from one
/// file to another are not lost. Paths are escaped for showing.
pub fn lost(changes: &[FileChange<'_>]) -> Vec<String> {
    let mut sum = (Tests::default(), Tests::default());
    for change in changes {
        let Some(language) = language(change.path) else { continue };
        let count = |text: Option<&[u8]>| text.map_or_else(Tests::default, |t| language.count(t));
        let (before, after) = (count(change.before), count(change.after));
        sum.0 = sum.0.and(before);
        sum.1 = sum.1.and(after);
    }
    let (before, after) = sum;
    let fewer = after.all < before.all;
    let mut out = Vec::new();
    for gone in changes.iter().filter(|c| c.removed && is_test_file(c.path)) {
        let name = file_name(gone.path);
        let moved = changes.iter().any(|c| c.added && file_name(c.path) == name);
        let counted = language(gone.path).is_some_and(|l| gone.before.is_some_and(|text| l.count(text).all > 0));
        if !moved && (fewer || !counted) {
            out.push(format!("removes the test file {}", safe::bytes(gone.path)));
        }
    }
    if fewer {
        out.push(format!("leaves {} of {} tests in the files it touches", after.all, before.all));
    }
    if after.skipped > before.skipped {
        let n = after.skipped - before.skipped;
        out.push(format!("skips {n} test{} more", if n == 1 { "" } else { "s" }));
    }
    out
}

/// Whether tests in this file would be counted.
pub fn is_counted(path: &[u8]) -> bool {
    language(path).is_some()
}

/// Whether a file is there for tests, by the names that the languages' usual tools look for.
pub fn is_test_file(path: &[u8]) -> bool {
    let path = String::from_utf8_lossy(path);
    let mut parts: Vec<&str> = path.split('/').collect();
    let Some(name) = parts.pop() else { return false };
    if parts.iter().any(|p| ["test", "tests", "__tests__", "spec", "specs", "testdata"].contains(p)) {
        return true;
    }
    let (stem, _) = name.rsplit_once('.').unwrap_or((name, ""));
    stem.starts_with("test_")
        || ["_test", "_tests", "_spec", ".test", ".spec", "Test", "Tests", "Spec"].iter().any(|end| stem.ends_with(end))
        || name == "conftest.py"
}

fn file_name(path: &[u8]) -> &[u8] {
    path.rsplit(|b| *b == b'/').next().unwrap_or(path)
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Tests {
    all: usize,
    skipped: usize,
}

impl Tests {
    fn and(self, other: Self) -> Self {
        Self { all: self.all + other.all, skipped: self.skipped + other.skipped }
    }
}

/// How a language's tests and skipped tests begin.
struct Language {
    ends: &'static [&'static str],
    test: &'static [&'static str],
    skip: &'static [&'static str],
}

/// Sources: the manuals of libtest and tokio, pytest and unittest, `go help testfunc`, Jest, Vitest and Mocha, JUnit 4 and
/// 5, RSpec and minitest, NUnit, xUnit and MSTest, PHPUnit, Bats, GoogleTest and Catch2, ExUnit, XCTest.
const LANGUAGES: &[Language] = &[
    Language {
        ends: &["rs"],
        test: &["#[test]", "#[tokio::test", "#[async_std::test", "#[rstest", "#[test_case", "#[wasm_bindgen_test"],
        skip: &["#[ignore"],
    },
    Language {
        ends: &["py"],
        test: &["def test", "async def test"],
        skip: &["@pytest.mark.skip", "@pytest.mark.xfail", "@unittest.skip", "@skip", "pytest.skip(", "self.skipTest("],
    },
    Language { ends: &["go"], test: &["func Test", "func Fuzz", "func Example"], skip: &["t.Skip"] },
    Language {
        ends: &["js", "jsx", "ts", "tsx", "mjs", "cjs", "mts", "cts", "vue"],
        test: &[
            "it(",
            "it.each",
            "it.only",
            "it.skip",
            "it.concurrent",
            "it.fails",
            "it.todo",
            "test(",
            "test.each",
            "test.only",
            "test.skip",
            "test.concurrent",
            "test.fails",
            "test.todo",
            "xit(",
            "xtest(",
            "fit(",
        ],
        // A test that is the only one to run hides all others.
        skip: &[
            "it.skip",
            "test.skip",
            "describe.skip",
            "xit(",
            "xtest(",
            "xdescribe(",
            "it.todo",
            "test.todo",
            "it.only",
            "test.only",
            "describe.only",
            "fit(",
            "fdescribe(",
        ],
    },
    Language {
        ends: &["java", "kt", "kts", "groovy", "scala"],
        test: &["@Test", "@ParameterizedTest", "@RepeatedTest", "@TestFactory"],
        skip: &["@Disabled", "@Ignore"],
    },
    Language {
        ends: &["rb"],
        test: &["it ", "specify ", "def test_", "test \"", "test '", "xit "],
        skip: &["xit ", "xdescribe ", "xcontext ", "skip \"", "skip '", "skip(", "pending \"", "pending '", "pending("],
    },
    Language {
        ends: &["cs", "fs", "vb"],
        test: &["[Test", "[Fact", "[Theory", "[DataTestMethod"],
        skip: &["[Ignore", "[Fact(Skip", "[Theory(Skip"],
    },
    Language {
        ends: &["php"],
        test: &["public function test", "function test", "#[Test]"],
        skip: &["$this->markTestSkipped", "$this->markTestIncomplete"],
    },
    Language { ends: &["bats"], test: &["@test "], skip: &["skip"] },
    Language {
        ends: &["c", "cc", "cpp", "cxx", "h", "hpp"],
        test: &["TEST(", "TEST_F(", "TEST_P(", "TYPED_TEST(", "TEST_CASE(", "SCENARIO("],
        skip: &["GTEST_SKIP", "SKIP("],
    },
    Language { ends: &["exs"], test: &["test \"", "property \""], skip: &["@tag :skip", "@moduletag :skip"] },
    Language { ends: &["swift"], test: &["func test", "@Test"], skip: &["throw XCTSkip"] },
];

fn language(path: &[u8]) -> Option<&'static Language> {
    let end = file_name(path).rsplit(|b| *b == b'.').next().and_then(|end| std::str::from_utf8(end).ok())?;
    LANGUAGES.iter().find(|l| l.ends.contains(&end))
}

impl Language {
    fn count(&self, text: &[u8]) -> Tests {
        let mut tests = Tests::default();
        for line in text.split(|b| *b == b'\n') {
            let line = line.trim_ascii_start();
            let begins = |marks: &[&str]| marks.iter().any(|m| line.starts_with(m.as_bytes()));
            tests.all += usize::from(begins(self.test));
            tests.skipped += usize::from(begins(self.skip));
        }
        tests
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change<'a>(path: &'a str, before: Option<&'a str>, after: Option<&'a str>) -> FileChange<'a> {
        FileChange {
            path: path.as_bytes(),
            removed: after.is_none(),
            added: before.is_none(),
            before: before.map(str::as_bytes),
            after: after.map(str::as_bytes),
        }
    }

    #[test]
    fn a_removed_test_is_lost_in_every_language() {
        for (path, text) in [
            (
                "src/a.rs",
                "#[cfg(test)]\nmod tests {\n    #[test]\n    fn a() {}\n\n    #[tokio::test]\n    async fn b() {}\n}\n",
            ),
            ("a/test_x.py", "def test_a():\n    pass\n\nclass T:\n    async def test_b(self):\n        pass\n"),
            ("x_test.go", "func TestA(t *testing.T) {\n}\nfunc FuzzB(f *testing.F) {\n}\n"),
            ("x.test.ts", "describe('x', () => {\n  it('a', () => {})\n  test.each([1])('b', () => {})\n})\n"),
            ("src/test/java/ATest.java", "  @Test\n  void a() {}\n  @ParameterizedTest\n  void b(int n) {}\n"),
            ("spec/a_spec.rb", "it 'a' do\nend\n  it \"b\" do\n  end\n"),
            ("ATests.cs", "[Fact]\npublic void A() {}\n[Theory]\npublic void B() {}\n"),
            ("tests/ATest.php", "  public function testA() {}\n  public function testB() {}\n"),
            ("t.bats", "@test \"a\" {\n}\n@test \"b\" {\n}\n"),
            ("a_test.cc", "TEST(A, B) {\n}\nTEST_F(A, C) {\n}\n"),
            ("test/a_test.exs", "  test \"a\" do\n  end\n  test \"b\" do\n  end\n"),
            ("Tests/ATests.swift", "  func testA() {}\n  func testB() {}\n"),
        ] {
            assert_eq!(lost(&[change(path, Some(text), Some(text))]), [""; 0], "{path} unchanged");
            let counted = |line: &&str| language(path.as_bytes()).unwrap().count(line.as_bytes()).all > 0;
            let mark = text.lines().rfind(counted).unwrap();
            let commented = text.replace(mark, &format!("// {mark}"));
            let words = lost(&[change(path, Some(text), Some(&commented))]);
            assert_eq!(words, ["leaves 1 of 2 tests in the files it touches"], "{path}");
        }
    }

    #[test]
    fn a_removed_test_file_is_named() {
        let two = Some("def test_a():\n    pass\ndef test_b():\n    pass\n");
        let gone = lost(&[change("tests/test_a.py", two, None), change("a.py", Some("x"), Some("y"))]);
        assert_eq!(gone, ["removes the test file tests/test_a.py", "leaves 0 of 2 tests in the files it touches"]);
        // A file whose tests cannot be counted is missed all the same.
        assert_eq!(lost(&[change("tests/run.sh", Some("exit 1"), None)]), ["removes the test file tests/run.sh"]);
        // It moved, or its tests did.
        assert_eq!(
            lost(&[change("tests/a/run.sh", Some("exit 1"), None), change("tests/b/run.sh", None, Some("exit 2"))]),
            [""; 0]
        );
        assert_eq!(lost(&[change("tests/test_a.py", two, None), change("tests/test_b.py", None, two)]), [""; 0]);
        // What is no test is none of our business.
        assert_eq!(lost(&[change("src/contest.py", Some("x"), None), change("latest.txt", Some("x"), None)]), [""; 0]);
    }

    #[test]
    fn a_skipped_test_is_told() {
        for (path, before, after) in [
            ("a.rs", "#[test]\nfn a() {}", "#[test]\n#[ignore = \"later\"]\nfn a() {}"),
            ("test_a.py", "def test_a():", "@pytest.mark.skip\ndef test_a():"),
            ("a.spec.js", "it('a')", "it.skip('a')"),
            ("a.spec.js", "it('a')\nit('b')", "it.only('a')\nit('b')"),
            ("ATest.java", "@Test\nvoid a() {}", "@Test @Disabled\n@Disabled\nvoid a() {}"),
        ] {
            assert_eq!(lost(&[change(path, Some(before), Some(after))]), ["skips 1 test more"], "{path}");
            assert_eq!(lost(&[change(path, Some(after), Some(before))]), [""; 0], "{path}: the other way is welcome");
        }
    }

    #[test]
    fn test_files_are_known_by_their_names() {
        for yes in [
            "tests/a.sh",
            "pkg/a_test.go",
            "src/App.test.tsx",
            "spec/x.rb",
            "a/FooTest.java",
            "test_a.py",
            "conftest.py",
            "a/b/__tests__/x",
        ] {
            assert!(is_test_file(yes.as_bytes()), "{yes}");
        }
        for no in ["src/attest.rs", "latest", "contest/a.py", "testing.md", "src/test.rs.txt", "a/inspect.rb", ""] {
            assert!(!is_test_file(no.as_bytes()), "{no}");
        }
        assert!(is_test_file(b"tests/\xff"));
    }
}
