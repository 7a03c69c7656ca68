//! The fingerprint of a call: a function and its arguments, as JSON.

use serde::Serialize;

use crate::model::{Error, Fingerprint, FingerprintBuilder, Outcome};

/// A call of a function, which becomes a [`Fingerprint`]. Two calls have the same fingerprint if they have the same
/// function, and the same arguments under the same names in the same order.
///
/// An argument counts as JSON. The fields of an object count in any order, so a `HashMap` counts by what it contains.
/// The elements of an array count in their order: give no `HashSet`, whose order changes. A number counts as it is
/// written: 1.0 and 1 differ. Below 64 levels, the fields of an object count in their order, too.
///
/// ```
/// use rowlock::attributes::Call;
///
/// let pay = |user, cents| Call::of("shop::pay").argument("user", &user)?.argument("cents", &cents);
/// assert_eq!(pay("alice", 500)?.finish(), pay("alice", 500)?.finish());
/// assert_ne!(pay("alice", 500)?.finish(), pay("alice", 501)?.finish());
/// # Ok::<(), rowlock::Error>(())
/// ```
#[derive(Debug, Clone)]
#[must_use = "finish it"]
pub struct Call(FingerprintBuilder);

impl Call {
    /// A call of `function`. Its name is any text that no other function uses.
    pub fn of(function: &str) -> Self {
        Self(Fingerprint::builder().part("rowlock.call").part(function))
    }

    /// The function is a method of `T`, or one of its associated functions: the type counts, by its path
    /// ([`type_name`](std::any::type_name)).
    pub fn method_of<T: ?Sized>(self) -> Self {
        self.within(std::any::type_name::<T>())
    }

    fn within(self, place: &str) -> Self {
        Self(self.0.part("within").part(place))
    }

    /// A call of `function`, in which `item` is: an empty function in its body. If the path of `item` tells that
    /// `function` belongs to a type or stands in another function, that counts, too. For the attribute `idempotent`,
    /// which does not see it.
    pub fn here<F: Copy>(function: &str, item: F) -> Self {
        let path = std::any::type_name_of_val(&item).replace("::{{closure}}", "");
        match path.rsplit_once("::") {
            Some((place, _)) if place != function => Self::of(function).within(place),
            _ => Self::of(function),
        }
    }

    /// Adds an argument.
    ///
    /// # Errors
    ///
    /// [`RecordError::Json`](crate::RecordError::Json) when JSON cannot represent the value.
    pub fn argument(self, name: &str, value: &(impl Serialize + ?Sized)) -> Result<Self, Error> {
        let json = Outcome::json(&value)?;
        Ok(Self(self.0.part(name).json(json.bytes())?))
    }

    /// The fingerprint of the call.
    #[must_use]
    pub fn finish(self) -> Fingerprint {
        self.0.finish()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;
    use crate::model::RecordError;

    fn of(value: &(impl Serialize + ?Sized)) -> Fingerprint {
        let call = Call::of("pay").argument("it", value);
        call.unwrap().finish()
    }

    #[test]
    fn the_order_of_a_map_makes_no_difference() {
        let order = |keys: &[u32]| {
            let entries = keys.iter().map(|key| (key.to_string(), vec![*key]));
            entries.collect::<HashMap<_, _>>()
        };
        // Each map has an order of its own.
        for _ in 0..50 {
            assert_eq!(of(&[order(&[1, 2, 3, 4])]), of(&[order(&[4, 3, 2, 1])]));
        }
        assert_ne!(of(&order(&[1, 2])), of(&order(&[1, 3])));
    }

    #[test]
    fn whatever_differs_is_another_request() {
        let base = || Call::of("pay").argument("from", "a").unwrap();
        let one = base().argument("to", "b").unwrap().finish();
        let others = [
            Call::of("refund")
                .argument("from", "a")
                .unwrap()
                .argument("to", "b"),
            Call::of("pay")
                .argument("to", "a")
                .unwrap()
                .argument("from", "b"),
            Call::of("pay")
                .argument("from", "b")
                .unwrap()
                .argument("to", "a"),
            base().argument("to", &["b"]),
            base().argument("to", &Some("c")),
            base().argument("to", "b").unwrap().argument("now", &true),
        ];
        for other in others {
            assert_ne!(one, other.unwrap().finish());
        }
        assert_ne!(one, base().finish());
        assert_eq!(one, base().argument("to", &Some("b")).unwrap().finish());
    }

    #[test]
    fn methods_of_two_types_are_two_functions() {
        let of = |call: Call| call.finish();
        let base = || Call::of("shop::pay");
        assert_ne!(of(base()), of(base().method_of::<u8>()));
        assert_ne!(of(base().method_of::<u8>()), of(base().method_of::<str>()));
    }

    #[test]
    fn what_json_would_write_as_null_is_an_error() {
        for number in [f64::NAN, f64::INFINITY] {
            let call = Call::of("pay").argument("cents", &Some(number));
            assert!(
                matches!(call, Err(Error::Record(RecordError::Json { .. }))),
                "{call:?}"
            );
        }
    }

    #[test]
    fn what_a_float_would_make_one_are_two() {
        assert_ne!(of(&u128::MAX), of(&(u128::MAX - 1)));
        assert_ne!(of(&1), of("1"));
    }

    #[test]
    fn a_field_that_stands_there_twice_is_another_request() {
        #[derive(Serialize)]
        struct Twice {
            cents: u32,
            #[serde(flatten)]
            more: HashMap<&'static str, u32>,
        }
        let twice = |cents| Twice {
            cents,
            more: HashMap::from([("cents", 7)]),
        };
        assert_ne!(of(&twice(1)), of(&twice(2)));
    }

    #[test]
    fn what_json_cannot_represent_is_an_error() {
        let keys = HashMap::from([(vec![1], 1)]);
        let call = Call::of("pay").argument("it", &keys);
        assert!(
            matches!(call, Err(Error::Record(RecordError::Json { .. }))),
            "{call:?}"
        );
    }

    #[test]
    fn what_is_nested_deeply_still_counts() {
        let nested = |inside: &str| {
            let depth = 100;
            let json = format!("{}{inside}{}", "[".repeat(depth), "]".repeat(depth));
            of(&serde_json::from_str::<serde_json::Value>(&json).unwrap())
        };
        assert_ne!(nested("1"), nested("2"));
    }
}
