//! What the clients got, compared with the books of the shop and of the provider.
//!
//! For each order there is one payment and one captured charge, whatever its keys asked for. All clients of one key
//! got the same bytes.

use std::collections::HashSet;

use super::campaign::{DECLINED, KEYS, Told, cents, orders};
use payments::database::Payment;
use payments::gateway::Entry;

/// Checks that each payable order has one captured charge and one payment of the same amount, and that there are no
/// others.
pub(super) fn judge(told: &Told, charges: &[Entry], payments: &[Payment]) {
    assert_eq!(told.len(), orders() * KEYS);
    for (of, answers) in told {
        assert_eq!(
            answers.len(),
            1,
            "{of:?}: its clients were told {answers:?}"
        );
    }
    let keys: HashSet<_> = charges.iter().map(|charge| &charge.key).collect();
    assert_eq!(keys.len(), charges.len(), "the provider's keys");
    let mut sums = (0, 0);
    for order in 0..orders() {
        let name = format!("order {order}");
        let of_order = charges.iter().filter(|charge| charge.reference == name);
        let (captured, declined): (Vec<_>, Vec<_>) =
            of_order.partition(|charge| charge.status == "captured");
        let payments: Vec<_> = payments
            .iter()
            .filter(|payment| payment.order_id == name)
            .collect();
        let payable = (0..KEYS).filter(|key| cents(order, *key) % 100 != DECLINED);
        let payable = payable.count();
        assert_eq!(
            captured.len(),
            payable.min(1),
            "{name}: charges {captured:?}"
        );
        assert_eq!(
            payments.len(),
            payable.min(1),
            "{name}: payments {payments:?}"
        );
        assert!(declined.len() <= KEYS - payable, "{name}: {declined:?}");
        for key in 0..KEYS {
            let answer = told[&(order, key)].iter().next().unwrap();
            let declines = cents(order, key) % 100 == DECLINED;
            match answer.status {
                402 => assert!(declines, "{name}, key {key}"),
                status => {
                    // A paid order is not charged again, even if the provider would decline the charge.
                    assert!(!declines || status == 409, "{name}, key {key}: {status}");
                    let paid: Payment = serde_json::from_slice(&answer.body).unwrap();
                    assert_eq!(&paid, payments[0], "{name}, key {key}");
                    assert_eq!(paid.amount_cents, captured[0].amount_cents, "{name}");
                }
            }
        }
        let created = (0..KEYS).filter(|key| {
            let answer = told[&(order, *key)].iter().next().unwrap();
            answer.status == 201
        });
        assert_eq!(created.count(), payable.min(1), "{name}: {told:?}");
        sums = (sums.0 + captured.len(), sums.1 + declined.len());
    }
    assert_eq!(sums.0 + sums.1, charges.len(), "charges of no order");
    assert_eq!(sums.0, payments.len(), "payments of no order");
}
