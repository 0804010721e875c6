//! The calls of `rights` on mounts with keys: a key that is bound to a tree, a key whose root is squashed, a key with
//! all users squashed to one, a read-only key, and a key with mappings of users. The results are compared with the
//! machine's own file system, used as NFS would use it with the options of these names.

use crate::harness::Place;
use crate::keys::{Cluster, done};
use crate::rights::{OTHER, OWNER, Said, Versus, can_change_user, own_folder};
use rustix::fs::{Mode, chmod};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The user as whom squashed users count.
const NOBODY: u32 = 65_534;
const USERS: [(u32, u32); 3] = [(0, 0), (OWNER, OWNER), (OTHER, OTHER)];

struct Scene {
    cluster: Cluster,
    own: PathBuf,
}

impl Scene {
    fn new() -> Option<Scene> {
        if !can_change_user() {
            return None;
        }
        let cluster = Cluster::start();
        let own = own_folder(&cluster.place);
        Some(Scene { cluster, own })
    }

    /// Compares the calls on a mount with these options of its key. `at` is the place of its root.
    fn compare(self, at: &str, options: &[&str], versus: impl FnOnce(&Versus)) {
        let trusted = self.cluster.trusted();
        let planted = self.cluster.place.path("trusted").join(at);
        fs::create_dir_all(&planted).expect("mkdir");
        chmod(&planted, Mode::from_raw_mode(0o755)).expect("chmod");
        let tree = planted.display().to_string();
        let bound = ["--subtree", &tree];
        if !at.is_empty() {
            done(&["quota", "track", &tree]);
        }
        let options = [options, if at.is_empty() { &[] } else { &bound }].concat();
        let host = self.cluster.host("node", &options);
        let called = self.cluster.place.path("node");
        versus(&Versus {
            planted: &planted,
            called: &called,
            own: &self.own,
            own_called: &self.own,
            users: &USERS,
            sees: true,
            shift: 0,
            may_differ: |_, _, _| false,
        });
        host.stop();
        trusted.stop();
        self.cluster.server.stop();
        self.cluster.place.fsck();
    }
}

/// Goal: on a mount that is bound to a tree, root, an owner and another user have the same rights as on the machine's
/// own file system. Method: the calls of `rights`, on trees that another mount has made.
#[test]
fn rights_within_a_tree() {
    let Some(scene) = Scene::new() else { return };
    scene.compare("tree", &["--root", "keep"], |versus| versus.compare());
}

/// Goal: where only root is squashed, other users have the rights that they have on the machine's own file system (NFS:
/// `root_squash`). Method: as in the test above, by an owner and by another user.
#[test]
fn rights_where_root_is_squashed() {
    let Some(scene) = Scene::new() else { return };
    scene.compare("", &[], |versus| Versus { users: &USERS[1..], sees: false, ..*versus }.compare());
}

/// Goal: where all users count as one, nobody has the rights of another user (NFS: `all_squash`). Method: as above. All
/// users are squashed to one without groups who owns nothing. The kernel of the client uses the caller's identity on
/// the client, and may refuse with its own errno before the server gets the request.
#[test]
fn rights_where_all_are_one() {
    let Some(scene) = Scene::new() else { return };
    let one = format!("{NOBODY}:{NOBODY}");
    scene.compare("", &["--all", &one], |versus| {
        // Here the entries that a call makes belong to another user, NOBODY. So only calls by this user can be compared
        // throughout.
        Versus { users: &[(NOBODY, NOBODY)], sees: false, ..*versus }.compare();
    });
}

/// Goal: users and groups that are others on the servers have, by their numbers at the client, the rights that they
/// have on the machine's own file system with these numbers. Method: trees whose owners are the servers'
/// numbers; maps back.
#[test]
fn rights_of_mapped_users() {
    let Some(scene) = Scene::new() else { return };
    let maps = ["--root", "keep", "--uids", "0:50000:30000", "--gids", "0:50000:30000"];
    scene.compare("", &maps, |versus| Versus { users: &USERS[1..], sees: false, shift: 50_000, ..*versus }.compare());
}

/// A read-only view of a folder of the machine.
struct ReadOnly(PathBuf);

impl ReadOnly {
    fn of(folder: &Path, place: &Place) -> ReadOnly {
        let at = place.path("own-ro");
        fs::create_dir(&at).expect("mkdir");
        let mount = |args: &[&str]| {
            let done = Command::new("mount").args(args).arg(&at).status().expect("mount runs");
            assert!(done.success(), "mount {args:?}");
        };
        mount(&["--bind", folder.to_str().expect("UTF-8")]);
        mount(&["-o", "remount,bind,ro"]);
        ReadOnly(at)
    }
}

impl Drop for ReadOnly {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.0).status();
    }
}

/// Goal: with a read-only key everybody reads what he may, and changes nothing (NFS: `ro`). Method: as above, compared
/// with a read-only mount of the machine's own file system. If both refuse, the errnos may differ: that kernel knows
/// that the mount is read-only before it looks at permissions, and here the server reports this after it has checked
/// them.
#[test]
fn rights_of_a_read_only_key() {
    let Some(scene) = Scene::new() else { return };
    let view = ReadOnly::of(&scene.own, &scene.cluster.place);
    let own_called = view.0.clone();
    // On AmphiFS, access(2) uses only the mode bits here.
    let differs = |what: &str, _, got: &Said| got.is_err() || what == "access for writing";
    scene.compare("", &["--root", "keep", "--read-only"], |versus| {
        Versus { own_called: &own_called, may_differ: differs, ..*versus }.compare();
    });
    drop(view);
}
