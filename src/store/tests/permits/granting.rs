//! Who is granted a permit.

use super::*;

pub(crate) async fn permits_are_granted_up_to_the_capacity(place: &impl Place) {
    let mut client = Client::new(place).await;
    let first = client.permit(TWO, 1).await;
    let second = client.permit(TWO, 1).await;
    assert!(second.number > first.number, "every grant has a new fence");
    let waits = client.waits(TWO, 1).await;
    assert!(waits_on(&client.looks(&waits).await));
    assert_eq!(client.used().await, [2, 2]);
    client.check().await;

    let next = vec![waits.params.join.grant_id];
    assert_eq!(client.releases(&first).await, FreeOutcome::Passed(next));
    assert_eq!(client.looks(&waits).await, LookOutcome::Granted);
    let ConfirmOutcome::Held { fence, .. } = client.confirms(&waits).await else {
        panic!("the window is open");
    };
    assert!(fence > second.number);
    assert_eq!(client.used().await, [2, 2]);
    assert_eq!(client.releases(&second).await, FreeOutcome::Released);
    assert_eq!(client.releases(&second).await, FreeOutcome::Superseded);
    assert_eq!(client.releases(&waits).await, FreeOutcome::Released);
    assert_eq!(client.used().await, [0, 0]);
    client.check().await;
}

pub(crate) async fn the_first_waiter_keeps_back_those_behind_it(place: &impl Place) {
    let kind = Kind::Semaphore { capacity: 4 };
    let mut client = Client::new(place).await;
    let three = client.permit(kind, 3).await;
    let heavy = client.waits(kind, 2).await;
    let light = client.waits(kind, 1).await;
    assert_eq!(client.passes(PassWhy::Orphaned).await, PassOutcome::NOTHING);
    let leaves = heavy.leaves();
    let granted = light.params.join.grant_id;
    assert_eq!(client.passes(leaves).await, granted_to(granted));
    let both = [client.waits(kind, 2).await, client.waits(kind, 1).await];
    let next = both
        .iter()
        .map(|waits| waits.params.join.grant_id)
        .collect();
    assert_eq!(client.releases(&three).await, FreeOutcome::Passed(next));
    assert_eq!(client.used().await, [4, 4]);
    client.check().await;
}

pub(crate) async fn many_readers_or_one_writer(place: &impl Place) {
    let (rw, all) = (Kind::ReadWrite, Kind::ALL);
    let mut client = Client::new(place).await;
    let readers = [client.permit(rw, 1).await, client.permit(rw, 1).await];
    assert_eq!(readers[0].number, readers[1].number, "the last write's");
    let writer = client.waits(rw, all).await;
    let behind = [client.waits(rw, 1).await, client.waits(rw, 1).await];
    assert_eq!(client.releases(&readers[0]).await, FreeOutcome::Released);
    let next = vec![writer.params.join.grant_id];
    assert_eq!(
        client.releases(&readers[1]).await,
        FreeOutcome::Passed(next)
    );
    let ConfirmOutcome::Held { fence, .. } = client.confirms(&writer).await else {
        panic!("the window is open");
    };
    assert!(fence > readers[0].number);
    let next = behind
        .iter()
        .map(|waits| waits.params.join.grant_id)
        .collect();
    assert_eq!(client.releases(&writer).await, FreeOutcome::Passed(next));
    for reader in &behind {
        let ConfirmOutcome::Held { fence: read, .. } = client.confirms(reader).await else {
            panic!("the window is open");
        };
        assert_eq!(read, fence, "readers have the fence of the last write");
    }
    client.check().await;
}

