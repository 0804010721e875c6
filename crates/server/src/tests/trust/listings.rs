//! Hostile mounts that list directories which their user may not read.

use super::*;
use amphi_types::SHARD_COOKIE_SHIFT;

impl Client {
    /// One request of a listing: the names, the last cookie, and whether they are the last.
    async fn list_from(&self, dir: Ino, cookie: u64) -> Result<(Vec<String>, u64, bool)> {
        match self.call(Request::ReadDir { dir, cookie, max: 7, plus: true }).await? {
            Reply::Entries { entries, end, .. } => {
                let last = entries.last().map_or(cookie, |entry| entry.cookie);
                Ok((entries.iter().map(|entry| entry.name.to_string()).collect(), last, end))
            }
            other => panic!("no entries: {other:?}"),
        }
    }
}

/// A directory of root's with 40 names, in one place or in a shard on each of two targets: where the names lie, and
/// with which cookie each part begins.
async fn directory(root: &Client, text: &str, sharded: bool) -> (Ino, Vec<(Ino, u64)>) {
    let dir = root.mkdir(Ino::ROOT, text).await.unwrap();
    let mut places = vec![dir];
    if sharded {
        root.inode(Request::SetShards { ino: dir, count: 2 }).await.unwrap();
        places = root.shards(dir).await.unwrap();
        assert!(places.len() == 2 && places[0].target() != places[1].target());
    }
    for n in 0..40 {
        root.create(dir, &format!("f{n}")).await.unwrap();
    }
    let first = |at: usize| if at == 0 { 0 } else { ((at as u64) << SHARD_COOKIE_SHIFT) - 1 };
    (dir, places.into_iter().enumerate().map(|(at, place)| (place, first(at))).collect())
}

async fn chmod(root: &Client, ino: Ino, perm: u16) {
    root.inode(Request::SetAttr { ino, set: SetAttr { perm: Some(perm), ..SetAttr::default() } }).await.unwrap();
}

/// Goal: a user cannot list a directory that he may not read, from whatever cookie, in none of its shards. Method: all
/// kinds of cookies, before and after another user of the same session has listed it.
#[test]
fn no_cookie_lists_a_closed_directory() {
    for sharded in [false, true] {
        with_server(872, 2, 1, async |place, root| {
            let (dir, parts) = directory(root, "closed", sharded).await;
            chmod(root, dir, 0o700).await;
            let c = place.users_client(5, Role::Mount).await.expect("let in");
            for by_root in [false, true] {
                for (at, first) in &parts {
                    for cookie in [*first, first + 1, first + 2, 1, 3, 1 << 20] {
                        assert_eq!(c.list_from(*at, cookie).await, Err(Errno::Access), "{at} from {cookie}");
                        *root.cred.borrow_mut() = user();
                        assert_eq!(root.list_from(*at, cookie).await, Err(Errno::Access), "{at} from {cookie}");
                        *root.cred.borrow_mut() = Cred::root();
                    }
                    if !by_root {
                        root.list_from(*at, *first).await.expect("root may");
                    }
                }
            }
        });
    }
}

/// Goal: a program that has begun to list a directory lists it to its end, also if its permissions are taken away
/// meanwhile, over all shards. It does not begin anew, and no other mount continues where it is. Method: chmod after
/// the first part.
#[test]
fn a_listing_goes_on() {
    for sharded in [false, true] {
        with_server(873, 2, 1, async |place, root| {
            let (dir, parts) = directory(root, "open", sharded).await;
            chmod(root, dir, 0o755).await;
            let c = place.users_client(5, Role::Mount).await.expect("let in");
            let d = place.users_client(6, Role::Mount).await.expect("let in");
            let (mut names, mut cookie, mut end) = c.list_from(parts[0].0, 0).await.expect("he may read it");
            chmod(root, dir, 0).await;
            for (n, (at, first)) in parts.iter().enumerate() {
                assert_eq!(d.list_from(*at, cookie.max(*first)).await, Err(Errno::Access), "another mount");
                if n > 0 {
                    (cookie, end) = (*first, false);
                }
                while !end {
                    let more = c.list_from(*at, cookie).await.expect("it goes on");
                    names.extend(more.0);
                    (cookie, end) = (more.1, more.2);
                }
            }
            assert_eq!(names.iter().collect::<std::collections::BTreeSet<_>>().len(), 40, "{names:?}");
            assert_eq!(names.len(), 40);
            assert_eq!(c.list_from(parts[0].0, 0).await, Err(Errno::Access), "from the start");
        });
    }
}
