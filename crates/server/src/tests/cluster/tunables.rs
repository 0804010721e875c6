//! Tunables over several servers.

use super::*;
use crate::tunables::Tunable;

/// Goal: a set value is in force on all servers, even on one that was down, restarts or joins later. The configuration
/// gives the first values of a server. Method: one server is killed and another one is cut off while values are set,
/// and a third one joins afterwards. The values in each process are checked.
#[test]
fn what_was_set_reaches_every_server() {
    let world = World::new(710, &[1, 1, 1, 2], 2);
    let run = async {
        let mut servers = Vec::new();
        for at in 0..3 {
            let mut config = world.config(at);
            config.tunables = vec![("server.token_ms".into(), (40 + at).to_string())];
            servers.push(Some(Server::start(world.node(at), config).await.unwrap()));
        }
        let m = world.mount(1).await.unwrap();
        let set = async |name: &str, value: &str| {
            m.call(Request::Tunables { pattern: format!("server.{name}"), value: Some(value.into()) }).await.unwrap();
        };
        let tries = |servers: &[Option<Rc<Server<SimEnv>>>]| -> Vec<u64> {
            servers.iter().flatten().map(|s| s.worker.tunables.get(Tunable::TokenMs)).collect()
        };
        assert_eq!(tries(&servers), [40, 41, 42], "as configured");
        set("token_ms", "7").await;
        assert_eq!(tries(&servers), [7; 3]);
        crash(&world, 1, CrashKind::Process);
        servers[1] = None;
        world.sim.cut("s0", "s2");
        set("token_ms", "8").await;
        set("token_*", "9").await;
        set("lock_growth", "off").await;
        assert_eq!(tries(&servers), [9, 7], "the first and the one that is cut off");
        world.sim.heal("s0", "s2");
        servers[1] = Some(world.start(1).await.unwrap());
        servers.push(Some(world.start(3).await.unwrap()));
        sleep(&world, Duration::from_secs(20)).await;
        assert_eq!(tries(&servers), [9; 4]);
        assert!(servers.iter().flatten().all(|s| !s.worker.tunables.on(Tunable::LockGrowth)));
        let mut wrong = world.config(3);
        for (name, words) in [("server.no_such", "no such tunable"), ("server.token_ms", "is no value for it")] {
            wrong.tunables = vec![(name.into(), "many".into())];
            let error = Server::start(world.sim.node("x"), wrong.clone()).await.err().expect("refused");
            assert!(error.line.contains(words), "{error}");
        }
        m.goodbye().await;
        world.stop_all(servers).await;
    };
    world.sim.block_on(run).unwrap();
}
