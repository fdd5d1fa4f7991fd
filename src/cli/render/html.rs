//! A night in review as one HTML file that needs nothing else: no script, no font, no image from anywhere. Light and dark
//! follow the reader's system, and it prints on white. Every text is made safe to show and then escaped.

use super::{Style, line, report};
use crate::protocol::view::{ProjectReport, ReportLine, ReportView};
use std::fmt::Write as _;

const STYLE: &str = "
:root{color-scheme:light dark;--bg:#fbfaf7;--ink:#1d2230;--soft:#667085;--line:#dfddd5;--card:#fff;--good:#17734a;\
--bad:#b3261e;--ask:#8a5a00}
@media (prefers-color-scheme:dark){:root{--bg:#12151d;--ink:#e6e8ee;--soft:#98a1b3;--line:#2a3040;--card:#1a1f2b;\
--good:#5fd39a;--bad:#ff8a80;--ask:#f3c35b}}
*{box-sizing:border-box}
body{margin:0 auto;max-width:56rem;padding:2.5rem 1.25rem;background:var(--bg);color:var(--ink);\
font:16px/1.55 system-ui,sans-serif;overflow-wrap:anywhere}
h1{font-size:1.5rem;margin:0 0 .25rem}h2{font-size:1.2rem;margin:2.5rem 0 .25rem}
h3{font-size:.8rem;letter-spacing:.08em;text-transform:uppercase;color:var(--soft);margin:2rem 0 .5rem}
.totals{color:var(--soft)}.alarm{border-left:3px solid var(--bad);padding:.25rem .75rem;margin:.75rem 0}
ul{list-style:none;margin:0;padding:0}
li{background:var(--card);border:1px solid var(--line);border-left-width:4px;border-radius:6px;padding:.6rem .9rem;\
margin:.5rem 0;break-inside:avoid}
li.good{border-left-color:var(--good)}li.bad{border-left-color:var(--bad)}li.ask{border-left-color:var(--ask)}
.path{font-weight:600}.title,.facts{color:var(--soft)}.facts{font-size:.85rem}
code{display:block;margin-top:.4rem;padding:.35rem .6rem;border-radius:4px;background:var(--bg);\
border:1px solid var(--line);font:.85rem ui-monospace,monospace;white-space:pre-wrap}
@media print{:root{--bg:#fff;--card:#fff;--ink:#000;--soft:#444;--line:#ccc}body{padding:0;max-width:none;font-size:11pt}}
";

/// The whole page.
pub fn page(view: &ReportView, style: &Style) -> String {
    let title = escape(&report::title(view, &Style { colour: false, width: None, ..*style }));
    let mut out = format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n\
         <title>{title}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<h1>{title}</h1>\n"
    );
    for project in &view.projects {
        if view.projects.len() > 1 {
            let _ = writeln!(out, "<h2>{}</h2>", escape(project.project.as_str()));
        }
        one(&mut out, project);
    }
    if view.projects.is_empty() {
        out.push_str("<p>Nothing was worked on.</p>\n");
    }
    out.push_str("</body>\n</html>\n");
    out
}

fn one(out: &mut String, project: &ProjectReport) {
    let _ = writeln!(out, "<p class=\"totals\">{}</p>", escape(&report::totals(project)));
    for alarm in &project.alarms {
        let _ = writeln!(out, "<p class=\"alarm\">{}</p>", escape(alarm));
    }
    for (heading, lines) in report::sections(project) {
        if lines.is_empty() {
            continue;
        }
        let class = match heading {
            "Needs you" => "ask",
            "Failed" => "bad",
            "Merged" => "good",
            _ => "rest",
        };
        let _ = writeln!(out, "<h3>{heading}</h3>\n<ul>");
        for task in lines {
            entry(out, task, class);
        }
        out.push_str("</ul>\n");
    }
    if !project.invalid.is_empty() {
        out.push_str("<h3>Task files that cannot be read</h3>\n<ul>\n");
        for invalid in &project.invalid {
            let at = invalid.line.map_or_else(String::new, |n| format!(":{n}"));
            let (place, reason) = (escape(&invalid.place), escape(&invalid.reason));
            let _ = writeln!(out, "<li class=\"bad\"><span class=\"path\">{place}{at}</span> {reason}</li>");
        }
        out.push_str("</ul>\n");
    }
    if let Some(ahead) = report::ahead(project) {
        let _ = writeln!(out, "<p>{}</p>\n<code>overnight diff\novernight land</code>", escape(&ahead));
    }
}

fn entry(out: &mut String, task: &ReportLine, class: &str) {
    let _ = write!(
        out,
        "<li class=\"{class}\"><span class=\"path\">{}</span> <span class=\"title\">{}</span>",
        escape(task.path.as_str()),
        escape(&task.title)
    );
    if !task.text.is_empty() {
        let _ = write!(out, "<div>{}</div>", escape(&task.text));
    }
    let details = Some(report::details(task)).filter(|text| !text.is_empty());
    for facts in details.into_iter().chain(report::left_out(task)) {
        let _ = write!(out, "<div class=\"facts\">{}</div>", escape(&facts));
    }
    if let Some(next) = report::next(task) {
        let _ = write!(out, "<code>{}</code>", escape(&next));
    }
    out.push_str("</li>\n");
}

/// Text for HTML, in content and in quoted attributes.
fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in line(text).chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::super::fixtures;
    use super::*;

    #[test]
    fn the_page_holds_the_report_and_nothing_from_elsewhere() {
        let page = page(&fixtures::morning(), &Style { colour: true, ..Style::PLAIN });
        for part in [
            "<title>Night of 30 Nov – 1 Dec · my-repo · 7h41m</title>",
            "<p class=\"totals\">merged 1 · needs you 1 · failed 1 · still open 1 · at least $0.41",
            "<li class=\"ask\"><span class=\"path\">rename-config</span>",
            "<div>asks: &quot;Keep the old key?&quot;</div>",
            "<code>overnight answer rename-config &quot;yes, one release&quot;</code>",
            "prefers-color-scheme:dark",
            "@media print",
        ] {
            assert!(page.contains(part), "{part}\n{page}");
        }
        for foreign in ["http://", "https://", "src=", "href=", "url(", "@import", "<script", "\u{1b}"] {
            assert!(!page.contains(foreign), "{foreign}");
        }
    }

    #[test]
    fn hostile_texts_stay_text() {
        let page = page(&fixtures::hostile_report(), &Style::PLAIN);
        assert!(!page.chars().any(|c| c != '\n' && crate::domain::safe::is_unsafe(c)));
        assert!(page.contains("&lt;script&gt;alert(&#39;&amp;&#39;)&lt;/script&gt;"));
        assert_eq!(page.matches("<script").count(), 0);
        // Three entries more have a line of what was left out, two more a command: a tag opened and one closed each.
        let tags = |page: &str| page.matches('<').count();
        assert_eq!(tags(&page), tags(&super::page(&fixtures::morning(), &Style::PLAIN)) + 5 * 2);
    }
}
