//! Connections that are served by another thread than the one that accepted them; here both threads are tasks of one.

use super::*;
use crate::adopt;
use amphi_wire::Lane;

async fn parent(link: &Link<SimEnv>, n: u64) -> Result<Answer, crate::LinkError> {
    let call = Call { target: TargetId(0), cred: Cred::root(), op: Request::Parent { dir: Ino(n) } };
    Ok(link.call(Lane::Normal, call, None, 0).await?.0)
}

/// Goal: a connection that is handed over is served by the thread that adopts it, with the bytes that the client sent
/// meanwhile, and by no other; it counts where it was accepted until its end is reported; the next connection of the
/// session replaces it wherever it is; one that is not adopted is closed. Method: requests before and after the
/// connection is handed over, over many seeds.
#[test]
fn connections_are_served_elsewhere() {
    for seed in 0..20 {
        let place = Place::new(seed, Net::Socket);
        let other = TestServer::new(1, place.durable.clone());
        place.run(async {
            place.server.place.set(Some(3));
            let link = place.connect().await;
            // The client was welcomed, but nothing is read from it yet.
            let (early, ()) = futures_util::join!(parent(&link, 5), async {
                place.until(|| !place.server.parcels.borrow().is_empty()).await;
                place.client_env().sleep(Duration::from_millis(1)).await;
                let (to, parcel) = place.server.parcels.borrow_mut().remove(0);
                assert_eq!(to, 3);
                let conn = parcel.conn();
                adopt(&place.sim.node("server"), parcel, other.clone(), other.connections.clone());
                assert_eq!(*other.connected.borrow(), [conn]);
            });
            assert_eq!(early.expect("an answer").result, Ok(Reply::Ino(Ino(5))));
            assert_eq!(parent(&link, 6).await.expect("an answer").result, Ok(Reply::Ino(Ino(6))));
            assert_eq!((place.server.connections.count(), other.connections.count()), (0, 1));
            assert!(place.server.order.borrow().is_empty() && *other.order.borrow() == [5, 6]);

            // The next one is dropped on its way, the one behind it is served.
            place.sim.break_connections("client", "server");
            place.until(|| !place.server.parcels.borrow().is_empty()).await;
            drop(place.server.parcels.borrow_mut().remove(0));
            place.until(|| !place.server.parcels.borrow().is_empty()).await;
            let (_, parcel) = place.server.parcels.borrow_mut().remove(0);
            adopt(&place.sim.node("server"), parcel, other.clone(), other.connections.clone());
            assert_eq!(parent(&link, 7).await.expect("an answer").result, Ok(Reply::Ino(Ino(7))));
            place.until(|| other.connections.count() == 1).await;
            assert_eq!(other.disconnected.borrow().len(), 1);
            link.close().await;
            place.until(|| other.connections.count() == 0).await;
            (0..3).for_each(|_| place.server.connections.came_back());
        });
    }
}