pub(crate) async fn a_permit_that_was_asked_for_twice_is_one(place: &impl Place) {
    let mut client = Client::new(place).await;
    let first = client.permit(TWO, 1).await;
    let again = client.joins_permits(&first.params).await;
    assert!(matches!(again, JoinOutcome::Granted { fence } if fence == first.number));
    let _ = client.permit(TWO, 1).await;
    let (waits, behind) = (client.waits(TWO, 1).await, client.waits(TWO, 1).await);
    let again = client.joins_permits(&behind.params).await;
    assert!(
        matches!(again, JoinOutcome::Queued { position, .. } if position == behind.number),
        "{again:?}"
    );
    // It was granted, and asks again: that confirms.
    assert!(matches!(
        client.releases(&first).await,
        FreeOutcome::Passed(_)
    ));
    assert!(matches!(
        client.joins_permits(&waits.params).await,
        JoinOutcome::Granted { .. }
    ));
    assert_eq!(client.used().await, [2, 2]);
    client.check().await;
}

pub(crate) async fn the_queue_for_permits_has_its_limit(place: &impl Place) {
    let mut client = Client::new(place).await;
    let _ = client.permit(TWO, 2).await;
    let mut params = client.asks(TWO, 1, false);
    params.join.most = 0;
    assert!(matches!(
        client.joins_permits(&params).await,
        JoinOutcome::Full(_)
    ));
    let waits = client.waits(TWO, 1).await;
    params.join.most = 1;
    assert!(
        matches!(client.joins_permits(&params).await, JoinOutcome::Full(row) if row.waiters == 1)
    );
    let anywhere = PassWhy::Left {
        grant_id: waits.params.join.grant_id,
        at: None,
    };
    assert_eq!(client.passes(anywhere).await, PassOutcome::NOTHING);
    assert!(matches!(
        client.joins_permits(&params).await,
        JoinOutcome::Queued { .. }
    ));
    client.check().await;
}

pub(crate) async fn a_name_has_one_kind_and_one_capacity(place: &impl Place) {
    let mut client = Client::new(place).await;
    let permit = client.permit(TWO, 1).await;
    for other in [Kind::ReadWrite, Kind::Semaphore { capacity: 3 }] {
        let params = client.asks(other, 1, false);
        let joined = client.joins_permits(&params).await;
        assert!(
            matches!(joined, JoinOutcome::Mismatch(Some(TWO))),
            "{joined:?}"
        );
    }
    let taken = client.take("a").await;
    assert!(
        matches!(&taken, TakeOutcome::Busy(Some(row)) if row.kind == Some(TWO)),
        "{taken:?}"
    );
    assert_eq!(client.releases(&permit).await, FreeOutcome::Released);
    let taken = client.take("a").await;
    assert!(
        matches!(&taken, TakeOutcome::Busy(Some(row)) if row.kind == Some(TWO)),
        "{taken:?}"
    );

    let TakeOutcome::Granted { .. } = client.take("b").await else {
        panic!("b is free");
    };
    let mut params = client.asks(TWO, 1, false);
    params.join.name = named("b");
    let joined = client.joins_permits(&params).await;
    assert!(
        matches!(joined, JoinOutcome::Mismatch(Some(Kind::Lock))),
        "{joined:?}"
    );
    let resized = client.conn.permit_resize(&named("b"), 5).await.unwrap();
    assert_eq!(resized, Some(ResizeOutcome::Mismatch(Some(Kind::Lock))));
}

pub(crate) async fn a_permit_is_renewed_and_listed(place: &impl Place) {
    let mut client = Client::new(place).await;
    let reader = client.permit(Kind::ReadWrite, 1).await;
    let name = named("a").permit(reader.params.join.grant_id);
    let params = RenewParams {
        name: name.clone(),
        grant_id: reader.params.join.grant_id,
        ttl: TTL * 2,
    };
    let renewed = client.conn.lease_renew(&[params]).await.unwrap();
    assert!(matches!(renewed[0], RenewOutcome::Live { remaining } if remaining > TTL));
    let rows = client
        .conn
        .list_rows(&KeyRange::of_prefix(b"a"))
        .await
        .unwrap();
    let live = rows.into_iter().filter(LockRow::is_live);
    let infos: Vec<_> = live.map(|row| row.info().unwrap()).collect();
    assert_eq!(infos.len(), 1, "{infos:?}");
    assert_eq!(infos[0].name, named("a"));
    assert_eq!(infos[0].mode, Mode::Read);
    let row = client
        .conn
        .lock_row(&named("a"), RowAction::Look)
        .await
        .unwrap();
    assert_eq!(
        row.expect("the row of the name").kind,
        Some(Kind::ReadWrite)
    );
}

