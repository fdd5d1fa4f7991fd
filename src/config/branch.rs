//! Which branch names are legal: git's rules for refs (git-check-ref-format(1)) and what we keep for ourselves.

/// Where the daemon's task branches live.
const TASK_BRANCHES: &str = "overnight-task/";

/// Checks `name` as a branch (without `refs/heads/`). The text says which rule it breaks.
pub fn check_branch(name: &str) -> Result<(), String> {
    let bad_char =
        |c: char| c.is_control() || c.is_whitespace() || matches!(c, '~' | '^' | ':' | '?' | '*' | '[' | '\\');
    if name.is_empty() {
        return Err("a branch name may not be empty".into());
    }
    if name.len() > 200 {
        return Err("a branch name may have up to 200 bytes".into());
    }
    if name.starts_with("refs/") {
        return Err(format!("{name:?} is a full ref; write the branch's name without refs/heads/"));
    }
    if name == "HEAD" || name == "@" {
        return Err(format!("{name:?} is no branch but git's name for the current commit"));
    }
    if let Some(c) = name.chars().find(|c| bad_char(*c)) {
        return Err(format!("{name:?} is no legal branch name: git refuses {c:?}"));
    }
    if name.starts_with('-') || name.ends_with('.') || name.contains("..") || name.contains("@{") {
        return Err(format!("{name:?} is no legal branch name (no leading '-', final '.', '..' or '@{{')"));
    }
    for part in name.split('/') {
        if part.is_empty() || part.starts_with('.') || part.ends_with(".lock") {
            return Err(format!(
                "{name:?} is no legal branch name: no part may be empty, start with '.' or end with '.lock'"
            ));
        }
    }
    if name.starts_with(TASK_BRANCHES) || format!("{name}/") == TASK_BRANCHES {
        return Err(format!("{name:?} is among the branches that tasks work on"));
    }
    Ok(())
}

/// True when git cannot hold both: one name is a folder of the other.
pub(super) fn collide(a: &str, b: &str) -> bool {
    let below = |long: &str, short: &str| long.strip_prefix(short).is_some_and(|rest| rest.starts_with('/'));
    below(a, b) || below(b, a)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn branch_names_follow_gits_rules() {
        for good in ["main", "release/1.2", "overnight/main", "a-b_c", "é", "feature/x.y"] {
            assert_eq!(check_branch(good), Ok(()), "{good:?}");
        }
        for bad in [
            "",
            "-x",
            "a..b",
            "a b",
            "a~1",
            "a^",
            "a:b",
            "x?",
            "x*",
            "x[1]",
            "a\\b",
            ".a",
            "a/.b",
            "a.lock",
            "a/b.lock/c",
            "a/",
            "/a",
            "a//b",
            "a.",
            "a@{b",
            "@",
            "HEAD",
            "a\nb",
            "a\u{7f}",
            "refs/heads/main",
            "overnight-task/x",
            "overnight-task",
        ] {
            assert!(check_branch(bad).is_err(), "{bad:?} was taken");
        }
        assert!(check_branch(&"x".repeat(300)).is_err());
        assert!(collide("main", "main/night") && collide("a/b", "a") && !collide("main", "main2"));
    }
}
