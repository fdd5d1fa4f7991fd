//! What landing would bring: files with their counts, and the patch.

use super::{Paint, Style, block, columns, count, line, pad};
use crate::protocol::view::DiffView;

/// The files that differ and their sums, then the patch where there is one.
pub fn diff(view: &DiffView, style: &Style) -> String {
    let (base, into) = (line(&view.base), line(&view.into));
    if view.files.is_empty() {
        return format!("  {into} holds nothing that {base} does not have\n");
    }
    let paths: Vec<String> = view.files.iter().map(|f| line(&f.path)).collect();
    let widest = paths.iter().map(|p| columns(p)).max().unwrap_or(0);
    let widest = style.width.map_or(widest, |width| widest.min(width.saturating_sub(24).max(20)));
    let mut out = String::new();
    for (file, path) in view.files.iter().zip(&paths) {
        let path = pad(&super::fit(path, widest), widest);
        let counts = match (file.added, file.removed) {
            (None, None) => style.paint(Paint::Quiet, "binary"),
            (added, removed) => format!(
                "{} {}",
                style.paint(Paint::Good, &format!("+{}", added.unwrap_or(0))),
                style.paint(Paint::Bad, &format!("-{}", removed.unwrap_or(0)))
            ),
        };
        out.push_str(&format!("  {path}   {counts}\n"));
    }
    let sum = |side: &dyn Fn(&crate::protocol::view::FileLine) -> Option<u64>| {
        view.files.iter().filter_map(side).fold(0u64, u64::saturating_add)
    };
    let (added, removed) = (sum(&|f| f.added), sum(&|f| f.removed));
    out.push_str(&format!("  {} · +{added} -{removed} · from {into} to {base}\n", count(view.files.len(), "file")));
    if let Some(text) = &view.patch {
        out.push('\n');
        out.push_str(&patch(text, style));
    }
    out
}

/// A patch fit for a terminal, in the usual colours.
pub fn patch(text: &str, style: &Style) -> String {
    let mut out = String::new();
    for line in block(text).lines() {
        let paint = match line.as_bytes() {
            [b'+', b'+', b'+', ..] | [b'-', b'-', b'-', ..] | [b'd', b'i', b'f', b'f', ..] => Some(Paint::Strong),
            [b'+', ..] => Some(Paint::Good),
            [b'-', ..] => Some(Paint::Bad),
            [b'@', b'@', ..] => Some(Paint::Busy),
            _ => None,
        };
        out.push_str(&paint.map_or_else(|| line.to_owned(), |paint| style.paint(paint, line)));
        out.push('\n');
    }
    out
}

#[cfg(test)]
mod tests {
    use super::super::fixtures::all_hostile;
    use super::*;
    use crate::protocol::view::FileLine;

    fn view() -> DiffView {
        let file = |path: &str, added, removed| FileLine { path: path.into(), added, removed };
        DiffView {
            base: "main".into(),
            into: "overnight/main".into(),
            files: vec![file("src/a.rs", Some(12), Some(3)), file("logo.png", None, None)],
            patch: None,
        }
    }

    #[test]
    fn files_and_sums() {
        assert_eq!(
            diff(&view(), &Style::PLAIN),
            "  src/a.rs   +12 -3\n  logo.png   binary\n  2 files · +12 -3 · from overnight/main to main\n"
        );
        let empty = DiffView { files: vec![], ..view() };
        assert_eq!(diff(&empty, &Style::PLAIN), "  overnight/main holds nothing that main does not have\n");
    }

    #[test]
    fn a_patch_is_coloured_and_cannot_act() {
        let style = Style { colour: true, ..Style::PLAIN };
        assert_eq!(
            patch("@@ -1 +1 @@\n-a\n+b\n", &style),
            "\u{1b}[36m@@ -1 +1 @@\u{1b}[0m\n\u{1b}[31m-a\u{1b}[0m\n\u{1b}[32m+b\u{1b}[0m\n"
        );
        let hostile = DiffView { patch: Some(all_hostile()), base: all_hostile(), ..view() };
        assert!(!diff(&hostile, &Style::PLAIN).chars().any(|c| c != '\n' && crate::domain::safe::is_unsafe(c)));
    }
}