pub(crate) async fn a_permit_gets_another_weight(place: &impl Place) {
    let (rw, all) = (Kind::ReadWrite, Kind::ALL);
    let mut client = Client::new(place).await;
    let (reader, other) = (client.permit(rw, 1).await, client.permit(rw, 1).await);
    assert_eq!(client.weighs(&reader, all).await, WeighOutcome::Full);
    let writer = client.waits(rw, all).await;
    assert_eq!(client.releases(&other).await, FreeOutcome::Released);
    let WeighOutcome::Done { fence, next } = client.weighs(&reader, all).await else {
        panic!("it is the only reader");
    };
    assert!(fence > reader.number && next.is_empty());
    assert_eq!(client.used().await, [i64::from(all); 2]);
    let behind = client.waits(rw, 1).await;
    // The first waiter is a writer, so nobody gets in.
    // A downgrade from before the upgrade comes too late.
    assert_eq!(client.weighs(&reader, 1).await, WeighOutcome::Stale(fence));
    let before = Asked {
        number: fence,
        ..reader
    };
    // So does one from before another upgrade, which found nothing to do.
    let WeighOutcome::Done { fence, .. } = client.weighs(&before, all).await else {
        panic!("it has that weight");
    };
    assert_eq!(client.weighs(&before, 1).await, WeighOutcome::Stale(fence));
    assert_eq!(client.used().await, [i64::from(all); 2]);
    let reader = Asked {
        number: fence,
        ..before
    };
    let done = WeighOutcome::Done {
        fence,
        next: vec![],
    };
    assert_eq!(client.weighs(&reader, 1).await, done);
    assert_eq!(client.weighs(&reader, 1).await, done);
    let leaves = writer.leaves();
    let granted = behind.params.join.grant_id;
    assert_eq!(client.passes(leaves).await, granted_to(granted));
    client.expire_grants().await;
    assert_eq!(client.weighs(&reader, 1).await, WeighOutcome::Gone);
    client.check().await;
}

pub(crate) async fn a_downgrade_lets_readers_in(place: &impl Place) {
    let (rw, all) = (Kind::ReadWrite, Kind::ALL);
    let mut client = Client::new(place).await;
    let writer = client.permit(rw, all).await;
    let readers = [client.waits(rw, 1).await, client.waits(rw, 1).await];
    let next = readers
        .iter()
        .map(|waits| waits.params.join.grant_id)
        .collect();
    let done = WeighOutcome::Done {
        fence: writer.number,
        next,
    };
    assert_eq!(client.weighs(&writer, 1).await, done);
    assert_eq!(client.used().await, [3, 3]);
    client.check().await;
}

pub(crate) async fn a_capacity_is_changed_in_use(place: &impl Place) {
    let mut client = Client::new(place).await;
    let made = client.conn.permit_resize(&named("a"), 2).await.unwrap();
    let nobody = Vec::new();
    let before = None;
    let next = nobody.clone();
    assert_eq!(made, Some(ResizeOutcome::Done { before, next }));
    let held = [client.permit(TWO, 1).await, client.permit(TWO, 1).await];
    let waits = client.waits(TWO, 1).await;
    let next = vec![waits.params.join.grant_id];
    let raised = client.conn.permit_resize(&named("a"), 3).await.unwrap();
    let before = Some(2);
    assert_eq!(raised, Some(ResizeOutcome::Done { before, next }));
    let lowered = client.conn.permit_resize(&named("a"), 1).await.unwrap();
    let before = Some(3);
    let next = nobody;
    assert_eq!(lowered, Some(ResizeOutcome::Done { before, next }));
    let one = Kind::Semaphore { capacity: 1 };
    let last = client.waits(one, 1).await;
    // No new permit before fewer than one is used.
    assert_eq!(client.releases(&held[0]).await, FreeOutcome::Released);
    assert_eq!(client.releases(&held[1]).await, FreeOutcome::Released);
    let next = vec![last.params.join.grant_id];
    assert_eq!(client.releases(&waits).await, FreeOutcome::Passed(next));
    client.check().await;
}

