//! The task graph: dependencies and containment as one relation, its cycles, and a topological order.

use super::id::TaskPath;
use super::task::Wish;
use std::collections::{BTreeMap, BTreeSet};

/// What each task waits for: its own dependencies, those of the tasks that contain it, and (for a parent) its children.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Graph {
    needs: BTreeMap<TaskPath, BTreeSet<TaskPath>>,
    children: BTreeMap<TaskPath, BTreeSet<TaskPath>>,
}

impl Graph {
    /// Builds the graph of all wishes. Needs that name no task are kept; the caller tells whether they are known.
    pub fn build<'a>(wishes: impl Iterator<Item = (&'a TaskPath, &'a Wish)>) -> Self {
        let wishes: BTreeMap<_, _> = wishes.collect();
        let mut graph = Self::default();
        for path in wishes.keys() {
            let mut needs = BTreeSet::new();
            let mut at = Some((*path).clone());
            while let Some(here) = at {
                if let Some(wish) = wishes.get(&here) {
                    needs.extend(wish.depends_on.iter().cloned());
                }
                at = here.parent();
            }
            if let Some(parent) = path.parent().filter(|p| wishes.contains_key(p)) {
                graph.children.entry(parent).or_default().insert((*path).clone());
            }
            graph.needs.insert((*path).clone(), needs);
        }
        graph
    }

    /// What `path` needs before it may start, inherited needs included; children are not in it.
    pub fn needs(&self, path: &TaskPath) -> impl Iterator<Item = &TaskPath> {
        self.needs.get(path).into_iter().flatten()
    }

    /// The direct sub-tasks.
    pub fn children(&self, path: &TaskPath) -> impl Iterator<Item = &TaskPath> {
        self.children.get(path).into_iter().flatten()
    }

    pub fn is_parent(&self, path: &TaskPath) -> bool {
        self.children.contains_key(path)
    }

    /// Everything that must be over before `path` is: its needs and its children.
    fn before(&self, path: &TaskPath) -> impl Iterator<Item = &TaskPath> {
        self.needs(path).chain(self.children(path)).filter(|p| self.needs.contains_key(*p))
    }

    /// Every cycle once, as the full path in order, its smallest member first; a task that needs itself (or a task that
    /// contains it) is a cycle too. Each task is named in one cycle at most.
    pub fn cycles(&self) -> Vec<Vec<TaskPath>> {
        let mut cycles = Vec::new();
        // 0 unseen, 1 on the stack, 2 done. An explicit stack: graphs are as deep as people make them.
        let mut seen: BTreeMap<&TaskPath, u8> = BTreeMap::new();
        for root in self.needs.keys() {
            if seen.contains_key(root) {
                continue;
            }
            let mut stack: Vec<(&TaskPath, Vec<&TaskPath>)> = vec![(root, self.before(root).collect())];
            seen.insert(root, 1);
            while let Some((here, rest)) = stack.last_mut() {
                let Some(next) = rest.pop() else {
                    seen.insert(here, 2);
                    stack.pop();
                    continue;
                };
                match seen.get(next) {
                    None => {
                        seen.insert(next, 1);
                        stack.push((next, self.before(next).collect()));
                    }
                    Some(1) => {
                        let from = stack.iter().position(|(p, _)| *p == next).unwrap_or(0);
                        let mut cycle: Vec<TaskPath> = stack[from..].iter().map(|(p, _)| (*p).clone()).collect();
                        let least = (0..cycle.len()).min_by_key(|i| &cycle[*i]).unwrap_or(0);
                        cycle.rotate_left(least);
                        cycles.push(cycle);
                    }
                    Some(_) => {}
                }
            }
        }
        cycles.sort();
        cycles.dedup();
        cycles
    }

    /// Position of each task in one fixed topological order: needs first, ties by path. Tasks on a cycle come last.
    pub fn order(&self) -> BTreeMap<TaskPath, usize> {
        let mut waits: BTreeMap<&TaskPath, usize> = BTreeMap::new();
        let mut dependants: BTreeMap<&TaskPath, Vec<&TaskPath>> = BTreeMap::new();
        for path in self.needs.keys() {
            let before: BTreeSet<_> = self.before(path).collect();
            waits.insert(path, before.len());
            for need in before {
                dependants.entry(need).or_default().push(path);
            }
        }
        let mut ready: BTreeSet<&TaskPath> = waits.iter().filter(|(_, n)| **n == 0).map(|(p, _)| *p).collect();
        let mut order = BTreeMap::new();
        while let Some(path) = ready.pop_first() {
            order.insert(path.clone(), order.len());
            for next in dependants.get(path).into_iter().flatten() {
                if let Some(n) = waits.get_mut(next) {
                    *n -= 1;
                    if *n == 0 {
                        ready.insert(next);
                    }
                }
            }
        }
        for path in self.needs.keys() {
            let at = order.len();
            order.entry(path.clone()).or_insert(at);
        }
        order
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn graph(edges: &[(&str, &[&str])]) -> Graph {
        let wishes: BTreeMap<TaskPath, Wish> = edges
            .iter()
            .map(|(path, needs)| {
                let depends_on = needs.iter().map(|n| TaskPath::parse(n).unwrap()).collect();
                (TaskPath::parse(path).unwrap(), Wish { depends_on, ..Wish::default() })
            })
            .collect();
        Graph::build(wishes.iter())
    }

    fn words(cycles: &[Vec<TaskPath>]) -> Vec<String> {
        cycles.iter().map(|c| c.iter().map(|p| p.as_str()).collect::<Vec<_>>().join(" ")).collect()
    }

    #[test]
    fn cycles_are_named_in_full_and_once() {
        let g = graph(&[("x", &["y"]), ("y", &["z"]), ("z", &["x"]), ("s", &["s"]), ("k", &[]), ("m", &["x"])]);
        assert_eq!(words(&g.cycles()), ["s", "x y z"]);
    }

    #[test]
    fn containment_counts_as_an_edge() {
        assert_eq!(words(&graph(&[("p", &["p/c"]), ("p/c", &["p"])]).cycles()), ["p p/c", "p/c"]);
        assert_eq!(words(&graph(&[("p", &[]), ("p/c", &[]), ("p/d", &["p/c"])]).cycles()), Vec::<String>::new());
    }

    #[test]
    fn the_order_respects_needs_and_is_fixed() {
        let g = graph(&[("d", &[]), ("e", &["d"]), ("f", &["d"]), ("g", &["e", "f"]), ("a", &["g"])]);
        let order = g.order();
        let at = |t: &str| order[&TaskPath::parse(t).unwrap()];
        assert!(at("d") < at("e") && at("e") < at("f") && at("f") < at("g") && at("g") < at("a"));
    }

    #[test]
    fn children_inherit_the_needs_of_what_contains_them() {
        let g = graph(&[("p", &["q"]), ("p/c", &[]), ("q", &[])]);
        assert_eq!(g.needs(&TaskPath::parse("p/c").unwrap()).count(), 1);
    }
}
