//! The ends of a [`MemFs`]: what a power cut leaves of it, and what the end of its process does.

#![forbid(unsafe_code)]

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

use super::node::FileNode;
use super::{DirNode, Effect, MemFs, Names, Node, SharedDir, SharedFile, set_name};

impl MemFs {
    /// The file system after a power cut: what was synced, and of the rest any subset. `choose(n)` gives a number below n and is asked for
    /// every decision, so that one seed gives one outcome.
    #[must_use]
    pub fn crash(&self, choose: &mut dyn FnMut(u64) -> u64) -> Self {
        // Everything kept and nothing kept are outcomes that a fair coin for each item would almost never give.
        let (keep_of, of) = [(0, 1), (1, 1), (1, 2), (1, 2), (7, 8), (1, 8)]
            .get(usize::try_from(choose(6)).unwrap_or(0))
            .copied()
            .unwrap_or((1, 2));
        let mut names: HashMap<*const RefCell<DirNode>, Names> = HashMap::new();
        for operation in self.state.pending.borrow().iter() {
            if choose(of) < keep_of {
                for effect in operation {
                    let names = names
                        .entry(Rc::as_ptr(&effect.dir))
                        .or_insert_with(|| effect.dir.borrow().durable.clone());
                    set_name(names, &effect.name, effect.node.as_ref());
                }
            }
        }
        let mut crash = Crash {
            names,
            done: HashMap::new(),
            keep_of,
            of,
            choose,
        };
        let root = crash.dir(&self.state.root);
        Self::with_root(root, Vec::new(), self.state.capacity.get())
    }

    /// The file system after the end of the process that used it: everything kept, what is not synced included (it still can be lost
    /// by a crash); locks are gone.
    #[must_use]
    pub fn kill(&self) -> Self {
        let mut copies = Copies::default();
        let root = copies.dir(&self.state.root);
        let pending = self.state.pending.borrow();
        let pending = pending.iter().map(|operation| {
            let effects = operation.iter().map(|effect| Effect {
                dir: copies.dir(&effect.dir),
                name: effect.name.clone(),
                node: effect.node.as_ref().map(|node| copies.node(node)),
            });
            effects.collect()
        });
        let pending = pending.collect();
        Self::with_root(root, pending, self.state.capacity.get())
    }
}

/// Builds the tree that a power cut leaves.
struct Crash<'a> {
    /// Names of the directories in which an operation was kept; the others hold their durable names.
    names: HashMap<*const RefCell<DirNode>, Names>,
    /// A file that two names stand for stays one file.
    done: HashMap<*const RefCell<FileNode>, SharedFile>,
    keep_of: u64,
    of: u64,
    choose: &'a mut dyn FnMut(u64) -> u64,
}

impl Crash<'_> {
    fn dir(&mut self, dir: &SharedDir) -> SharedDir {
        let names = match self.names.get(&Rc::as_ptr(dir)) {
            Some(names) => names.clone(),
            None => dir.borrow().durable.clone(),
        };
        let kept: Names = names
            .iter()
            .map(|(name, node)| (name.clone(), self.node(node)))
            .collect();
        Rc::new(RefCell::new(DirNode {
            live: kept.clone(),
            durable: kept,
        }))
    }

    fn node(&mut self, node: &Node) -> Node {
        match node {
            Node::Dir(dir) => Node::Dir(self.dir(dir)),
            Node::File(file) => {
                if let Some(done) = self.done.get(&Rc::as_ptr(file)) {
                    return Node::File(Rc::clone(done));
                }
                let kept = file.borrow().crash(self.keep_of, self.of, self.choose);
                let kept = Rc::new(RefCell::new(kept));
                self.done.insert(Rc::as_ptr(file), Rc::clone(&kept));
                Node::File(kept)
            }
        }
    }
}

/// Copies a tree whole, one copy for each file and directory.
#[derive(Default)]
struct Copies {
    files: HashMap<*const RefCell<FileNode>, SharedFile>,
    dirs: HashMap<*const RefCell<DirNode>, SharedDir>,
}

impl Copies {
    fn dir(&mut self, dir: &SharedDir) -> SharedDir {
        if let Some(copy) = self.dirs.get(&Rc::as_ptr(dir)) {
            return Rc::clone(copy);
        }
        let copy = SharedDir::default();
        self.dirs.insert(Rc::as_ptr(dir), Rc::clone(&copy));
        let from = dir.borrow();
        let live = from
            .live
            .iter()
            .map(|(name, node)| (name.clone(), self.node(node)))
            .collect();
        let durable = from
            .durable
            .iter()
            .map(|(name, node)| (name.clone(), self.node(node)))
            .collect();
        *copy.borrow_mut() = DirNode { live, durable };
        copy
    }

    fn node(&mut self, node: &Node) -> Node {
        match node {
            Node::Dir(dir) => Node::Dir(self.dir(dir)),
            Node::File(file) => {
                let copy = self
                    .files
                    .entry(Rc::as_ptr(file))
                    .or_insert_with(|| Rc::new(RefCell::new(file.borrow().copy())));
                Node::File(Rc::clone(copy))
            }
        }
    }
}