pub(crate) async fn a_waiter_that_is_too_heavy_for_a_new_capacity_is_removed(place: &impl Place) {
    let ten = Kind::Semaphore { capacity: 10 };
    let mut client = Client::new(place).await;
    let held = client.permit(ten, 5).await;
    let heavy = [client.waits(ten, 8).await, client.waits(ten, 6).await];
    let fits = [client.waits(ten, 5).await, client.waits(ten, 1).await];
    let resized = client.conn.permit_resize(&named("a"), 5).await.unwrap();
    let (before, next) = (Some(10), Vec::new());
    assert_eq!(resized, Some(ResizeOutcome::Done { before, next }));
    client.check().await;
    for waits in &heavy {
        assert_eq!(client.looks(waits).await, LookOutcome::Gone);
        let joined = client.joins_permits(&waits.params).await;
        assert!(matches!(joined, JoinOutcome::Mismatch(_)), "{joined:?}");
    }
    assert_eq!(client.row("a").await.waiters, 2);
    let next = vec![fits[0].params.join.grant_id];
    assert_eq!(client.releases(&held).await, FreeOutcome::Passed(next));
    let next = vec![fits[1].params.join.grant_id];
    assert_eq!(client.releases(&fits[0]).await, FreeOutcome::Passed(next));
    client.check().await;
}

pub(crate) async fn at_most_a_hundred_waiters_are_granted_at_once(place: &impl Place) {
    let (rw, all) = (Kind::ReadWrite, Kind::ALL);
    let mut client = Client::with_ttl(place, LONG_TTL).await;
    let mut dies = Client::with_ttl(place, LONG_TTL).await;
    let writer = client.permit(rw, all).await;
    let _ = dies.waits(rw, all).await;
    let mut readers = Vec::new();
    for _ in 0..MOST + 20 {
        readers.push(client.waits(rw, 1).await);
    }
    dies.expire().await;
    let grants = |readers: &[Asked]| {
        let grants = readers.iter().map(|reader| reader.params.join.grant_id);
        grants.collect::<Vec<_>>()
    };
    let next = grants(&readers[..MOST]);
    assert_eq!(client.releases(&writer).await, FreeOutcome::Passed(next));
    client.check().await;
    assert_eq!(client.used().await, [i64::try_from(MOST).unwrap(); 2]);
    // Those that are left find it.
    assert!(is_orphaned(&client.looks(&readers[MOST]).await));
    let next = grants(&readers[MOST..]);
    let ended = EndedGrant::Nothing;
    assert_eq!(
        client.passes(PassWhy::Orphaned).await,
        PassOutcome { ended, next }
    );
    let ConfirmOutcome::Held { fence, .. } = client.confirms(&readers[MOST + 1]).await else {
        panic!("the window is open");
    };
    assert_eq!(fence, writer.number, "the last write's");
    assert_eq!(client.passes(PassWhy::Orphaned).await, PassOutcome::NOTHING);
    client.check().await;
}

pub(crate) async fn a_change_of_weight_grants_a_hundred_too(place: &impl Place) {
    let (rw, all) = (Kind::ReadWrite, Kind::ALL);
    let mut client = Client::with_ttl(place, LONG_TTL).await;
    let writer = client.permit(rw, all).await;
    for _ in 0..=MOST {
        let _ = client.waits(rw, 1).await;
    }
    let weighed = client.weighs(&writer, 1).await;
    assert!(
        matches!(&weighed, WeighOutcome::Done { next, .. } if next.len() == MOST),
        "{weighed:?}"
    );
    assert_eq!(client.passes(PassWhy::Orphaned).await.next.len(), 1);
    client.check().await;
}
