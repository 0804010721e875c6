//! Trees of directories that are charged to a project.

use super::harness::{Cluster, dump, recover};
use crate::plan::NodeSpec;
use crate::{MetaStore, RenameMode};
use amphi_types::item::ItemStore;
use amphi_types::{Account, AccountKind, Cred, Errno, Ino, Name, SetAttr, TargetId};

const PROJECT: Account = Account { kind: AccountKind::Project, id: 7 };

fn name(text: &str) -> Name {
    Name::new(text).unwrap()
}

fn set_project(c: &mut Cluster, cred: &Cred, ino: Ino, project: u32) -> Result<(), Errno> {
    c.setattr(cred, ino, &SetAttr { project: Some(project), ..SetAttr::default() })
}

/// A tree of project 7 with a directory and a file in it, and a tree next to it.
fn trees() -> (Cluster, [Ino; 4]) {
    let root = Cred::root();
    let mut c = Cluster::new(1, 1, u64::MAX, None);
    let [tree, other] = ["tree", "other"].map(|n| c.make(&root, Ino::ROOT, &name(n), &NodeSpec::dir(0o777)).unwrap());
    set_project(&mut c, &root, tree, PROJECT.id).unwrap();
    let dir = c.make(&root, tree, &name("dir"), &NodeSpec::dir(0o777)).unwrap();
    let file = c.make(&root, dir, &name("file"), &NodeSpec::file(0o666)).unwrap();
    (c, [tree, other, dir, file])
}

/// Goal: a file made in a tree belongs to it, and is counted, also after a start; only an administrator can take it
/// out. Method: a sequence of steps, the items into another store.
#[test]
fn what_is_made_in_a_tree_belongs_to_it() {
    let (mut c, [tree, _, dir, file]) = trees();
    let tmp = c.tmpfile(&Cred::root(), dir, 0o600).unwrap();
    c.stores[0].set_counting(true);
    assert!([tree, dir, file, tmp].iter().all(|ino| c.stores[0].charged(*ino).unwrap().project == 7));
    assert_eq!((c.stores[0].used(PROJECT), c.stores[0].facts(file).unwrap().project), (4, 7));
    let user = Cred::new(10, 10, vec![]);
    c.setattr(&Cred::root(), file, &SetAttr { uid: Some(10), gid: Some(10), ..SetAttr::default() }).unwrap();
    assert_eq!(set_project(&mut c, &user, file, 0), Err(Errno::Perm));
    assert_eq!(set_project(&mut c, &user, file, 7), Ok(()), "it is no change");
    assert_eq!(set_project(&mut c, &Cred::root(), file, 0), Ok(()));
    assert_eq!(c.stores[0].used(PROJECT), 3);
    let items = dump(&c.stores[0], 3);
    let mut again = recover(TargetId(0), &items, u64::MAX).unwrap();
    again.set_counting(true);
    assert!(again.accounts().eq(c.stores[0].accounts()));
    assert_eq!((again.charged(file).unwrap().project, again.charged(dir).unwrap().project), (0, 7));
    c.stores[0].set_counting(false);
    assert_eq!(c.stores[0].accounts().count(), 0);
}

/// Goal: no file can be moved or linked into a tree or out of it, but the tree itself may be renamed within its
/// directory. Method: a table.
#[test]
fn nothing_crosses_the_border_of_a_tree() {
    let (mut c, [tree, other, dir, file]) = trees();
    let root = Cred::root();
    let plain = c.make(&root, other, &name("plain"), &NodeSpec::file(0o666)).unwrap();
    let mut rename = |from: (Ino, &str), to: (Ino, &str), mode| {
        c.rename(&root, (from.0, &name(from.1)), (to.0, &name(to.1)), mode, false).map(drop)
    };
    let (crosses, replace, exchange) = (Err(Errno::CrossDevice), RenameMode::Replace, RenameMode::Exchange);
    assert_eq!(rename((dir, "file"), (other, "x"), replace), crosses);
    assert_eq!(rename((other, "plain"), (dir, "x"), replace), crosses);
    assert_eq!(rename((other, "plain"), (dir, "file"), exchange), crosses);
    assert_eq!(rename((Ino::ROOT, "other"), (tree, "x"), replace), crosses);
    assert_eq!(rename((dir, "file"), (tree, "file"), replace), Ok(()));
    assert_eq!(rename((Ino::ROOT, "tree"), (Ino::ROOT, "moved"), replace), Ok(()));
    assert_eq!(rename((Ino::ROOT, "moved"), (other, "moved"), replace), Ok(()), "neither directory has a project");
    assert_eq!(c.link(&root, plain, tree, &name("x")), crosses);
    assert_eq!(c.link(&root, file, other, &name("x")), crosses);
    assert_eq!(c.link(&root, file, dir, &name("x")), Ok(()));
}

/// Goal: an inode item without a project, or with one that is cut, is refused. Method: items whose bytes the test
/// composes.
#[test]
fn cut_projects_are_refused() {
    let (c, [tree, ..]) = trees();
    let items = dump(&c.stores[0], 9);
    let (key, value) = items.iter().find(|(_, value)| value.first() == Some(&2)).expect("the tree has a project");
    assert_eq!(c.stores[0].charged(tree).unwrap().project, 7);
    for bad in [value[..value.len() - 1].to_vec(), [&value[..value.len() - 4], &[0; 4]].concat(), vec![2, 7, 0, 0, 0]] {
        assert!(MetaStore::empty(TargetId(0)).load(key, &bad).is_err(), "{bad:?}");
    }
}
