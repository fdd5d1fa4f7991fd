//! One line of a story, cut into words: a verb, plain words, and `key=value`; double quotes keep blanks together.

use overnight::domain::time::parse_duration;
use std::time::Duration;

pub struct Line {
    pub verb: String,
    pub words: Vec<String>,
    pairs: Vec<(String, String)>,
}

impl Line {
    /// `None` for blank lines and comments.
    pub fn parse(text: &str) -> Option<Self> {
        let text = text.trim();
        if text.is_empty() || text.starts_with('#') {
            return None;
        }
        let mut words = Vec::new();
        let (mut word, mut quoted) = (String::new(), false);
        for c in text.chars() {
            match c {
                '"' => quoted = !quoted,
                ' ' if !quoted => words.extend(Some(std::mem::take(&mut word)).filter(|w| !w.is_empty())),
                c => word.push(c),
            }
        }
        words.extend(Some(word).filter(|w| !w.is_empty()));
        let verb = words.remove(0);
        let (pairs, words): (Vec<_>, Vec<_>) = words.into_iter().partition(|w| w.contains('='));
        let cut = |w: String| w.split_once('=').map(|(k, v)| (k.to_owned(), v.to_owned()));
        Some(Self { verb, words, pairs: pairs.into_iter().filter_map(cut).collect() })
    }

    pub fn word(&self, n: usize) -> &str {
        self.words.get(n).unwrap_or_else(|| panic!("{:?} needs another word", self.verb))
    }

    pub fn has(&self, word: &str) -> bool {
        self.words.iter().any(|w| w == word)
    }

    pub fn get(&self, key: &str) -> Option<&str> {
        self.pairs.iter().find(|(k, _)| k == key).map(|(_, v)| v.as_str())
    }

    pub fn list(&self, key: &str) -> Option<Vec<String>> {
        self.get(key).map(|v| v.split(',').filter(|p| !p.is_empty()).map(str::to_owned).collect())
    }

    pub fn number<T: std::str::FromStr>(&self, key: &str) -> Option<T> {
        self.get(key).map(|v| v.parse().unwrap_or_else(|_| panic!("{key}={v} is no number")))
    }

    pub fn time(&self, key: &str) -> Option<Duration> {
        self.get(key).map(|v| parse_duration(v).unwrap())
    }
}
