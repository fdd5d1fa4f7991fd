//! Journal lines, one each, with the time on the person's clock.

use super::{Paint, Style, columns, line, pad};
use crate::protocol::view::EventLine;

/// Width of the column of kinds.
const KIND: usize = 12;

/// `23:04:05  my-repo:add-lexer  running  the brief is written`, without the project where it is `known`.
pub fn event(event: &EventLine, known: bool, style: &Style) -> String {
    let who = match (&event.project, &event.task) {
        (_, Some(task)) if known => task.to_string(),
        (Some(project), Some(task)) => format!("{project}:{task}"),
        (Some(project), None) => project.to_string(),
        (None, Some(task)) => task.to_string(),
        (None, None) => "overnight".into(),
    };
    let time = style.moment(event.at);
    let kind = pad(&line(&event.kind).replace('_', " "), KIND);
    let who = pad(&who, 24);
    let used = columns(&time) + columns(&kind) + columns(&who) + 6;
    let text = style.fit(&line(&event.text), used, 20);
    let row = format!("{}  {who}  {}  {text}", style.paint(Paint::Quiet, &time), style.paint(Paint::Strong, &kind));
    format!("{}\n", row.trim_end())
}

#[cfg(test)]
mod tests {
    use super::super::fixtures::{all_hostile, event as line_of};
    use super::*;

    #[test]
    fn a_line_is_one_line() {
        let shown = event(&line_of("the brief is written"), true, &Style::PLAIN);
        assert_eq!(shown, "30 Nov 23:04  add-lexer                 running       the brief is written\n");
        let shown = event(&EventLine { kind: all_hostile(), ..line_of(&all_hostile()) }, false, &Style::PLAIN);
        assert!(shown.contains("my-repo:add-lexer"));
        assert!(!shown.trim_end_matches('\n').chars().any(crate::domain::safe::is_unsafe), "{shown:?}");
    }
}
