//! What the owners of waiters hold.

use super::*;
use crate::store::verbs::deadlock::TellParams;

/// More than a statement tells or forgets.
const MANY: i64 = 1_200;

impl Waits {
    pub(crate) fn look_params(&self) -> LookParams {
        LookParams {
            name: self.params.name.clone(),
            grant_id: self.params.grant_id,
            position: self.position,
        }
    }

    /// Its owner holds these grants.
    pub(crate) fn tells(&self, held: impl Iterator<Item = Uuid>) -> TellParams {
        TellParams {
            waiter: self.look_params(),
            owner: "owner".into(),
            held: held.collect(),
        }
    }
}

pub(crate) async fn what_an_owner_holds_is_told_and_forgotten<P: Place>(place: &P) {
    let mut client = Client::new(place).await;
    client.hold("a").await;
    let waits = [client.wait("a").await, client.wait("a").await];
    let told = "SELECT count(*) FROM rowlock_waiting_owner";
    for waits in &waits {
        let params = waits.tells((0..MANY).map(|_| Uuid::new_v4()));
        for _ in 0..2 {
            client.conn.deadlock_tell(&params).await.unwrap();
        }
    }
    assert_eq!(P::numbers(&mut client.conn, told).await, [2 * MANY]);
    let mut over: Vec<Uuid> = (0..MANY).map(|_| Uuid::new_v4()).collect();
    over.push(waits[1].params.grant_id);
    client.conn.deadlock_forget(&over).await.unwrap();
    let left = format!("{told} WHERE position = {}", waits[0].position);
    assert_eq!(P::numbers(&mut client.conn, &left).await, [MANY]);
    assert_eq!(P::numbers(&mut client.conn, told).await, [MANY]);
}
