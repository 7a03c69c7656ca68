//! What a release reports, after an earlier sending of it.

use super::*;

#[test]
fn an_earlier_sending_has_released_what_nobody_else_can_have_taken() {
    for (doubts, ahead, freed, outcome) in [
        (0, 60, FreeOutcome::Released, ReleaseOutcome::Released),
        (
            0,
            60,
            FreeOutcome::WasFree,
            ReleaseOutcome::Lost(Loss::TakenOver),
        ),
        (
            0,
            60,
            FreeOutcome::Superseded,
            ReleaseOutcome::Lost(Loss::TakenOver),
        ),
        (
            0,
            60,
            FreeOutcome::Expired,
            ReleaseOutcome::Lost(Loss::Expired),
        ),
        (1, 60, FreeOutcome::WasFree, ReleaseOutcome::Released),
        (1, 60, FreeOutcome::Superseded, ReleaseOutcome::Released),
        (
            1,
            60,
            FreeOutcome::Expired,
            ReleaseOutcome::Lost(Loss::Expired),
        ),
        (
            1,
            0,
            FreeOutcome::WasFree,
            ReleaseOutcome::Lost(Loss::Expired),
        ),
        (
            0,
            0,
            FreeOutcome::WasFree,
            ReleaseOutcome::Lost(Loss::TakenOver),
        ),
        (
            1,
            0,
            FreeOutcome::Superseded,
            ReleaseOutcome::Lost(Loss::TakenOver),
        ),
    ] {
        assert_eq!(freed_after(doubts > 0, doubts, ahead, &freed), outcome);
    }
    // A refused statement may have released the lease too: reading back can fail.
    for freed in [FreeOutcome::WasFree, FreeOutcome::Superseded] {
        assert_eq!(freed_after(true, 0, 60, &freed), ReleaseOutcome::Released);
    }
}

/// The outcome of a release that finds `freed`, `ahead` seconds before the deadline.
fn freed_after(sent: bool, doubts: u32, ahead: u64, freed: &FreeOutcome) -> ReleaseOutcome {
    let name = Name::new("a").unwrap();
    let deadline = Moment::now() + Duration::from_mins(1);
    let exact = ClockError::new(Duration::ZERO);
    let grant = Grant::new(name, Uuid::nil(), 1, TTL, exact, None, deadline);
    let progress = Progress {
        sent,
        doubts,
        ..Progress::within(PATIENCE)
    };
    let release = release::of(&Arc::new(grant), &Arc::default(), None, progress);
    let now = deadline - Duration::from_secs(ahead);
    release.request.outcome(&release.head.progress, freed, now)
}
